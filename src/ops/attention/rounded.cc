// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/rounded.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.hpp"
#include "kernels/panel.hpp"
#include "ops/attention/partial.hpp"
#include "ops/attention/rounding.hpp"

namespace dsakit::attention::sparse {
namespace {

using Probability = reference::ProbabilityRounding;

constexpr int kHeads = 32;       // of a task: they share the gathered keys
constexpr int kListTile = 2048;  // attended positions of a tile of the device
constexpr std::ptrdiff_t kPitch = kListTile + 16;

struct Scratch {  // of one thread
  float *queries, *keys, *panel, *scores, *values, *part;
  std::int64_t* rows;  // of the tile at hand

  Scratch(const Problem& p, Carver& memory)
      : queries(memory.take<float>(std::int64_t(kHeads) * (p.latent + p.rope))),
        keys(memory.take<float>(std::int64_t(kChunk) * (p.latent + p.rope))),
        panel(memory.take<float>(Panel<float>::elements(std::max(p.latent + p.rope, kChunk)))),
        scores(memory.take<float>(kHeads * kPitch)),
        values(memory.take<float>(std::int64_t(kHeads) * p.latent)),
        part(memory.take<float>(kHeads * kPanel)),
        rows(memory.take<std::int64_t>(kListTile)) {}
};

/// Some heads of one query token. Sums are fp32, of fp32 products of numbers in the query's type.
class Task {
 public:
  Task(const Problem& p, const Kernels& kernels, const Scratch& scratch, const Token& token, std::int64_t first,
       int heads)
      : p_(p), k_(kernels), s_(scratch), token_(token), first_(first), heads_(heads), width_(p.latent + p.rope) {
    const std::int64_t head = first % p.heads;
    for (int h = 0; h < heads; ++h) {
      read(p.query, first + h, p.latent, s_.queries + h * width_);
      if (p.rope) read(p.query_rope, first + h, p.rope, s_.queries + h * width_ + p.latent);
      const float sink = p.sinks && token.sequence >= 0 ? p.sinks[head + h] : -INFINITY;
      max_[h] = sink, sum_[h] = sink > -INFINITY ? 1.0f : 0.0f;
    }
    std::fill_n(s_.values, std::int64_t(heads) * p.latent, 0.0f);
  }

  void run() {
    std::int64_t next = 0;
    int count = take(next);
    const bool one_tile = next >= token_.count;
    if (p_.rounding.probability == Probability::normalised) {
      for (std::int64_t end = next; count > 0; count = end < token_.count ? take(end) : 0) {
        score(count);
        for (int h = 0; h < heads_; ++h) normaliser(h, count);
        if (one_tile) break;
      }
      for (std::int64_t at = next = 0; at < token_.count || one_tile;) {
        if (!one_tile) count = take(at), score(count);
        for (int h = 0; h < heads_; ++h) {
          float* x = s_.scores + h * kPitch;
          for (int j = 0; j < count; ++j) x[j] = round(std::exp(x[j] * p_.scale - max_[h]) / sum_[h], false);
        }
        add_values(count);
        if (one_tile) break;
      }
    } else {
      for (; count > 0; count = next < token_.count ? take(next) : 0) {
        score(count);
        for (int h = 0; h < heads_; ++h) {
          const float keep = normaliser(h, count);
          float *x = s_.scores + h * kPitch, *values = s_.values + std::int64_t(h) * p_.latent;
          for (int j = 0; j < count; ++j) x[j] = round(std::exp(x[j] * p_.scale - max_[h]), true);
          for (int c = 0; c < p_.latent; ++c) values[c] *= keep;
        }
        add_values(count);
      }
    }
    for (int h = 0; h < heads_; ++h) finish(h);
  }

 private:
  float round(float x, bool away) const {
    if (p_.type == DType::bf16) return to_float(to_bf16(x));
    return to_float(away ? to_f16_away(x) : to_f16(x));
  }

  void read(const Rows& rows, std::int64_t row, int n, float* y) const {
    if (p_.type == DType::f16) k_.widen(rows.row<const f16>(row), n, y);
    else k_.widen(rows.row<const bf16>(row), n, y);
  }

  /// Rows of the next tile of attended positions, from list position `next` on. Returns how many.
  int take(std::int64_t& next) const {
    int count = 0;
    while (next < token_.count && count < kListTile) {
      const std::int64_t end = std::min(token_.count, next + kListTile - count);
      each_attended(token_, next, end,
                    [&](auto, std::int64_t position) { s_.rows[count++] = p_.key_row(token_, position); });
      next = end;
    }
    return count;
  }

  /// Keys j .. j + n - 1 of the tile, in the query's type, as fp32.
  void gather(int first, int n) const {
    for (int j = 0; j < n; ++j) {
      const std::int64_t row = s_.rows[first + j];
      float* key = s_.keys + std::int64_t(j) * width_;
      if (p_.keys.tile == 0) read_bytes(p_.keys.latent_at(row), p_.latent, key);
      if (p_.rope) read_bytes(p_.keys.rope_at(row), p_.rope, key + p_.latent);
      if (p_.keys.tile == 0) continue;
      const auto* codes = reinterpret_cast<const std::int8_t*>(p_.keys.latent_at(row));
      for (int c = 0; c < p_.latent; c += p_.keys.tile) {
        float scale;
        std::memcpy(&scale, p_.keys.scales_at(row) + c / p_.keys.tile * 4, sizeof scale);
        for (int i = c; i < c + p_.keys.tile; ++i) key[i] = round(float(codes[i]) * scale, true);
      }
    }
  }

