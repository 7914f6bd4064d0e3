// SPDX-License-Identifier: Apache-2.0
#include "capi/error.hpp"

#include <optional>

namespace dsakit::capi {
namespace {

constexpr dsakit_error kNothing{DSAKIT_OK, "", "", "", "", "", ""};
/// Of static texts: there is no memory for others.
constexpr dsakit_error kOutOfMemory{DSAKIT_OUT_OF_MEMORY,
                                    "dsakit: memory is exhausted, wanted more",
                                    "dsakit",
                                    "memory",
                                    "",
                                    "is exhausted",
                                    "more"};

struct Last {
  std::optional<Error> error;  // owns the texts
  dsakit_error shown = kNothing;
};
thread_local Last last;

static_assert(int(Status::internal) == DSAKIT_INTERNAL && int(Status::invalid_value) == DSAKIT_INVALID_VALUE);

}  // namespace

dsakit_status remember(Error&& error) noexcept {
  const Error& e = last.error.emplace(std::move(error));  // moves strings: nothing to allocate
  last.shown = {dsakit_status(e.status), e.what(),      e.op.c_str(),    e.parameter.c_str(),
                e.position.c_str(),      e.got.c_str(), e.wanted.c_str()};
  return last.shown.status;
}

dsakit_status remember_out_of_memory() noexcept {
  last.shown = kOutOfMemory;
  return DSAKIT_OUT_OF_MEMORY;
}

dsakit_status remember_bug(const char* what) noexcept {
  try {
    return remember(
        Error(Status::internal, "dsakit", "call", "", std::string("ended with ") + what, "a report of this"));
  } catch (const std::bad_alloc&) {
    return remember_out_of_memory();
  }
}

}  // namespace dsakit::capi

extern "C" const dsakit_error* dsakit_last_error(void) noexcept { return &dsakit::capi::last.shown; }
extern "C" const char* dsakit_status_name(dsakit_status status) noexcept {
  return dsakit::name_of(dsakit::Status(status));
}
