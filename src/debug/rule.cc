// SPDX-License-Identifier: Apache-2.0
#include "debug/rule.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>

#include "core/nearest.hpp"
#include "core/text.hpp"
#include "core/view.hpp"
#include "debug/names.hpp"
#include "dsakit/error.hpp"

namespace dsakit::debug {
namespace {

using std::abs;

/// All of one pair, as numbers.
struct Data {
  const Operator& op;
  const Pair& pair;
  std::vector<double> a, g, third;
  std::vector<std::int64_t> at;  // of a, row-major
  DType dtype;
  Kind kind = Kind::data;
  double most_g = 0;  // the largest finite |g|
  const std::vector<std::vector<double>>* scores = nullptr;

  std::string_view name() const { return pair.parameter; }
  std::size_t size() const { return a.size(); }
};

std::string text(const char* format, auto... values) {
  char line[240];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

bool one_sided(double a, double g) {
  if (std::isfinite(a) && std::isfinite(g)) return false;
  if (std::isnan(a) && std::isnan(g)) return false;
  return a != g;
}

/// |a - g|, 0 for equal infinities and for two NaN, infinity where one side alone is not finite.
double difference(double a, double g) {
  if (one_sided(a, g)) return std::numeric_limits<double>::infinity();
  return std::isfinite(a) ? abs(a - g) : 0;
}

Figures figures_of(const Data& d) {
  Figures f;
  double dot = 0, aa = 0, gg = 0, squares = 0;
  f.elements = std::int64_t(d.size());
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double a = d.a[i], g = d.g[i], difference_here = difference(a, g);
    f.equal += difference_here == 0;
    f.nonfinite += one_sided(a, g);
    if (difference_here > f.max_abs || (f.worst < 0 && difference_here > 0))
      f.max_abs = difference_here, f.worst = d.at[i], f.worst_a = a, f.worst_g = g;
    if (!std::isfinite(a) || !std::isfinite(g)) continue;
    const double relative = difference_here / (abs(g) + 1e-7);
    f.mean_abs += difference_here, f.mere += relative, f.mare = std::max(f.mare, relative);
    squares += difference_here * difference_here, dot += a * g, aa += a * a, gg += g * g;
  }
  const double n = double(std::max<std::size_t>(d.size(), 1));
  f.mean_abs /= n, f.mere /= n, f.rms = std::sqrt(squares / n);
  f.cosine = aa > 0 && gg > 0 ? dot / std::sqrt(aa * gg) : aa == gg ? 1 : 0;
  return f;
}

/// Elements further apart than their limit; f(i) is the limit. They are the departing ones.
template <class F>
std::int64_t beyond(const Data& d, Figures& f, F limit) {
  double worst = -1;
  f.departing = 0;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double here = difference(d.a[i], d.g[i]);
    if (!(here > limit(i))) continue;
    ++f.departing;
    if (here > worst) worst = here, f.worst_departing = d.at[i], f.departing_a = d.a[i], f.departing_g = d.g[i];
  }
  return f.departing;
}

Finding finding(const Data& d, const Figures& f, bool passes, std::string sentence) {
  return {d.pair.key, d.pair.parameter, passes, std::move(sentence), f, d.pair.recorded};
}

/// At most `ratio` of the elements beyond atol + rtol * |g|; what is not finite on one side always fails.
Finding element_wise(const Data& d, Figures f, double atol, double rtol, double ratio = 0) {
  const std::int64_t n = beyond(d, f, [&](std::size_t i) { return atol + rtol * abs(d.g[i]); });
  const auto most = std::int64_t(std::llround(ratio * double(f.elements)));
  return finding(d, f, n <= most && f.nonfinite == 0,
                 text("%lld of %lld elements beyond %.3g + %.3g * |golden|, at most %lld", (long long)n,
                      (long long)f.elements, atol, rtol, (long long)most));
}

/// Consecutive numbers for consecutive floats of 16 or 32 bits; integers are their own.
std::int64_t ordinal(const Tensor& t, std::int64_t offset) {
  const auto signed_of = [](std::int64_t bits, std::int64_t sign) { return bits & sign ? -(bits & (sign - 1)) : bits; };
  switch (t.dtype) {
    case DType::f16:
    case DType::bf16:
      return signed_of(static_cast<const std::uint16_t*>(t.data)[offset], 0x8000);
    case DType::f32:
      return signed_of(static_cast<const std::uint32_t*>(t.data)[offset], 0x80000000);
    default:
      return std::int64_t(number_at(t, offset));
  }
}

/// At most `ratio` of the elements differ, and those by one step of their type.
Finding one_step(const Data& d, Figures f, double ratio) {
  std::int64_t far = 0, n = 0;
  double worst = -1;
  each_element(d.pair, [&](std::int64_t i, std::int64_t at, std::int64_t other) {
    const double a = number_at(d.pair.recorded, at), g = number_at(d.pair.computed, other);
    if (difference(a, g) == 0) return;
    ++n;
    const bool neighbours = std::isfinite(a) && std::isfinite(g) &&
                            abs(ordinal(d.pair.recorded, at) - ordinal(d.pair.computed, other)) <= 1;
    far += !neighbours;
    if (difference(a, g) > worst) worst = difference(a, g), f.worst_departing = i, f.departing_a = a, f.departing_g = g;
  });
  f.departing = n;
  const auto most = std::max<std::int64_t>(std::int64_t(ratio * double(f.elements)), 1);
  return finding(d, f, far == 0 && n <= most,
                 text("%lld of %lld elements differ, %lld by more than one step; at most %lld by one", (long long)n,
                      (long long)f.elements, (long long)far, (long long)most));
}

Finding equality(const Data& d, Figures f) {
  const std::int64_t n = beyond(d, f, [](std::size_t) { return 0.0; });
  return finding(d, f, n == 0, text("%lld of %lld elements differ, wanted none", (long long)n, (long long)f.elements));
}

/// f(begin, end) for the elements of each row of the last axis.
template <class F>
void each_row(const Data& d, F f) {
  const int rank = d.pair.recorded.rank;
  const auto width = std::size_t(rank < 1 ? 1 : std::max<std::int64_t>(d.pair.recorded.shape[rank - 1], 1));
  for (std::size_t row = 0; row + width <= d.size(); row += width) f(row, row + width);
}

/// Members of a list that the golden one lacks, worst row; -1 is padding.
std::int64_t missing(const Data& d, std::size_t begin, std::size_t end) {
  std::vector<double> a(d.a.begin() + std::ptrdiff_t(begin), d.a.begin() + std::ptrdiff_t(end));
  std::vector<double> g(d.g.begin() + std::ptrdiff_t(begin), d.g.begin() + std::ptrdiff_t(end)), lacking;
  std::sort(a.begin(), a.end());
  std::sort(g.begin(), g.end());
  std::set_difference(g.begin(), g.end(), a.begin(), a.end(), std::back_inserter(lacking));
  return std::int64_t(lacking.size());
}

Finding as_sets(const Data& d, Figures f, double ratio, std::int64_t least_allowed) {
  std::int64_t worst = 0, rows = 0, bad = 0, allowed = 0;
  each_row(d, [&](std::size_t begin, std::size_t end) {
    allowed = std::max(std::int64_t(double(end - begin) * ratio), least_allowed);
    const std::int64_t n = missing(d, begin, end);
    ++rows, bad += n > allowed;
    if (n > worst) worst = n, f.worst_departing = d.at[begin], f.departing_a = d.a[begin], f.departing_g = d.g[begin];
  });
  f.departing = bad;
  return finding(d, f, bad == 0,
                 text("%lld of %lld rows lack more than %lld of the golden entries; the worst %lld", (long long)bad,
                      (long long)rows, (long long)allowed, (long long)worst));
}

bool is_selection(const Data& d) { return d.op.name.ends_with("lightning_indexer") && d.name() == "sparse_indices"; }

// ---- the presets

/// The same keys in each row, and none behind the -1 that ends a list.
Finding selection(const Data& d, const Figures& f) {
  Finding keys = as_sets(d, f, 0, 0);
  std::int64_t torn = 0;
  each_row(d, [&](std::size_t begin, std::size_t end) {
    bool ended = false, behind = false;
    for (std::size_t i = begin; i < end; ++i) behind |= ended && d.a[i] >= 0, ended |= d.a[i] < 0;
    torn += behind;
  });
  if (torn == 0) return keys;
  keys.passes = false;
  keys.sentence += text("; %lld rows have entries behind -1", (long long)torn);
  return keys;
}

/// The largest |golden| of the row of the last axis that element i is in.
std::vector<double> largest_of_rows(const Data& d) {
  std::vector<double> most(d.size());
  each_row(d, [&](std::size_t begin, std::size_t end) {
    double here = 0;
    for (std::size_t i = begin; i < end; ++i)
      if (std::isfinite(d.g[i])) here = std::max(here, abs(d.g[i]));
    std::fill(most.begin() + std::ptrdiff_t(begin), most.begin() + std::ptrdiff_t(end), here);
  });
  return most;
}

/// At most atol + rtol |g| off; a row without a key is 0, as is one of which a reference sees nothing above what
/// underflows.
Finding attention_rows(const Data& d, Figures f, double atol, double rtol) {
  const std::vector<double> most = largest_of_rows(d);
  const std::int64_t n = beyond(d, f, [&](std::size_t i) { return most[i] == 0 ? 0x1p-126 : atol + rtol * abs(d.g[i]); });
  return finding(d, f, n == 0 && f.nonfinite == 0,
                 text("%lld of %lld elements beyond %.3g + %.3g * |golden|, rows of zeros equal; at most 0",
                      (long long)n, (long long)f.elements, atol, rtol));
}

/// accuracy of the library's own results beside its references.
Finding dsakit_rule(const Data& d, const Figures& f) {
  const std::string_view op = d.op.name, name = d.name();
  if (is_selection(d)) return selection(d, f);
  if (d.dtype == DType::i32 || d.dtype == DType::i64 || is_quantiser(d.op) || is_move(d.op)) return equality(d, f);
  const bool half = d.dtype == DType::f16;
  if (name == "attention_out") {
    if (d.dtype == DType::i8) return one_step(d, f, 0.01);
    const double scale = std::max(1.0, d.most_g);
    if (op == "fused_infer_attention_score_v2")
      return d.dtype == DType::f32 ? attention_rows(d, f, 1e-5 * scale, 1e-4)
             : half                ? attention_rows(d, f, 1e-3 * scale, 2e-3)
                                   : attention_rows(d, f, 4e-3 * scale, 1e-2);
    return half ? attention_rows(d, f, 2.5e-4 * scale, 0x1p-10) : attention_rows(d, f, 1e-3 * scale, 0x1p-7);
  }
  if (name == "softmax_max") return element_wise(d, f, 1e-6 + 0x1p-20 * d.most_g, 0);
  if (name == "softmax_sum") return element_wise(d, f, 0, 1e-5);
  if (name == "softmax_lse") {
    // What stands for no key at all is as it is, and near nothing.
    Figures figures = f;
    const std::int64_t n =
        beyond(d, figures, [&](std::size_t i) { return abs(d.g[i]) > 1e38 ? 0 : 1e-4 + 1e-5 * abs(d.g[i]); });
    return finding(d, figures, n == 0 && f.nonfinite == 0,
                   text("%lld of %lld elements beyond 0.0001 + 1e-05 * |golden|, sentinels equal; at most 0",
                        (long long)n, (long long)f.elements));
  }
  if (op == "attention_update" && name == "out") {
    const double unit = half ? 0x1p-10 : d.dtype == DType::bf16 ? 0x1p-7 : 0x1p-22;
    return element_wise(d, f, 0x1p-20 * std::max(1.0, d.most_g), unit);
  }
  if (op.find("prolog") == op.npos) return one_step(d, f, 0.002);
  // Behind steps of a chain that nobody sees.
  if (!is_float(d.dtype)) return one_step(d, f, 0.01);
  Figures figures = f;
  const std::vector<double> most = largest_of_rows(d);
  // Two results are rounded: a step of the coarser type beside what the page allows.
  const std::int64_t n = beyond(d, figures, [&](std::size_t i) { return 0x1p-6 * most[i] + 0x1p-7 * abs(d.g[i]); });
  return finding(d, figures, n == 0 && f.nonfinite == 0,
                 text("%lld of %lld elements beyond 2^-6 of the largest |golden| of their row and a step, at most 0",
                      (long long)n, (long long)f.elements));
}

Finding ascend_community(const Data& d, const Figures& f) {
  const double t = d.dtype == DType::f32       ? 0x1p-13
                   : d.dtype == DType::f16     ? 0x1p-10
                   : d.dtype == DType::bf16    ? 0x1p-7
                   : d.dtype == DType::f8_e4m3 ? 0x1p-3
                   : d.dtype == DType::f8_e5m2 ? 0x1p-2
                                               : 0;
  if (t == 0) return equality(d, f);
  const bool passes = f.nonfinite == 0 && f.mere < t && f.mare < 10 * t;
  return finding(d, f, passes, text("MERE %.3g, below %.3g; MARE %.3g, below %.3g", f.mere, t, f.mare, 10 * t));
}

Finding ascend_small(const Data& d, Figures f) {
  const double t = d.dtype == DType::f16 ? 0x1p-11 : d.dtype == DType::bf16 ? 0x1p-8 : 0x1p-14;
  const double e = d.dtype == DType::f32 ? 0x1p-30 : 0x1p-16;
  const std::int64_t n =
      beyond(d, f, [&](std::size_t i) { return abs(d.g[i]) < t ? e : std::numeric_limits<double>::infinity(); });
  return finding(d, f, n == 0, text("%lld of the elements below %.3g are off by more than %.3g", (long long)n, t, e));
}

/// Ours against a third result, both beside one golden: ratios of largest and mean relative error and of rms.
Finding ascend_level(const Data& d, const Figures& f, double most, double mean, double rms) {
  Data other{d.op, d.pair, d.third, d.g, {}, d.at, d.dtype, d.kind, d.most_g};
  const Figures t = figures_of(other);
  const auto ratio = [](double x, double y) { return x == 0 ? 0 : x / std::max(y, 1e-30); };
  const double r[3] = {ratio(f.mare, t.mare), ratio(f.mere, t.mere), ratio(f.rms, t.rms)};
  return finding(
      d, f, f.nonfinite == 0 && r[0] <= most && r[1] <= mean && r[2] <= rms,
      text("errors over the third result's: max rel %.3g, at most %g; mean rel %.3g, at most %g; rms %.3g, at most %g",
           r[0], most, r[1], mean, r[2], rms));
}

double share_beyond(const Data& d, Figures& f, double relative) {
  const double small = d.dtype == DType::f32 ? 1e-6 : 1e-3, small_error = d.dtype == DType::f32 ? 1e-9 : 1e-5;
  const std::int64_t n =
      beyond(d, f, [&](std::size_t i) { return abs(d.g[i]) < small ? small_error : relative * abs(d.g[i]); });
  return double(n) / double(std::max<std::int64_t>(f.elements, 1));
}

Finding msprobe(const Data& d, Figures f) {
  const bool wide = d.dtype == DType::f32;
  if (!(f.cosine > 0.99) || f.nonfinite > 0) return finding(d, f, false, text("cosine %.6g, above 0.99", f.cosine));
  if (f.max_abs < 1e-3) return finding(d, f, true, text("largest difference %.3g, below 1e-3", f.max_abs));
  const double warned = share_beyond(d, f, wide ? 1e-4 : 1e-3), share = share_beyond(d, f, wide ? 1e-3 : 1e-2);
  const double most = wide ? 1e-3 : 1e-2, warn = wide ? 1e-4 : 1e-3;
  return finding(d, f, share < most,
                 text("%.3g of the elements are off by more than %g relative, below %g%s", share, most, most,
                      share < most && warned >= warn ? "; a warning there" : ""));
}

Finding msprobe_1000(const Data& d, Figures f) {
  const double share = share_beyond(d, f, 1e-3);
  return finding(d, f, share < 1e-3 && f.nonfinite == 0,
                 text("%.3g of the elements are off by more than 1e-3 relative, below 1e-3", share));
}

/// The tolerances of its tests, by what an output is.
Finding pypto(const Data& d, const Figures& f) {
  const std::string_view name = d.name();
  const bool fused = d.op.name == "mla_indexer_prolog_quant", codes = d.dtype == DType::i8;
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (has("attention_out")) return element_wise(d, f, 1e-4, 5e-3, 5e-3);
  if (has("q_norm_scale") || name == "dequant_scale_q_norm") return element_wise(d, f, 2.5e-5, 5e-3, 5e-3);
  if (has("q_norm") || name == "query_norm") return element_wise(d, f, codes ? 1 : 5e-3, codes ? 0 : 0x1p-7, 5e-3);
  if (name == "q_int8") return element_wise(d, f, fused ? 2 : 1, 0, 0);
  if (name == "q_scale") return element_wise(d, f, 2.5e-5, fused ? 6e-3 : 0, 5e-3);
  if (name == "weights") return element_wise(d, f, 2.5e-5, 0, fused ? 5e-3 : 0);
  if (name == "ip_k_scale_cache" || (name == "k_scale_cache" && d.op.name == "lightning_indexer_prolog_quant"))
    return element_wise(d, f, 2.5e-5, 0, fused ? 5e-3 : 0);
  if (has("k_scale")) return element_wise(d, f, 2.5e-5, 5e-3, fused ? 5e-3 : 0);
  if (has("kr_cache")) return element_wise(d, f, 1e-4, 0x1p-7, fused ? 5e-3 : 0);
  if (codes) return element_wise(d, f, 1, 0, 0);
  return element_wise(d, f, 5e-3, 0x1p-7, 5e-3);
}

Finding cann_sparse(const Data& d, Figures f) {
  const bool half = d.dtype == DType::f16;
  const double rtol = half ? 5e-3 : 0x1p-7, atol = half ? 2.5e-5 : 1e-4;
  std::int64_t far = 0;
  for (std::size_t i = 0; i < d.size(); ++i)
    far += difference(d.a[i], d.g[i]) > 10 * std::max({abs(d.a[i]), abs(d.g[i]), 0x1p-14 / 5e-3});
  const std::int64_t n = beyond(d, f, [&](std::size_t i) { return atol + rtol * abs(d.g[i]); });
  const auto most = std::int64_t(0.005 * double(f.elements));
  return finding(d, f, n <= most && far == 0 && f.nonfinite == 0,
                 text("%lld of %lld elements beyond %.3g + %.3g * |golden|, at most %lld; %lld off by 10 x",
                      (long long)n, (long long)f.elements, atol, rtol, (long long)most, (long long)far));
}

Finding cann_mla(const Data& d, const Figures& f) {
  if (d.dtype == DType::i8) return element_wise(d, f, 1, 0);
  return d.dtype == DType::f32 ? element_wise(d, f, 1e-3, 1e-3) : element_wise(d, f, 5e-2, 5e-2);
}

/// Lists equal in any order, or else entries that only one of them has score as good as the cut: the lowest golden one.
Finding cann_li(const Data& d, const Figures& figures) {
  if (!is_selection(d)) return element_wise(d, figures, 0, 1e-4);
  Figures f = figures;
  std::int64_t odd = 0, rows = 0;
  f.departing = 0;
  each_row(d, [&](std::size_t begin, std::size_t end) {
    const auto row = std::size_t(rows++);
    const std::vector<double> none, &scores = row < d.scores->size() ? (*d.scores)[row] : none;
    const auto score = [&](double index) {
      return index >= 0 && index < double(scores.size()) ? scores[std::size_t(index)] : std::nan("");
    };
    std::vector<double> a(d.a.begin() + std::ptrdiff_t(begin), d.a.begin() + std::ptrdiff_t(end)), apart;
    std::vector<double> g(d.g.begin() + std::ptrdiff_t(begin), d.g.begin() + std::ptrdiff_t(end));
    double cut = std::numeric_limits<double>::infinity();
    for (const double index : g)
      if (index >= 0) cut = std::min(cut, score(index));
    std::sort(a.begin(), a.end());
    std::sort(g.begin(), g.end());
    std::set_symmetric_difference(a.begin(), a.end(), g.begin(), g.end(), std::back_inserter(apart));
    odd += std::int64_t(apart.size());
    for (const double index : apart) {
      if (abs(score(index) - cut) <= 1e-4 * abs(cut)) continue;
      if (f.departing++ == 0) f.worst_departing = d.at[begin], f.departing_a = index, f.departing_g = cut;
    }
  });
  return finding(d, f, f.departing == 0,
                 text("%lld entries in one list only, %lld of them not within 1e-4 of the cut", (long long)odd,
                      (long long)f.departing));
}

/// Close by an absolute or a relative measure, and in direction.
Finding flashmla(const Data& d, Figures f, bool prefill) {
  const bool lse = d.name().find("lse") != std::string_view::npos;
  const double atol = lse ? 1e-6 : prefill ? 8e-4 : 1e-3;
  const double rtol = lse ? (prefill ? 2.01 : 8.01) / 65536 : (prefill ? 3.01 : 2.01) / 128;
  const std::int64_t n = beyond(d, f, [&](std::size_t i) { return std::max(atol, rtol * abs(d.g[i])); });
  double product = 0, squares = 0;
  for (std::size_t i = 0; i < d.size(); ++i)
    if (std::isfinite(d.a[i]) && std::isfinite(d.g[i]))
      product += 2 * d.a[i] * d.g[i], squares += d.a[i] * d.a[i] + d.g[i] * d.g[i];
  const double direction = squares > 0 ? 1 - product / squares : 0, most = prefill ? 7e-6 : 5e-6;
  return finding(d, f, n == 0 && f.nonfinite == 0 && (lse || direction <= most),
                 text("%lld elements beyond max(%.3g, %.3g * |golden|); cos_diff %.3g, at most %g", (long long)n, atol,
                      rtol, direction, most));
}

Finding vllm_sparse(const Data& d, Figures f) {
  const std::int64_t n = beyond(d, f, [&](std::size_t i) { return 1e-2 + 1e-2 * abs(d.g[i]); });
  double largest = 0, sum = 0;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double relative = difference(d.a[i], d.g[i]) / (abs(d.g[i]) + 1e-7);
    sum += relative;
    if (abs(d.g[i]) > 1e-2) largest = std::max(largest, relative);
  }
  const double mean = sum / double(std::max<std::size_t>(d.size(), 1));
  return finding(
      d, f, n == 0 && f.nonfinite == 0 && largest <= 1e-2 && mean <= 5e-3,
      text("%lld elements beyond 0.01 + 0.01 * |golden|; largest relative %.3g, at most 0.01; mean %.3g, at most 0.005",
           (long long)n, largest, mean));
}

