// SPDX-License-Identifier: Apache-2.0
#include "run/team.hpp"

#include <pthread.h>

#include <system_error>

#include "run/cores.hpp"

/// There if the program uses OpenMP.
extern "C" [[gnu::weak]] int omp_in_parallel();

namespace dsakit {
namespace {

std::atomic<int> forks_so_far = 0;
thread_local bool inside = false;

// Some 50 us: as long as from one loop of an operator to its next, as a rule. Longer would take time from others on a
// busy machine, and then the system takes it from us.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

int forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks_so_far; });
  (void)registered;
  return forks_so_far;
}

bool Team::busy() { return inside || (omp_in_parallel && omp_in_parallel()); }

Team::~Team() {
  if (!threads_) return;
  if (forks() != forks_) {
    (void)threads_.release();  // they did not come along, and cannot be joined
    return;
  }
  stopped_ = true;
  loops_.fetch_add(1);
  loops_.notify_all();
  for (std::thread& t : *threads_) t.join();
}

/// Up to `threads` with the caller; fewer if the system gives no more.
void Team::grow(int threads) {
  if (threads_ && forks() != forks_) {
    (void)threads_.release();
    gate_ = 0, sleeping_ = 0, waiting_ = false;
  }
  if (!threads_) threads_ = std::make_unique<std::vector<std::thread>>(), forks_ = forks();
  spins_ = threads > usable_cores() ? 0 : kSpins;
  try {
    while (int(threads_->size()) + 1 < threads) threads_->emplace_back(&Team::work, this, int(threads_->size()) + 1);
  } catch (const std::exception&) {
  }
}

void Team::run(std::int64_t n, int threads, Each each, void* data) {
  if (!threads_ || int(threads_->size()) + 1 < threads || forks() != forks_) grow(threads);
  loop_ = {each, data, n, threads};
  next_ = 0;
  gate_.store(((gate_.load() & ~(kLoop - 1)) + kLoop) | kOpen);
  loops_.fetch_add(1);
  if (sleeping_.load() > 0) loops_.notify_all();
  inside = true;
  take_items(0);
  inside = false;
  if ((gate_.fetch_and(~kOpen) & kInside) != 0) wait_until_left();
}

void Team::take_items(int thread) {
  const Loop loop = loop_;
  for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < loop.n;) loop.each(loop.data, i, thread);
}

void Team::work(int thread) {
  inside = true;
  for (std::uint64_t seen = 0; !stopped_;) {
    wait_for_loop(seen);
    if (enter(thread, seen)) take_items(thread), leave();
  }
}

/// Counts this thread in while the gate of a loop that it has not seen is open.
bool Team::enter(int thread, std::uint64_t& seen) {
  std::uint64_t gate = gate_.load();
  while (gate / kLoop != seen && (gate & kOpen)) {
    if (!gate_.compare_exchange_weak(gate, gate + 1)) continue;
    seen = gate / kLoop;
    if (thread < loop_.threads) return true;
    leave();
    return false;
  }
  seen = gate / kLoop;
  return false;
}

void Team::leave() {
  if ((gate_.fetch_sub(1) & (kOpen | kInside)) == 1 && waiting_.load()) left_.fetch_add(1), left_.notify_one();
}

void Team::wait_until_left() {
  for (int i = 0; i < kSpins; ++i) {
    if ((gate_.load(std::memory_order_acquire) & kInside) == 0) return;
    pause();
  }
  waiting_ = true;
  for (;;) {
    const std::uint32_t left = left_.load();
    if ((gate_.load() & kInside) == 0) break;
    left_.wait(left);
  }
  waiting_ = false;
}

void Team::wait_for_loop(std::uint64_t seen) {
  const auto there = [&] { return stopped_ || gate_.load() / kLoop != seen; };
  for (int i = 0, most = spins_; i < most; ++i) {
    if (there()) return;
    pause();
  }
  const std::uint32_t loops = loops_.load();
  sleeping_.fetch_add(1);
  if (!there()) loops_.wait(loops);
  sleeping_.fetch_sub(1);
}

}  // namespace dsakit
