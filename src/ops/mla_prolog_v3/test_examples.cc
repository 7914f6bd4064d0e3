// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "ops/mla_prolog_v3/runs.hpp"
#include "ops/weight.hpp"

// The worked examples of the documents through the whole operator, on every rung.
namespace dsakit::prolog_v3 {
namespace {

std::vector<bf16> bf16s(std::initializer_list<float> values) {
  std::vector<bf16> v;
  for (float x : values) v.push_back(to_bf16(x));
  return v;
}
std::uint32_t bits(double x) { return std::bit_cast<std::uint32_t>(float(x)); }

/// One token of one element 1 whose normalised rows are the gammas: x, its products and their roots are all 1.
struct PassThrough : Data {
  explicit PassThrough(Case c) : Data(with_one_token(c)) {
    auto all_ones = [](Array& a) {
      if (a.shape.dtype == DType::i8) a.fill(1);
      else if (a.shape.dtype == DType::f32) std::fill_n(a.as<float>(), a.size(), 1.0f);
      else std::fill_n(a.as<bf16>(), a.size(), to_bf16(1));
    };
    for (Array* a : {&token_x, &weight_dq, &weight_uq_qr, &weight_uk, &weight_dkv_kr, &gamma_cq, &gamma_ckv, &rope_cos,
                     &scale_x, &scale_dq, &scale_uq_qr, &scale_dkv_kr})
      all_ones(*a);
    rope_sin.fill(0);
    if (cache_index.size() > 0) *cache_index.as<std::int64_t>() = 0;
  }
  static Case with_one_token(Case c) {
    c.b = c.s = 1, c.hidden = 1, c.heads = 1;
    return c;
  }
  void expect(const std::function<void(const Written&)>& f) const {
    auto exactly = [](MlaPrologV3Args& a, MlaPrologV3Outs&) { a.rmsnorm_epsilon_cq = a.rmsnorm_epsilon_ckv = 1e-30; };
    f(reference_of(*this, exactly));
    for (const Kernels* k : supported_kernels()) {
      SCOPED_TRACE(k->isa);
      f(run(*this, {.isa = k->isa}, exactly));
    }
  }
};

std::vector<int> ints(const Array& a, std::int64_t first, std::int64_t n) {
  std::vector<int> v;
  for (std::int64_t i = first; i < first + n; ++i) v.push_back(int(a.at(i)));
  return v;
}

TEST(MlaPrologV3Examples, RowQuantisation) {
  PassThrough p({.row = 2, .rank = 5, .nope = 2, .rope = 2, .latent = 4});
  p.gamma_cq = Array(bf16s({0.8125f, -0.40625f, 0.10009765625f, 0.796875f, 0}), {5});
  p.expect([](const Written& w) {
    EXPECT_EQ(ints(w.query_norm, 0, 5), (std::vector<int>{127, -64, 16, 125, 0}));
    EXPECT_EQ(bits(w.dequant_scale_q_norm.at(0)), 0x3bd1a347u);
  });
}

TEST(MlaPrologV3Examples, QueryCodesAwayFromZero) {
  PassThrough p({.row = 6, .rank = 1, .nope = 1, .rope = 2, .latent = 8});
  p.weight_uk = Array(bf16s({127, 2.5f, -2.5f, 0.5f, -63.5f, 62.5f, 1.5f, -0.5f}), {1, 1, 8});
  p.expect([](const Written& w) {
    EXPECT_EQ(ints(w.query, 0, 8), (std::vector<int>{127, 3, -3, 1, -64, 63, 2, -1}));
    EXPECT_EQ(w.dequant_scale_q_nope.at(0), 1);
  });
}

TEST(MlaPrologV3Examples, ClippedTile) {
  PassThrough p({.row = 4, .rank = 1, .nope = 1, .rope = 2, .latent = 4, .tile = 4, .alpha = 0.5f});
  p.gamma_ckv = Array(bf16s({4, -1.5f, 0.75f, -2}), {4});
  p.expect([&](const Written& w) {
    EXPECT_EQ(ints(w.kv_cache, 0, 4), (std::vector<int>{127, -95, 48, -127}));
    EXPECT_EQ(bits(Caches(p.c, w).scales.at(0)), 0x3c810204u);
  });
}

TEST(MlaPrologV3Examples, RopeOfKeyAndQuery) {
  PassThrough p({.row = 1, .rank = 1, .nope = 1, .rope = 4, .latent = 2});
  p.weight_dkv_kr = Array(bf16s({1, 1, 1, 2, 3, 4}), {1, 6});
  p.weight_uq_qr = Array(bf16s({7, 1, 2, 3, 4}), {1, 5});
  p.rope_cos = Array(bf16s({0.5f, 0.25f, 1, 2}), {1, 4});
  p.rope_sin = Array(bf16s({1, 0.5f, 0.125f, 0.75f}), {1, 4});
  p.expect([](const Written& w) {
    const float wanted[] = {-1.5f, -1.25f, 2.125f, 10.25f};
    for (int j = 0; j < 4; ++j) EXPECT_EQ(w.kr_cache.at(j), wanted[j]);
    for (int j = 0; j < 4; ++j) EXPECT_EQ(w.query_rope.at(j), wanted[j]);
  });
}

TEST(MlaPrologV3Examples, RmsNorm) {
  PassThrough p({.row = 1, .rank = 1, .nope = 1, .rope = 2, .latent = 4});
  p.weight_dkv_kr = Array(bf16s({1, -2, 2, 4, 0, 0}), {1, 6});
  p.gamma_ckv = Array(bf16s({1, 0.5f, 1, 2}), {4});
  const std::uint16_t wanted[] = {0x3ecd, 0xbecd, 0x3f4d, 0x404d};
  for (const Kernels* k : supported_kernels()) {
    const Written w = run(p, {.isa = k->isa});
    for (int j = 0; j < 4; ++j) EXPECT_EQ(w.kv_cache.as<std::uint16_t>()[j], wanted[j]) << k->isa;
  }
}

TEST(MlaPrologV3Examples, StaticCodes) {
  PassThrough p({.row = 3, .rank = 1, .nope = 1, .rope = 2, .latent = 4});
  p.gamma_ckv = Array(bf16s({1.5f, 0.5f, 40, -40}), {4});
  p.ckv_scale = Array(std::vector<float>{3, 5, 4, 4}, {1, 4});
  p.weight_dkv_kr = Array(bf16s({1, 1, 1, 1, 0.5f, -40}), {1, 6});
  p.ckr_scale = Array(std::vector<float>{5, 4}, {1, 2});
  p.expect([](const Written& w) {
    EXPECT_EQ(ints(w.kv_cache, 0, 4), (std::vector<int>{4, 2, 127, -128}));
    EXPECT_EQ(ints(w.kr_cache, 0, 2), (std::vector<int>{2, -128}));
  });
}

TEST(MlaPrologV3Examples, RescaledRopeQuery) {
  PassThrough p({.row = 6, .rank = 1, .nope = 1, .rope = 2, .latent = 2});
  p.scale_uq_qr = Array(std::vector<float>{3, 0.75f, 0}, {1, 3});
  p.ckv_scale = Array(std::vector<float>{2}, {1});
  p.expect([](const Written& w) {
    EXPECT_EQ(ints(w.query, 0, 2), (std::vector<int>{127, 127}));
    EXPECT_EQ(bits(w.dequant_scale_q_nope.at(0)), 0x3cc18306u);
    EXPECT_EQ(w.query_rope.as<std::uint16_t>()[0], 0x427e);
    EXPECT_EQ(w.query_rope.at(1), 0);
  });
}

TEST(MlaPrologV3Examples, PackedRow) {
  PassThrough p({.row = 4,
                 .rank = 1,
                 .nope = 1,
                 .rope = 64,
                 .latent = 512,
                 .tile = 128,
                 .blocks = 3,
                 .block_size = 128,
                 .alpha = 1});
  *p.cache_index.as<std::int64_t>() = 301;
  p.gamma_ckv.as<bf16>()[130] = to_bf16(3);
  p.weight_dkv_kr.as<bf16>()[512 + 6] = to_bf16(-2.5f);  // even: half order puts pair 3 at 3
  p.expect([&](const Written& w) {
    Array wanted = p.initial.kv_cache;
    auto byte = [&](std::int64_t at) {
      return int(std::to_integer<std::uint8_t>(w.kv_cache.bytes[std::size_t(197456 + at)]));
    };
    EXPECT_EQ(byte(130), 127);
    EXPECT_EQ(byte(131), 42);  // 1 * 127/3
    EXPECT_EQ(byte(518), 0x20);
    EXPECT_EQ(byte(519), 0xc0);
    const int scale[] = {0x06, 0x83, 0xc1, 0x3c};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(byte(644 + i), scale[i]);
    std::copy_n(w.kv_cache.bytes.begin() + 197456, 656, wanted.bytes.begin() + 197456);
    EXPECT_TRUE(w.kv_cache == wanted) << "another row was written";
  });
}

/// The offsets of the documents for slot 300 of blocks of 128.
TEST(MlaPrologV3Examples, NzBlocks) {
  for (const int row : {1, 3, 6}) {
    Case c{.row = row,
           .b = 1,
           .s = 1,
           .hidden = 8,
           .rank = 4,
           .heads = 1,
           .nope = 2,
           .rope = 64,
           .latent = 512,
           .blocks = 3,
           .block_size = 128};
    const Data lines(c);
    c.cache_mode = "PA_NZ";
    const Data blocks(c);
    auto at_300 = [](MlaPrologV3Args& a, MlaPrologV3Outs&) { *static_cast<std::int64_t*>(a.cache_index.data) = 300; };
    for (const Kernels* k : supported_kernels()) {
      const Written w = run(lines, {.isa = k->isa}, at_300), nz = run(blocks, {.isa = k->isa}, at_300);
      EXPECT_EQ(nz.kv_cache.at(row == 1 ? 144068 : 144772), w.kv_cache.at(153700)) << k->isa;
      if (row == 3) continue;  // its kr_cache is int8, where the documents name no offset
      EXPECT_EQ(nz.kr_cache.at(21192), w.kr_cache.at(19240)) << k->isa;
    }
  }
}

TEST(MlaPrologV3Examples, NzWeight) {
  auto at = [](auto value, std::int64_t offset, std::int64_t k, std::int64_t n, std::int64_t i, std::int64_t j) {
    using T = decltype(value);
    const std::int64_t c0 = 32 / std::int64_t(sizeof(T)), kp = (k + 15) / 16 * 16;
    std::vector<T> storage(std::size_t((n + c0 - 1) / c0 * c0 * kp), T{});
    storage[std::size_t(offset)] = value;
    Tensor t = tensor(storage.data(), {k, n});
    t.format = Format::NZ;
    return check_weight(Check("test", Level::portable), t, "weight", t.dtype, 0, k, n, "").at(0, i, j);
  };
  EXPECT_EQ(at(to_bf16(3), 114772, 7168, 1536, 5, 20), 3);
  EXPECT_EQ(at(std::int8_t{3}, 229544, 7168, 1536, 5, 40), 3);
  EXPECT_EQ(at(to_bf16(3), 1297, 18, 48, 17, 33), 3);
}

/// Lengths 130, 5, 0, 128 in blocks of 128 with pages 7, 2, 5, 0, against the same tokens at the slots that means.
TEST(MlaPrologV3Examples, WholeBlocksOfUnevenSequences) {
  for (const int row : {1, 6}) {
    Case c{.row = row,
           .b = 1,
           .s = 263,
           .hidden = 8,
           .rank = 4,
           .heads = 1,
           .nope = 2,
           .rope = 32,
           .latent = 32,
           .blocks = 8,
           .block_size = 128,
           .exact = true};
    Data by_slot(c), by_block(c);
    std::vector<std::int64_t> slots;
    for (int i = 0; i < 128; ++i) slots.push_back(7 * 128 + i);
    for (int i = 0; i < 2; ++i) slots.push_back(2 * 128 + i);
    for (int i = 0; i < 5; ++i) slots.push_back(5 * 128 + i);
    for (int i = 0; i < 128; ++i) slots.push_back(i);
    by_slot.cache_index = Array(slots, {263});
    by_block.cache_index = Array(std::vector<std::int64_t>{7, 2, 5, 0}, {4});
    by_block.actual_seq_len = Array(std::vector<std::int32_t>{130, 135, 135, 263}, {4});
    for (const char* order : {"BSND", "NZ"}) {
      const std::string token_mode = std::string("PA_") + order, block_mode = std::string("PA_BLK_") + order;
      by_slot.c.cache_mode = token_mode, by_block.c.cache_mode = block_mode;
      const Written wanted = reference_of(by_slot);
      EXPECT_EQ(reference_of(by_block).first_difference(wanted), "") << order;
      for (const Kernels* k : supported_kernels()) {
        EXPECT_EQ(run(by_slot, {.isa = k->isa}).first_difference(wanted), "") << order << " " << k->isa;
        EXPECT_EQ(run(by_block, {.isa = k->isa}).first_difference(wanted), "") << order << " " << k->isa;
      }
    }
  }
}

}  // namespace
}  // namespace dsakit::prolog_v3
