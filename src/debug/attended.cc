// SPDX-License-Identifier: Apache-2.0
#include "debug/attended.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/view.hpp"
#include "debug/edit.hpp"
#include "debug/rule.hpp"
#include "ops/attention/reference.hpp"
#include "ops/fused_infer_attention_score_v2/problem.hpp"
#include "ops/sparse_attention/problem.hpp"
#include "ops/sparse_flash_attention_quant/problem.hpp"

namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using Numbers = Attended::Numbers;
namespace sparse = attention::sparse;
namespace dense = attention::dense;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kTile = 512;  // keys that a device takes at a time

double dot(const double* a, const double* b, Index n) { return std::inner_product(a, a + n, b, 0.0); }

double rounded_to(DType type, double x) {
  if (type == DType::bf16) return to_float(to_bf16_once(x));
  return type == DType::f16 ? to_float(to_f16_once(x)) : x;
}

/// Both forms of sparse attention: a latent row is key and value of all heads.
class Sparse : public Attended {
 public:
  template <class Checked>
  explicit Sparse(const Checked& checked) : p_(checked.attention) {
    rows = p_.tokens, heads = group = p_.heads;
    width = p_.latent + p_.rope, value_width = p_.latent;
    type = p_.type, codes = p_.keys.tile > 0;
    tokens_.resize(std::size_t(rows));
    checked.each_token([&](Index t, const sparse::Token& token) { tokens_[std::size_t(t)] = token; });
  }

  Integers listed(Index row) const override {
    Integers all;
    const sparse::Token& t = tokens_[std::size_t(row)];
    sparse::each_attended(t, 0, t.count, [&](auto, Index position) { all.push_back(position); });
    return all;
  }
  Integers visible(Index row) const override {
    Integers all(
        std::size_t(std::max<Index>(sees_.empty() ? tokens_[std::size_t(row)].visible : sees_[std::size_t(row)], 0)));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  /// Where tokens do not say how many positions they see.
  void see(Integers counts) { sees_ = std::move(counts); }

  Rows read(Index row, Index, const Integers& positions, bool rounded) const override {
    Rows r;
    for (const Index position : positions) {
      const sparse::Key key = sparse::key_of(p_, p_.key_row(tokens_[std::size_t(row)], position), rounded);
      r.keys.insert(r.keys.end(), key.latent.begin(), key.latent.end());
      r.keys.insert(r.keys.end(), key.rope.begin(), key.rope.end());
      r.values.insert(r.values.end(), key.latent.begin(), key.latent.end());
    }
    return r;
  }
  Numbers scores(Index row, Index head, const Integers& positions, const Rows& keys) const override {
    Numbers query = sparse::read(p_.type, p_.query, row * heads + head, p_.latent), s;
    const Numbers rope = p_.rope ? sparse::read(p_.type, p_.query_rope, row * heads + head, p_.rope) : Numbers();
    query.insert(query.end(), rope.begin(), rope.end());
    for (std::size_t j = 0; j < positions.size(); ++j)
      s.push_back(dot(query.data(), &keys.keys[j * std::size_t(width)], width) * double(p_.scale));
    return s;
  }
  double sink(Index head) const override { return p_.sinks ? double(p_.sinks[head]) : -kInfinity; }
  void put(Index row, Index head, const Numbers& values) const override {
    for (std::size_t c = 0; c < values.size(); ++c)
      if (type == DType::f16) p_.out.row<f16>(row * heads + head)[c] = to_f16_once(values[c]);
      else p_.out.row<bf16>(row * heads + head)[c] = to_bf16_once(values[c]);
  }

 private:
  sparse::Problem p_;
  std::vector<sparse::Token> tokens_;
  Integers sees_;
};

class Dense : public Attended {
 public:
  explicit Dense(const fused_infer_attention_score_v2_op::Problem& problem) : p_(problem.attention) {
    heads = p_.kv_heads * p_.group, group = p_.group;
    width = p_.width + p_.rope, value_width = p_.value;
    codes = p_.query_type != DType::i8 && p_.kv_type != p_.query_type;
    type = p_.query_type == DType::i8 ? DType::bf16 : p_.query_type;
    const bool folded = problem.sizes.folded;
    for (Index b = 0; b < p_.sequences; ++b) {
      sequences_.push_back(problem.sequence(b));
      const dense::Sequence& s = sequences_.back();
      const Index first = folded ? s.first_query : b * problem.sizes.s1;
      for (Index q = 0; q < s.queries; ++q) {
        if (Index(at_.size()) <= first + q) at_.resize(std::size_t(first + q + 1));
        at_[std::size_t(first + q)] = {b, q};
      }
    }
    rows = Index(at_.size());
  }

