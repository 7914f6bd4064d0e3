// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "debug/arguments.hpp"

// Which tensors of a call are pools of pages, and which of its integers name the pages.
namespace dsakit::debug {

struct PageUse {
  std::vector<std::string_view> caches;  // parameters; they have the same number of pages
  std::string_view numbers;              // parameter: a table of pages, or slots
  std::int64_t per_page = 1;             // a number / per_page is a page: rows of a page for slots, 1 for a table
  std::int64_t pages = 0;                // of each cache
  std::int64_t entries = 1;  // of its axis 0 that make a page: more than one where rows have no axis of pages
  std::int64_t step = 1;     // every so many-th element of `numbers` is one
  struct Entry {
    std::int64_t page, at;  // `at`: the element of `numbers`, row-major
  };
  std::vector<Entry>
      used;  // what the call looks at, in ascending order of `at`; entries that name no page are left out

  /// Pages, and what they are of axis 0 of the caches. Ascending, each once.
  Integers needed() const;
  Integers entries_of(const Integers& some_pages) const;
};

/// Of each kind of pool that the call has; empty where it has none, and for operators whose caches are no pools of
/// pages (rows of two axes, blocks that need not begin with a page).
std::vector<PageUse> pages_of(const Arguments&);

/// Rows of a page, 0 where nothing says so.
std::int64_t page_rows(const Arguments&);

/// An element of a tensor of integers of any width, row-major; 2^63-1 for what is more.
std::int64_t integer_at(const Tensor&, std::int64_t linear);

}  // namespace dsakit::debug
