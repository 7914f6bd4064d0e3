// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"
#include "ops/fused_infer_attention_score_v2/cases.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {

/// The formula once more, from logical positions: nothing shared with the library, neither addresses nor the rule for
/// what is visible. Rows [b][q][h], q below the rows of the sequence.
struct Judged {
  std::vector<double> out, lse;  // exact, before the last rounding (int8: before quantisation)
  std::vector<float> plain;      // fp32 in natural order with the documented roundings
  std::vector<bool> keys;        // the row sees some

  explicit Judged(const Case&, bool with_plain = true);
};

/// attention_out and softmax_lse within the rules of accuracy; padding, rows without a key and sentinels exactly.
/// The reference may be off by its one rounding.
void expect_right(const Case&, const Judged&, bool is_reference);

struct Results {
  std::vector<std::byte> out, lse;
  bool operator==(const Results&) const = default;
};
Results results(const Case&);
/// Runs and hands out the results; the memory of the case holds them too.
Results run(Case&, const Kernels&, int threads, bool same_products = false);

/// The same of a fresh case.
Results bits(const Spec&, const Kernels&);

/// Rows of sequence 0 whose head 0 sees no key, by the reference.
Shape rows_without_keys(const Spec&);

/// Every rung of this machine, thread counts with the same bits, and the reference: all right.
void expect_all_right(const Spec&);
/// Larger cases: the reference, and every rung once.
void expect_right_once(const Spec&);

}  // namespace dsakit::fused_infer_attention_score_v2_op
