// SPDX-License-Identifier: Apache-2.0
#include "debug/figures.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/view.hpp"
#include "debug/orders.hpp"
#include "debug/rule.hpp"

namespace dsakit::debug {
namespace {

using Index = std::int64_t;

constexpr Index kFirst = 4, kLast = 64;  // positions that attention likes
constexpr std::size_t kMoved = 10, kWorstHeads = 3, kWorstRows = 5;
constexpr double kOutlier = 8;  // times the median of the scales

double median_of(std::vector<double> x) {
  if (x.empty()) return 0;
  const auto middle = x.begin() + std::ptrdiff_t(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

Index rank_in(const Integers& list, Index key) {
  const auto at = std::find(list.begin(), list.end(), key);
  return at == list.end() ? -1 : at - list.begin();
}

double decibel(double signal, double noise) {
  return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

double sum_of_largest(std::vector<double> x, std::size_t count) {
  count = std::min(count, x.size());
  std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(count), x.end(), std::greater<>());
  return std::accumulate(x.begin(), x.begin() + std::ptrdiff_t(count), 0.0);
}

}  // namespace

SelectionFigures selection_figures(const IndexScores& scores, Index row, const Integers& list,
                                   const Integers& computed) {
  SelectionFigures f{.row = row, .visible = scores.visible(row)};
  std::vector<char> selected(std::size_t(f.visible));
  for (const Index key : list) {
    if (key < 0 || key >= f.visible) continue;
    ++f.selected;
    selected[std::size_t(key)] = 1;
    f.sink += key < kFirst, f.recent += key >= f.visible - kLast;
  }
  if (f.selected > 0) f.sink /= double(f.selected), f.recent /= double(f.selected);
  std::vector<double> score;
  f.cut = std::numeric_limits<double>::infinity(), f.next = -f.cut;
  for (Index key = 0; key < f.visible; ++key) {
    score.push_back(scores.score(row, key));
    f.zero += score.back() == 0;
    if (selected[std::size_t(key)]) f.cut = std::min(f.cut, score.back());
    else f.next = std::max(f.next, score.back());
  }
  for (Index key = 0; key < f.visible; ++key) {
    const double far = std::abs(score[std::size_t(key)] - f.cut);
    f.tied += far == 0, f.tied_kept += far == 0 && selected[std::size_t(key)];
    f.near += far <= 0x1p-10 * std::abs(f.cut), f.near_percent += far <= 0.01 * std::abs(f.cut);
    std::size_t band = 0;
    while (band + 1 < f.margins.size() && far > std::ldexp(std::abs(f.cut), int(2 * band) - 10)) ++band;
    ++f.margins[band];
  }
  for (Index key = 0; key < f.visible; ++key)
    if (const Index a = rank_in(list, key), b = rank_in(computed, key); (a < 0) != (b < 0))
      f.moved.push_back({key, scores.page(row, key), a, b, score[std::size_t(key)]});
  std::stable_sort(f.moved.begin(), f.moved.end(),
                   [&](const auto& a, const auto& b) { return std::abs(a.score - f.cut) > std::abs(b.score - f.cut); });
  f.moved.resize(std::min(f.moved.size(), kMoved));
  return f;
}

Integers best_of(const IndexScores& scores, Index row, Index count) {
  Integers keys(std::size_t(scores.visible(row)));
  std::vector<double> score;
  for (Index key = 0; key < Index(keys.size()); ++key) score.push_back(scores.score(row, key));
  std::iota(keys.begin(), keys.end(), 0);
  std::stable_sort(keys.begin(), keys.end(),
                   [&](Index a, Index b) { return score[std::size_t(a)] > score[std::size_t(b)]; });
  keys.resize(std::size_t(std::min(count, Index(keys.size()))));
  return keys;
}

AttentionFigures attention_figures(const Attended& a, Index row) {
  const Integers visible = a.visible(row);
  Integers listed = a.listed(row);
  std::sort(listed.begin(), listed.end());
  listed.erase(std::unique(listed.begin(), listed.end()), listed.end());
  AttentionFigures f{.row = row, .visible = Index(visible.size()), .listed = Index(listed.size())};
  if (visible.empty()) return f;
  Attended::Rows keys;
  std::vector<double> together(visible.size()), effective;
  std::vector<AttentionFigures::Head> heads;
  for (Index head = 0; head < a.heads; ++head) {
    if (head % a.group == 0) keys = a.read(row, head, visible, false);
    std::vector<double> p = a.scores(row, head, visible, keys);
    const double most = std::max(a.sink(head), *std::max_element(p.begin(), p.end()));
    double sum = 0;  // of keys: a sink has no value
    for (double& x : p) sum += x = std::exp(x - most);
    AttentionFigures::Head h{head, 0, 0};
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i] /= sum;
      together[i] += p[i];
      h.effective -= p[i] > 0 ? p[i] * std::log(p[i]) : 0;
      if (std::binary_search(listed.begin(), listed.end(), visible[i])) h.mass += p[i];
      if (visible[i] < kFirst) f.first += p[i];
      if (i + std::size_t(kLast) >= p.size()) f.last += p[i];
    }
    h.effective = std::exp(h.effective);
    effective.push_back(h.effective);
    f.mass += h.mass;
    f.best_heads += sum_of_largest(p, listed.size());
    heads.push_back(h);
  }
  f.best = sum_of_largest(together, listed.size());
  for (double* share : {&f.mass, &f.best, &f.best_heads, &f.first, &f.last}) *share /= double(a.heads);
  f.effective = median_of(effective);
  std::stable_sort(heads.begin(), heads.end(), [](const auto& x, const auto& y) { return x.mass < y.mass; });
  heads.resize(std::min(heads.size(), kWorstHeads));
  f.worst = heads;
  return f;
}

CodeFigures code_figures(const std::string& name, const Tensor& codes, const Tensor& scales, const Tensor& before,
                         const Tensor& smooth) {
  const auto at = [](const Tensor& t, Index i) { return number_at(t, offset_of(t, i)); };
  CodeFigures f{.name = name, .groups = scales.elements()};
  const Index n = codes.elements(), group = n / std::max<Index>(f.groups, 1),
              width = std::max<Index>(last_axis(codes), 1);
  if (n == 0 || group == 0) return f;
  std::vector<double> worth;
  for (Index i = 0; i < f.groups; ++i) worth.push_back(std::abs(at(scales, i)));
  for (Index i = 0; i < n; ++i) {
    const double code = at(codes, i);
    f.saturated += std::abs(code) >= 127, f.zeros += code == 0;
    ++f.histogram[std::size_t(std::clamp<Index>((Index(code) + 128) / 16, 0, 15))];
  }
  f.saturated /= double(n), f.zeros /= double(n);
  const auto most = std::max_element(worth.begin(), worth.end());
  if (const double median = median_of(worth); median > 0 && *most > kOutlier * median)
    f.outlier = most - worth.begin(), f.outlier_ratio = *most / median;
  if (!before || before.elements() != n) return f;
  std::vector<double> all;
  for (Index row = 0; row < n / width; ++row) {
    double signal = 0, noise = 0;
    Index channel = 0;
    const auto number = [&](Index i) { return at(before, i) * (smooth ? at(smooth, i % width) : 1); };
    const auto loss = [&](Index i) { return number(i) - at(codes, i) * worth[std::size_t(i / group)]; };
    for (Index i = row * width; i < (row + 1) * width; ++i) {
      signal += number(i) * number(i), noise += loss(i) * loss(i);
      if (std::abs(number(i)) > std::abs(number(row * width + channel))) channel = i % width;
    }
    if (signal == 0) continue;
    const double x = number(row * width + channel), lost = loss(row * width + channel);
    f.worst.push_back({row, decibel(signal, noise), decibel(signal - x * x, noise - lost * lost), channel});
    all.push_back(f.worst.back().sqnr);
  }
  f.median = median_of(all);
  std::stable_sort(f.worst.begin(), f.worst.end(), [](const auto& a, const auto& b) { return a.sqnr < b.sqnr; });
  f.worst.resize(std::min(f.worst.size(), kWorstRows));
  return f;
}

}  // namespace dsakit::debug
