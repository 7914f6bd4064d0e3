// SPDX-License-Identifier: Apache-2.0
#include "layer/moe.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "layer/costs.hpp"

namespace dsakit {
namespace {

Activations activations_of(const MlpLayout& layout) {
  return layout.format() == MlpFormat::int8 ? Activations::int8 : Activations::bf16;
}

}  // namespace

Moe::Moe(const io::Checkpoint& checkpoint, std::int64_t layer, std::int64_t number, std::shared_ptr<Experts> experts,
         const MlpOptions& options)
    : config_(checkpoint.config().moe),
      hidden_(checkpoint.config().hidden_size),
      number_(number),
      router_(checkpoint, layer),
      experts_(std::move(experts)) {
  if (config_.n_shared_experts > 0)
    shared_ = GatedMlp(checkpoint, "model.layers." + std::to_string(layer) + ".mlp.shared_experts.", hidden_,
                       config_.shared_size(), options);
}

Activations Moe::activations() const { return activations_of(experts_->layout(number_)); }

MoeArrays::MoeArrays(const Moe& moe, std::int64_t rows, int threads, Carver& carver)
    : choices(moe.config(), rows, threads, carver),
      sum(carver.take<float>(rows * moe.hidden())),
      gathered(std::max(rows, std::min(rows * moe.config().num_experts_per_tok, ExpertRows::kGathered))),
      routed(moe.activations(), gathered, moe.hidden(), moe.config().moe_intermediate_size, threads, carver),
      shared(activations_of(moe.shared().layout()), moe.shared() ? rows : 0, moe.hidden(),
             std::max<std::int64_t>(moe.config().shared_size(), 1), threads, carver) {}

/// Gate and up of each expert of a window as it comes. `first`: place of the window's first expert.
std::vector<MlpRows> Moe::gate_window(Call& call, Experts::Window& window, const ExpertRows& rows, std::size_t first,
                                      const float* x, const MoeArrays& arrays, float* columns) const {
  const std::size_t count = window.wanted().size();
  const std::int64_t begin = rows.begin[first];
  set_input(call, x, rows.token.data() + begin, rows.rows(first, first + count), arrays.routed);
  std::vector<MlpRows> jobs(count);
  for (std::size_t done = 0; done < count;) {
    std::vector<MlpRows> here;
    do {
      const std::size_t at = window.next(), expert = first + at;
      jobs[at] = {window.at(at), rows.begin[expert] - begin, rows.rows(expert, expert + 1)};
      here.push_back(jobs[at]);
      ++done;
    } while (done < count && window.has_next());
    gate_and_up(call, here, arrays.routed, columns);
  }
  return jobs;
}

/// The down products of all of them at the end, so that sums grow in the order of the experts.
void Moe::run_window(Call& call, Experts::Window& window, const ExpertRows& rows, std::size_t first, const float* x,
                     const MoeArrays& arrays) const {
  const std::vector<MlpRows> jobs = gate_window(call, window, rows, first, x, arrays, nullptr);
  add_weighted(call, jobs, arrays.routed, rows, first, arrays.choices.weight, arrays.sum);
}

void Moe::add_to(Context& context, Costs* costs, const float* x, std::int64_t rows, const MoeArrays& arrays,
                 float* residual) const {
  ExpertRows chosen;
  {
    Timed timed(costs, "router", double(router_.bytes()));
    Call call(context, "model", 0);
    router_.choose(call, x, rows, arrays.choices);
    call.finish();
    chosen = ExpertRows(arrays.choices.expert, rows, config_.num_experts_per_tok, config_.n_routed_experts);
  }
  {
    Timed timed(costs, "experts", double(chosen.expert.size() * experts_->layout(number_).bytes()));
    Call call(context, "model", 0);
    std::fill_n(arrays.sum, rows * hidden_, 0.0f);
    const std::unique_lock turn = experts_->turn();
    // All at once, or half of the slots, so that the next ones are read meanwhile.
    const std::size_t all = chosen.expert.size(), slots = std::size_t(experts_->slots());
    const auto windows = chosen.windows(all <= slots ? all : std::max<std::size_t>(slots / 2, 1), arrays.gathered);
    const auto hold = [&](std::size_t i) {
      const auto [first, last] = windows[i];
      return Experts::Window(*experts_, number_, std::span(chosen.expert).subspan(first, last - first));
    };
    std::optional<Experts::Window> next(hold(0));
    for (std::size_t i = 0; i < windows.size(); ++i) {
      Experts::Window window = std::move(*next);
      next.reset();
      if (i + 1 < windows.size()) next.emplace(hold(i + 1));
      run_window(call, window, chosen, windows[i].first, x, arrays);
    }
    call.finish();
  }
  Timed timed(costs, "shared_experts", double(shared_.bytes()));
  Call call(context, "model", 0);
  if (!shared_) {
    for (std::int64_t i = 0; i < rows * hidden_; ++i) residual[i] += arrays.sum[i];
    return;
  }
  const MlpRows job{shared_.matrices(), 0, rows};
  set_input(call, x, nullptr, rows, arrays.shared);
  gate_and_up(call, {&job, 1}, arrays.shared);
  down(call, {&job, 1}, arrays.shared,
       [&](std::size_t, std::int64_t row, std::int64_t column, std::int64_t columns, const float* sums) {
         const std::int64_t at = row * hidden_ + column;
         for (std::int64_t j = 0; j < columns; ++j) residual[at + j] += arrays.sum[at + j] + sums[j];
       });
  call.finish();
}

}  // namespace dsakit
