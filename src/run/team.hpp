// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace dsakit {

/// How many forks lie between this process and the one that loaded the library: no thread but the caller of fork comes
/// along.
int forks();

/// The threads of one context. Whoever is there takes items of a loop; who asked for it is done when all items are, and
/// waits for no thread that has not begun: on a busy machine a thread that the system does not let run costs nothing.
class Team {
 public:
  Team() = default;
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// each(data, i, thread) for i in 0..n-1, in any order; thread 0 is the caller, the others are below `threads`. Items
  /// that such a call runs have no team of their own.
  using Each = void (*)(void* data, std::int64_t i, int thread);
  void run(std::int64_t n, int threads, Each each, void* data);

  /// Whether its threads look out for a loop: then they come in a microsecond or two, else in 5 to 50.
  bool awake() const { return threads_ && sleeping_.load(std::memory_order_relaxed) == 0; }

  /// Whether this thread is inside of an item, or of a parallel region of OpenMP.
  static bool busy();

 private:
  struct Loop {
    Each each = nullptr;
    void* data = nullptr;
    std::int64_t n = 0;
    int threads = 0;
  };
  // The gate: how many are inside, whether it is open, and above these the number of the loop.
  static constexpr std::uint64_t kOpen = 1u << 16, kLoop = 1u << 17, kInside = kOpen - 1;

  void grow(int threads);
  void work(int thread);
  void take_items(int thread);
  bool enter(int thread, std::uint64_t& seen);
  void leave();
  void wait_until_left();
  void wait_for_loop(std::uint64_t seen);

  Loop loop_;
  alignas(64) std::atomic<std::int64_t> next_ = 0;
  alignas(64) std::atomic<std::uint64_t> gate_ = 0;
  alignas(64) std::atomic<std::uint32_t> loops_ = 0;  // what sleeping threads watch
  std::atomic<int> sleeping_ = 0;
  std::atomic<bool> waiting_ = false, stopped_ = false;
  std::atomic<std::uint32_t> left_ = 0;  // what the caller watches
  std::atomic<int> spins_ = 0;           // how often a thread looks before it sleeps
  int forks_ = 0;                        // when the threads were made
  std::unique_ptr<std::vector<std::thread>> threads_;
};

}  // namespace dsakit
