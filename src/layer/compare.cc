// SPDX-License-Identifier: Apache-2.0
#include "layer/compare.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "layer/exact_layer.hpp"
#include "layer/layer.hpp"
#include "run/call.hpp"

namespace dsakit {
namespace {

/// What one mode made.
struct Run {
  ModeFigures figures;
  std::vector<float> out;                // [rows, He]
  std::vector<std::int32_t> selection;   // [rows, K]; empty in dense mode
  std::vector<std::int8_t> latent, key;  // int8 codes, [rows, Hckv] and [rows, Di]
};

template <class T>
Distance distance(const std::vector<float>& out, const std::vector<T>& from) {
  double error = 0, size = 0, largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double e = std::abs(double(out[i]) - double(from[i]));
    error += e * e, size += double(from[i]) * double(from[i]);
    largest = std::max(largest, e);
  }
  if (size == 0) return {std::sqrt(error), largest};
  return {std::sqrt(error / size), largest / std::sqrt(size / double(out.size()))};
}

/// The first `width` bytes of every row: packed rows begin with their codes.
std::vector<std::int8_t> codes(const LayerCache::State& cache, const CachePool& pool, std::int64_t width) {
  std::vector<std::int8_t> all(std::size_t(cache.length * width));
  const auto* memory = reinterpret_cast<const std::int8_t*>(pool.memory.data());
  for (std::int64_t t = 0; t < cache.length; ++t)
    std::copy_n(memory + cache.slot(t) * pool.row_bytes(), width, all.data() + t * width);
  return all;
}

double equal_share(const std::vector<std::int8_t>& a, const std::vector<std::int8_t>& b) {
  std::size_t equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
  return double(equal) / double(a.size());
}

/// Twice, and timed the second time: the first one touches memory.
Run run(const ComparedLayer& c, Mode mode, Context& context) {
  const AttentionLayer layer = make_layer(c.config, c.layer, c.source());
  const std::int64_t width = c.config.hidden_size, k = c.config.index_topk,
                     rows = std::int64_t(c.hidden.size()) / width;
  Run r{{.mode = mode}, std::vector<float>(c.hidden.size()), {}, {}, {}};
  if (is_sparse(mode)) {
    r.selection.resize(std::size_t(rows * k));
    std::copy(c.selection.begin(), c.selection.end(), r.selection.begin());
  }
  LayerCache cache = layer.make_cache(name_of(mode));
  Costs costs;
  for (int turn = 0; turn < 2; ++turn) {
    cache.reset();
    costs = {};
    const auto begin = std::chrono::steady_clock::now();
    layer.forward(tensor(c.hidden.data(), {rows, width}), tensor(r.out.data(), {rows, width}), cache,
                  is_sparse(mode) ? tensor(r.selection.data(), {rows, k}) : Tensor{}, context, &costs);
    r.figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  for (const OperatorCost& cost : costs.operators) r.figures.bytes += cost.bytes;
  r.figures.weight_bytes = layer.weight_bytes();
  r.figures.cache_bytes = cache.bytes();
  if (is_quantised(mode)) {
    r.latent = codes(cache.state(), cache.state().latent, c.config.kv_lora_rank);
    if (layer.has_indexer()) r.key = codes(cache.state(), cache.state().index_key, c.config.index_head_dim);
  }
  return r;
}

/// Of one row: how many of `list` are among the best as many, ties at the cut apart.
double recall_of(const std::vector<double>& scores, std::span<const std::int32_t> list) {
  std::vector<double> sorted = scores;
  const auto cut = sorted.begin() + std::int64_t(list.size()) - 1;
  std::nth_element(sorted.begin(), cut, sorted.end(), std::greater<>());
  return double(std::count_if(list.begin(), list.end(), [&](std::int32_t s) { return scores[s] >= *cut; })) /
         double(list.size());
}

/// Of every run at once: scores are made once and not kept.
void add_recall(const ExactLayer& exact, const io::ModelConfig& c, std::map<Mode, Run>& runs, Context& context) {
  const std::int64_t k = c.index_topk;
  const double each = double(c.index_n_heads * c.index_head_dim);  // products of a score
  const std::int64_t choosing = exact.rows() - k;  // rows that see more than they select
  if (choosing <= 0) return;
  std::vector<Run*> sparse;
  for (auto& [mode, r] : runs)
    if (is_sparse(mode)) sparse.push_back(&r);
  std::vector<double> shares(std::size_t(choosing) * sparse.size());
  Call call(context, "layer", 0);
  call.parallel_for(choosing, {.elements = double(choosing * exact.rows()) * each}, [&](std::int64_t i, int) {
    const std::vector<double> scores = exact.scores(k + i);
    for (std::size_t r = 0; r < sparse.size(); ++r)
      shares[r * std::size_t(choosing) + std::size_t(i)] =
          recall_of(scores, std::span(sparse[r]->selection).subspan(std::size_t((k + i) * k), std::size_t(k)));
  });
  call.finish();
  for (std::size_t r = 0; r < sparse.size(); ++r) {
    const auto mine = std::span(shares).subspan(r * std::size_t(choosing), std::size_t(choosing));
    const auto worst = std::min_element(mine.begin(), mine.end());
    double sum = 0;
    for (const double share : mine) sum += share;
    sparse[r]->figures.recall = {sum / double(choosing), *worst, k + (worst - mine.begin())};
  }
}

}  // namespace

std::vector<ModeFigures> compare_modes(const ComparedLayer& c, std::span<const Mode> modes, Context& context) {
  const bool indexer = c.config.index_topk > 0 && c.config.full_indexer[std::size_t(c.layer)];
  std::map<Mode, Run> runs;
  for (const Mode mode : modes)
    if (!runs.contains(mode)) runs.emplace(mode, run(c, mode, context));
  if (c.config.index_topk > 0 && !runs.contains(Mode::sparse_bf16))
    runs.emplace(Mode::sparse_bf16, run(c, Mode::sparse_bf16, context));

  const std::unique_ptr<WeightSource> source = c.source();
  const ExactLayer exact(c.config, indexer, *source, c.hidden, context);
  std::vector<double> dense, sparse;
  for (const Mode mode : modes) {
    if (is_sparse(mode) && sparse.empty())
      sparse = indexer ? exact.attend(exact.selection(context), context) : exact.attend(c.selection, context);
    if (!is_sparse(mode) && dense.empty()) dense = exact.attend({}, context);
  }
  if (indexer) add_recall(exact, c.config, runs, context);

  std::vector<ModeFigures> all;
  for (const Mode mode : modes) {
    const Run& r = runs.at(mode);
    ModeFigures f = r.figures;
    f.exact = distance(r.out, is_sparse(mode) ? sparse : dense);
    if (mode != Mode::sparse_bf16 && runs.contains(Mode::sparse_bf16))
      f.sparse_bf16 = distance(r.out, runs.at(Mode::sparse_bf16).out);
    const Mode other = is_packed(mode) ? Mode::sparse_w8a8 : Mode::sparse_w8a8_packed;
    if (is_quantised(mode) && runs.contains(other)) {
      f.equal_latent = equal_share(r.latent, runs.at(other).latent);
      if (indexer) f.equal_key = equal_share(r.key, runs.at(other).key);
    }
    all.push_back(f);
  }
  return all;
}

}  // namespace dsakit
