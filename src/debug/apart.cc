// SPDX-License-Identifier: Apache-2.0
#include "debug/apart.hpp"

#include <algorithm>
#include <cmath>

#include "core/view.hpp"
#include "debug/addressing.hpp"
#include "debug/compare.hpp"
#include "debug/rule.hpp"
#include "ops/taps.hpp"

namespace dsakit::debug {
namespace {

/// Codes, and what each is worth: a number for as many codes in a row as there are, or for each column.
struct Scales {
  std::string_view codes, scale;
  bool columns = false;
};
constexpr Scales kScales[] = {{"query", "query_dequant_scale"},
                              {"query", "dequant_scale_q_nope"},
                              {"query", "dequant_scale_query"},
                              {"key", "key_dequant_scale"},
                              {"key_nope_2d", "k_nope_scales"},
                              {"token_x", "dequant_scale_x"},
                              {"query_norm", "dequant_scale_q_norm"},
                              {"3.query_norm", "3.query_norm_scale"},
                              {"q_norm", "q_norm_scale"},
                              {"q_norm_out", "q_norm_scale_out"},
                              {"q_int8", "q_scale"},
                              {"kv_cache", "k_scale_cache"},
                              {"k_cache", "k_scale_cache"},
                              {"ip_k_cache", "ip_k_scale_cache"},
                              {"y", "scale"},
                              {"weight_dq", "dequant_scale_w_dq", true},
                              {"weight_uq_qr", "dequant_scale_w_uq_qr", true},
                              {"weight_dkv_kr", "dequant_scale_w_dkv_kr", true},
                              {"w_uq_qr", "dequant_scale", true},
                              {"w_qb", "w_qb_scale", true}};

/// The tensor of a parameter or step in a group, by whatever name the case has it.
const Stored* find(const Case& c, std::string_view group, std::string_view name) {
  for (const std::string& own : c.names(group)) {
    bool same = own == name;
    if (const auto place = place_of(c.op(), group, own); !same && place && group != "tap")
      same = c.op().parameters[std::size_t(place->parameter)].field.name == name;
    const auto at = c.tensors.find(std::string(group) + "." + own);
    if (same && at != c.tensors.end()) return &at->second;
  }
  return nullptr;
}

/// One tensor as numbers.
class Numbers {
 public:
  Numbers(const Case& c, std::string_view group, std::string_view name, const Tensor& t) : tensor_(t) {
    if (t.dtype != DType::i8) return;
    for (const Scales& s : kScales) {
      if (s.codes != name) continue;
      const Stored* stored = find(c, group == "after" ? "after" : group, s.scale);
      if (!stored || stored->elements() == 0 || t.elements() % stored->elements() != 0) continue;
      if (s.columns && (t.rank < 1 || stored->elements() != t.shape[t.rank - 1])) continue;
      scale_ = *stored, columns_ = s.columns;
    }
  }
  bool codes() const { return scale_.type != nullptr; }
  double code(std::int64_t i) const { return number_at(tensor_, offset_of(tensor_, i)); }
  double scale(std::int64_t i) const {
    if (!codes()) return 1;
    const std::int64_t n = scale_.elements();
    return number_at(scale_.tensor(), columns_ ? i % n : i / (tensor_.elements() / n));
  }
  double at(std::int64_t i) const { return code(i) * scale(i); }
  /// A scale for each row of the last axis.
  bool by_row() const { return codes() && !columns_ && scale_.elements() * width() == tensor_.elements(); }
  std::int64_t width() const {
    return tensor_.rank < 1 ? 1 : std::max<std::int64_t>(tensor_.shape[tensor_.rank - 1], 1);
  }
  std::int64_t elements() const { return tensor_.elements(); }

