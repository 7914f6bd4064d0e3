// SPDX-License-Identifier: Apache-2.0
#include "debug/index_scores.hpp"

#include <algorithm>

#include "debug/rule.hpp"

#include "ops/lightning_indexer/problem.hpp"
#include "ops/quant_lightning_indexer/problem.hpp"

namespace dsakit::debug {
namespace {

std::string_view text(const Arguments& a, std::string_view name) { return std::get<std::string>(a.at(name)); }
std::int64_t number(const Arguments& a, std::string_view name) { return std::get<std::int64_t>(a.at(name)); }

/// What both operators are told.
template <class Args>
Args common(const Arguments& a) {
  Args args{};
  args.query = a.tensor("query"), args.key = a.tensor("key"), args.weights = a.tensor("weights");
  args.actual_seq_lengths_query = a.tensor("actual_seq_lengths_query");
  args.actual_seq_lengths_key = a.tensor("actual_seq_lengths_key");
  args.block_table = a.tensor("block_table");
  args.layout_query = text(a, "layout_query"), args.layout_key = text(a, "layout_key");
  args.sparse_count = number(a, "sparse_count"), args.sparse_mode = number(a, "sparse_mode");
  return args;
}

indexer::Problem problem_of(const Arguments& a) {
  if (a.op->name == "quant_lightning_indexer") {
    auto args = common<QuantLightningIndexerArgs>(a);
    args.query_dequant_scale = a.tensor("query_dequant_scale");
    args.key_dequant_scale = a.tensor("key_dequant_scale");
    QuantLightningIndexerOuts outs;
    return quant_lightning_indexer_op::check(args, outs, true, false);
  }
  LightningIndexerOuts outs;
  return lightning_indexer_op::check(common<LightningIndexerArgs>(a), outs, true, false);
}

template <class T>
double dot(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if constexpr (std::is_integral_v<T>) sum += double(a[i]) * double(b[i]);
    else sum += double(to_float(a[i])) * double(to_float(b[i]));
  return sum;
}

}  // namespace

struct IndexScores::State {
  indexer::Problem p;
  Tensor query{}, key{}, weights{};  // before quantisation
  struct Row {
    SequenceRows sequence;
    std::int64_t visible;
  };
  std::vector<Row> rows;

  /// Of `query` or `key`, whichever are there.
  double score_unquantised(std::int64_t row, std::int64_t j) const {
    const SequenceRows& s = rows[std::size_t(row)].sequence;
    const auto number = [](const Tensor& unquantised, const void* quantised, DType type, std::int64_t at) {
      if (unquantised) return number_at(unquantised, at);
      Tensor t;
      t.data = const_cast<void*>(quantised), t.dtype = type;
      return number_at(t, at);
    };
    const std::int64_t first = p.keys.offset(s.index, s.first_key + j);
    double sum = 0;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      double dot = 0;
      for (std::int64_t d = 0; d < p.dims; ++d)
        dot += number(query, p.query.tensor.data, p.type, p.query.offset(row) + h * p.head_stride + d) *
               number(key, p.keys.data, p.type, first + d);
      const double scale = query || !p.query_scale.rows.tensor ? 1 : p.query_scale.at(row, h);
      const double weight = weights ? number_at(weights, p.weights.offset(row, h)) : p.weights.at(row, h);
      sum += weight * scale * std::max(0.0, dot);
    }
    return key || !p.key_scale ? sum : sum * p.key_scale_at(s, j);
  }

  template <class T>
  double score(std::int64_t row, std::int64_t j) const {
    const SequenceRows& s = rows[std::size_t(row)].sequence;
    double sum = 0;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const double relu = std::max(0.0, dot(p.head<T>(row, h), p.key<T>(s, j), p.dims));
      const double scale = p.query_scale.rows.tensor ? p.query_scale.at(row, h) : 1;
      sum += double(p.weights.at(row, h)) * scale * relu;
    }
    return p.key_scale ? sum * p.key_scale_at(s, j) : sum;
  }
};

IndexScores::IndexScores(const Arguments& a) : IndexScores(a, {}, {}, {}) {}

IndexScores::IndexScores(const Arguments& a, const Tensor& query, const Tensor& key, const Tensor& weights)
    : state_(new State{problem_of(a), query, key, weights, {}}) {
  const indexer::Problem& p = state_->p;
  state_->rows.resize(std::size_t(p.sequences.total_rows));
  for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
    const SequenceRows s = p.sequences.at(b);
    for (std::int64_t i = 0; i < s.rows; ++i) state_->rows[std::size_t(s.first_row + i)] = {s, s.visible(i)};
  }
}
IndexScores::~IndexScores() = default;

std::int64_t IndexScores::rows() const { return std::int64_t(state_->rows.size()); }

std::int64_t IndexScores::visible(std::int64_t row) const { return state_->rows[std::size_t(row)].visible; }

std::int64_t IndexScores::page(std::int64_t row, std::int64_t key) const {
  const indexer::Problem& p = state_->p;
  const SequenceRows& s = state_->rows[std::size_t(row)].sequence;
  if (!p.keys.table) return -1;
  return p.keys.table[s.index * p.keys.table_stride + (s.first_key + key) / p.keys.page_size * p.keys.table_step];
}

double IndexScores::score(std::int64_t row, std::int64_t key) const {
  if (state_->query || state_->key || state_->weights) return state_->score_unquantised(row, key);
  switch (state_->p.type) {
    case DType::i8:
      return state_->score<std::int8_t>(row, key);
    case DType::bf16:
      return state_->score<bf16>(row, key);
    default:
      return state_->score<f16>(row, key);
  }
}

}  // namespace dsakit::debug
