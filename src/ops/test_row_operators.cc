// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/random.hpp"
#include "dsakit/dsakit.hpp"
#include "kernels/kernels.hpp"
#include "ops/indexer/fence.hpp"
#include "ops/print.hpp"

// The operators on single rows and the products touch nothing beside their tensors, whatever the width.
namespace dsakit {
namespace {

/// f(tensor) for every output.
template <class Args, class Outs, class F>
void each_out(Args& a, Outs& o, F f) {
  for_each_field(a, o, [&](const Field& field, auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Tensor>)
      if (field.role == Role::out) f(value);
  });
}

std::size_t bytes_of(const Tensor& t) { return std::size_t(t.elements()) * std::size_t(size_of(t.dtype)); }

/// At either end of the accessible memory, on every rung, the call gives what the reference gives.
template <class Outs, class Args>
void expect_fenced(Args a, void (*run)(const Args&, const Outs&, Context&), void (*twin)(const Args&, const Outs&)) {
  Outs o{};
  infer(a, o);
  SCOPED_TRACE(to_text("operator", a, o));
  std::vector<std::unique_ptr<std::byte[]>> memory;
  each_out(a, o, [&](Tensor& t) {
    memory.push_back(std::make_unique<std::byte[]>(bytes_of(t) + 1));
    t.data = memory.back().get();
  });
  twin(a, o);
  for (const bool front : {false, true}) {
    indexer::Fence fence(a, o, front);
    for (const Kernels* k : supported_kernels()) {
      Context context({.isa = k->isa});
      each_out(fence.args, fence.outs, [](Tensor& t) { std::memset(t.data, 0x55, bytes_of(t)); });
      run(fence.args, fence.outs, context);
      std::vector<Tensor> got;
      each_out(fence.args, fence.outs, [&](Tensor& t) { got.push_back(t); });
      std::size_t i = 0;
      each_out(a, o, [&](Tensor& t) { EXPECT_EQ(std::memcmp(t.data, got[i++].data, bytes_of(t)), 0) << k->isa; });
    }
  }
}

template <class T>
std::vector<T> numbers(Random& r, std::int64_t n) {
  std::vector<T> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(round_to<T>(r.uniform(-200, 200)));
  return v;
}

template <class T>
void quantisations(Random& r, std::int64_t width) {
  const auto x = numbers<T>(r, 3 * width), smooth = numbers<T>(r, width);
  const auto scales = random_f32(r, width, 0.5f, 2);
  const Tensor input = tensor(x.data(), {3, width});
  const QuantizeArgs divide{.input = input, .scales = tensor(scales.data(), {width}), .dtype = "qint8"};
  expect_fenced<QuantizeOuts>(divide, quantize, reference::quantize);
  const char* codes = width % 8 == 0 ? "quint4x2" : "qint8";
  const QuantizeArgs multiply{
      .input = input, .scales = tensor(smooth.data(), {width}), .dtype = codes, .div_mode = false};
  expect_fenced<QuantizeOuts>(multiply, quantize, reference::quantize);
  const DynamicQuantArgs dynamic{.input = input,
                                 .smooth_scales = tensor(smooth.data(), {width}),
                                 .dst_type = width % 8 == 0 ? "quint4x2" : "int8"};
  expect_fenced<DynamicQuantOuts>(dynamic, dynamic_quant, reference::dynamic_quant);
  if constexpr (!std::is_same_v<T, float>) {
    const DynamicBlockQuantArgs blocks{.x = input, .col_block_size = 37};
    expect_fenced<DynamicBlockQuantOuts>(blocks, dynamic_block_quant, reference::dynamic_block_quant);
  }
}

template <class T>
void rotations(Random& r, std::int64_t width) {
  const auto x = numbers<T>(r, 6 * width), cos = numbers<T>(r, 2 * width), sin = numbers<T>(r, 2 * width);
  for (const char* mode : {"half", "interleave"}) {
    const RotaryMulArgs a{.x = tensor(x.data(), {2, 3, width}),
                          .r1 = tensor(cos.data(), {2, 1, width}),
                          .r2 = tensor(sin.data(), {2, 1, width}),
                          .rotary_mode = mode};
    expect_fenced<RotaryMulOuts>(a, rotary_mul, reference::rotary_mul);
  }
  if constexpr (!std::is_same_v<T, float>) {
    const InterleaveRopeArgs a{.x = tensor(x.data(), {2, 3, 1, width}),
                               .cos = tensor(cos.data(), {2, 1, 1, width}),
                               .sin = tensor(sin.data(), {2, 1, 1, width})};
    expect_fenced<InterleaveRopeOuts>(a, interleave_rope, reference::interleave_rope);
  }
}

template <class T>
void norms(Random& r, std::int64_t width) {
  const auto x = numbers<T>(r, 3 * width), gamma = numbers<T>(r, width), beta = numbers<T>(r, width);
  const Tensor rows = tensor(x.data(), {3, width}), weights = tensor(gamma.data(), {width});
  expect_fenced<RmsNormOuts>(RmsNormArgs{.self = rows, .gamma = weights}, rms_norm, reference::rms_norm);
  const AddRmsNormBiasArgs a{.x1 = rows, .x2 = rows, .gamma = weights, .beta = tensor(beta.data(), {width})};
  expect_fenced<AddRmsNormBiasOuts>(a, add_rms_norm_bias, reference::add_rms_norm_bias);
}

template <class T>
void products(Random& r, std::int64_t width) {
  std::vector<T> x, w;  // sums of such numbers are exact
  for (std::int64_t i = 0; i < 6 * width; ++i) x.push_back(round_to<T>(std::round(r.uniform(-3, 3))));
  for (std::int64_t i = 0; i < 10 * width; ++i) w.push_back(round_to<T>(std::round(r.uniform(-3, 3))));
  const TransposeBatchmatmulArgs deep{.input = tensor(x.data(), {2, 3, width}),
                                      .weight = tensor(w.data(), {2, width, 5})};
  expect_fenced<TransposeBatchmatmulOuts>(deep, transpose_batchmatmul, reference::transpose_batchmatmul);
  const TransposeBatchmatmulArgs wide{.input = tensor(x.data(), {2, 3, 5}), .weight = tensor(w.data(), {2, 5, width})};
  if (width >= 5)
    expect_fenced<TransposeBatchmatmulOuts>(wide, transpose_batchmatmul, reference::transpose_batchmatmul);
  const TransposeBatchmatmulArgs across{
      .input = tensor(x.data(), {2, 3, width}), .weight = tensor(w.data(), {2, 5, width}), .perm_x2 = {0, 2, 1}};
  expect_fenced<TransposeBatchmatmulOuts>(across, transpose_batchmatmul, reference::transpose_batchmatmul);
}

template <class T>
void updates(Random& r, std::int64_t width) {
  std::vector<std::vector<float>> sums;
  std::vector<std::vector<T>> values;
  std::vector<Tensor> lse, local_out;
  for (int shard = 0; shard < 3; ++shard) {
    sums.push_back(random_f32(r, width, -20, 20));
    values.push_back(numbers<T>(r, 3 * width));
  }
  sums[1].assign(sums[1].size(), INFINITY);  // saw no key
  for (int shard = 0; shard < 3; ++shard) {
    lse.push_back(tensor(sums[std::size_t(shard)].data(), {width}));
    local_out.push_back(tensor(values[std::size_t(shard)].data(), {width, 3}));
  }
  const AttentionUpdateArgs a{.lse = lse, .local_out = local_out, .update_type = 1};
  // The reference rounds elsewhere: what stands against it is in attention_update/test.cc.
  const auto elsewhere = [](const AttentionUpdateArgs& args, const AttentionUpdateOuts& outs) {
    Context context({.isa = "generic"});
    attention_update(args, outs, context);
  };
  expect_fenced<AttentionUpdateOuts>(a, attention_update, +elsewhere);
}

TEST(RowOperators, TouchNothingOutside) {
  for (std::int64_t width = 1; width <= 257; ++width) {
    Random r{std::uint64_t(width)};
    if (width % 3 == 0) quantisations<bf16>(r, width);
    else if (width % 3 == 1) quantisations<f16>(r, width);
    else quantisations<float>(r, width);
    if (width % 3 == 0) norms<bf16>(r, width);
    else if (width % 3 == 1) norms<f16>(r, width);
    else norms<float>(r, width);
    if (width % 6 == 0) rotations<bf16>(r, width);
    else if (width % 6 == 2) rotations<f16>(r, width);
    else if (width % 2 == 0) rotations<float>(r, width);

    const auto codes = random_i8(r, 3 * width);
    const auto rope = random_bf16(r, 3 * width);
    const auto scales = random_f32(r, 3 * width);
    const PackKvRowsArgs parts{.codes = tensor(codes.data(), {3, width}),
                               .rope = tensor(rope.data(), {3, width}),
                               .scales = tensor(scales.data(), {3, width})};
    expect_fenced<PackKvRowsOuts>(parts, pack_kv_rows, reference::pack_kv_rows);
    for (const auto& [k, n] : {std::pair(width, std::int64_t(5)), std::pair(std::int64_t(5), width)}) {
      const auto x1 = random_i8(r, 3 * k), x2 = random_i8(r, k * n);
      const auto column = random_f32(r, n, 0, 0.01f);
      const QuantMatmulArgs a{.x1 = tensor(x1.data(), {3, k}),
                              .x2 = tensor(x2.data(), {k, n}),
                              .scale = tensor(column.data(), {n}),
                              .output_dtype = width % 2 ? "int8" : "bfloat16"};
      expect_fenced<QuantMatmulOuts>(a, quant_matmul, reference::quant_matmul);
    }
    if (width % 3 == 0) updates<bf16>(r, width);
    else if (width % 3 == 1) updates<f16>(r, width);
    else updates<float>(r, width);
    if (width % 3 == 0) products<bf16>(r, width);
    else if (width % 3 == 1) products<f16>(r, width);
    else products<float>(r, width);
    const auto rows = random_i8(r, 3 * kv_row_bytes(width, width, 1));
    const UnpackKvRowsArgs packed{
        .rows = tensor(rows.data(), {3, kv_row_bytes(width, width, 1)}), .rope_head_dim = width, .tile_size = 1};
    expect_fenced<UnpackKvRowsOuts>(packed, unpack_kv_rows, reference::unpack_kv_rows);
  }
}

}  // namespace
}  // namespace dsakit
