// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "layer/cache.hpp"
#include "layer/costs.hpp"
#include "layer/mlp.hpp"
#include "layer/moe.hpp"
#include "layer/parallel.hpp"

// MLPs and mixtures of experts whose ranks have columns of gate, up and down: what is between them is exchanged in fp32, before
// any rounding. Every rank then has all of every row, as one process has it.
namespace dsakit {
namespace {

SharedColumns columns(const float* mine, float* all, std::int64_t width, std::int64_t times = 1) {
  return {.mine = mine, .all = all, .items = width, .bytes = sizeof(float), .times = times};
}

struct DenseArrays {
  MlpArrays local;
  float *mine, *all, *own, *change;  // as in SharedMoeArrays

  DenseArrays(const Peers& p, const GatedMlp& mlp, std::int64_t rows, int threads, Carver& carver)
      : local(mlp.activations(), rows, mlp.layout().hidden(), mlp.layout().wide(), threads, carver),
        mine(carver.take<float>(rows * p.columns(local.wide).size())),
        all(carver.take<float>(rows * local.wide)),
        own(carver.take<float>(rows * p.columns(local.hidden).size())),
        change(carver.take<float>(rows * local.hidden)) {}
};

/// own [rows, own columns] = down(inner), on top of what `before` has.
void down_columns(Call& call, const MlpRows& job, const MlpArrays& arrays, const float* before, float* own) {
  const std::int64_t width = job.mlp.down.weight.n;
  down(call, {&job, 1}, arrays,
       [&](auto, std::int64_t row, std::int64_t column, std::int64_t columns, const float* sums) {
         const std::int64_t at = row * width + column;
         for (std::int64_t j = 0; j < columns; ++j) own[at + j] = before ? before[at + j] + sums[j] : sums[j];
       });
}

void add(const float* change, std::int64_t count, float* residual) {
  for (std::int64_t i = 0; i < count; ++i) residual[i] += change[i];
}

}  // namespace

std::size_t parallel_mlp_bytes(const Peers& p, const GatedMlp& mlp, std::int64_t rows, int threads) {
  return bytes_of<DenseArrays>(p, mlp, rows, threads);
}

void add_parallel(Peers& p, const GatedMlp& mlp, const float* x, std::int64_t rows, float* residual,
                  ScratchMemory& scratch, Context& context, Costs* costs) {
  Timed timed(costs, "mlp", double(mlp.bytes()));
  const auto make = [&](Carver carver) { return DenseArrays(p, mlp, rows, context.threads(), carver); };
  const DenseArrays a = make(Carver(scratch.require(parallel_mlp_bytes(p, mlp, rows, context.threads()))));
  const MlpRows job{mlp.matrices(), 0, rows};
  p.talk.work([&] {
    Call call(context, "model", 0);
    set_input(call, x, nullptr, rows, a.local);
    gate_and_up(call, {&job, 1}, a.local, a.mine);
    call.finish();
  });
  gather(p, "mlp_hidden", rows, {columns(a.mine, a.all, a.local.wide)});
  p.talk.work([&] {
    Call call(context, "model", 0);
    set_inner(call, a.all, 0, rows, a.local);
    down_columns(call, job, a.local, nullptr, a.own);
    call.finish();
  });
  gather(p, "mlp_output", rows, {columns(a.own, a.change, a.local.hidden)});
  p.talk.work([&] { add(a.change, rows * a.local.hidden, residual); });
}

SharedMoeArrays::SharedMoeArrays(const Moe& moe, const Peers& p, std::int64_t rows, int threads, Carver& carver)
    : local(moe, rows, threads, carver),
      mine(carver.take<float>(local.gathered * p.columns(local.routed.wide).size())),
      all(carver.take<float>(local.gathered * local.routed.wide)),
      mine_shared(carver.take<float>(moe.shared() ? rows * p.columns(local.shared.wide).size() : 0)),
      all_shared(carver.take<float>(moe.shared() ? rows * local.shared.wide : 0)),
      own(carver.take<float>(rows * p.columns(moe.hidden()).size())),
      change(carver.take<float>(rows * moe.hidden())) {}

/// Where all experts are in memory everywhere, one exchange takes all hidden activations, and its size does not depend on the
/// choices. Else there is one for each window of experts, and before the first a word on whether there are choices.
void Moe::add_to(Peers& p, Context& context, Costs* costs, const float* x, std::int64_t rows,
                 const SharedMoeArrays& arrays, float* residual) const {
  const MoeArrays& a = arrays.local;
  const std::int64_t chosen_rows = rows * config_.num_experts_per_tok, own = p.columns(hidden_).size();
  const bool once = p.all_experts_held && chosen_rows <= a.gathered;
  const MlpRows shared = shared_ ? MlpRows{shared_.matrices(), 0, rows} : MlpRows{};
  ExpertRows chosen;
  p.talk.work([&] {
    Timed timed(costs, "router", double(router_.bytes()));
    Call call(context, "model", 0);
    router_.choose(call, x, rows, a.choices);
    if (shared_) {
      set_input(call, x, nullptr, rows, a.shared);
      gate_and_up(call, {&shared, 1}, a.shared, arrays.mine_shared);
    }
    call.finish();
    chosen = ExpertRows(a.choices.expert, rows, config_.num_experts_per_tok, config_.n_routed_experts);
    std::fill_n(a.sum, rows * own, 0.0f);
  });
  Timed timed(costs, "experts", double(chosen.expert.size() * experts_->layout(number_).bytes()));
  const std::unique_lock turn = experts_->turn();
  const auto run = [&](std::size_t first, std::size_t last, std::int64_t exchanged, bool with_shared) {
    std::optional<Experts::Window> window;
    std::vector<MlpRows> jobs;
    p.talk.work([&] {
      window.emplace(*experts_, number_, std::span(chosen.expert).subspan(first, last - first));
      Call call(context, "model", 0);
      jobs = gate_window(call, *window, chosen, first, x, a, arrays.mine);
      call.finish();
    });
    const SharedColumns routed = columns(arrays.mine, arrays.all, a.routed.wide, exchanged);
    if (with_shared && shared_)
      gather(p, "mlp_hidden", 1, {routed, columns(arrays.mine_shared, arrays.all_shared, a.shared.wide, rows)});
    else
      gather(p, "mlp_hidden", 1, {routed});
    p.talk.work([&] {
      Call call(context, "model", 0);
      set_inner(call, arrays.all, 0, chosen.rows(first, last), a.routed);
      add_weighted(call, jobs, a.routed, chosen, first, a.choices.weight, a.sum);
      call.finish();
    });
  };
  if (once) {
    run(0, chosen.expert.size(), chosen_rows, true);
  } else {
    p.talk.all_gather(*p.replica, "choices", {}, std::vector<std::size_t>(std::size_t(p.replica->size())), nullptr);
    if (!p.talk.failed()) {
      bool first = true;
      for (const auto& [begin, end] : chosen.windows(std::size_t(std::max<std::int64_t>(p.least_slots / 2, 1)), a.gathered)) {
        run(begin, end, chosen.rows(begin, end), std::exchange(first, false));
      }
      if (first && shared_) run(0, 0, 0, true);
    }
  }
  p.talk.work([&] {
    if (!shared_) return void(std::copy_n(a.sum, rows * own, arrays.own));
    Call call(context, "model", 0);
    set_inner(call, arrays.all_shared, 0, rows, a.shared);
    down_columns(call, shared, a.shared, a.sum, arrays.own);
    call.finish();
  });
  gather(p, "mlp_output", rows, {columns(arrays.own, arrays.change, hidden_)});
  p.talk.work([&] { add(arrays.change, rows * hidden_, residual); });
}

}  // namespace dsakit
