// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dsakit/context.hpp"
#include "kernels/kernels.hpp"
#include "run/cost.hpp"
#include "run/team.hpp"

namespace dsakit {

/// What a context holds between calls.
struct Context::State {
  ContextOptions options;
  const Kernels* kernels = nullptr;
  const Rates* rates = nullptr;  // of these kernels
  std::atomic<int> threads = 1;
  std::recursive_mutex calls;  // recursive: an operator may be made of operators
  Team team;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> memory{nullptr, nullptr};
  std::size_t memory_bytes = 0;
  std::mutex warning;  // guards warnings
  std::vector<std::string> warnings;
  bool (*asked)(void*) = nullptr;
  void* asked_data = nullptr;
};

}  // namespace dsakit
