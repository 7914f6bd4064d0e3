// SPDX-License-Identifier: Apache-2.0
#include "debug/index_scores.hpp"

#include <algorithm>

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
  struct Row {
    Sequence sequence;
    std::int64_t visible;
  };
  std::vector<Row> rows;

  template <class T>
  double score(std::int64_t row, std::int64_t j) const {
    const Sequence& s = rows[std::size_t(row)].sequence;
    double sum = 0;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const double relu = std::max(0.0, dot(p.head<T>(row, h), p.key<T>(s, j), p.dims));
      const double scale = p.query_scale.rows.tensor ? p.query_scale.at(row, h) : 1;
      sum += double(p.weights.at(row, h)) * scale * relu;
    }
    return p.key_scale ? sum * p.key_scale_at(s, j) : sum;
  }
};

IndexScores::IndexScores(const Arguments& a) : state_(new State{problem_of(a), {}}) {
  const indexer::Problem& p = state_->p;
  state_->rows.resize(std::size_t(p.sequences.total_rows));
  for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
    const Sequence s = p.sequences.at(b);
    for (std::int64_t i = 0; i < s.rows; ++i) state_->rows[std::size_t(s.first_row + i)] = {s, s.visible(i)};
  }
}
IndexScores::~IndexScores() = default;

std::int64_t IndexScores::visible(std::int64_t row) const { return state_->rows[std::size_t(row)].visible; }

double IndexScores::score(std::int64_t row, std::int64_t key) const {
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
