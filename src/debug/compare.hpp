// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/view.hpp"
#include "debug/execute.hpp"

namespace dsakit::debug {

/// One tensor of a case beside another of the same meaning, row by row.
struct Pair {
  std::string key;        // as the case has it: "out.0"
  std::string parameter;  // "attention_out"
  Tensor recorded, computed;
  std::vector<std::int64_t> rows;   // of `computed` for each row of `recorded`: pages may differ; empty: the same
  std::vector<RowRange> undefined;  // rows of `recorded` that nobody wrote
  std::string mismatch;             // why they cannot be compared, or ""
};

/// The tensors of `group` ("out", with "after"; "ref") of a case beside the results of a run of it. What the case does
/// not have is left out.
std::vector<Pair> pairs_of(const Case&, std::string_view group, const Outcome&);
std::vector<Pair> pairs_of(const Case&, std::string_view group, const Outcome&&) = delete;  // they look into it
/// Beside the tensors of another case or group: out of `a` and ref of `a`, ..
std::vector<Pair> pairs_of(const Case& a, std::string_view group_a, const Case& b, std::string_view group_b);

/// The results of another recording of this call become what is wanted of it: group `ref`, but for views and parts of
/// caches. Throws CASE_CALL if it is of another operator, CASE_MISSING if nothing is left.
void want_results(Case&, const Case& other);

/// Equal bits, but for the payload of NaN; with `nan_fails` a NaN is equal to nothing.
struct Bits {
  std::int64_t elements = 0, different = 0;
  std::int64_t first = -1;  // of `recorded`, row-major

  bool equal() const { return different == 0; }
};
Bits compare_bits(const Pair&, bool nan_fails);

/// Whether the case says that NaN is a failure.
bool nan_fails(const Case&);

/// f(element of recorded, its offset, that of the same element of computed), row-major, without what nobody wrote; as
/// many elements of each, whatever their axes.
template <class F>
void each_element(const Pair& p, F f) {
  const std::int64_t width = p.recorded.rank < 2 ? p.recorded.elements() : p.recorded.shape[p.recorded.rank - 1];
  const std::int64_t rows = width == 0 ? 0 : p.recorded.elements() / width;
  auto skipped = p.undefined.begin();
  for (std::int64_t r = 0; r < rows; ++r) {
    while (skipped != p.undefined.end() && skipped->end <= r) ++skipped;
    if (skipped != p.undefined.end() && skipped->first <= r) continue;
    OffsetsFrom at(p.recorded, r * width), other(p.computed, (p.rows.empty() ? r : p.rows[std::size_t(r)]) * width);
    for (std::int64_t i = 0; i < width; ++i, ++at, ++other) f(r * width + i, *at, *other);
  }
}

}  // namespace dsakit::debug
