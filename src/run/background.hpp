// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>

#include "dsakit/context.hpp"
#include "run/state.hpp"

namespace dsakit {

/// While it lives, calls of this context call f(), which does not throw, on the thread that made them between the items of
/// their loops: what nothing else moves on.
template <class F>
class Background {
 public:
  Background(Context& context, F f) : state_(context.state()), f_(std::move(f)) {
    state_.background = [](void* data) { (*static_cast<F*>(data))(); };
    state_.background_data = &f_;
  }
  ~Background() { state_.background = nullptr; }
  Background(const Background&) = delete;

 private:
  Context::State& state_;
  F f_;
};

}  // namespace dsakit
