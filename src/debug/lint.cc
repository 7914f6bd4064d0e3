// SPDX-License-Identifier: Apache-2.0
#include "debug/lint.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/float16.hpp"
#include "core/view.hpp"
#include "debug/names.hpp"
#include "debug/rule.hpp"

namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using std::string;

constexpr double kUnitCircle = 0.02;  // bfloat16 cosines and sines are off by 2^-9 each
constexpr double kOctaves = 4;        // by which the spread of 16-bit numbers shrinks as the other type
constexpr double kOutlier = 8;        // times the median of the scales

double element(const Tensor& t, Index i) { return number_at(t, offset_of(t, i)); }

bool is_matrix(const Tensor& t) { return t && t.format == Format::ND && t.rank >= 2 && t.elements() > 0; }

void rope_table(const Arguments& a, std::vector<string>& all) {
  const Names n(*a.op);
  if (n.sin.empty() || !is_matrix(a.tensor(n.sin)) || !is_matrix(a.tensor(n.cos))) return;
  const Tensor &sin = a.tensor(n.sin), &cos = a.tensor(n.cos);
  const Index width = cos.shape[cos.rank - 1], rows = cos.elements() / width;
  if (sin.elements() != cos.elements() || width % 4 != 0) return;
  const string both = string(n.sin) + " and " + string(n.cos);
  Index off = -1, ones = -1;
  bool pairs = true, halves = true;
  for (Index r = 0; r < rows; ++r) {
    bool all_ones = true;
    for (Index j = 0; j < width; ++j) {
      const double c = element(cos, r * width + j), s = element(sin, r * width + j);
      if (off < 0 && !(std::abs(c * c + s * s - 1) <= kUnitCircle)) off = r;
      all_ones = all_ones && s == 1;
      pairs = pairs && c == element(cos, r * width + j / 2 * 2);
      halves = halves && c == element(cos, r * width + j % (width / 2));
    }
    if (all_ones && ones < 0) ones = r;
  }
  if (off >= 0) all.push_back("row " + std::to_string(off) + " of " + both + ": cos^2 + sin^2 is not 1");
  if (ones >= 0)
    all.push_back("row " + std::to_string(ones) + " of " + string(n.sin) + " is all ones: swapped with " +
                  string(n.cos) + "?");
  if (pairs && !halves && is_prolog(*a.op))
    all.push_back(both + " repeat each column (c0 c0 c1 c1); wanted two equal halves");
}

/// Codes of a column reach 127 where the columns were quantised.
void int8_weights(const Arguments& a, std::vector<string>& all) {
  for (const string& w : inputs_of(a, [](const Parameter&p, const Tensor&t) {
         return p.field.kind == Kind::weight && t.dtype == DType::i8 && t.rank == 2 && t.format == Format::ND;
       })) {
    const Tensor& t = a.tensor(w);
    std::vector<char> row(std::size_t(t.shape[0])), column(std::size_t(t.shape[1]));
    for (Index i = 0; i < t.elements(); ++i)
      if (std::abs(element(t, i)) >= 127) row[std::size_t(i / t.shape[1])] = column[std::size_t(i % t.shape[1])] = 1;
    const auto every = [](const std::vector<char>& v) {
      return std::all_of(v.begin(), v.end(), [](char x) { return x; });
    };
    if (every(row) && !every(column))
      all.push_back(w + " reaches 127 in every row, not in every column: transposed, or FRACTAL_NZ read as ND?");
  }
}

/// Standard deviation of the magnitudes, in octaves.
template <class F>
double spread(const Tensor& t, F value) {
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  const Index step = std::max<Index>(t.elements() / 65536, 1);
  for (Index i = 0; i < t.elements(); i += step) {
    const double x = std::abs(value(static_cast<const std::uint16_t*>(t.data)[offset_of(t, i)]));
    if (!(x > 0) || !std::isfinite(x)) continue;
    const double octaves = std::log2(x);
    sum += octaves, squares += octaves * octaves, ++count;
  }
  return count < 64 ? 0
                    : std::sqrt(std::max(0.0, squares / double(count) - sum / double(count) * (sum / double(count))));
}

/// float16 read as bfloat16 takes three bits of its fraction for an exponent: magnitudes spread eight times as far. The
/// other way round they only come closer together, which shows nothing.
void sixteen_bits(const Arguments& a, std::vector<string>& all) {
  for (const string& name : inputs_of(
           a, [](const Parameter&, const Tensor& t) { return t.dtype == DType::bf16 && t.format == Format::ND; })) {
    const Tensor& t = a.tensor(name);
    const double b = spread(t, [](std::uint16_t x) { return to_float(bf16{x}); }),
                 h = spread(t, [](std::uint16_t x) { return to_float(f16{x}); });
    if (b - h > kOctaves) all.push_back(name + " looks like float16, not bfloat16");
  }
}

void outliers(const Arguments& a, std::vector<string>& all) {
  for (const string& s : scales_of(a)) {
    const Tensor& t = a.tensor(s);
    std::vector<double> sorted;
    for (Index i = 0; i < t.elements(); ++i) sorted.push_back(element(t, i));
    const auto most = std::max_element(sorted.begin(), sorted.end());
    const Index at = most - sorted.begin();
    const double largest = *most;
    std::nth_element(sorted.begin(), sorted.begin() + Index(sorted.size() / 2), sorted.end());
    const double median = sorted[sorted.size() / 2];
    if (sorted.size() < 16 || !(median > 0) || !(largest > kOutlier * median)) continue;
    char text[64];
    std::snprintf(text, sizeof text, " is %.3g, %.3g x the median", largest, largest / median);
    all.push_back("entry " + std::to_string(at) + " of " + s + text);
  }
}

/// Lists that go on behind a -1.
void lists(const Arguments& a, std::vector<string>& all) {
  const Names n(*a.op);
  if (n.list.empty() || !is_attention(*a.op) || !a.tensor(n.list) || a.tensor(n.list).rank < 1) return;
  const Tensor& t = a.tensor(n.list);
  const Index width = std::max<Index>(t.shape[t.rank - 1], 1);
  for (Index i = 1; i < t.elements(); ++i)
    if (i % width != 0 && element(t, i) >= 0 && element(t, i - 1) < 0) {
      all.push_back("list " + std::to_string(i / width) + " of " + string(n.list) +
                    " goes on behind -1, where it ends");
      return;
    }
}

}  // namespace

std::vector<std::string> lints_of(const Arguments& a) {
  std::vector<string> all;
  rope_table(a, all);
  int8_weights(a, all);
  sixteen_bits(a, all);
  outliers(a, all);
  lists(a, all);
  return all;
}

}  // namespace dsakit::debug
