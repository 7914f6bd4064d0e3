// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <new>

namespace dsakit {

/// Throws OUT_OF_MEMORY, for which no memory is needed. What becomes of std::bad_alloc where the library ends:
///     Session Model::start(..) const try { .. } catch (const std::bad_alloc&) { throw_out_of_memory(); }
[[noreturn]] void throw_out_of_memory();

}  // namespace dsakit
