// SPDX-License-Identifier: Apache-2.0
#include "run/call.hpp"

#include <mutex>
#include <new>
#include <string>

#include "dsakit/error.hpp"

namespace dsakit {

void Call::reserve(std::size_t bytes) {
  const std::size_t limit = state_.options.memory_limit;
  if (limit && bytes > limit)
    throw Error(Status::out_of_memory, op_, "workspace", "", "is " + std::to_string(bytes) + " bytes",
                "at most " + std::to_string(limit), "DSAKIT_MEM_LIMIT");
  if (bytes <= state_.memory_bytes) return;
  state_.memory.reset();
  state_.memory_bytes = 0;
  auto* p = static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64}, std::nothrow));
  if (!p)
    throw Error(Status::out_of_memory, op_, "workspace", "", "is " + std::to_string(bytes) + " bytes",
                "memory the system can give");
  state_.memory.reset(p);
  state_.memory_bytes = bytes;
}

void Call::finish() {
  if (cancelled_) throw Error(Status::interrupted, op_, "call", "", "was interrupted", "to run to its end");
}

void check_interrupt(Context& context, const char* op) {
  Context::State& state = context.state();
  bool (*asked)(void*) = nullptr;
  void* data = nullptr;
  {
    const std::lock_guard lock(state.calls);
    asked = state.asked, data = state.asked_data;
  }
  if (asked && asked(data)) throw Error(Status::interrupted, op, "call", "", "was interrupted", "to run to its end");
}

}  // namespace dsakit