/// `third` is a plain evaluation of the same dtype.
Finding flash_attention(const Data& d, const Figures& f) {
  double plain = 0;
  for (std::size_t i = 0; i < d.size(); ++i) plain = std::max(plain, difference(d.third[i], d.g[i]));
  const double atol = 1e-5, most = 2 * plain + atol;
  return finding(d, f, f.max_abs <= most,
                 text("largest difference %.3g, at most 2 * %.3g + %g", f.max_abs, plain, atol));
}

Finding ggml(const Data& d, const Figures& f) {
  double squares = 0, golden = 0;
  for (std::size_t i = 0; i < d.size(); ++i)
    squares += std::pow(difference(d.a[i], d.g[i]), 2), golden += d.g[i] * d.g[i];
  const bool wide =
      d.op.name.find("attention") != std::string_view::npos || d.op.name.find("matmul") != std::string_view::npos;
  const double error = golden > 0 ? squares / golden : squares, most = wide ? 5e-4 : 1e-7;
  return finding(d, f, error <= most, text("normalised mean square error %.3g, at most %g", error, most));
}

Finding mlu_ops(const Data& d, const Figures& f) {
  double sum = 0, golden = 0, squares = 0, golden_squares = 0;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double x = difference(d.a[i], d.g[i]);
    sum += x, golden += abs(d.g[i]), squares += x * x, golden_squares += d.g[i] * d.g[i];
  }
  const auto over = [](double x, double y) { return x == 0 ? 0 : x / y; };
  const double diff1 = over(sum, golden), diff2 = std::sqrt(over(squares, golden_squares));
  return finding(d, f, diff1 <= 3e-3 && diff2 <= 3e-3, text("diff1 %.3g, diff2 %.3g, at most 0.003", diff1, diff2));
}

