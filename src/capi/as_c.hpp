// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <deque>
#include <string>
#include <type_traits>
#include <vector>

#include "core/dlpack.hpp"
#include "dsakit/dsakit.h"
#include "ops/describe.hpp"

// For tests and benches: a call of the C++ interface as the C interface has it.
namespace dsakit::capi {

/// Every tensor that is given and every attribute, in the documented order. Keeps what the arguments point to; not for
/// packed weights, which are handles there.
class AsC {
 public:
  template <class Args, class Outs>
  AsC(const Args& args, const Outs& outs) {
    for_each_field(args, outs, [&](const Field& f, const auto& value) { add(f.name, value); });
  }
  AsC(const AsC&) = delete;
  AsC& operator=(const AsC&) = delete;

  std::vector<dsakit_argument> arguments;

  /// The argument of this name, made if it is not there.
  dsakit_argument& operator[](const char* name) {
    for (dsakit_argument& a : arguments)
      if (std::string_view(a.name) == name) return a;
    return arguments.emplace_back(dsakit_no_arg(name, DSAKIT_NONE, 0));
  }
  dsakit_tensor& tensor(const char* name) { return const_cast<dsakit_tensor&>(*(*this)[name].value.tensor); }

  dsakit_status run(const char* op, dsakit_context* context = nullptr) const {
    return dsakit_run(context, op, arguments.data(), arguments.size());
  }

 private:
  void add(const char*, const Absent&) {}
  void add(const char* name, const Tensor& t) {
    if (!t) return;
    const Tensor& kept = tensors_.emplace_back(t);
    dsakit_tensor& c = c_tensors_.emplace_back(
        dsakit_cpu_tensor(t.data, DSAKIT_INT, 8, t.rank, const_cast<std::int64_t*>(kept.shape.data())));
    c.dtype = dlpack_of(t.dtype);
    c.strides = const_cast<std::int64_t*>(kept.stride.data());
    dsakit_argument& a = arguments.emplace_back(dsakit_tensor_arg(name, &c));
    if (t.read_only) a.flags |= DSAKIT_READ_ONLY;
    if (t.format == Format::NZ) a.flags |= DSAKIT_FRACTAL_NZ;
  }
  void add(const char* name, TensorList list) {
    auto& c = c_lists_.emplace_back();
    for (const Tensor& t : list) {
      const Tensor& kept = tensors_.emplace_back(t);
      c.push_back(dsakit_cpu_tensor(t.data, DSAKIT_INT, 8, t.rank, const_cast<std::int64_t*>(kept.shape.data())));
      c.back().dtype = dlpack_of(t.dtype);
      c.back().strides = const_cast<std::int64_t*>(kept.stride.data());
    }
    arguments.push_back(dsakit_tensors_arg(name, c.data(), c.size()));
  }
  void add(const char* name, std::int64_t value) { arguments.push_back(dsakit_integer_arg(name, value)); }
  void add(const char* name, double value) { arguments.push_back(dsakit_real_arg(name, value)); }
  void add(const char* name, bool value) { arguments.push_back(dsakit_boolean_arg(name, value)); }
  void add(const char* name, std::string_view value) {
    if (!value.empty()) arguments.push_back(dsakit_string_arg(name, texts_.emplace_back(value).c_str()));
  }
  template <std::constructible_from<const std::int64_t*, std::int64_t> List>
  void add(const char* name, const List& list) {
    arguments.push_back(dsakit_integers_arg(name, list.axis.data(), std::size_t(list.count)));
  }
  void add(const char* name, Level level) {
    add(name, std::string_view(level == Level::strict ? "strict" : "portable"));
  }

  std::deque<Tensor> tensors_;
  std::deque<dsakit_tensor> c_tensors_;
  std::deque<std::vector<dsakit_tensor>> c_lists_;
  std::deque<std::string> texts_;
};

}  // namespace dsakit::capi