  Integers listed(Index row) const override { return visible(row); }
  Integers visible(Index row) const override {
    const auto [b, q] = at_[std::size_t(row)];
    Integers all;
    if (b < 0) return all;
    const dense::Sequence& s = sequences_[std::size_t(b)];
    for (Index k = std::max<Index>(0, q + s.from); k < s.keys && k <= q + s.to; ++k)
      if (!p_.mask || !p_.mask[p_.mask_sequence * b + p_.mask_row * q + k]) all.push_back(k);
    return all;
  }

  Rows read(Index row, Index head, const Integers& positions, bool rounded) const override {
    const Index b = at_[std::size_t(row)].sequence, g = head / group;
    Rows r;
    const auto add = [&](Numbers& to, const dense::Cache& cache, DType stored, Index columns, Index k,
                         const dense::Parameter* scale, const dense::Parameter* offset) {
      for (Index d = 0; d < columns; ++d) {
        double x = element(cache, stored, b, g, k, d);
        if (scale) x = double(float(float(x) + parameter(*offset, b, g, k, d, 0)) * parameter(*scale, b, g, k, d, 1));
        to.push_back(scale && rounded ? rounded_to(type, x) : x);
      }
    };
    for (const Index k : positions) {
      add(r.keys, p_.key, p_.kv_type, p_.width, k, codes ? &p_.key_scale : nullptr, &p_.key_offset);
      if (p_.rope) add(r.keys, p_.key_rope, p_.rope_type, p_.rope, k, nullptr, nullptr);
      add(r.values, p_.values, p_.kv_type, p_.value, k, codes ? &p_.value_scale : nullptr, &p_.value_offset);
    }
    return r;
  }

  Numbers scores(Index row, Index head, const Integers& positions, const Rows& keys) const override {
    const auto [b, q] = at_[std::size_t(row)];
    const auto at = [&, b = b, q = q](const dense::Grid& g, DType stored, Index d) {
      const Index token = sequences_[std::size_t(b)].first_query + q;
      return number(g.data, stored, g.sequence * b + g.token * token + g.head * head + d);
    };
    Numbers query, s;
    for (Index d = 0; d < p_.width; ++d) query.push_back(at(p_.query, p_.query_type, d));
    for (Index d = 0; d < p_.rope; ++d) query.push_back(at(p_.query_rope, p_.rope_type, d));
    double factor = double(p_.scale);
    if (p_.query_type == DType::i8)
      factor *= at(p_.query_scale, DType::f32, 0) * parameter(p_.key_scale, b, head / group, 0, 0, 1);
    for (std::size_t j = 0; j < positions.size(); ++j) {
      s.push_back(dot(query.data(), &keys.keys[j * std::size_t(width)], width) * factor);
      if (p_.bias.data)
        s.back() += number(p_.bias.data, p_.query_type,
                           p_.bias.sequence * b + p_.bias.token * q + p_.bias.head * head + positions[j]);
    }
    return s;
  }
  double sink(Index head) const override {
    return p_.sink.data ? number(p_.sink.data, p_.sink.dtype, p_.sink.head * head) : -kInfinity;
  }

  void put(Index row, Index head, const Numbers& values) const override {
    const auto [b, q] = at_[std::size_t(row)];
    const double factor =
        p_.query_type == DType::i8 ? double(parameter(p_.value_scale, b, head / group, 0, 0, 1)) : 1.0;
    const Index first =
        p_.out.sequence * b + p_.out.token * (sequences_[std::size_t(b)].first_query + q) + p_.out.head * head;
    for (Index d = 0; d < p_.value; ++d) {
      double x = factor * values[std::size_t(d)];
      if (p_.out_type == DType::i8) {
        const auto of = [&](const dense::Parameter& t, float absent) {
          return t.data ? float(number(t.data, t.dtype, t.head * head + t.column * d)) : absent;
        };
        x = double(float(x) * of(p_.out_scale, 1) + of(p_.out_offset, 0));
      }
      set_number(p_.out.data, p_.out_type, first + d, x);
    }
  }

 private:
  struct Place {
    Index sequence = -1, query = 0;  // -1: padding
  };

