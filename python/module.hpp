// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <string>

namespace dsakit {
class Context;
namespace python {

void bind_operators(nanobind::module_&);
void bind_files(nanobind::module_&);
void bind_model(nanobind::module_&);
void bind_hf(nanobind::module_&);
void bind_pypto(nanobind::module_&);

/// The process's default context, polling Python's signals during calls.
Context& context();

/// A str, bytes or os.PathLike.
std::string path_of(nanobind::handle path);

}  // namespace python
}  // namespace dsakit
