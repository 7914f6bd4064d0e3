// SPDX-License-Identifier: Apache-2.0
#include "debug/left_over.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/view.hpp"
#include "debug/names.hpp"
#include "debug/rule.hpp"

namespace dsakit::debug {
namespace {

/// Elements of a row: all heads of a token; a row of a cache.
std::int64_t row_width(const Tensor& t) {
  if (t.rank < 1) return 1;
  const std::int64_t last = t.shape[t.rank - 1];
  return std::max<std::int64_t>(t.rank < 3 ? last : last * t.shape[t.rank - 2], 1);
}

/// How a result is rounded. What stands behind rounded steps is as coarse as they are.
struct Grid {
  double at_one;  // mean square of the rounding errors from 1 to 2

  Grid(const Operator& op, DType type) {
    int bits = type == DType::bf16 ? 7 : type == DType::f16 ? 10 : 16;  // of the fraction
    double before = 0;                                                   // roundings of earlier steps, beside the last one
    // bfloat16 ranks, norms and heads lie behind every result: three roundings. Attention rounds its probabilities.
    if (is_prolog(op)) bits = 7, before = 2;
    if (is_attention(op)) before = 1;
    at_one = std::ldexp((1 + before) / 12, -2 * bits);
  }
  double square(double x) const {
    if (!std::isfinite(x)) return 0;
    const double power = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & 0x7ff0000000000000);  // 2^ilogb(x), or 0
    return power * power * at_one;
  }
};

double square_of_difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = a - b;
  return std::isfinite(d) ? d * d : std::numeric_limits<double>::infinity();
}

/// The classes of the keys that only one of two lists has.
void count_keys(Left::Row& row, std::int64_t at, std::vector<std::int64_t> recorded, std::vector<std::int64_t> computed,
                const IndexScores& scores, bool strict) {
  const auto valid = [](std::vector<std::int64_t>& list) { std::erase(list, -1); };
  const bool in_other_order = recorded != computed;
  valid(recorded), valid(computed);
  const std::int64_t visible = scores.visible(at);
  const double cut = computed.empty() ? 0 : scores.score(at, computed.back());
  std::sort(recorded.begin(), recorded.end());
  std::sort(computed.begin(), computed.end());
  std::vector<std::int64_t> common, one;
  std::set_intersection(recorded.begin(), recorded.end(), computed.begin(), computed.end(), std::back_inserter(common));
  std::set_symmetric_difference(recorded.begin(), recorded.end(), computed.begin(), computed.end(),
                                std::back_inserter(one));
  row.common = std::int64_t(common.size());
  // Lists of other lengths differ by keys, whatever these are worth.
  const std::int64_t lengths = std::abs(std::int64_t(recorded.size()) - std::int64_t(computed.size()));
  for (const std::int64_t key : one) {
    const double far =
        key < 0 || key >= visible ? std::numeric_limits<double>::infinity() : std::abs(scores.score(at, key) - cut);
    if (far == 0 && !strict) ++row.tie;
    else if (far <= 0x1p-10 * std::abs(cut) && !strict) ++row.near;
    else ++row.wrong;
  }
  row.wrong = std::max(row.wrong, lengths);
  if (strict && in_other_order) row.wrong = std::max<std::int64_t>(row.wrong, 1);
}

}  // namespace

double Left::figure(const std::vector<std::int64_t>& of) const {
  double squares = 0, unit = 0, most = 0;
  std::int64_t elements = 0, unequal = 0;
  for (const std::int64_t r : of) {
    if (r < 0 || r >= std::int64_t(rows.size())) continue;
    const Row& row = rows[std::size_t(r)];
    squares += row.squares, unit += row.unit;
    elements += row.elements, unequal += row.unequal;
    most = std::max(most, double(row.wrong));
  }
  if (measure == Measure::keys) return most;
  if (measure == Measure::share) return elements == 0 ? 0 : double(unequal) / double(elements);
  return squares == 0 ? 0 : std::sqrt(squares / unit);
}

double Left::equal_share(const std::vector<std::int64_t>& of) const {
  std::int64_t elements = 0, unequal = 0;
  for (const std::int64_t r : of)
    if (r >= 0 && r < std::int64_t(rows.size()))
      elements += rows[std::size_t(r)].elements, unequal += rows[std::size_t(r)].unequal;
  return elements == 0 ? 1 : 1 - double(unequal) / double(elements);
}

Left left_over(const Operator& op, const Pair& pair, const IndexScores* scores, bool strict) {
  Left left;
  const Tensor &recorded = pair.recorded, &computed = pair.computed;
  const std::int64_t width = row_width(computed);
  const bool selects = scores && pair.parameter == "sparse_indices";
  const std::int64_t list = computed.rank > 0 ? computed.shape[computed.rank - 1] : 1;
  if (selects) {
    left.measure = Measure::keys, left.fewer = 4;
    left.allowed = strict ? 0 : double(list / 2048), left.departing = std::max(4 * left.allowed, 1.0);
  } else if (!is_float(computed.dtype) || is_quantiser(op)) {
    left.measure = Measure::share, left.fewer = 10;
    // The ration of licensed codes, behind hidden roundings for prologs, and three deviations of so few as are probed.
    const double ration = computed.dtype != DType::i8 || is_quantiser(op) ? 0 : is_prolog(op) ? 0.01 : 0.002;
    const std::int64_t probed = width * std::clamp<std::int64_t>(recorded.elements() / width, 1, 8);
    left.allowed = ration + 3 * std::sqrt(ration / double(probed));
    left.departing = 10 * left.allowed;
  }
  left.rows.resize(std::size_t(recorded.elements() / width));
  const Grid grid(op, computed.dtype);
  std::vector<std::int64_t> a, b;
  each_element(pair, [&](std::int64_t i, std::int64_t at, std::int64_t other) {
    Left::Row& row = left.rows[std::size_t(i / width)];
    const double x = number_at(recorded, at), y = number_at(computed, other);
    ++row.elements;
    row.unequal += !(x == y || (std::isnan(x) && std::isnan(y)));
    if (left.measure == Measure::roundings) {
      row.squares += square_of_difference(x, y);
      row.unit += grid.square(y);
    } else if (selects) {
      a.push_back(std::int64_t(x)), b.push_back(std::int64_t(y));
      if (std::int64_t(a.size()) < list) return;
      count_keys(row, i / width, a, b, *scores, strict);
      a.clear(), b.clear();
    }
  });
  return left;
}

}  // namespace dsakit::debug
