// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "core/check.hpp"
#include "core/view.hpp"
#include "ops/door.hpp"
#include "ops/fused_infer_attention_score_v2/problem.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

namespace dense = attention::dense;

/// What a call uses, by the addresses that the kernels use.
struct Values {
  const Check& c;
  const FusedInferAttentionScoreV2Args& a;
  const dense::Problem& p;
  const Problem& problem;
  const Tensors tensors = Tensors::inputs<FusedInferAttentionScoreV2Outs>(a);

  void finite(const Tensor& t, const char* name, std::int64_t offset) const {
    const float x = float_at(t, offset);
    if (std::isfinite(x) && x >= 0) return;
    const bool scale = tensors.kind_of(t) == Kind::scale;
    if (std::isfinite(x) && !scale) return;
    std::int64_t i = 0;
    while (offset_of(t, i) != offset) ++i;
    c.fail(Status::invalid_value, name, subscript(t, i), "is " + std::to_string(x),
           scale ? "finite and not negative" : "a finite number");
  }

  bool sees(const dense::Sequence& s, std::int64_t b, std::int64_t q, std::int64_t k) const {
    return k >= q + s.from && k <= q + s.to && !(p.mask && p.mask[p.mask_sequence * b + p.mask_row * q + k]);
  }
  bool seen(const dense::Sequence& s, std::int64_t b, std::int64_t k) const {
    for (std::int64_t q = 0; q < s.queries; ++q)
      if (sees(s, b, q, k)) return true;
    return false;
  }

  void queries(const dense::Sequence& s, std::int64_t b) const {
    for (const auto& [t, name, grid, width] : {std::tuple{&a.query, "query", &p.query, p.width},
                                               {&a.query_rope, "query_rope", &p.query_rope, p.rope},
                                               {&a.dequant_scale_query, "dequant_scale_query", &p.query_scale, 1}}) {
      if (!*t || t->dtype == DType::i8) continue;
      for (std::int64_t q = 0; q < s.queries; ++q)
        for (std::int64_t h = 0; h < problem.sizes.heads; ++h)
          for (int d = 0; d < width; ++d)
            finite(*t, name, grid->sequence * b + grid->token * (s.first_query + q) + grid->head * h + d);
    }
  }

  void keys(const dense::Sequence& s, std::int64_t b, std::int64_t k) const {
    const Pages& pages = p.pages;
    const std::int64_t row = pages.table ? k % pages.block_size : s.first_key + k,
                       page = pages.table ? pages.table[pages.sequence * b + k / pages.block_size * pages.step] : 0;
    for (const auto& [t, name, cache, width] : {std::tuple{&a.key, "key", &p.key, p.width},
                                                {&a.value, "value", &p.values, p.value},
                                                {&a.key_rope, "key_rope", &p.key_rope, p.rope}}) {
      if (!*t || t->dtype == DType::i8 || t->dtype == DType::i32) continue;
      const std::int64_t first = (pages.table ? cache->page * page : cache->sequence * b) + cache->row * row;
      for (std::int64_t g = 0; g < p.kv_heads; ++g)
        for (int d = 0; d < width; ++d)
          finite(
              *t, name,
              first + cache->head * g + (cache->block ? d / cache->block * cache->block_stride + d % cache->block : d));
    }
    for (const auto& [t, name, x] : scales())
      for (std::int64_t g = 0; t && x.per_key && g < p.kv_heads; ++g)
        finite(t, name, x.sequence * b + x.head * g + x.position * k + x.page * page + x.row * row);
  }

  void biases(const dense::Sequence& s, std::int64_t b) const {
    for (std::int64_t h = 0; h < problem.sizes.heads; ++h)
      for (std::int64_t q = 0; q < s.queries; ++q)
        for (std::int64_t k = 0; k < s.keys; ++k)
          if (sees(s, b, q, k))
            finite(a.pse_shift, "pse_shift", p.bias.sequence * b + p.bias.head * h + p.bias.token * q + k);
  }

  /// Scales and offsets of channels, heads and tensors.
  void whole() const {
    const auto all = [&](const Tensor& t, const char* name, bool per_key) {
      for (std::int64_t i = 0; t && !per_key && i < t.elements(); ++i) finite(t, name, offset_of(t, i));
    };
    for (const Scale& x : scales()) all(x.tensor, x.name, x.parameter.per_key);
    all(a.quant_scale_out, "quant_scale_out", false), all(a.quant_offset_out, "quant_offset_out", false);
  }

  void stencil() const {
    const Tensor& m = a.atten_mask;
    if (!m || p.mask || problem.sizes.decode) return;
    for (std::int64_t q = 0; q < 2048; ++q)
      for (std::int64_t k = 0; k < 2048; ++k) {
        const bool hidden = static_cast<const std::uint8_t*>(m.data)[q * m.stride[m.rank - 2] + k] != 0;
        if (hidden != (k > q))
          c.fail(Status::invalid_value, "atten_mask", subscript(m, q * 2048 + k), hidden ? "is 1" : "is 0",
                 hidden ? "0" : "1", "1 strictly above the main diagonal, else 0");
      }
  }

 private:
  struct Scale {
    const Tensor& tensor;
    const char* name;
    const dense::Parameter& parameter;
  };
  std::array<Scale, 4> scales() const {
    return {{{a.dequant_scale_key, "dequant_scale_key", p.key_scale},
             {a.dequant_offset_key, "dequant_offset_key", p.key_offset},
             {a.dequant_scale_value, "dequant_scale_value", p.value_scale},
             {a.dequant_offset_value, "dequant_offset_value", p.value_offset}}};
  }
};

}  // namespace

void check_values(const FusedInferAttentionScoreV2Args& a, const Problem& p) {
  const Check c("fused_infer_attention_score_v2", a.level);
  const Values v{c, a, p.attention, p};
  v.stencil();
  for (std::int64_t b = 0; b < p.sizes.sequences; ++b) {
    const dense::Sequence s = p.sequence(b);
    v.queries(s, b);
    for (std::int64_t k = 0; k < s.keys; ++k)
      if (v.seen(s, b, k)) v.keys(s, b, k);
    if (a.pse_shift) v.biases(s, b);
  }
  v.whole();
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
