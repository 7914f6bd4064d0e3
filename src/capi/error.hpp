// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <exception>
#include <new>
#include <utility>

#include "dsakit/dsakit.h"
#include "dsakit/error.hpp"

// Exceptions become statuses here and nowhere else.
namespace dsakit::capi {

/// What dsakit_last_error() answers from now on; the status of it.
dsakit_status remember(Error&& error) noexcept;
dsakit_status remember_out_of_memory() noexcept;

/// Of an exception that is not ours: a bug.
dsakit_status remember_bug(const char* what) noexcept;

template <class F>
dsakit_status guarded(F&& f) noexcept {
  try {
    f();
    return DSAKIT_OK;
  } catch (Error& e) {
    return remember(std::move(e));
  } catch (const std::bad_alloc&) {
    return remember_out_of_memory();
  } catch (const std::exception& e) {
    return remember_bug(e.what());
  } catch (...) {
    return remember_bug("something that is no exception");
  }
}

}  // namespace dsakit::capi
