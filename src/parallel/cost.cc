// SPDX-License-Identifier: Apache-2.0
#include "parallel/cost.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dsakit {
namespace {

/// Of a row in a layer besides its products: norms, rotation, quantising, waking threads.
constexpr double kRestSeconds = 15e-6;

/// The largest part of n that is shared by so many.
std::int64_t largest_part(std::int64_t n, int parts) { return (n + parts - 1) / parts; }

class Coster {
 public:
  Coster(const ModelWork& work, const ParallelOptions& options, const Step& step, const MachineSpeed& machine,
         const Network& network)
      : work_(work), s_(work.sizes), o_(options), step_(step), machine_(machine), network_(network),
        rows_(double(rows_of_replica(options.grid, step.rows))) {}

  StepCost all() {
    for (const LayerWork& layer : work_.layers) {
      add_weights(layer.attention, rows_);
      add_weights(layer.mlp, rows_);
      add_attention(layer.indexer);
      add(attention_exchanges(s_, o_, step_, layer.indexer));
      if (!layer.mlp_widths.empty()) add(mlp_exchanges(s_, o_, step_, layer.mlp_widths));
    }
    if (!work_.head.empty()) {
      add_weights(work_.head, 1);
      add(model_exchanges(s_, o_, step_));
    }
    return cost_;
  }

 private:
  double& seconds(Term term) { return cost_.seconds[std::size_t(term)]; }

  /// Of weights that are used one after the other, on the rank with the most of them.
  void add_weights(const std::vector<SharedWeight>& weights, double rows) {
    double slowest = 0, most = 0, most_routed = 0, most_read = 0;
    for (int j = 0; j < o_.grid.replica_ranks(); ++j) {
      double time = 0, held = 0, routed = 0, read = 0;
      for (const SharedWeight& w : weights) {
        const double share = share_of(w, j);
        const double used = share * w.bytes * (1 - std::pow(1 - w.use, rows));  // rows choose experts independently
        (w.routed ? routed : held) += share * w.bytes;
        if (w.routed) read += used;
        const double rate = w.i8 ? machine_.i8_ops : machine_.bf16_flops;
        time += std::max(used / machine_.bytes, rows * share * 2 * w.products * w.use / rate);
      }
      slowest = std::max(slowest, time);
      most = std::max(most, held);
      most_routed = std::max(most_routed, routed);
      most_read = std::max(most_read, read);
    }
    seconds(Term::weights) += slowest;
    cost_.weight_bytes += most;
    cost_.routed_bytes += most_routed;
    cost_.routed_read += most_read;
  }

  double share_of(const SharedWeight& w, int j) const {
    if (w.sharing == Sharing::everyone || (w.prolog && o_.prolog == Prolog::copy)) return 1;
    const int ranks = o_.grid.replica_ranks();
    const Slice slice = w.sharing == Sharing::heads ? slice_of(w.units, j, ranks) : columns_of(w.units, j, ranks);
    return double(slice.size()) / double(w.units);
  }

  void add_attention(bool indexer) {
    const Grid& grid = o_.grid;
    const bool selects = s_.topk > 0 && step_.visible > s_.topk;
    const double keys = double(largest_part(step_.visible, index_shards(o_)));
    const double latent_rows = double(largest_part(step_.visible, grid.kv));
    cost_.cache_bytes += latent_rows * double(s_.latent_row_bytes);
    if (indexer) cost_.cache_bytes += keys * double(s_.index_row_bytes);
    if (indexer && selects) {
      const double rate = work_.i8_scores ? machine_.i8_ops : machine_.bf16_flops;
      seconds(Term::index) += std::max(keys * double(s_.index_row_bytes) / machine_.bytes,
                                       rows_ * keys * double(s_.index_heads * s_.index_dim) * 2 / rate);
      const MergeLoad load = merge_load(s_, o_, step_);
      if (index_shards(o_) > 1)
        seconds(Term::merge) += kMergeSeconds * double(load.candidates(load.in_two(o_.merge)));
    }
    const double heads = double(largest_part(s_.heads, grid.replica_ranks()));
    const double attended = double(selects ? s_.topk : step_.visible);
    // The same for partial results: a kv-th of the rows, for kv times the heads.
    const double operations = rows_ * attended * heads * 2 * double(2 * s_.latent + s_.rope) / machine_.bf16_flops;
    // All rows of a step share what they read where they attend to everything.
    const double reading = selects ? 0 : latent_rows * double(s_.latent_row_bytes) / machine_.bytes;
    seconds(Term::attention) += std::max(operations, reading);
    seconds(Term::rest) += rows_ * kRestSeconds;
  }

  void add(const std::vector<ForetoldExchange>& exchanges) {
    for (const ForetoldExchange& e : exchanges) {
      const std::size_t at = std::size_t(e.what) - 1;
      cost_.messages[at] += e.messages;
      cost_.received[at] += e.received;
      const double latency = network_.seconds(e.ranks, 0);
      seconds(Term::latency) += double(e.messages) * latency;
      seconds(Term::transfer) += network_.seconds(e.ranks, e.received) - latency;
    }
  }

  const ModelWork& work_;
  const ExchangeSizes& s_;
  const ParallelOptions& o_;
  const Step& step_;
  const MachineSpeed& machine_;
  const Network& network_;
  const double rows_;
  StepCost cost_;
};

}  // namespace

ModelWork attention_of(ModelWork work) {
  work.head.clear();
  for (LayerWork& layer : work.layers) {
    layer.mlp.clear();
    layer.mlp_widths.clear();
  }
  return work;
}

double StepCost::all_seconds() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
std::int64_t StepCost::all_messages() const {
  return std::accumulate(messages.begin(), messages.end(), std::int64_t{0});
}
double StepCost::all_received() const { return std::accumulate(received.begin(), received.end(), 0.0); }

StepCost cost_of(const ModelWork& work, const ParallelOptions& options, const Step& step, const MachineSpeed& machine,
                 const Network& network) {
  return Coster(work, options, step, machine, network).all();
}

}  // namespace dsakit
