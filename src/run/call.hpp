// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "run/background.hpp"
#include "run/carver.hpp"
#include "run/cost.hpp"
#include "run/stages.hpp"
#include "run/state.hpp"
#include "run/team.hpp"

namespace dsakit {

/// One call of one operator: holds the context, its workspace and its threads from check() to return.
/// Everything that can fail (the memory) happens in the constructor, before the first store.
class Call {
 public:
  /// `bytes` of workspace, 64-byte aligned, contents undefined; as a function, of the number of threads, which
  /// nobody can change from here on, or of all of the call but memory().
  Call(Context& context, const char* op, std::size_t bytes) : Call(context, op) { reserve(bytes); }
  template <std::invocable<int> F>
  Call(Context& context, const char* op, F bytes) : Call(context, op) {
    reserve(bytes(threads()));
  }
  template <std::invocable<const Call&> F>
  Call(Context& context, const char* op, F bytes) : Call(context, op) {
    reserve(bytes(*this));
  }

  const Kernels& kernels() const { return *state_.kernels; }
  int threads() const { return state_.threads; }
  bool same_products() const { return same_products_; }
  /// For this call, whatever the context says.
  void ask_same_products() { same_products_ = true; }
  std::byte* memory() const { return state_.memory.get(); }

  /// f(i, thread) for i in 0..n-1, in any order; thread < threads(). Results must not depend on which thread
  /// runs what. f must not throw. With one item, or when all of the work is not worth waking the others, it stays on
  /// this thread.
  template <class F>
  void parallel_for(std::int64_t n, const Work& work, F&& f) {
    if (n <= 0 || cancelled_) return;
    const int threads = int(std::min<std::int64_t>(n, this->threads()));
    const auto each = [&](std::int64_t i, int thread) {
      if (cancelled_) return;
      f(i, thread);
      if (thread == 0) poll();
    };
    const bool alone = threads == 1 || stays_alone(work);
    const Stage stage(stages_, n, alone ? 1 : threads, work);
    if (alone) {
      for (std::int64_t i = 0; i < n; ++i) each(i, 0);
      return;
    }
    state_.team.run(
        n, threads, [](void* data, std::int64_t i, int thread) { (*static_cast<decltype(each)*>(data))(i, thread); },
        const_cast<void*>(static_cast<const void*>(&each)));
  }

  /// Whether a loop with this much to do stays on this thread: who cuts work in pieces for threads need not then. The
  /// same all through the call.
  bool stays_alone(const Work& work) const {
    return threads() == 1 || work.nanoseconds(*state_.rates) < worth_sharing_ || Team::busy();
  }

  /// For who asks: what the call does not do always.
  void choice(const char* name, std::int64_t value) const {
    if (stages_) stages_->choice(name, value);
  }

  /// Throws INTERRUPTED if the user asked for it during the call. Last thing an operator does.
  void finish();

 private:
  Call(Context& context, const char* op)
      : state_(context.state()),
        lock_(state_.calls),
        op_(op),
        same_products_(state_.options.same_products),
        worth_sharing_(state_.team.awake() ? kWorthJoining : kWorthWaking),
        last_poll_(std::chrono::steady_clock::now()) {}
  void reserve(std::size_t bytes);

  void poll() {
    if (background_work.f) background_work.f(background_work.data);
    if (!state_.asked) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_poll_ < std::chrono::milliseconds(100)) return;
    last_poll_ = now;
    if (state_.asked(state_.asked_data)) cancelled_ = true;
  }

  // ns: sleeping threads take 5 to 50 us to come; those that are awake a microsecond or two, and they stay awake from
  // loop to loop.
  static constexpr double kWorthWaking = 1e5, kWorthJoining = 2e4;

  Context::State& state_;
  std::lock_guard<std::recursive_mutex> lock_;
  const char* op_;
  bool same_products_;
  const double worth_sharing_;
  std::atomic<bool> cancelled_ = false;
  Stages* const stages_ = stages;
  std::chrono::steady_clock::time_point last_poll_;
};

/// Between the steps of long work that is not all calls: throws INTERRUPTED if the user asks for it.
void check_interrupt(Context&, const char* op);

}  // namespace dsakit
