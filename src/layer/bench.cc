// SPDX-License-Identifier: Apache-2.0
// Weights of one byte at the sizes of DeepSeek-V3.2: the output projection of attention, and the experts of a token.
#include <cstring>

#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/packed_weight.hpp"
#include "layer/mlp.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kHidden = 7168;

/// Codes of any kind but NaN; scales near 2^-9.
void fill_fp8(const MlpLayout& layout, std::byte* memory, Random& random) {
  for (std::size_t i = 0; i + 8 <= layout.bytes(); i += 8) {
    const std::uint64_t codes = random.next() & 0xf7f7f7f7f7f7f7f7u;  // never all of the exponent and mantissa
    std::memcpy(memory + i, &codes, 8);
  }
  for (int m = 0; m < MlpLayout::kMatrices; ++m) {
    auto* panels = reinterpret_cast<e4m3*>(memory + layout.offset(m));
    float* scales = Panels<e4m3>::scales(panels, layout.k(m), layout.n(m));
    for (std::int64_t i = 0; i < Panels<e4m3>::scales(layout.k(m), layout.n(m)); ++i)
      scales[i] = random.uniform(0.001f, 0.003f);
  }
}

void fill_int8(const MlpLayout& layout, std::byte* memory, Random& random) {
  for (std::size_t i = 0; i + 8 <= layout.bytes(); i += 8) {
    const std::uint64_t codes = random.next();
    std::memcpy(memory + i, &codes, 8);
  }
  const MlpMatrices all = layout.at(memory);
  for (const MlpMatrix& m : {all.gate, all.up, all.down})
    for (std::int64_t j = 0; j < m.weight.n; ++j) const_cast<float*>(m.scales)[j] = 1e-4f;
}

/// Eight of sixteen experts, others at each call, so that they come from memory.
struct Experts16 {
  MlpLayout layout;
  std::shared_ptr<std::byte> memory, scratch;
  std::vector<float> x, y;
  int turn = 0;

  Experts16(MlpFormat format, std::int64_t rows)
      : layout(kHidden, 2048, format),
        memory(streamed_memory(16 * layout.bytes(), "experts")),
        x(std::size_t(rows * kHidden)),
        y(x.size()) {
    Random random(1);
    for (int e = 0; e < 16; ++e) {
      std::byte* at = memory.get() + std::size_t(e) * layout.bytes();
      if (format == MlpFormat::fp8) fill_fp8(layout, at, random);
      else fill_int8(layout, at, random);
    }
    for (float& v : x) v = random.uniform(-1, 1);
  }

  void run(Context& context, std::int64_t rows) {
    Call call(context, "bench", 0);
    const Activations kind = layout.format() == MlpFormat::int8 ? Activations::int8 : Activations::bf16;
    std::vector<std::int32_t> token;
    std::vector<MlpRows> jobs;
    for (std::int64_t e = 0; e < 8; ++e) {
      const std::size_t which = std::size_t(8 * turn + e);
      jobs.push_back({layout.at(memory.get() + which * layout.bytes()), e * rows, rows});
      for (std::int64_t r = 0; r < rows; ++r) token.push_back(std::int32_t(r));
    }
    turn = 1 - turn;
    Carver measure;
    MlpArrays(kind, 8 * rows, kHidden, 2048, call.threads(), measure);
    if (!scratch) scratch = streamed_memory(measure.bytes(), "scratch");
    Carver carver(scratch.get());
    const MlpArrays arrays(kind, 8 * rows, kHidden, 2048, call.threads(), carver);
    set_input(call, x.data(), token.data(), 8 * rows, arrays);
    gate_and_up(call, jobs, arrays);
    down(call, jobs, arrays, [&](std::size_t, std::int64_t row, std::int64_t column, std::int64_t n, const float* sums) {
      float* to = y.data() + token[std::size_t(row)] * kHidden + column;
      for (std::int64_t j = 0; j < n; ++j) to[j] += sums[j];
    });
  }
};

}  // namespace

void bench_layer(std::vector<BenchCase>& cases) {
  for (const std::int64_t t : {1, 8, 64}) {
    const std::int64_t k = 16384;
    cases.push_back({.op = "product_fp8",
                     .size = "t=" + std::to_string(t),
                     .bytes = double(k * kHidden),
                     .bf16_flops = 2 * double(t * k * kHidden),
                     .prepare = [=] {
                       struct Data {
                         PackedWeight packed;
                         Weight weight;
                         std::vector<bf16> a;
                         std::vector<float> y;
                       };
                       Random r(1);
                       std::vector<std::uint8_t> codes(std::size_t(k * kHidden));
                       for (std::uint8_t& c : codes) c = std::uint8_t(r.next() >> 13 & 0xf7);
                       Tensor weight = tensor(codes.data(), {kHidden, k});
                       weight.dtype = DType::f8_e4m3;
                       const std::vector<float> scales = random_f32(r, kHidden / 128 * (k / 128), 0.001f, 0.003f);
                       auto d = std::make_shared<Data>(
                           Data{PackedWeight(weight, tensor(scales.data(), {kHidden / 128, k / 128})), {},
                                random_bf16(r, t * k), std::vector<float>(std::size_t(t * kHidden))});
                       d->weight = check_weight(Check("bench", Level::portable), d->packed, "weight", DType::bf16, 0, k,
                                                kHidden, "");
                       return [=](Context& c) {
                         Call call(c, "bench", 0);
                         for_each_tile(call, d->weight, d->a.data(), k, 0, t,
                                       [&](auto, auto row, auto some, auto column, auto n, const float* tile) {
                                         for (std::int64_t i = 0; i < some; ++i)
                                           std::copy_n(tile + i * kPanel, n, d->y.data() + (row + i) * kHidden + column);
                                       });
                       };
                     }});
  }
  for (const MlpFormat format : {MlpFormat::fp8, MlpFormat::int8})
    for (const std::int64_t t : {1, 4, 32}) {
      const MlpLayout layout(kHidden, 2048, format);
      const double ops = 2 * double(8 * t) * 3 * 2048 * kHidden;
      cases.push_back({.op = format == MlpFormat::fp8 ? "experts_fp8" : "experts_int8",
                       .size = "t=" + std::to_string(t) + " 8 of 16",
                       .bytes = 8 * double(layout.bytes()),
                       .i8_ops = format == MlpFormat::int8 ? ops : 0,
                       .bf16_flops = format == MlpFormat::fp8 ? ops : 0,
                       .prepare = [=] {
                         auto d = std::make_shared<Experts16>(format, t);
                         return [=](Context& c) { d->run(c, t); };
                       }});
    }
}

}  // namespace dsakit