  static double number(const void* data, DType stored, Index at) {
    Tensor t;
    t.data = const_cast<void*>(data), t.dtype = stored;
    return number_at(t, at);
  }
  Index page(Index b, Index k) const {
    return p_.pages.table[p_.pages.sequence * b + k / p_.pages.block_size * p_.pages.step];
  }
  double element(const dense::Cache& c, DType stored, Index b, Index g, Index k, Index d) const {
    const Index base = p_.pages.table
                           ? c.page * page(b, k) + c.row * (k % p_.pages.block_size) + c.head * g
                           : c.sequence * b + c.row * (sequences_[std::size_t(b)].first_key + k) + c.head * g;
    const bool int4 = stored == DType::i32;
    const Index column = int4 ? d / 8 : d;
    const Index at = base + (c.block ? column / c.block * c.block_stride + column % c.block : column);
    if (!int4) return number(c.data, stored, at);
    const int code = int(static_cast<const std::uint32_t*>(c.data)[at] >> (d % 8 * 4) & 15);
    return code < 8 ? code : code - 16;
  }
  float parameter(const dense::Parameter& t, Index b, Index g, Index k, Index d, float absent) const {
    if (!t.data) return absent;
    const bool paged = p_.pages.table && t.per_key;
    const Index at = t.sequence * b + t.head * g + t.position * k + t.column * d +
                     (paged ? t.page * page(b, k) + t.row * (k % p_.pages.block_size) : 0);
    return float(number(t.data, t.dtype, at));
  }

  dense::Problem p_;
  std::vector<dense::Sequence> sequences_;
  std::vector<Place> at_;
};

template <class Args, class Outs>
std::unique_ptr<Sparse> sparse_of(const Arguments& a) {
  Args args;
  Outs outs;
  read_all(a, args, outs);
  return std::make_unique<Sparse>(sparse_attention::check(args, outs, false, false));
}

}  // namespace

std::unique_ptr<Attended> Attended::of(const Arguments& a) {
  const std::string_view op = a.op->name;
  if (op == "sparse_flash_attention") return sparse_of<SparseFlashAttentionArgs, SparseFlashAttentionOuts>(a);
  if (op == "kv_quant_sparse_flash_attention")
    return sparse_of<KvQuantSparseFlashAttentionArgs, KvQuantSparseFlashAttentionOuts>(a);
  if (op == "sparse_flash_attention_quant") {
    SparseFlashAttentionQuantArgs args;
    SparseFlashAttentionQuantOuts outs;
    read_all(a, args, outs);
    const auto checked = sparse_flash_attention_quant_op::check(args, outs);
    auto all = std::make_unique<Sparse>(checked);
    Integers sees;
    for (Index t = 0; t < checked.attention.tokens; ++t)
      sees.push_back(checked.act[t / checked.s1 * checked.act_step] - checked.s1 + 1 + t % checked.s1);
    all->see(std::move(sees));
    return all;
  }
  if (op != "fused_infer_attention_score_v2") return nullptr;
  FusedInferAttentionScoreV2Args args;
  FusedInferAttentionScoreV2Outs outs;
  read_all(a, args, outs);
  return std::make_unique<Dense>(fused_infer_attention_score_v2_op::check(args, outs));
}

void attend(const Attended& a, const AttentionRounding& how) {
  using Probability = AttentionRounding::Probability;
  for (Index row = 0; row < a.rows; ++row) {
    const Integers positions = a.listed(row);
    if (positions.empty()) continue;
    Attended::Rows keys;
    for (Index head = 0; head < a.heads; ++head) {
      if (head % a.group == 0) keys = a.read(row, head, positions, how.keys);
      const Numbers scores = a.scores(row, head, positions, keys);
      const std::size_t tile = how.probability == Probability::tiled ? kTile : scores.size();
      double most = a.sink(head), sum = most > -kInfinity ? 1 : 0;
      Numbers values(std::size_t(a.value_width), 0.0);
      for (std::size_t first = 0; first < scores.size(); first += tile) {
        const std::size_t end = std::min(scores.size(), first + tile);
        const double now = std::max(most, *std::max_element(&scores[first], &scores[0] + end));
        const double fade = now == most ? 1 : std::exp(most - now);
        most = now, sum *= fade;
        for (double& v : values) v *= fade;
        Numbers p;
        for (std::size_t j = first; j < end; ++j) sum += p.emplace_back(std::exp(scores[j] - most));
        for (std::size_t j = first; j < end; ++j) {
          double weight = p[j - first];
          if (how.probability == Probability::normalised) weight = rounded_to(a.type, weight / sum);
          if (how.probability == Probability::tiled) weight = rounded_to(a.type, weight);
          if (how.probability == Probability::int8) weight = std::nearbyint(127 * weight) / 127;
          for (std::size_t c = 0; c < values.size(); ++c) values[c] += weight * keys.values[j * values.size() + c];
        }
      }
      if (how.probability != Probability::normalised)
        for (double& v : values) v /= sum;
      a.put(row, head, values);
    }
  }
}

}  // namespace dsakit::debug
