// SPDX-License-Identifier: Apache-2.0
#include "layer/expert_rows.hpp"

namespace dsakit {

ExpertRows::ExpertRows(const std::int32_t* choice, std::int64_t rows, std::int64_t k, std::int64_t experts) {
  std::vector<std::int64_t> next(static_cast<std::size_t>(experts));  // how many of each, then where its next one goes
  for (std::int64_t i = 0; i < rows * k; ++i)
    if (choice[i] < experts) ++next[choice[i]];
  std::int64_t at = 0;
  for (std::size_t e = 0; e < next.size(); ++e) {
    if (next[e] > 0) expert.push_back(std::int32_t(e)), begin.push_back(at);
    at += std::exchange(next[e], at);
  }
  begin.push_back(at);
  token.resize(std::size_t(at)), place.resize(std::size_t(at));
  for (std::int64_t i = 0; i < rows * k; ++i) {
    if (choice[i] >= experts) continue;
    const std::int64_t to = next[choice[i]]++;
    token[to] = std::int32_t(i / k), place[to] = std::int32_t(i);
  }
}

std::vector<ExpertRows::Window> ExpertRows::windows(std::size_t most, std::int64_t rows_of_window) const {
  std::vector<Window> all;
  for (std::size_t first = 0, last; first < expert.size(); first = last) {
    last = first + 1;
    while (last < expert.size() && last - first < most && rows(first, last + 1) <= rows_of_window) ++last;
    all.emplace_back(first, last);
  }
  return all;
}

void add_weighted(Call& call, std::span<const MlpRows> jobs, const MlpArrays& arrays, const ExpertRows& rows,
                  std::size_t first, const float* weight, float* sum) {
  const std::int64_t width = jobs.empty() ? 0 : jobs[0].mlp.down.weight.n;
  const std::int32_t *token = rows.token.data() + rows.begin[first], *place = rows.place.data() + rows.begin[first];
  down(call, jobs, arrays,
       [&](std::size_t, std::int64_t row, std::int64_t column, std::int64_t columns, const float* sums) {
         float* to = sum + token[row] * width + column;
         const float factor = weight[place[row]];
         for (std::int64_t j = 0; j < columns; ++j) to[j] += factor * sums[j];
       });
}

}  // namespace dsakit
