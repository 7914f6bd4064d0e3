// SPDX-License-Identifier: Apache-2.0
#include "layer/moe.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "layer/costs.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kGathered = 4096;  // rows of a window, unless one expert has more

Activations activations_of(const MlpLayout& layout) {
  return layout.format() == MlpFormat::int8 ? Activations::int8 : Activations::bf16;
}

/// Those of the tokens' experts that somebody wants, ascending, and where each one's rows begin and end.
struct Wanted {
  std::vector<std::int32_t> expert;
  std::vector<std::int64_t> begin;  // one more than experts
};

/// A window may hold so many experts: all, or half of the slots so that the next ones are read meanwhile.
std::vector<std::pair<std::size_t, std::size_t>> windows_of(const Wanted& wanted, std::int64_t slots,
                                                            std::int64_t rows) {
  const std::size_t all = wanted.expert.size();
  const std::size_t most = std::int64_t(all) <= slots ? all : std::size_t(std::max<std::int64_t>(slots / 2, 1));
  std::vector<std::pair<std::size_t, std::size_t>> windows;
  for (std::size_t first = 0, last; first < all; first = last) {
    last = first + 1;
    while (last < all && last - first < most && wanted.begin[last + 1] - wanted.begin[first] <= rows) ++last;
    windows.emplace_back(first, last);
  }
  return windows;
}

}  // namespace

struct Moe::Lists : Wanted {};

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
      token(carver.take<std::int32_t>(rows * moe.config().num_experts_per_tok)),
      slot(carver.take<std::int32_t>(rows * moe.config().num_experts_per_tok)),
      gathered(std::max(rows, std::min(rows * moe.config().num_experts_per_tok, kGathered))),
      routed(moe.activations(), gathered, moe.hidden(), moe.config().moe_intermediate_size, threads, carver),
      shared(activations_of(moe.shared().layout()), moe.shared() ? rows : 0, moe.hidden(),
             std::max<std::int64_t>(moe.config().shared_size(), 1), threads, carver) {}

/// Tokens by expert, each list ascending.
Moe::Lists Moe::list(const MoeArrays& arrays, std::int64_t rows) const {
  const std::int64_t k = config_.num_experts_per_tok;
  std::vector<std::int64_t> end(static_cast<std::size_t>(config_.n_routed_experts));
  for (std::int64_t i = 0; i < rows * k; ++i) ++end[arrays.choices.expert[i]];
  Lists lists;
  std::int64_t at = 0;
  for (std::size_t e = 0; e < end.size(); ++e) {
    if (end[e] > 0) lists.expert.push_back(std::int32_t(e)), lists.begin.push_back(at);
    at += std::exchange(end[e], at);
  }
  lists.begin.push_back(at);
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const std::int64_t to = end[arrays.choices.expert[i]]++;
    arrays.token[to] = std::int32_t(i / k), arrays.slot[to] = std::int32_t(i % k);
  }
  return lists;
}

/// Gate and up of each expert as it comes; the down products of all of them at the end, so that sums grow in the order
/// of the experts.
void Moe::run_window(Call& call, Experts::Window& window, const Lists& lists, const float* x,
                     const MoeArrays& arrays) const {
  const std::size_t count = window.wanted().size();
  const std::size_t first = std::size_t(std::lower_bound(lists.expert.begin(), lists.expert.end(), window.wanted()[0]) -
                                        lists.expert.begin());
  const std::int64_t begin = lists.begin[first];
  const std::int32_t *token = arrays.token + begin, *slot = arrays.slot + begin;
  set_input(call, x, token, lists.begin[first + count] - begin, arrays.routed);
  std::vector<MlpRows> jobs(count);
  for (std::size_t done = 0; done < count;) {
    std::vector<MlpRows> here;
    do {
      const std::size_t place = window.next();
      const std::int64_t from = lists.begin[first + place] - begin;
      jobs[place] = {window.at(place), from, lists.begin[first + place + 1] - begin - from};
      here.push_back(jobs[place]);
      ++done;
    } while (done < count && window.has_next());
    gate_and_up(call, here, arrays.routed);
  }
  down(call, jobs, arrays.routed,
       [&](std::size_t, std::int64_t row, std::int64_t column, std::int64_t columns, const float* sums) {
         float* to = arrays.sum + token[row] * hidden_ + column;
         const float weight = arrays.choices.weight[token[row] * config_.num_experts_per_tok + slot[row]];
         for (std::int64_t j = 0; j < columns; ++j) to[j] += weight * sums[j];
       });
}

void Moe::add_to(Context& context, Costs* costs, const float* x, std::int64_t rows, const MoeArrays& arrays,
                 float* residual) const {
  Lists lists;
  {
    Timed timed(costs, "router", double(router_.bytes()));
    Call call(context, "model", 0);
    router_.choose(call, x, rows, arrays.choices);
    call.finish();
    lists = list(arrays, rows);
  }
  {
    Timed timed(costs, "experts", double(lists.expert.size() * experts_->layout(number_).bytes()));
    Call call(context, "model", 0);
    std::fill_n(arrays.sum, rows * hidden_, 0.0f);
    const std::unique_lock turn = experts_->turn();
    const auto windows = windows_of(lists, experts_->slots(), arrays.gathered);
    const auto hold = [&](std::size_t i) {
      const auto [first, last] = windows[i];
      return Experts::Window(*experts_, number_, std::span(lists.expert).subspan(first, last - first));
    };
    std::optional<Experts::Window> next(hold(0));
    for (std::size_t i = 0; i < windows.size(); ++i) {
      Experts::Window window = std::move(*next);
      next.reset();
      if (i + 1 < windows.size()) next.emplace(hold(i + 1));
      run_window(call, window, lists, x, arrays);
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
