// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <memory>
#include <string>

namespace dsakit {
class Context;
class Group;
namespace python {

void bind_operators(nanobind::module_&);
void bind_files(nanobind::module_&);
void bind_model(nanobind::module_&);
void bind_hf(nanobind::module_&);
void bind_pypto(nanobind::module_&);
void bind_dist(nanobind::module_&);
void bind_debug(nanobind::module_&);

/// The process's default context, polling Python's signals during calls.
Context& context();

/// Of a dsakit.dist.Group, or of any object with its methods.
std::shared_ptr<Group> group_of(nanobind::handle);

/// A str, bytes or os.PathLike.
std::string path_of(nanobind::handle path);

}  // namespace python
}  // namespace dsakit
