// SPDX-License-Identifier: Apache-2.0
#include "kernels/pack.hpp"
#include "ops/attention/dense_tile.hpp"

namespace dsakit::attention::dense {
namespace {

int bytes_of_element(DType t) { return t == DType::f32 || t == DType::i32 ? 4 : t == DType::i8 ? 1 : 2; }
std::ptrdiff_t round_up(std::ptrdiff_t n, int to) { return (n + to - 1) / to * to; }
std::int64_t when(bool exists, std::int64_t n) { return exists ? n : 0; }

}  // namespace

Plan::Plan(const Problem& p, std::int64_t longest, bool same_products) {
  quantised = p.kv_type == DType::i8 || p.kv_type == DType::i32;
  // Of int8 output 99 % are the codes of exact probabilities, which roundings to bf16 would not leave.
  const bool pairs = p.query_type == DType::bf16 && p.out_type != DType::i8 && !same_products;
  way = quantised && p.query_type != DType::f32 ? Way::codes : !quantised && pairs ? Way::pairs : Way::wide;
  type = !quantised ? p.kv_type : way == Way::codes ? DType::i8 : DType::f32;
  rope_pairs = p.rope_type == DType::bf16 && !same_products;
  keyed_keys = way == Way::codes && p.key_scale.per_key;
  keyed_values = way == Way::codes && p.value_scale.per_key;
  // 22 bits of a query; of a probability more than the documented rounding leaves.
  query_digits = p.query_type == DType::i8 ? 1 : 3;
  weight_digits = p.query_type == DType::f16 ? 3 : 2;
  heads = int(std::min<std::int64_t>(p.group, kTileRows));
  head_blocks = int((p.group + heads - 1) / heads);
  queries = int(std::min<std::int64_t>(kTileRows / heads, longest));
  rows = heads * queries;
  stored_element = bytes_of_element(p.kv_type), element = bytes_of_element(type);
  rope_element = bytes_of_element(p.rope_type);
  query_pitch = round_up(p.width, 64) + 32;  // rows must not share cache sets
  rope_pitch = round_up(p.rope, 32);
  value_pitch = round_up(p.value, 16);
}

Rows::Rows(Carver& memory, const Problem& p, const Plan& plan) {
  const std::int64_t rows = plan.rows;
  const bool codes = plan.way == Way::codes;
  query_pairs = memory.take<bf16>(when(plan.way == Way::pairs, rows * plan.query_pitch));
  query_wide = memory.take<float>(when(plan.way == Way::wide, rows * plan.query_pitch) + plan.query_pitch);
  query_codes = memory.take<std::uint8_t>(when(codes, rows * plan.query_digits * plan.query_pitch));
  const bool floats = plan.way == Way::wide;  // a word for each element, otherwise for four bytes
  few_query =
      memory.take<std::int32_t>((round_up(p.width * plan.element, 32) / (floats ? plan.element : 4) + 1) * kFew);
  rope_pairs = memory.take<bf16>(when(plan.rope_pairs, rows * plan.rope_pitch));
  rope_wide = memory.take<float>(when(!plan.rope_pairs, rows * plan.rope_pitch));
  row_unit = memory.take<float>(rows), row_sum = memory.take<float>(rows);
  row_constant = memory.take<float>(rows), row_factor = memory.take<float>(rows);
  key = Numbers(memory, when(plan.quantised, p.width)), value = Numbers(memory, when(plan.quantised, p.value));
  all = Partial(memory, plan);
}

Scratch::Scratch(Carver& memory, const Problem& p, const Plan& plan) {
  const std::int64_t rows = plan.rows;
  const bool codes = plan.way == Way::codes, pairs = plan.way == Way::pairs;
  const bool floats = plan.way == Way::wide && plan.type != DType::bf16;
  const std::int64_t depth = std::max({round_up(p.width, 4), round_up(p.rope, 2), std::ptrdiff_t(kChunk)});
  panel = memory.take<std::byte>(depth * kPanel * (floats || !plan.rope_pairs ? 4 : 2));
  column_sums = memory.take<std::int32_t>(kPanel);
  const std::int64_t code_rows = rows * std::max(plan.query_digits, plan.weight_digits);
  products = memory.take<std::int32_t>(when(codes, code_rows * kPanel));
  part = memory.take<float>(rows * kPanel), part_low = memory.take<float>(when(pairs, rows * kPanel));
  scores = memory.take<float>(rows * kScorePitch);
  high = memory.take<bf16>(when(pairs, rows * kScorePitch)), low = memory.take<bf16>(when(pairs, rows * kScorePitch));
  weight_codes = memory.take<std::uint8_t>(when(codes, rows * plan.weight_digits * kScorePitch));
  key = Numbers(memory, when(plan.quantised, kChunk)), value = Numbers(memory, when(plan.quantised, kChunk));
  const bool changed = plan.type != p.kv_type;
  code_row = memory.take<std::int8_t>(when(changed, std::max(p.width, p.value)));
  keys = memory.take<std::byte>(when(changed || p.key.block, std::int64_t(kChunk) * p.width * plan.element));
  values = memory.take<std::byte>(when(changed || p.values.block, std::int64_t(kChunk) * p.value * plan.element));
  rope = memory.take<std::byte>(when(p.key_rope.block, std::int64_t(kChunk) * p.rope * plan.rope_element));
  zeros = memory.take<std::byte>(std::int64_t(p.value) * plan.element);
}

Partial::Partial(Carver& memory, const Plan& plan)
    : most(memory.take<float>(plan.rows)),
      sum(memory.take<float>(plan.rows)),
      shift(memory.take<float>(plan.rows)),
      values(memory.take<float>(plan.rows * plan.value_pitch)) {}

}  // namespace dsakit::attention::dense