struct Rule : RuleInfo {
  Finding (*judge)(const Data&, const Figures&);
};

const Rule kRules[] = {
    {{"dsakit", "as the pages of the operators promise"}, dsakit_rule},
    {{"ascend-community", "MERE < T and MARE < 10 T, T by dtype"}, ascend_community},
    {{"ascend-small", "small elements within an absolute limit"},
     [](const Data& d, const Figures& f) { return ascend_small(d, f); }},
    {{"ascend-L0", "errors at most 10, 2, 2 x a third result's", true},
     [](const Data& d, const Figures& f) { return ascend_level(d, f, 10, 2, 2); }},
    {{"ascend-L1", "errors at most 5, 1.5, 1.5 x a third result's", true},
     [](const Data& d, const Figures& f) { return ascend_level(d, f, 5, 1.5, 1.5); }},
    {{"ascend-L2", "errors at most 2, 1.2, 1.2 x a third result's", true},
     [](const Data& d, const Figures& f) { return ascend_level(d, f, 2, 1.2, 1.2); }},
    {{"msprobe", "cosine > 0.99, then max abs < 1e-3 or few beyond 1 %"},
     [](const Data& d, const Figures& f) { return msprobe(d, f); }},
    {{"msprobe-1000", "share beyond 1e-3 relative < 1e-3"},
     [](const Data& d, const Figures& f) { return msprobe_1000(d, f); }},
    {{"pypto", "few elements beyond atol + rtol * |golden|, by output"}, pypto},
    {{"pypto-topk", "per row at most 0.05 % of the golden entries missing"},
     [](const Data& d, const Figures& f) { return as_sets(d, f, 5e-4, 0); }},
    {{"cann-li", "the same indices in any order, or scores within 1e-4 of the cut", false, true}, cann_li},
    {{"cann-sfa", "99.5 % inside, none off by 10 x"},
     [](const Data& d, const Figures& f) { return cann_sparse(d, f); }},
    {{"cann-mla", "int8 +-1; 16 bits 5e-2 + 5e-2; float32 1e-3"}, cann_mla},
    {{"flashmla", "absolute or relative, and cos_diff; decode"},
     [](const Data& d, const Figures& f) { return flashmla(d, f, false); }},
    {{"flashmla-prefill", "the same with the limits of prefill"},
     [](const Data& d, const Figures& f) { return flashmla(d, f, true); }},
    {{"vllm-ascend-sfa", "0.01 + 0.01, largest relative 0.01, mean 0.005"},
     [](const Data& d, const Figures& f) { return vllm_sparse(d, f); }},
    {{"vllm-ascend-kvsfa", "6e-2 + 2^-7"},
     [](const Data& d, const Figures& f) { return element_wise(d, f, 6e-2, 0x1p-7); }},
    {{"flash-attention", "at most 2 x the error of a plain evaluation", true}, flash_attention},
    {{"ggml", "normalised mean square error"}, ggml},
    {{"mlu-ops", "diff1 and diff2 at most 3e-3"}, mlu_ops},
};

