// SPDX-License-Identifier: Apache-2.0
#include "debug/watch.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "debug/environment.hpp"

namespace dsakit::debug {

constinit std::atomic<int> watched = 1;  // the environment has not been asked

namespace {

/// Of the process. The lock is free in a child of fork().
struct Watchers {
  std::mutex lock;
  std::vector<std::shared_ptr<Watcher>> all;
};

Watchers& watchers() {
  static Watchers* one = [] {
    auto* made = new Watchers;
    pthread_atfork([] { watchers().lock.lock(); }, [] { watchers().lock.unlock(); }, [] { watchers().lock.unlock(); });
    return made;
  }();
  return *one;
}

void ask_environment() {
  static const bool asked = [] {
    watch_as_environment_says();
    --watched;
    return true;
  }();
  (void)asked;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

bool is_watched() noexcept {
  try {
    ask_environment();
  } catch (const std::exception&) {
    return false;  // no memory for looking on; the next call asks again
  }
  return watched.load(std::memory_order_relaxed) != 0;
}

void add_watcher(std::shared_ptr<Watcher> watcher) {
  std::lock_guard lock(watchers().lock);
  watchers().all.push_back(std::move(watcher));
  ++watched;
}

void remove_watcher(const Watcher* watcher) {
  std::lock_guard lock(watchers().lock);
  watched -= int(std::erase_if(watchers().all, [=](const auto& one) { return one.get() == watcher; }));
}

Watch::Watch(const Arguments& arguments, Context& context) noexcept {
  try {
    std::vector<std::shared_ptr<Watcher>> all;
    {
      std::lock_guard lock(watchers().lock);
      all = watchers().all;
    }
    for (const auto& watcher : all)
      if (auto call = watcher->begin(arguments, context)) calls_.emplace_back(watcher, std::move(call));
  } catch (const std::exception&) {
    // No memory for looking on.
  }
  start_ = now();
}

void Watch::end(const Error* refusal) noexcept {
  const double seconds = now() - start_;
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) call->second->end(refusal, seconds);
}

Watch::~Watch() {
  while (!calls_.empty()) calls_.pop_back();
}

}  // namespace dsakit::debug