 private:
  Tensor tensor_;
  Stored scale_;
  bool columns_ = false;
};

std::string group_of(const std::string& key) { return key.substr(0, key.find('.')); }

double share_of_others(const Tensor& a, const Tensor& b) {
  const std::int64_t width = a.rank < 1 ? 1 : std::max<std::int64_t>(a.shape[a.rank - 1], 1);
  std::int64_t entries = 0, common = 0;
  for (std::int64_t row = 0; row < a.elements() / width; ++row) {
    Integers x, y, both;
    for (std::int64_t i = 0; i < width; ++i) {
      if (const auto n = integer_at(a, row * width + i); n >= 0) x.push_back(n);
      if (const auto n = integer_at(b, row * width + i); n >= 0) y.push_back(n);
    }
    std::sort(x.begin(), x.end()), std::sort(y.begin(), y.end());
    std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
    entries += std::int64_t(std::max(x.size(), y.size())), common += std::int64_t(both.size());
  }
  return entries == 0 ? 0 : 1 - double(common) / double(entries);
}

struct Sum {
  double error = 0, size = 0;
  void add(double x, double y) {
    if (std::isfinite(x) && std::isfinite(y)) error += (x - y) * (x - y), size += x * x;
  }
  double relative() const { return error == 0 ? 0 : std::sqrt(error / std::max(size, 1e-300)); }
};

std::optional<double> apart_of(const Case& a, const Case& b, const Pair& pair) {
  const Numbers x(a, group_of(pair.key), pair.parameter, pair.recorded);
  const Numbers y(b, group_of(pair.key), pair.parameter, pair.computed);
  Sum sum;
  if (pair.mismatch.empty() && !x.codes() && !y.codes()) {
    const Tensor &s = pair.recorded, &t = pair.computed;
    const bool selection = pair.parameter.find("indices") != std::string::npos && s.dtype == DType::i32;
    if (selection) return share_of_others(s, t);
    each_element(pair, [&](std::int64_t, std::int64_t at, std::int64_t other) {
      sum.add(number_at(s, at), number_at(t, other));
    });
    return sum.relative();
  }
  // Codes without a scale that we know cannot be compared with numbers.
  const bool comparable =
      (x.codes() || pair.recorded.dtype != DType::i8) && (y.codes() || pair.computed.dtype != DType::i8);
  if (!comparable || x.elements() != y.elements() || x.elements() == 0) return {};
  for (std::int64_t i = 0; i < x.elements(); ++i) sum.add(x.at(i), y.at(i));
  return sum.relative();
}

double decibels(double signal, double noise) { return noise == 0 ? INFINITY : 10 * std::log10(signal / noise); }

}  // namespace

std::vector<Apart> apart(const Case& a, const Case& b, std::string_view group) {
  std::vector<Apart> all;
  if (group != "tap") {
    for (const Pair& pair : pairs_of(a, group, b, group))
      if (const auto d = apart_of(a, b, pair)) all.push_back({pair.parameter, *d});
    return all;
  }
  for (const Tap& tap : taps_of(a.op().name)) {
    const Stored *s = find(a, "tap", tap.step), *t = find(b, "tap", tap.step);
    if (!s || !t) continue;
    Pair pair{"tap." + std::string(tap.step), std::string(tap.step), s->tensor(), t->tensor(), {}, {}, ""};
    if (s->type != t->type) pair.mismatch = "has another dtype";
    if (s->shape != t->shape) continue;
    if (const auto d = apart_of(a, b, pair)) all.push_back({pair.parameter, *d});
  }
  return all;
}

std::optional<double> distance(const std::vector<Apart>& all) {
  std::optional<double> most;
  for (const Apart& one : all) most = std::max(most.value_or(0), one.distance);
  return most;
}

std::optional<RowLoss> row_loss(const Case& a, const Case& b, std::string_view group, std::string_view name) {
  const Stored *s = find(a, group, name), *t = find(b, group, name);
  if (!s || !t || s->elements() != t->elements() || s->elements() == 0) return {};
  const Numbers x(a, group, name, s->tensor()), y(b, group, name, t->tensor());
  if (x.by_row() == y.by_row() || x.codes() == y.codes()) return {};
  const Numbers &codes = x.codes() ? x : y, &clean = x.codes() ? y : x;
  const std::int64_t width = codes.width(), rows = codes.elements() / width;
  std::vector<double> losses, scales;
  for (std::int64_t row = 0; row < rows; ++row) {
    double signal = 0, noise = 0;
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      signal += clean.at(i) * clean.at(i);
      noise += (clean.at(i) - codes.at(i)) * (clean.at(i) - codes.at(i));
    }
    losses.push_back(signal == 0 ? INFINITY : decibels(signal, noise)), scales.push_back(codes.scale(row * width));
  }
  const auto median = [](std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + std::ptrdiff_t(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  RowLoss loss;
  loss.row = std::min_element(losses.begin(), losses.end()) - losses.begin();
  loss.sqnr = losses[std::size_t(loss.row)], loss.median = median(losses);
  const std::int64_t first = loss.row * width;
  for (std::int64_t i = 0; i < width; ++i) {
    if (std::abs(clean.at(first + i)) > std::abs(clean.at(first + loss.channel))) loss.channel = i;
    loss.zeros += codes.code(first + i) == 0;
  }
  loss.zeros /= double(width);
  double signal = 0, noise = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    if (i == loss.channel) continue;
    const double value = clean.at(first + i), error = value - codes.at(first + i);
    signal += value * value, noise += error * error;
  }
  loss.without = decibels(signal, noise);
  loss.scale = scales[std::size_t(loss.row)], loss.times = loss.scale / std::max(median(scales), 1e-300);
  return loss;
}

}  // namespace dsakit::debug