Kind kind_of(const Operator& op, std::string_view name) {
  for (const Parameter& p : op.parameters)
    if (p.field.name == name) return p.field.kind;
  return Kind::data;
}

double float8(std::uint8_t bits, int exponent_bits, int bias, bool has_infinity) {
  const int mantissa_bits = 7 - exponent_bits;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1 && (has_infinity || mantissa == (1 << mantissa_bits) - 1))
    return has_infinity && mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

}  // namespace

double number_at(const Tensor& t, std::int64_t offset) {
  const auto as = [&]<class T>(T) { return double(static_cast<const T*>(t.data)[offset]); };
  switch (t.dtype) {
    case DType::boolean:
    case DType::u8:
      return as(std::uint8_t());
    case DType::i8:
      return as(std::int8_t());
    case DType::u16:
      return as(std::uint16_t());
    case DType::i16:
      return as(std::int16_t());
    case DType::u32:
      return as(std::uint32_t());
    case DType::i32:
      return as(std::int32_t());
    case DType::u64:
      return as(std::uint64_t());
    case DType::i64:
      return as(std::int64_t());
    case DType::f64:
      return as(double());
    case DType::f8_e4m3:
      return float8(static_cast<const std::uint8_t*>(t.data)[offset], 4, 7, false);
    case DType::f8_e5m2:
      return float8(static_cast<const std::uint8_t*>(t.data)[offset], 5, 15, true);
    case DType::f16:
    case DType::bf16:
    case DType::f32:
      return float_at(t, offset);
    case DType::other:
      break;
  }
  return 0;
}

