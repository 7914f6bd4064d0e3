// SPDX-License-Identifier: Apache-2.0
// Layouts that a caller gives as bytes: packed cache rows and their parts, and weights in FRACTAL_NZ or packed. Sizes
// come first, then the bytes. Whoever reads a layout as another one does has the same numbers.
#include <memory>
#include <vector>

#include "dsakit/kv_rows.hpp"
#include "dsakit/packed_weight.hpp"
#include "dsakit/quant_matmul.hpp"
#include "fuzz.hpp"

namespace dsakit::fuzz {
namespace {

/// Memory of exactly so many bytes, those of the input as long as it has some.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : bytes_(bytes), data_(std::make_unique<std::byte[]>(std::size_t(bytes))) {}
  Memory(std::int64_t bytes, Input& in) : Memory(bytes) {
    for (std::int64_t i = 0; i < bytes && !in.empty(); ++i) data_[std::size_t(i)] = std::byte(in.byte());
  }

  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape, std::int64_t row_stride = 0) const {
    Tensor t = shaped(dtype, shape);
    t.data = data_.get();
    if (row_stride) t.stride[0] = row_stride;
    return t;
  }
  bool operator==(const Memory& other) const {
    return bytes_ == other.bytes_ && std::equal(data_.get(), data_.get() + bytes_, other.data_.get());
  }

 private:
  std::int64_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

Context& context() {
  static Context context({.threads = 1, .memory_limit = 64 << 20});
  return context;
}

void cache_rows(Input& in) {
  const std::int64_t count = std::int64_t(in.below(5)), tiles = 1 + std::int64_t(in.below(5)),
                     tile = 1 + std::int64_t(in.below(70)), rope = std::int64_t(in.below(70)), latent = tiles * tile,
                     width = kv_row_bytes(latent, rope, tile), gap = std::int64_t(in.below(9));
  const bool half = in.below(2) == 1;
  const DType rope_dtype = half ? DType::f16 : DType::bf16;
  const std::int64_t extent = count == 0 ? 0 : (count - 1) * (width + gap) + width;
  const Memory rows(extent, in);
  struct Parts {
    Memory codes, rope, scales;
    bool operator==(const Parts&) const = default;
  };
  const auto parts = [&] { return Parts{Memory(count * latent), Memory(count * rope * 2), Memory(count * tiles * 4)}; };
  const Parts fast = parts(), reference = parts();
  const UnpackKvRowsArgs unpack{.rows = rows.tensor(DType::i8, {count, width}, width + gap),
                                .rope_head_dim = rope,
                                .tile_size = tile,
                                .rope_dtype = half ? "float16" : "bfloat16"};
  const auto outs = [&](const Parts& p) {
    return UnpackKvRowsOuts{.codes = p.codes.tensor(DType::i8, {count, latent}),
                            .rope = p.rope.tensor(rope_dtype, {count, rope}),
                            .scales = p.scales.tensor(DType::f32, {count, tiles})};
  };
  const std::string said = answer([&] { unpack_kv_rows(unpack, outs(fast), context()); });
  require(said == answer([&] { reference::unpack_kv_rows(unpack, outs(reference)); }), "unpack_kv_rows: " + said);
  if (!said.empty()) return;
  require(fast == reference, "unpack_kv_rows and its reference have other bits");
  // A row does not say its sizes: those that were asked for are one way to read it, and packing gives it back.
  const Memory again(extent), twin(extent);
  const UnpackKvRowsOuts given = outs(fast);
  const PackKvRowsArgs pack{.codes = given.codes, .rope = given.rope, .scales = given.scales};
  const auto packed = [&](const Memory& m) {
    return PackKvRowsOuts{.rows = m.tensor(DType::i8, {count, width}, width + gap)};
  };
  pack_kv_rows(pack, packed(again), context());
  reference::pack_kv_rows(pack, packed(twin));
  require(again == twin, "pack_kv_rows and its reference have other bits");
  for (std::int64_t r = 0; r < count; ++r) {
    const auto at = [&](const Memory& m) {
      return static_cast<const char*>(m.tensor(DType::i8, {count, width}).data) + r * (width + gap);
    };
    require(std::equal(at(rows), at(rows) + width, at(again)), "a row is another after unpack_kv_rows, pack_kv_rows");
  }
}

/// A [k, n] weight of int8 as FRACTAL_NZ: where element (row, column) of the logical shape is.
std::int64_t place_in_nz(std::int64_t k, std::int64_t row, std::int64_t column, std::int64_t c0) {
  const std::int64_t blocks = (k + 15) / 16;
  return ((column / c0 * blocks + row / 16) * 16 + row % 16) * c0 + column % c0;
}

void weights(Input& in) {
  const std::int64_t m = 1 + std::int64_t(in.below(3)), k = 1 + std::int64_t(in.below(70)),
                     n = 1 + std::int64_t(in.below(70));
  constexpr std::int64_t kC0 = 32;
  const Memory nz((n + kC0 - 1) / kC0 * ((k + 15) / 16) * 16 * kC0, in), x(m * k, in), scale(n * 4), plain(k * n);
  auto* dense = static_cast<std::int8_t*>(plain.tensor(DType::i8, {k, n}).data);
  const auto* from = static_cast<const std::int8_t*>(nz.tensor(DType::i8, {k, n}).data);
  for (std::int64_t row = 0; row < k; ++row)
    for (std::int64_t column = 0; column < n; ++column)
      dense[row * n + column] = from[place_in_nz(k, row, column, kC0)];
  Tensor as_nz = nz.tensor(DType::i8, {k, n});
  as_nz.format = Format::NZ;
  const PackedWeight packed(plain.tensor(DType::i8, {k, n})), packed_nz(as_nz);
  const Memory wanted(m * n * 4), got(m * n * 4);
  const auto args = [&](const Tensor& weight) {
    return QuantMatmulArgs{.x1 = x.tensor(DType::i8, {m, k}), .x2 = weight, .output_dtype = "int32"};
  };
  reference::quant_matmul(args(plain.tensor(DType::i8, {k, n})), {.y = wanted.tensor(DType::i32, {m, n})});
  for (const Tensor& weight : {plain.tensor(DType::i8, {k, n}), as_nz, packed.tensor(), packed_nz.tensor()}) {
    quant_matmul(args(weight), {.y = got.tensor(DType::i32, {m, n})}, context());
    require(got == wanted, "quant_matmul has other sums of the same weight in another layout");
  }
}

/// 8-bit floats with scales of blocks: packed, or refused for a NaN.
void float_weights(Input& in) {
  const std::int64_t k = 1 + std::int64_t(in.below(300)), n = 1 + std::int64_t(in.below(300));
  const Memory scales((n + 127) / 128 * ((k + 127) / 128) * 4, in), codes(k * n, in);
  answer([&] {
    PackedWeight(codes.tensor(DType::f8_e4m3, {n, k}), scales.tensor(DType::f32, {(n + 127) / 128, (k + 127) / 128}));
  });
}

}  // namespace
}  // namespace dsakit::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit::fuzz;
  Input in(data, size);
  switch (in.below(3)) {
    case 0:
      cache_rows(in);
      break;
    case 1:
      weights(in);
      break;
    default:
      float_weights(in);
  }
  return 0;
}
