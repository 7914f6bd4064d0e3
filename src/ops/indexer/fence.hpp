// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "dsakit/field.hpp"
#include "dsakit/tensor_list.hpp"
#include "ops/indexer/cases.hpp"

namespace dsakit::indexer {

/// Moves all tensors of a call, contiguous ones and those of lists, to memory that cannot be touched beyond their last byte, or (`front`)
/// before their first.
template <class A, class O>
class Fence {
 public:
  Fence(A args, O outs, bool front) : args(args), outs(outs) {
    for_each_field(this->args, this->outs, [&](const Field&, auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, Tensor>) {
        value = moved(value, front);
      } else if constexpr (std::is_same_v<Value, TensorList>) {
        lists_.push_back(std::make_unique<Tensor[]>(value.size()));
        std::ranges::transform(value, lists_.back().get(), [&](const Tensor& t) { return moved(t, front); });
        value = {lists_.back().get(), value.size()};
      }
    });
  }

  A args;
  O outs;

 private:
  Tensor moved(const Tensor& t, bool front) {
    if (t.elements() == 0) return t;
    const auto bytes = std::size_t(t.elements()) * std::size_t(size_of(t.dtype));
    places_.push_back(std::make_unique<AtPageEnd>(t.data, bytes, front));
    return places_.back()->moved(t);
  }

  std::vector<std::unique_ptr<AtPageEnd>> places_;
  std::vector<std::unique_ptr<Tensor[]>> lists_;
};

}  // namespace dsakit::indexer
