// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <cstdint>

#include "run/cost.hpp"

namespace dsakit {

/// Who asks how calls spend their time: their loops one by one, and what they chose. Where nobody asks there is none of
/// this but a null pointer.
class Stages {
 public:
  virtual ~Stages() = default;
  /// A loop is over. `threads` that it was given: 1 where waking others would not have paid.
  virtual void loop(std::int64_t items, int threads, const Work&, double seconds) noexcept = 0;
  virtual void choice(const char* name, std::int64_t value) noexcept = 0;
};

/// Of the calls that this thread makes; read where a call begins.
inline thread_local constinit Stages* stages = nullptr;

/// One loop, from its making to its end.
class Stage {
 public:
  Stage(Stages* who, std::int64_t items, int threads, const Work& work)
      : who_(who), items_(items), threads_(threads), work_(work) {
    if (who_) start_ = std::chrono::steady_clock::now();
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() {
    if (who_)
      who_->loop(items_, threads_, work_,
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }

 private:
  Stages* who_;
  std::int64_t items_;
  int threads_;
  const Work& work_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace dsakit
