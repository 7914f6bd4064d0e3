// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "dsakit/sparse_flash_attention_quant.hpp"

namespace dsakit::sparse_flash_attention_quant_op {

enum class Data { uniform, peaked, flat, duplicates, large };

struct Shape {
  std::vector<std::int32_t> act;
  std::int64_t s1 = 1, nq = 1;
  int dv = 16, dr = 4, tiles = 4;  // tiles 0: bf16 latent
  std::int64_t topk = 8, block_size = 16;
  Data data = Data::uniform;
  std::uint64_t seed = 1, page_seed = 1;
  bool poison = true;  // NaN and bad entries wherever no row attends
};

/// A call and its memory. The same seed gives the same numbers per logical position, whatever the pages.
struct Case {
  Shape shape;
  std::vector<bf16> query, query_rope, latent, key_rope, out;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> lists, table;
  std::int64_t b, pages = 0, columns = 1, width;
  float softmax_scale;

  explicit Case(const Shape& s) : shape(s), b(std::int64_t(s.act.size())), width(s.topk + 2) {
    Random r(s.seed), shuffle(s.page_seed + 1000);
    const std::int64_t rows = b * s.s1;
    query = random_bf16(r, rows * s.nq * s.dv), query_rope = random_bf16(r, rows * s.nq * s.dr);
    out.assign(std::size_t(rows * s.nq * s.dv), bf16{0x1234});
    softmax_scale = s.data == Data::flat ? 0.0f : 1 / std::sqrt(float(s.dv + s.dr));
    if (s.data == Data::peaked) softmax_scale = 3;
    if (s.data == Data::large) softmax_scale = 40;
    std::int64_t longest = 0;
    for (std::int32_t n : s.act)
      longest = std::max<std::int64_t>(longest, n), pages += (n + s.block_size - 1) / s.block_size;
    pages += 1;  // one that nobody owns
    columns = (longest + s.block_size - 1) / s.block_size + 1;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = std::int32_t(i);
    for (std::int64_t i = pages - 1; i > 0; --i) std::swap(order[i], order[shuffle.below(i + 1)]);
    table.assign(std::size_t(b * columns), -1);
    lists.assign(std::size_t(rows * width), 0);
    for (std::size_t i = 0; i < lists.size(); ++i) lists[i] = i % 3 ? -1 : std::numeric_limits<std::int32_t>::max();

    const std::int64_t slots = pages * s.block_size;
    const bf16 nan{0x7fc1};
    const float nan32 = std::numeric_limits<float>::quiet_NaN();
    latent.assign(std::size_t(s.tiles ? 0 : slots * s.dv), nan);
    codes.assign(std::size_t(s.tiles ? slots * s.dv : 0), 127);
    scales.assign(std::size_t(slots * s.tiles), nan32);
    key_rope.assign(std::size_t(slots * s.dr), nan);
    std::int64_t next = 0;
    for (std::int64_t q = 0; q < b; ++q) {
      std::set<std::int64_t> used;
      for (std::int64_t i = 0; i < s.s1; ++i) {
        std::int32_t* list = lists.data() + (q * s.s1 + i) * width;
        std::vector<std::int32_t> all(std::size_t(s.act[q]));
        for (std::size_t j = 0; j < all.size(); ++j) all[j] = std::int32_t(j);
        for (std::int64_t j = 0; j < attended(q, i); ++j) {
          const std::int64_t pick = j + r.below(s.act[q] - j);
          if (s.data != Data::duplicates) std::swap(all[j], all[pick]);
          used.insert(list[j] = s.data == Data::duplicates ? all[pick] : all[j]);
        }
      }
      for (std::int64_t page = 0; page * s.block_size < s.act[q]; ++page) {
        const std::int32_t block = order[next++];
        bool needed = !s.poison;
        for (std::int64_t slot = 0; slot < s.block_size; ++slot) {
          const std::int64_t position = page * s.block_size + slot, row = block * s.block_size + slot;
          if (position >= s.act[q]) break;
          Random numbers(s.seed * 7919 + std::uint64_t(q * 1000003 + position));
          const bool keep = !s.poison || used.contains(position);
          needed |= keep;
          for (int c = 0; c < s.dv; ++c) {
            const float x = numbers.uniform(-1, 1);
            if (s.tiles) codes[row * s.dv + c] = std::int8_t(std::rint(x * 127.4f));
            else if (keep) latent[row * s.dv + c] = to_bf16(x);
          }
          for (int c = 0; c < s.dr; ++c)
            if (const float x = numbers.uniform(-1, 1); keep) key_rope[row * s.dr + c] = to_bf16(x);
          for (int g = 0; g < s.tiles; ++g) {
            const float x = numbers.uniform(0, 1) * std::ldexp(1.0f, -int(numbers.below(3)) - 5);
            if (keep) scales[row * s.tiles + g] = numbers.below(10) ? x : 0;  // now and then an all-zero tile
          }
        }
        if (needed) table[q * columns + page] = block;
      }
    }
  }

  std::int64_t attended(std::int64_t q, std::int64_t i) const {
    return std::min(std::max<std::int64_t>(shape.act[q] - shape.s1 + 1 + i, 0), shape.topk);
  }
  std::int64_t row_of(std::int64_t q, std::int64_t position) const {
    return table[q * columns + position / shape.block_size] * shape.block_size + position % shape.block_size;
  }
  double latent_at(std::int64_t row, int c) const {
    if (!shape.tiles) return to_float(latent[row * shape.dv + c]);
    return double(codes[row * shape.dv + c]) * double(scales[row * shape.tiles + c / (shape.dv / shape.tiles)]);
  }

  SparseFlashAttentionQuantArgs args() {
    const std::int64_t rows = b * shape.s1 * shape.nq, slots = pages * shape.block_size;
    SparseFlashAttentionQuantArgs a{.query_nope = tensor(query.data(), {rows, shape.dv}),
                                    .query_rope = tensor(query_rope.data(), {rows, shape.dr}),
                                    .key_nope_2d = shape.tiles ? tensor(codes.data(), {slots, shape.dv})
                                                               : tensor(latent.data(), {slots, shape.dv}),
                                    .key_rope_2d = tensor(key_rope.data(), {slots, shape.dr}),
                                    .topk_indices = tensor(lists.data(), {b * shape.s1, width}),
                                    .block_table = tensor(table.data(), {b, columns}),
                                    .kv_act_seqs = tensor(shape.act.data(), {b}),
                                    .b = b,
                                    .s1 = shape.s1,
                                    .nq = shape.nq,
                                    .softmax_scale = softmax_scale,
                                    .topk = shape.topk,
                                    .block_size = shape.block_size};
    if (shape.tiles) a.k_nope_scales = tensor(scales.data(), {slots, shape.tiles});
    return a;
  }
  SparseFlashAttentionQuantOuts outs() { return outs(out); }
  SparseFlashAttentionQuantOuts outs(std::vector<bf16>& where) const {
    return {.attention_out = tensor(where.data(), {b, shape.s1, shape.nq, shape.dv})};
  }
};

}  // namespace dsakit::sparse_flash_attention_quant_op
