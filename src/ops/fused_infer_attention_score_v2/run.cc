// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "ops/direct.hpp"

#include "ops/fused_infer_attention_score_v2/problem.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

namespace dense = attention::dense;

/// Row `row` of sequence b, all heads: what a row has that no query stands behind.
void pad(const Problem& p, std::int64_t b, std::int64_t row) {
  const dense::Problem& x = p.attention;
  const std::ptrdiff_t size = size_of(x.out_type);
  for (std::int64_t h = 0; h < p.sizes.heads; ++h) {
    const std::ptrdiff_t at = b * x.out.sequence + row * x.out.token + h * x.out.head;
    if (x.value > 0) std::memset(static_cast<std::byte*>(x.out.data) + at * size, 0, std::size_t(x.value * size));
    if (x.lse.data) static_cast<float*>(x.lse.data)[b * x.lse.sequence + row * x.lse.token + h * x.lse.head] = INFINITY;
  }
}

}  // namespace

std::size_t workspace(const Problem& p, const Call& call) {
  Carver measure;
  measure.take<dense::Sequence>(p.sizes.sequences);
  return measure.bytes() + dense::workspace(p.attention, call.kernels(), call.threads(), call.same_products());
}

void run(const Problem& p, Call& call, std::byte* memory) noexcept {
  const Sizes& s = p.sizes;
  if (s.out_width == 0 && !p.attention.lse.data) return;
  Carver carver(memory);
  dense::Sequence* sequences = carver.take<dense::Sequence>(s.sequences);
  for (std::int64_t b = 0; b < s.sequences; ++b) sequences[b] = p.sequence(b);
  const bool empty = s.width == 0;  // a query without elements
  if (!empty) {
    dense::Problem attention = p.attention;
    attention.sequence = sequences;
    dense::run(attention, call, memory + carver.bytes());
  }
  // What belongs to no query: behind the last total, or behind each sequence's rows.
  if (s.folded) {
    const dense::Sequence* last = empty || s.batch == 0 ? nullptr : sequences + s.batch - 1;
    for (std::int64_t row = last ? last->first_query + last->queries : 0; row < s.s1; ++row) pad(p, 0, row);
    return;
  }
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < s.sequences; ++b) rows += s.s1 - (empty ? 0 : sequences[b].queries);
  if (rows == 0) return;
  const double bytes = double(rows) * double(s.heads) * double(s.out_width * size_of(p.attention.out_type) + 4);
  call.parallel_for(s.sequences, {.bytes = 2 * bytes}, [&](std::int64_t b, int) {
    for (std::int64_t row = empty ? 0 : sequences[b].queries; row < s.s1; ++row) pad(p, b, row);
  });
}

}  // namespace dsakit::fused_infer_attention_score_v2_op

namespace dsakit {

void direct::fused_infer_attention_score_v2(const FusedInferAttentionScoreV2Args& args,
                                            const FusedInferAttentionScoreV2Outs& outs, Context& context) {
  namespace op = fused_infer_attention_score_v2_op;
  const op::Problem problem = op::check(args, outs);
  if (context.check_values()) op::check_values(args, problem);
  Call call(context, "fused_infer_attention_score_v2",
            [&](const Call& call) { return op::workspace(problem, call); });
  op::run(problem, call, call.memory());
  call.finish();
}

}  // namespace dsakit
