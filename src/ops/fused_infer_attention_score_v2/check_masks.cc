// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ops/fused_infer_attention_score_v2/door.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using std::to_string;

std::string one_or(std::int64_t n) { return n == 1 ? "1" : "1 or " + to_string(n); }

/// S-32: [B or 1, 1, >= S1, >= keys], the first axes as many as the rank has.
void full_mask(const Door& d) {
  const Tensor& t = d.a.atten_mask;
  const Sizes& s = d.s;
  const char* name = "atten_mask";
  const std::int64_t rows = s.s1 == 1 ? 1 : s.s1;
  if (t.rank < 2 || t.rank > 4) d.wrong_shape(t, name, "rank 2, 3 or 4", "a full mask");
  const bool shared = t.rank == 2 && s.s1 != 1;  // its first axis is the rows
  if (!shared && t.shape[0] != 1 && t.shape[0] != s.batch) d.wrong_shape(t, name, "first axis " + one_or(s.batch), "B");
  if (t.rank == 4 && t.shape[1] != 1) d.wrong_shape(t, name, "second axis 1", "no masks per head");
  if ((t.rank > 2 || shared) && t.shape[t.rank - 2] < rows)
    d.wrong_shape(t, name, "rows at least " + to_string(rows), "S1 of query");
  if (t.shape[t.rank - 1] < s.key_columns)
    d.wrong_shape(t, name, "last axis at least " + to_string(s.key_columns), d.columns_wanted(t.shape[t.rank - 1]));
}

}  // namespace

void Door::masks() {
  const Tensor& mask = a.atten_mask;
  const std::int64_t mode = s.mode;
  // S-29, S-30; mode 9 belongs to newer releases
  if (s.folded && mask && mode == 0)
    c.fail(Status::invalid_argument, "atten_mask", "", "is given", "absent", "sparse_mode 0 of token-folded layouts");
  if (s.folded && mode == 1)
    c.fail(Status::invalid_argument, "sparse_mode", "", "is 1", "0, 2, 3 or 4", "token-folded layouts");
  limit(!s.folded || (mode != 2 && mode != 4), "sparse_mode", is(mode), "0 or 3 in token-folded layouts");
  if (mode == 9) c.fail(Status::unsupported, "sparse_mode", "", "is 9", "0..4", "reserved");
  if (mode < 0 || mode > 4) c.fail(Status::invalid_argument, "sparse_mode", "", "is " + to_string(mode), "0..4");

  // S-31..S-33
  const bool stencil = mask && stencil_shaped();
  s.full_mask = mask && (mode < 2 || (s.decode && !stencil));
  if (mode == 1 && !mask)
    c.fail(Status::invalid_shape, "atten_mask", "", "is missing", "a full mask", "sparse_mode is 1");
  if (mode >= 2 && !s.decode) {
    if (mask && !stencil)
      wrong_shape(mask, "atten_mask", "[2048, 2048], with or without leading axes of 1", "sparse_mode 2, 3 and 4");
    limit(
        stencil, Status::invalid_shape, "atten_mask", [] { return std::string("is missing"); },
        "[2048, 2048] in sparse_mode 2, 3 and 4");
  }
  if (s.full_mask) full_mask(*this);
  if (mask) c.dtype(mask, "atten_mask", {DType::boolean, DType::i8, DType::u8});

  // S-34..S-36
  constexpr std::int64_t kEnd = 2147483647;
  s.band = !s.decode && ((mode == 0 && mask) || mode == 4);
  s.pre = std::clamp(a.pre_tokens, -kEnd, kEnd), s.next = std::clamp(a.next_tokens, -kEnd, kEnd);
  if (s.band && s.pre + s.next < 0)
    c.fail(Status::invalid_argument, "pre_tokens", "", "is " + to_string(a.pre_tokens),
           "at least " + to_string(-s.next), "next_tokens is " + to_string(a.next_tokens));
  for (std::int64_t b = 0; s.band && c.strict() && b < s.batch; ++b) {
    const std::int64_t l1 = s.query_rows.count(b), l2 = s.key_rows.count(b);
    const std::int64_t ahead = mode == 0 ? l1 : l2, behind = mode == 0 ? l2 : l1;
    limit(s.next > -ahead, Status::invalid_argument, "next_tokens", is(s.next), "a band that leaves a sequence keys");
    limit(s.pre > -behind, Status::invalid_argument, "pre_tokens", is(s.pre), "a band that leaves a sequence keys");
  }
  for (std::int64_t b = 0; a.quant_offset_out && !s.decode && b < s.sequences; ++b) {
    const std::int64_t l1 = s.query_rows.count(b), l2 = s.key_rows.count(b);
    if (!c.strict() && (l1 == 0 || l2 == 0)) continue;
    if ((mode == 0 && s.band && (s.next < 0 || l1 - l2 - s.pre > 0)) || (mode == 3 && l2 < l1) ||
        (mode == 4 && (s.pre < 0 || s.next + l2 - l1 < 0)))
      c.fail(
          Status::invalid_argument, "quant_offset_out", "", "is given", "absent",
          l1 == 0 || l2 == 0 ? "[strict: Atlas A2/A3]" : "sequence " + to_string(b) + " has query rows without a key");
  }

  // S-38, S-39
  const Tensor& pse = a.pse_shift;
  if (!pse) return;
  const bool fits = pse.rank == 4 && pse.shape[1] == s.heads &&
                    (s.folded || ((pse.shape[0] == 1 || pse.shape[0] == s.batch) && pse.shape[2] >= s.s1));
  if (!fits || (!s.folded && pse.shape[3] < s.key_columns))
    wrong_shape(pse, "pse_shift",
                "[" + one_or(s.batch) + ", " + to_string(s.heads) + ", >= " + to_string(s.s1) +
                    ", >= " + to_string(s.key_columns) + "]",
                fits && s.paged ? columns_wanted(pse.shape[3]) : "B, Nq, S1, S2");
  if (!s.full) c.dtype(pse, "pse_shift", {a.query.dtype}, "dtype of query");  // else S-57 refuses it
  if (s.folded) c.fail(Status::invalid_argument, "pse_shift", "", "is given", "absent", "token-folded layouts");
  const auto given = [] { return std::string("is given"); };
  limit(!s.rope, "pse_shift", given, "absent beside rope tensors");
  limit(!nz(), "pse_shift", given, "absent with pages of rank 5");
  limit(!s.quantised, "pse_shift", given, "absent with quantised keys");
  limit(s.width % 16 == 0, "pse_shift", given, "absent unless D is a multiple of 16");
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