  /// A row at any address.
  void read_bytes(const std::byte* from, int n, float* y) const {
    for (int i = 0; i < n; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, from + 2 * i, sizeof bits);
      y[i] = p_.type == DType::f16 ? to_float(f16{bits}) : to_float(bf16{bits});
    }
  }

  /// Dot products of a tile, not yet scaled.
  void score(int count) const {
    const float* rows[kPanel];
    for (int chunk = 0; chunk < count; chunk += kChunk) {
      const int n = std::min(kChunk, count - chunk);
      gather(chunk, n);
      for (int j = 0; j < n; j += kPanel) {
        const int some = std::min(kPanel, n - j);
        for (int i = 0; i < some; ++i) rows[i] = s_.keys + std::int64_t(j + i) * width_;
        k_.transpose(rows, some, width_, s_.panel);
        k_.product(s_.queries, width_, heads_, s_.panel, width_, s_.part, kPanel, false);
        for (int h = 0; h < heads_; ++h) std::copy_n(s_.part + h * kPanel, some, s_.scores + h * kPitch + chunk + j);
      }
    }
  }

  /// Takes a tile of scores into maximum and sum. Returns what was there before counts for.
  float normaliser(int h, int count) {
    const float* x = s_.scores + h * kPitch;
    float most = max_[h], sum = 0;
    for (int j = 0; j < count; ++j) most = std::max(most, x[j] * p_.scale);
    const float keep = most == max_[h] ? 1 : std::exp(max_[h] - most);
    for (int j = 0; j < count; ++j) sum += std::exp(x[j] * p_.scale - most);
    sum_[h] = sum_[h] * keep + sum, max_[h] = most;
    return keep;
  }

  /// values += probabilities x keys, for a tile.
  void add_values(int count) const {
    const float* rows[kChunk];
    for (int chunk = 0; chunk < count; chunk += kChunk) {
      const int n = std::min(kChunk, count - chunk);
      gather(chunk, n);
      for (int c = 0; c < p_.latent; c += kPanel) {
        const int columns = std::min(kPanel, p_.latent - c);
        for (int j = 0; j < n; ++j) rows[j] = s_.keys + std::int64_t(j) * width_ + c;
        k_.interleave(rows, n, columns, s_.panel);
        k_.product(s_.scores + chunk, kPitch, heads_, s_.panel, n, s_.part, kPanel, false);
        for (int h = 0; h < heads_; ++h)
          for (int i = 0; i < columns; ++i) s_.values[std::int64_t(h) * p_.latent + c + i] += s_.part[h * kPanel + i];
      }
    }
  }

  void finish(int h) const {
    const std::int64_t row = first_ + h;
    float* values = s_.values + std::int64_t(h) * p_.latent;
    const bool divide = p_.rounding.probability == Probability::unnormalised_tile2048 && sum_[h] != 0;
    for (int c = 0; c < p_.latent; ++c) {
      const float x = divide ? values[c] / sum_[h] : values[c];
      if (p_.type == DType::bf16) p_.out.row<bf16>(row)[c] = to_bf16(x);
      else p_.out.row<f16>(row)[c] = p_.rounding.away ? to_f16_away(x) : to_f16(x);
    }
    if (p_.max.tensor) *p_.max.row<float>(row) = sum_[h] != 0 ? max_[h] : 0;
    if (p_.sum.tensor) *p_.sum.row<float>(row) = sum_[h];
  }

  const Problem& p_;
  const Kernels& k_;
  const Scratch& s_;
  const Token& token_;
  const std::int64_t first_;
  const int heads_, width_;
  float max_[kHeads], sum_[kHeads];
};

}  // namespace

std::size_t workspace_rounded(const Problem& p, int threads) { return std::size_t(threads) * bytes_of<Scratch>(p); }

void run_rounded(const Problem& p, const Token* token, Call& call, std::byte* memory) noexcept {
  const std::int64_t blocks = (p.heads + kHeads - 1) / kHeads;
  const std::size_t each = bytes_of<Scratch>(p);
  double positions = 0;
  for (std::int64_t t = 0; t < p.tokens; ++t) positions += double(token[t].count);
  call.parallel_for(p.tokens * blocks, {.products = positions * double(p.heads) * (2 * p.latent + p.rope)},
                    [&](std::int64_t i, int thread) {
                      Carver carver(memory + std::size_t(thread) * each);
                      const Scratch scratch(p, carver);
                      const std::int64_t t = i / blocks, head = i % blocks * kHeads;
                      const int heads = int(std::min<std::int64_t>(kHeads, p.heads - head));
                      Task(p, call.kernels(), scratch, token[t], t * p.heads + head, heads).run();
                    });
}

}  // namespace dsakit::attention::sparse
