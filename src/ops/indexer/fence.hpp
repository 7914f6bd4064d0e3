// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <vector>

#include "dsakit/field.hpp"
#include "ops/indexer/cases.hpp"

namespace dsakit::indexer {

/// Moves all tensors of a call, contiguous ones, to memory that cannot be touched beyond their last byte, or (`front`)
/// before their first.
template <class A, class O>
class Fence {
 public:
  Fence(A args, O outs, bool front) : args(args), outs(outs) {
    for_each_field(this->args, this->outs, [&](const Field&, auto& value) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Tensor>) {
        if (value.elements() == 0) return;
        const auto bytes = std::size_t(value.elements()) * std::size_t(size_of(value.dtype));
        places_.push_back(std::make_unique<AtPageEnd>(value.data, bytes, front));
        value = places_.back()->moved(value);
      }
    });
  }

  A args;
  O outs;

 private:
  std::vector<std::unique_ptr<AtPageEnd>> places_;
};

}  // namespace dsakit::indexer