const std::vector<RuleInfo>& rules() {
  static const std::vector<RuleInfo> all(std::begin(kRules), std::end(kRules));
  return all;
}

bool needs_scores(std::string_view rule) {
  for (const Rule& r : kRules)
    if (r.name == rule) return r.scores;
  return false;
}

Finding judge(std::string_view rule, const Operator& op, const Pair& pair, const Pair* third,
              const std::vector<std::vector<double>>* scores) {
  std::vector<std::string_view> names;
  const Rule* chosen = nullptr;
  for (const Rule& r : kRules) {
    names.push_back(r.name);
    if (r.name == rule) chosen = &r;
  }
  if (!chosen)
    throw Error(Status::invalid_argument, "check", "rule", "", "is '" + printable(rule) + "'",
                "the name of a rule", "nearest: " + std::string(nearest(rule, names)));
  if (chosen->third && !third)
    throw Error(Status::invalid_argument, "check", "rule", "", "is " + std::string(rule),
                "a third result: tensors of group ref beside out");
  if (!pair.mismatch.empty()) return {pair.key, pair.parameter, false, pair.mismatch, {}, pair.recorded};
  Data d{op, pair, {}, {}, {}, {}, pair.recorded.dtype, kind_of(op, pair.parameter), 0};
  each_element(pair, [&](std::int64_t i, std::int64_t at, std::int64_t other) {
    d.at.push_back(i);
    d.a.push_back(number_at(pair.recorded, at)), d.g.push_back(number_at(pair.computed, other));
    if (std::isfinite(d.g.back())) d.most_g = std::max(d.most_g, abs(d.g.back()));
  });
  if (third && third->mismatch.empty())
    each_element(*third, [&](std::int64_t, std::int64_t at, std::int64_t) {
      d.third.push_back(number_at(third->recorded, at));
    });
  if (chosen->third && (d.third.size() != d.a.size() || !third->mismatch.empty()))
    return {pair.key, pair.parameter, false, "the third result has another shape", {}, pair.recorded};
  d.scores = scores;
  if (chosen->scores && is_selection(d) && !scores)
    throw Error(Status::invalid_argument, "check", "rule", "", "is " + std::string(rule), "the scores of all keys");
  return chosen->judge(d, figures_of(d));
}

}  // namespace dsakit::debug
