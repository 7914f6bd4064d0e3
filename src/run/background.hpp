// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit {

/// What calls do on the thread that made them between the items of their loops. Of the thread: a context may have several,
/// whose calls take turns.
struct BackgroundWork {
  void (*f)(void*) = nullptr;
  void* data = nullptr;
};
inline thread_local constinit BackgroundWork background_work{};

/// While it lives, calls of this thread do f(), which does not throw: what nothing else moves on.
template <class F>
class Background {
 public:
  explicit Background(F f) : f_(f) { background_work = {[](void* data) { (*static_cast<F*>(data))(); }, &f_}; }
  ~Background() { background_work = before_; }
  Background(const Background&) = delete;

 private:
  F f_;
  const BackgroundWork before_ = background_work;
};

}  // namespace dsakit
