// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/tuning.hpp"
#include "ops/attention/dense_worker.hpp"

namespace dsakit::attention::dense {
namespace {

int bytes_of_element(DType t) { return t == DType::f32 || t == DType::i32 ? 4 : t == DType::i8 ? 1 : 2; }
std::ptrdiff_t round_up(std::ptrdiff_t n, int to) { return (n + to - 1) / to * to; }
std::int64_t when(bool exists, std::int64_t n) { return exists ? n : 0; }

constexpr std::size_t kTilesBytes = 512 << 10;  // rows and results of tiles that share panels: a part of L2
constexpr std::size_t kMostPanelTiles = 4;      // more save little of what panels cost

constexpr std::size_t kHeldBytes = 1 << 20;     // of panels that stay: from L3 they are nearer than made anew

std::int64_t panel_bytes(DType type, std::int64_t depth) {
  return type == DType::i8     ? Panels<std::int8_t>::bytes(depth, kPanel)
         : type == DType::bf16 ? Panels<bf16>::bytes(depth, kPanel)
                               : Panels<float>::bytes(depth, kPanel);
}

}  // namespace

Plan::Plan(const Problem& p, const Kernels& kernels, std::int64_t longest, int threads, bool same_products) : p(p) {
  quantised = p.kv_type == DType::i8 || p.kv_type == DType::i32;
  // Of int8 output 99 % are the codes of exact probabilities, which roundings to bf16 would not leave.
  const bool pairs = p.query_type == DType::bf16 && p.out_type != DType::i8 && !same_products && !kernels.widens_rows;
  products = quantised && p.query_type != DType::f32 ? Products::int8
             : !quantised && pairs                   ? Products::bf16
                                                     : Products::fp32;
  type = !quantised ? p.kv_type : products == Products::int8 ? DType::i8 : DType::f32;
  rope_bf16 = p.rope_type == DType::bf16 && !same_products && !kernels.widens_rows;
  // Where products are of fp32, so are panels: else every tile of rows widens them anew.
  const bool wide = (p.width + p.rope + p.value) * std::int64_t(kChunk * sizeof(float)) <= tuning.wide_panels;
  panels = type == DType::i8 || (type == DType::bf16 && (products == Products::bf16 || !wide)) ? type : DType::f32;
  rope_panels = p.rope_type == DType::bf16 && (rope_bf16 || !wide) ? DType::bf16 : DType::f32;
  keyed_keys = products == Products::int8 && p.key_scale.per_key;
  keyed_values = products == Products::int8 && p.value_scale.per_key;
  // 22 bits of a query; of a probability more than the documented rounding leaves.
  query_digits = p.query_type == DType::i8 ? 1 : 3;
  probability_digits = p.query_type == DType::f16 ? 3 : 2;
  heads = int(std::min<std::int64_t>(p.group, kTileRows));
  head_blocks = int((p.group + heads - 1) / heads);
  queries = kTileRows / heads;
  rows = heads * queries, columns = p.value;
  stored_element = bytes_of_element(p.kv_type), element = bytes_of_element(type);
  rope_element = bytes_of_element(p.rope_type);
  gemv_words = GemvQuery::words(p.width, element, products == Products::fp32 ? 1 : 4 / element);
  query_pitch = round_up(p.width, 64) + 32;  // rows must not share cache sets
  rope_pitch = round_up(p.rope, 32);
  value_pitch = round_up(p.value, 16);
  Carver whole;
  Queries(whole, *this);
  group = int(std::clamp<std::size_t>(kTilesBytes / whole.bytes(), 1, kMostPanelTiles));
  Carver chunk;
  ChunkPanels(chunk, *this);
  // No thread goes without scratch for their sake.
  const std::size_t lane = Schedule<Plan>::lane_bytes(*this, group), some = kLanesBytes / std::size_t(threads),
                    spare = some > lane ? some - lane : 0, most = std::clamp<std::size_t>(kHeldBytes / chunk.bytes(), 1, kMostHeld);
  held = int(std::min(most, 1 + spare / chunk.bytes()));
  queries = int(std::min<std::int64_t>(queries, longest)), rows = heads * queries;
  if (rows <= kGemvRows) group = kMostGroup, held = 1;
}

/// The queries of a head one after the other, the last ones, which see most, first.
Tile Plan::tile(std::int64_t i) const {
  const std::int64_t b = std::upper_bound(first_tile, first_tile + p.sequences + 1, i) - first_tile - 1;
  i -= first_tile[b];
  const std::int64_t step = i % steps(b), block = i / steps(b), first = (steps(b) - 1 - step) * queries;
  const int head = int(block % head_blocks) * heads;
  return {b,     block / head_blocks,
          first, int(std::min<std::int64_t>(queries, p.sequence[b].queries - first)),
          head,  int(std::min<std::int64_t>(heads, p.group - head))};
}

Queries::Queries(Carver& memory, const Plan& plan) {
  const Problem& p = plan.p;
  const std::int64_t rows = plan.rows, elements = rows * plan.query_pitch;
  rows_bf16 = memory.take<bf16>(when(plan.products == Products::bf16, elements));
  rows_f32 = memory.take<float>(when(plan.products == Products::fp32, elements) + plan.query_pitch);
  digits = memory.take<std::uint8_t>(when(plan.products == Products::int8, elements * plan.query_digits));
  gemv = memory.take<std::int32_t>(GemvQuery::elements(kGemvRows, plan.gemv_words));
  rope_bf16 = memory.take<bf16>(when(plan.rope_bf16, rows * plan.rope_pitch));
  rope_f32 = memory.take<float>(when(!plan.rope_bf16, rows * plan.rope_pitch));
  row_unit = memory.take<float>(rows), row_sum = memory.take<float>(rows);
  row_constant = memory.take<float>(rows), row_factor = memory.take<float>(rows);
  key = ScaleOffset(memory, when(plan.quantised, p.width)), value = ScaleOffset(memory, when(plan.quantised, p.value));
  all = Partial(memory, rows, plan.value_pitch);
}

ChunkPanels::ChunkPanels(Carver& memory, const Plan& plan)
    : held(memory.take<Held>(1)),
      keys(memory, kChunk / kPanel, panel_bytes(plan.panels, plan.p.width)),
      rope(memory, kChunk / kPanel, panel_bytes(plan.rope_panels, plan.p.rope)),
      values(memory, panels_of(plan.p.value), panel_bytes(plan.panels, kChunk)) {}

Scratch::Scratch(Carver& memory, const Plan& plan) : held(plan.held) {
  const Problem& p = plan.p;
  const std::int64_t rows = std::min(plan.rows, kBlockRows), chunk = rows * kScorePitch;
  const bool codes = plan.products == Products::int8;
  for (int i = 0; i < held; ++i) panels[i] = ChunkPanels(memory, plan);
  own_values = memory.take<std::byte>(panel_bytes(plan.panels, kChunk));
  dots = memory.take<std::int32_t>(when(codes, rows * std::max(plan.query_digits, plan.probability_digits) * kPanel));
  part = memory.take<float>(std::max(rows * kPanel, std::min<std::int64_t>(rows, kGemvRows) * kGemvColumns));
  scores = memory.take<float>(chunk);
  rounded = memory.take<bf16>(when(plan.products == Products::bf16, chunk));
  digits = memory.take<std::uint8_t>(when(codes, chunk * plan.probability_digits));
  key = ScaleOffset(memory, when(plan.quantised, kChunk)), value = ScaleOffset(memory, when(plan.quantised, kChunk));
  const bool changed = plan.type != p.kv_type;
  code_row = memory.take<std::int8_t>(when(changed, std::max(p.width, p.value)));
  keys = memory.take<std::byte>(when(changed || p.key.block, std::int64_t(kChunk) * p.width * plan.element));
  values = memory.take<std::byte>(when(changed || p.values.block, std::int64_t(kChunk) * p.value * plan.element));
  rope = memory.take<std::byte>(when(p.key_rope.block, std::int64_t(kChunk) * p.rope * plan.rope_element));
  zeros = memory.take<std::byte>(std::int64_t(p.value) * plan.element);
}

}  // namespace dsakit::attention::dense
