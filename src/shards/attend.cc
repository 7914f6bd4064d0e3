// SPDX-License-Identifier: Apache-2.0
#include "shards/attend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "parallel/exchanges.hpp"

namespace dsakit::shards {
namespace {

struct Checked {
  const sparse::Problem& attention;
  std::span<const sparse::Token> tokens;

  template <class F>
  void each_token(F f) const {
    for (std::size_t t = 0; t < tokens.size(); ++t) f(std::int64_t(t), tokens[t]);
  }
};

/// f(list position, token position) for all that a token attends to.
template <class F>
void each_position(const sparse::Token& t, F f) {
  if (t.sequence >= 0) sparse::each_attended(t, 0, t.count, f);
}

/// Bytes of what is cached of a token: latent (in packed rows all of it), rope, scales.
struct Widths {
  std::size_t bytes[3];

  explicit Widths(const sparse::Problem& p) {
    const bool quantised = p.keys.tile > 0, packed = p.keys.packed();
    const std::size_t scales = quantised ? std::size_t(p.latent / p.keys.tile) * sizeof(float) : 0;
    bytes[0] = packed ? std::size_t(p.keys.scales_from) + scales
                      : std::size_t(p.latent) * (quantised ? 1 : std::size_t(size_of(p.type)));
    bytes[1] = packed ? 0 : std::size_t(p.rope * size_of(p.type));
    bytes[2] = packed ? 0 : scales;
  }
  std::size_t all() const { return bytes[0] + bytes[1] + bytes[2]; }
};

const std::byte* row_of(const sparse::Keys& keys, int kind, std::int64_t row) {
  return kind == 0 ? keys.latent_at(row) : kind == 1 ? keys.rope_at(row) : keys.scales_at(row);
}

/// Rows from `first` on. Only of rows that are evenly spaced, or all.
Rows from(Rows rows, std::int64_t first) {
  if (rows.tensor && first > 0)
    rows.tensor.data = static_cast<std::byte*>(rows.tensor.data) + rows.offset(first) * size_of(rows.tensor.dtype);
  return rows;
}

/// Where the places of each sequence begin among those of all, and their end.
std::vector<std::int64_t> begins_of(std::span<const sparse::Token> tokens) {
  std::vector<std::int64_t> begins(1);
  for (const sparse::Token& t : tokens)
    each_position(t, [&](auto, std::int64_t position) {
      const std::size_t next = std::size_t(t.sequence) + 1;
      if (begins.size() <= next) begins.resize(next + 1);
      begins[next] = std::max(begins[next], position + 1);
    });
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  return begins;
}

}  // namespace

std::size_t Attention::row_bytes() const { return Widths(problem).all(); }

std::int64_t Attention::step() const {
  const std::int64_t fits = kRowsBlockBytes / std::int64_t(row_bytes()), all = std::int64_t(tokens.size());
  const Rows* const rows[] = {&problem.query, &problem.query_rope, &problem.out, &problem.max, &problem.sum};
  const bool even = std::ranges::all_of(rows, [](const Rows* r) { return !r->tensor || r->uniform_stride >= 0; });
  if (!even || begins_of(tokens).back() <= fits) return std::max<std::int64_t>(all, 1);
  std::int64_t most = 1;
  for (const sparse::Token& t : tokens) most = std::max(most, t.count);
  return std::max<std::int64_t>(fits / most, 1);
}

FetchedRows::FetchedRows(const Attention& all, std::int64_t from, std::int64_t to) : all_(all), from_(from), to_(to) {
  const std::span tokens = std::span(all.tokens).subspan(std::size_t(from), std::size_t(to - from));
  const std::vector<std::int64_t> begins = begins_of(tokens);
  const sparse::Keys& keys = all.problem.keys;
  const Ownership& owner = all.owner;
  // Distinct positions by owner, in the order in which lists name them; where each lies behind the others.
  std::vector<std::vector<std::int64_t>> of_rank(std::size_t(owner.ranks));
  std::vector<std::int32_t> place(std::size_t(begins.back()), -1);
  std::vector<std::int64_t> mine;  // rows of the cache
  for (const sparse::Token& t : tokens)
    each_position(t, [&](auto, std::int64_t position) {
      const std::int64_t at = begins[std::size_t(t.sequence)] + position;
      if (place[std::size_t(at)] >= 0) return;
      place[std::size_t(at)] = 0;
      of_rank[std::size_t(owner.owner(position))].push_back(at);
      if (owner.owns(position)) mine.push_back(keys.rows.offset(t.sequence, t.first + owner.local(position)));
    });
  for (const auto& positions : of_rank)
    for (const std::int64_t at : positions) place[std::size_t(at)] = std::int32_t(count_++);
  for (const sparse::Token& t : tokens) {
    const std::size_t first = places_.size();
    places_.resize(first + std::size_t(t.count), std::int32_t(count_));
    each_position(t, [&](std::int64_t x, std::int64_t position) {
      places_[first + std::size_t(x)] = place[std::size_t(begins[std::size_t(t.sequence)] + position)];
    });
  }

  const Widths widths(all.problem);
  std::vector<std::size_t> sizes;
  for (const auto& positions : of_rank) sizes.push_back(positions.size() * widths.all());
  std::vector<std::byte> out(mine.size() * widths.all()), in(std::size_t(count_) * widths.all());
  std::byte* to_others = out.data();
  for (int kind = 0; kind < 3; ++kind)
    for (const std::int64_t row : mine)
      if (widths.bytes[kind] > 0) to_others = std::copy_n(row_of(keys, kind, row), widths.bytes[kind], to_others);
  all.talk.all_gather(all.group, "attention", out, sizes, in.data());
  const std::byte* next = in.data();
  for (int kind = 0; kind < 3; ++kind) memory_[kind].reserve(std::size_t(count_) * widths.bytes[kind]);
  for (const auto& positions : of_rank)
    for (int kind = 0; kind < 3; ++kind) {
      const std::size_t bytes = positions.size() * widths.bytes[kind];
      memory_[kind].insert(memory_[kind].end(), next, next + bytes);
      next += bytes;
    }
}

void FetchedRows::attend(const char* op, Context& context) const {
  sparse::Problem p = all_.problem;
  const Widths widths(p);
  const auto rows = [&](Rows& of, int kind) {
    if (widths.bytes[kind] == 0) return;
    const DType dtype = of.tensor.dtype;
    Tensor t = shaped(dtype, {count_, std::int64_t(widths.bytes[kind]) / size_of(dtype)});
    t.data = const_cast<std::byte*>(memory_[kind].data());
    of = Rows(t, 1);
  };
  rows(p.keys.latent, 0), rows(p.keys.rope, 1), rows(p.keys.scales, 2);
  p.keys.rows = {.data = nullptr, .page_stride = 0, .row_stride = 1, .page_size = 1};
  const std::int64_t first = from_ * p.heads;
  p.query = from(p.query, first), p.query_rope = from(p.query_rope, first), p.out = from(p.out, first);
  p.max = from(p.max, first), p.sum = from(p.sum, first);
  p.tokens = to_ - from_;
  std::vector<sparse::Token> tokens;
  const std::int32_t* list = places_.data();
  for (std::int64_t i = from_; i < to_; ++i) {
    const sparse::Token& t = all_.tokens[std::size_t(i)];
    tokens.push_back({.sequence = t.sequence < 0 ? -1 : 0, .list = list, .count = t.count, .visible = count_});
    list += t.count;
  }
  sparse::run(op, Checked{p, tokens}, context);
}

void attend_own(const char* op, const sparse::Problem& problem, std::span<const sparse::Token> tokens,
                const Ownership& owner, const PartialResults& out, Context& context) {
  std::vector<std::int32_t> lists;
  std::vector<sparse::Token> own(tokens.begin(), tokens.end());
  for (const sparse::Token& t : tokens)
    if (t.list)
      each_position(t, [&](auto, std::int64_t position) {
        if (owner.owns(position)) lists.push_back(std::int32_t(owner.local(position)));
      });
  const std::int32_t* next = lists.data();
  for (sparse::Token& t : own) {
    const sparse::Token whole = t;
    t.block = 1, t.visible = INT64_MAX, t.count = 0;
    if (!whole.list) {
      t.count = owner.below(whole.count);
      continue;
    }
    t.list = next;
    each_position(whole, [&](auto, std::int64_t position) { t.count += owner.owns(position); });
    next += t.count;
  }
  const std::int64_t count = problem.tokens * problem.heads;
  sparse::Problem p = problem;
  p.wide_out = out.values, p.sinks = nullptr;
  p.max = Rows(tensor(out.max, {count}), 0), p.sum = Rows(tensor(out.sum, {count}), 0);
  sparse::run(op, Checked{p, own}, context);
}

Part merged(std::span<const Part> parts, float sink, std::int64_t latent, float* scratch) {
  float max = sink, sum = 0;
  for (const Part& part : parts)
    if (part.sum != 0) max = std::max(max, part.max);
  std::fill_n(scratch, latent, 0.0f);
  for (const Part& part : parts) {
    if (part.sum == 0) continue;
    const float weight = part.sum * std::exp(part.max - max);
    sum += weight;
    for (std::int64_t j = 0; j < latent; ++j) scratch[j] += weight * part.values[j];
  }
  if (sink != -INFINITY) sum += sink == max ? 1 : std::exp(sink - max);
  if (sum != 0)
    for (std::int64_t j = 0; j < latent; ++j) scratch[j] /= sum;
  return {sum != 0 ? max : 0, sum, scratch};
}

SharedParts::SharedParts(const Attention& all, std::vector<std::int64_t> heads)
    : all_(all),
      heads_(std::move(heads)),
      heads_of_all_(std::accumulate(heads_.begin(), heads_.end(), std::int64_t{0})),
      max_(std::size_t(tokens() * heads_of_all_)),
      sum_(max_.size()),
      values_(max_.size() * std::size_t(latent_)) {
  const sparse::Problem& p = all.problem;
  const std::size_t size = std::size_t(size_of(p.type)), latent = std::size_t(p.latent) * size,
                    width = latent + std::size_t(p.rope) * size, rows = std::size_t(tokens());
  std::vector<std::size_t> sizes;
  for (const std::int64_t n : heads_) sizes.push_back(rows * std::size_t(n) * width);
  std::vector<std::byte> mine(rows * std::size_t(p.heads) * width), in(rows * std::size_t(heads_of_all_) * width);
  const auto copy = [&](const Rows& from, std::int64_t row, std::size_t bytes, std::byte* to) {
    if (bytes == 0) return;
    std::memcpy(to, static_cast<const std::byte*>(from.tensor.data) + from.offset(row) * std::int64_t(size), bytes);
  };
  for (std::int64_t r = 0; r < std::int64_t(rows) * p.heads; ++r) {
    std::byte* const to = mine.data() + std::size_t(r) * width;
    copy(p.query, r, latent, to);
    copy(p.query_rope, r, width - latent, to + latent);
  }
  all.talk.all_gather(all.group, "queries", mine, sizes, in.data());
  queries_.resize(in.size());
  const std::byte* next = in.data();
  std::size_t before = 0;  // heads
  for (const std::int64_t n : heads_) {
    const std::size_t bytes = std::size_t(n) * width;
    for (std::size_t i = 0; i < rows; ++i, next += bytes)
      if (bytes > 0) std::memcpy(queries_.data() + (i * std::size_t(heads_of_all_) + before) * width, next, bytes);
    before += std::size_t(n);
  }
}

void SharedParts::attend(const char* op, Context& context) {
  if (heads_of_all_ == 0) return;
  sparse::Problem p = all_.problem;
  Tensor query = shaped(p.type, {tokens() * heads_of_all_, p.latent + p.rope});
  query.data = queries_.data();
  Tensor rope = query;
  query.shape[1] = p.latent, rope.shape[1] = p.rope;
  rope.data = queries_.data() + p.latent * size_of(p.type);
  p.query = Rows(query, 1), p.query_rope = Rows(rope, 1);
  p.heads = heads_of_all_;
  attend_own(op, p, all_.tokens, all_.owner, {max_.data(), sum_.data(), values_.data()}, context);
}

void SharedParts::merge() {
  // To the rank of each head: maximum, sum and values of [rows, its heads].
  const sparse::Problem& p = all_.problem;
  const std::int64_t width = latent_ + 2, rows = tokens(), own = heads_[std::size_t(all_.group.rank())];
  std::vector<float> out, in(heads_.size() * std::size_t(rows * own * width));
  std::vector<std::size_t> to, from(heads_.size(), std::size_t(rows * own * width) * sizeof(float));
  out.reserve(std::size_t(rows * heads_of_all_ * width));
  std::int64_t first = 0;
  for (const std::int64_t n : heads_) {
    to.push_back(std::size_t(rows * n * width) * sizeof(float));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t h = first; h < first + n; ++h) {
        const std::size_t at = std::size_t(i * heads_of_all_ + h);
        out.push_back(max_[at]), out.push_back(sum_[at]);
        const float* values = values_.data() + at * std::size_t(latent_);
        out.insert(out.end(), values, values + latent_);
      }
    first += n;
  }
  all_.talk.all_to_all(all_.group, "attention", reinterpret_cast<const std::byte*>(out.data()), to,
                       reinterpret_cast<std::byte*>(in.data()), from);
  if (all_.talk.failed()) return;
  std::vector<float> values(std::size_t(latent_), 0.0f);
  std::vector<Part> parts(heads_.size());
  for (std::int64_t r = 0; r < rows * own; ++r) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const float* x = in.data() + std::int64_t(rank) * rows * own * width + r * width;
      parts[rank] = {x[0], x[1], x + 2};
    }
    const bool real = all_.tokens[std::size_t(r / own)].sequence >= 0;
    const Part all = merged(parts, p.sinks && real ? p.sinks[r % own] : -INFINITY, latent_, values.data());
    for (std::int64_t j = 0; j < latent_; ++j) store(p.out.tensor, p.out.offset(r) + j, all.values[j]);
    if (p.max.tensor) *p.max.row<float>(r) = all.max;
    if (p.sum.tensor) *p.sum.row<float>(r) = all.sum;
  }
}

}  // namespace dsakit::shards
