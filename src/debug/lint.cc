// SPDX-License-Identifier: Apache-2.0
#include "debug/lint.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/float16.hpp"
#include "core/view.hpp"
#include "debug/addressing.hpp"
#include "debug/names.hpp"
#include "debug/orders.hpp"
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
  for (const string& w : inputs_of(a, [](const Parameter& p, const Tensor& t) {
         return p.field.kind == Kind::weight && t.dtype == DType::i8 && t.rank == 2 && t.format == Format::ND;
       })) {
    const Tensor& t = a.tensor(w);
    const Index rows = t.shape[0], columns = t.shape[1];
    const Fractal nz{rows, columns, 32};
    const bool blocks = rows % 16 == 0 && columns % 32 == 0 && columns > 32;
    std::vector<char> row(static_cast<std::size_t>(rows)), column(static_cast<std::size_t>(columns)), as_nz(column);
    for (Index i = 0; i < t.elements(); ++i) {
      if (std::abs(element(t, i)) >= 127) row[std::size_t(i / columns)] = column[std::size_t(i % columns)] = 1;
      if (blocks && std::abs(element(t, nz.at(i))) >= 127) as_nz[std::size_t(i % columns)] = 1;
    }
    const auto every = [](const std::vector<char>& v) {
      return std::all_of(v.begin(), v.end(), [](char x) { return x; });
    };
    if (every(column)) continue;
    if (every(row)) all.push_back(w + " reaches 127 in every row, not in every column: transposed?");
    else if (blocks && every(as_nz)) all.push_back(w + " reaches 127 in every column only if it is read as FRACTAL_NZ");
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

/// The largest is far above the others.
void add_outlier(const string& name, const std::vector<double>& scales, std::vector<string>& all) {
  if (scales.size() < 16) return;
  const auto most = std::max_element(scales.begin(), scales.end());
  std::vector<double> sorted = scales;
  std::nth_element(sorted.begin(), sorted.begin() + Index(sorted.size() / 2), sorted.end());
  const double median = sorted[sorted.size() / 2];
  if (!(median > 0) || !(*most > kOutlier * median)) return;
  char text[64];
  std::snprintf(text, sizeof text, " is %.3g, %.3g x the median", *most, *most / median);
  all.push_back("entry " + std::to_string(most - scales.begin()) + " of " + name + text);
}

void outliers(const Arguments& a, std::vector<string>& all) {
  for (const string& s : scales_of(a)) {
    const Tensor& t = a.tensor(s);
    std::vector<double> scales;
    for (Index i = 0; i < t.elements(); ++i) scales.push_back(element(t, i));
    add_outlier(s, scales, all);
  }
}

/// Codes in groups that have a scale each: the largest of a group is 127, unless somebody clipped it, and no channel
/// should be the largest of most groups.
void groups(const Arguments& a, std::vector<string>& all) {
  for (const Coded& c : codes_of(*a.op)) {
    if (c.result) continue;
    const Tensor &codes = a.tensor(c.codes), &scales = a.tensor(c.scales);
    if (!codes || !scales || codes.dtype != DType::i8 || scales.elements() == 0) continue;
    const Index width = codes.elements() / scales.elements();
    if (width < 16 || codes.elements() % scales.elements() != 0) continue;
    Index some = 0, low = 0;
    std::vector<Index> largest(static_cast<std::size_t>(width));
    for (Index first = 0; first < codes.elements(); first += width) {
      Index at = 0;
      double most = 0;
      for (Index i = 0; i < width; ++i)
        if (const double x = std::abs(element(codes, first + i)); x > most) most = x, at = i;
      if (most == 0) continue;
      ++some, low += most < 127, ++largest[std::size_t(at)];
    }
    if (some < 16) continue;
    if (2 * low > some)
      all.push_back(std::to_string(low) + " of " + std::to_string(some) + " groups of " + string(c.codes) +
                    " do not reach 127: clipped, or of another scale?");
    const auto at = std::max_element(largest.begin(), largest.end());
    if (2 * *at > some)
      all.push_back("channel " + std::to_string(at - largest.begin()) + " is the largest of " + std::to_string(*at) +
                    " of " + std::to_string(some) + " groups of " + string(c.codes) + ": an outlier");
  }
}

/// Where the documented place of the scales of packed rows holds none, but the place behind the codes does.
void packed_rows(const Arguments& a, std::vector<string>& all) {
  if (a.op->name != "kv_quant_sparse_flash_attention" || !a.tensor("key")) return;
  const Tensor& key = a.tensor("key");
  const Index row = last_axis(key), rope = 2 * std::get<Index>(a.at("rope_head_dim"));
  const Index tile = std::get<Index>(a.at("tile_size")), tiles = (row - rope) / (tile + 4);
  const auto are_scales = [&](Index r, Index first) {
    for (Index i = 0; i < tiles; ++i) {
      float x;
      std::byte bytes[4];
      for (Index b = 0; b < 4; ++b)
        bytes[b] = static_cast<const std::byte*>(key.data)[offset_of(key, r * row + first + 4 * i + b)];
      std::memcpy(&x, bytes, sizeof x);
      if (!(x > 1e-9f && x < 1)) return false;
    }
    return tiles > 0;
  };
  Index documented = 0, before = 0;
  const Index rows = key.elements() / std::max<Index>(row, 1), step = std::max<Index>(rows / 4096, 1);
  for (Index r = 0; r < rows; r += step) {
    documented += are_scales(r, tiles * tile + rope);
    before += are_scales(r, tiles * tile);
  }
  if (before > 2 * documented)  // pairs of 16-bit numbers may look like them, too
    all.push_back("rows of key have small positive float32 right behind the codes: scales before the rope part?");
}

/// Counts of keys that look like totals of the query's tokens.
void lengths(const Arguments& a, std::vector<string>& all) {
  const Names n(*a.op);
  if (n.lengths_key.empty() || n.query.empty() || !a.tensor(n.lengths_key) || !a.tensor(n.query)) return;
  const Tensor &keys = a.tensor(n.lengths_key), &query = a.tensor(n.query);
  const auto folded = parameter_of(*a.op, {"layout_query", "input_layout"});
  const bool counts = a.tensor(n.table) || parameter_of(*a.op, {"layout_key", "layout_kv"}).empty();
  if (folded.empty() || !std::get<string>(a.at(folded)).starts_with("TND") || !counts || keys.elements() < 3) return;
  for (Index b = 1; b < keys.elements(); ++b)
    if (integer_at(keys, b) < integer_at(keys, b - 1)) return;
  if (integer_at(keys, keys.elements() - 1) == query.shape[0])
    all.push_back(string(n.lengths_key) + " never decreases and ends at " + std::to_string(query.shape[0]) +
                  ", the tokens of the query: running totals, not counts?");
}

/// Pages and slots whose rows begin where 32 bits with a sign do not reach.
void addresses(const Bound& bound, std::vector<string>& all) {
  const Arguments& a = bound.arguments;
  for (const PageUse& use : pages_of(a)) {
    if (use.caches.empty() || use.used.empty()) continue;
    const Tensor& cache = a.tensor(use.caches.front());
    const auto numbers = bound.pools.find(string(use.caches.front()));  // as they were, where only some are stored
    Index last = 0;
    for (const PageUse::Entry& e : use.used)
      last = std::max(last, numbers == bound.pools.end()
                                ? e.page
                                : numbers->second[std::size_t(e.page * use.entries)] / use.entries);
    const Index elements = cache.elements() / std::max<Index>(cache.shape[0], 1) * use.entries;
    if (elements > 0 && last >= (Index{1} << 31) / elements)
      all.push_back("page " + std::to_string(last) + " of " + string(use.caches.front()) +
                    " lies past element 2^31: addresses of 32 bits?");
  }
}

/// Lists that go on behind a -1, or name what is no position of the sequence.
void lists(const Arguments& a, std::vector<string>& all) {
  const Names n(*a.op);
  if (n.list.empty() || !is_attention(*a.op) || !a.tensor(n.list) || a.tensor(n.list).rank < 1) return;
  const Tensor& t = a.tensor(n.list);
  const Index width = std::max<Index>(t.shape[t.rank - 1], 1);
  for (Index i = 1; i < t.elements(); ++i)
    if (i % width != 0 && element(t, i) >= 0 && element(t, i - 1) < 0) {
      all.push_back("list " + std::to_string(i / width) + " of " + string(n.list) +
                    " goes on behind -1, where it ends");
      break;
    }
  Index longest = 0, block = 1;
  if (!a.tensor(n.lengths_key)) return;
  if (const auto name = parameter_of(*a.op, {"sparse_block_size"}); !name.empty()) block = std::get<Index>(a.at(name));
  for (Index b = 0; b < a.tensor(n.lengths_key).elements(); ++b)
    longest = std::max(longest, integer_at(a.tensor(n.lengths_key), b));
  for (Index i = 0; i < t.elements(); ++i)
    if (integer_at(t, i) * block >= longest) {
      all.push_back("list " + std::to_string(i / width) + " of " + string(n.list) + " names " +
                    std::to_string(integer_at(t, i)) + ", and the longest sequence has " + std::to_string(longest) +
                    " keys");
      return;
    }
}

}  // namespace

std::vector<std::string> lints_of(const Bound& bound) {
  const Arguments& a = bound.arguments;
  std::vector<string> all;
  rope_table(a, all);
  int8_weights(a, all);
  sixteen_bits(a, all);
  packed_rows(a, all);
  groups(a, all);
  outliers(a, all);
  lengths(a, all);
  lists(a, all);
  addresses(bound, all);
  return all;
}

}  // namespace dsakit::debug
