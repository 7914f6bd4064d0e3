// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

namespace dsakit {
class Context;
namespace python {

void bind_operators(nanobind::module_&);
void bind_files(nanobind::module_&);
void bind_model(nanobind::module_&);

/// The process's default context, polling Python's signals during calls.
Context& context();

}  // namespace python
}  // namespace dsakit
