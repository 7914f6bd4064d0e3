// SPDX-License-Identifier: Apache-2.0
#include "dsakit/kv_rows.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "dsakit/error.hpp"

namespace dsakit {
namespace {

/// Rows and their parts, with memory.
struct Parts {
  std::int64_t count, latent, rope_width, tiles;
  std::vector<std::int8_t> codes, rows;
  std::vector<bf16> rope;
  std::vector<float> scales;

  Parts(std::int64_t count, std::int64_t latent, std::int64_t rope_width, std::int64_t tiles)
      : count(count), latent(latent), rope_width(rope_width), tiles(tiles) {
    Random r{std::uint64_t(count + latent)};
    codes = random_i8(r, count * latent), rope = random_bf16(r, count * rope_width);
    scales = random_f32(r, count * tiles);
    rows.assign(std::size_t(count * width()), 99);
  }
  std::int64_t width() const { return kv_row_bytes(latent, rope_width, latent / tiles); }
  PackKvRowsArgs pack() {
    return {.codes = tensor(codes.data(), {count, latent}),
            .rope = tensor(rope.data(), {count, rope_width}),
            .scales = tensor(scales.data(), {count, tiles})};
  }
  PackKvRowsOuts packed() { return {tensor(rows.data(), {count, width()})}; }
  UnpackKvRowsArgs unpack() {
    return {.rows = packed().rows, .rope_head_dim = rope_width, .tile_size = latent / tiles};
  }
};

void expect_round_trip(Parts p) {
  reference::pack_kv_rows(p.pack(), p.packed());
  const auto wanted = p.rows;
  for (int threads : {1, 2, 3}) {
    Context context({.threads = threads});
    p.rows.assign(p.rows.size(), 99);
    pack_kv_rows(p.pack(), p.packed(), context);
    EXPECT_EQ(p.rows, wanted);
    for (bool twin : {false, true}) {
      Parts q = p;
      std::fill(q.codes.begin(), q.codes.end(), 7);
      std::fill(q.rope.begin(), q.rope.end(), bf16{7});
      std::fill(q.scales.begin(), q.scales.end(), 7);
      const auto in = q.pack();
      if (twin) reference::unpack_kv_rows(q.unpack(), {in.codes, in.rope, in.scales});
      else unpack_kv_rows(q.unpack(), {in.codes, in.rope, in.scales}, context);
      EXPECT_EQ(q.codes, p.codes);
      for (std::size_t i = 0; i < p.rope.size(); ++i) ASSERT_EQ(q.rope[i].bits, p.rope[i].bits);
      EXPECT_EQ(q.scales, p.scales);
    }
  }
}

TEST(KvRows, ThereAndBack) {
  expect_round_trip(Parts(1000, 512, 64, 4));
  expect_round_trip(Parts(3, 512, 64, 4));
  expect_round_trip(Parts(5, 7, 3, 1));
  expect_round_trip(Parts(5, 6, 0, 3));
  expect_round_trip(Parts(0, 512, 64, 4));
}

/// The documented bytes of a row: latent 130 at 130, rope value 3 = -2.5 at 518, the scale of tile 1 at 644.
TEST(KvRows, DocumentedPlaces) {
  EXPECT_EQ(kv_row_bytes(), 656);
  Parts p(1, 512, 64, 4);
  p.codes[130] = -77, p.rope[3] = to_bf16(-2.5f), p.scales[1] = std::bit_cast<float>(0x3cc18306u);
  pack_kv_rows(p.pack(), p.packed());
  EXPECT_EQ(p.rows[130], -77);
  EXPECT_EQ(std::uint8_t(p.rows[518]), 0x20);
  EXPECT_EQ(std::uint8_t(p.rows[519]), 0xc0);
  const std::uint8_t scale[] = {0x06, 0x83, 0xc1, 0x3c};
  EXPECT_EQ(std::memcmp(&p.rows[644], scale, 4), 0);
}

TEST(KvRows, AnyFolding) {
  Parts p(24, 512, 64, 4);
  pack_kv_rows(p.pack(), p.packed());
  const auto wanted = p.rows;
  auto a = p.pack();
  a.codes = tensor(p.codes.data(), {2, 12, 1, 512});
  a.rope = tensor(p.rope.data(), {24, 1, 64});
  PackKvRowsOuts o{};
  infer(a, o);
  EXPECT_EQ(o.rows.rank, 4);
  EXPECT_EQ(o.rows.shape[3], 656);
  p.rows.assign(p.rows.size(), 99);
  o.rows.data = p.rows.data();
  pack_kv_rows(a, o);
  EXPECT_EQ(p.rows, wanted);
  // Pages with room behind them; parts of wider rows.
  std::vector<std::int8_t> pages(2 * 20 * 656, 99);
  o.rows = tensor(pages.data(), {2, 12, 1, 656});
  o.rows.stride[0] = 20 * 656;
  pack_kv_rows(a, o);
  for (int page : {0, 1}) EXPECT_EQ(std::memcmp(&pages[page * 20 * 656], &wanted[page * 12 * 656], 12 * 656), 0);
  EXPECT_EQ(pages[12 * 656], 99);
  UnpackKvRowsOuts parts{};
  infer({.rows = o.rows, .rope_dtype = "float16"}, parts);
  EXPECT_EQ(parts.codes.rank, 4);
  EXPECT_EQ(parts.rope.dtype, DType::f16);
  EXPECT_EQ(parts.scales.shape[3], 4);
}

template <class Call>
void expect_refused(Call call, Status status, const char* parameter) {
  try {
    call();
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.parameter, parameter) << e.what();
  }
}

TEST(KvRows, Refusals) {
  const auto pack = [](Status status, const char* parameter, auto change) {
    Parts p(4, 512, 64, 4);
    auto a = p.pack();
    auto o = p.packed();
    change(a, o, p);
    expect_refused([&] { pack_kv_rows(a, o); }, status, parameter);
    EXPECT_EQ(p.rows, std::vector<std::int8_t>(p.rows.size(), 99));
  };
  using A = PackKvRowsArgs;
  using O = PackKvRowsOuts;
  pack(Status::invalid_argument, "codes", [](A& a, O&, Parts&) { a.codes = {}; });
  pack(Status::invalid_argument, "scales", [](A& a, O&, Parts&) { a.scales = {}; });
  pack(Status::invalid_shape, "codes", [](A& a, O&, Parts&) { a.codes.rank = 0; });
  pack(Status::invalid_shape, "rope", [](A& a, O&, Parts& p) { a.rope = tensor(p.rope.data(), {3, 64}); });
  pack(Status::invalid_shape, "scales", [](A& a, O&, Parts& p) { a.scales = tensor(p.scales.data(), {4, 3}); });
  pack(Status::invalid_shape, "scales", [](A& a, O&, Parts& p) { a.scales = tensor(p.scales.data(), {2, 4}); });
  pack(Status::invalid_dtype, "codes", [](A& a, O&, Parts&) { a.codes.dtype = DType::u8; });
  pack(Status::invalid_dtype, "rope", [](A& a, O&, Parts&) { a.rope.dtype = DType::i16; });
  pack(Status::invalid_dtype, "scales", [](A& a, O&, Parts&) { a.scales.dtype = DType::i32; });
  pack(Status::invalid_stride, "codes", [](A& a, O&, Parts&) { a.codes.stride[0] = 513, a.level = Level::strict; });
  pack(Status::invalid_shape, "rows", [](A&, O& o, Parts& p) { o.rows = tensor(p.rows.data(), {4, 640}); });
  pack(Status::invalid_device, "rows", [](A&, O& o, Parts&) { o.rows.read_only = true; });
  pack(Status::aliased, "rows", [](A& a, O& o, Parts&) { a.codes.data = o.rows.data; });

  Parts p(4, 512, 64, 4);
  const auto unpack = [&](UnpackKvRowsArgs a, Status status, const char* parameter) {
    UnpackKvRowsOuts o{};
    expect_refused([&] { infer(a, o); }, status, parameter);
  };
  const Tensor rows = p.packed().rows;
  unpack({.rows = {}}, Status::invalid_argument, "rows");
  unpack({.rows = rows, .rope_head_dim = -1}, Status::invalid_argument, "rope_head_dim");
  unpack({.rows = rows, .tile_size = 0}, Status::invalid_argument, "tile_size");
  unpack({.rows = rows, .rope_dtype = "float32"}, Status::invalid_argument, "rope_dtype");
  unpack({.rows = tensor(p.rows.data(), {4, 640})}, Status::invalid_shape, "rows");
  unpack({.rows = rows, .rope_head_dim = 328}, Status::invalid_shape, "rows");
  unpack({.rows = rows, .rope_head_dim = INT64_MAX}, Status::invalid_shape, "rows");
  unpack({.rows = rows, .tile_size = INT64_MAX}, Status::invalid_shape, "rows");
  Tensor wide = rows;
  wide.dtype = DType::bf16;
  unpack({.rows = wide}, Status::invalid_dtype, "rows");
  expect_refused(
      [&] {
        unpack_kv_rows({.rows = rows}, {tensor(p.codes.data(), {4, 512}), tensor(p.rope.data(), {4, 64}),
                                        tensor(p.scales.data(), {16})});
      },
      Status::invalid_shape, "scales");
}

}  // namespace
}  // namespace dsakit
