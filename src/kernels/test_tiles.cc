// SPDX-License-Identifier: Apache-2.0
#include "kernels/test_tiles.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "kernels/self_test.hpp"
#include "kernels/tiles.hpp"
#include "kernels/vec/plain.hpp"
#if defined(__x86_64__)
#include <signal.h>
#include <ucontext.h>
#endif

namespace dsakit {

// ---- the software ---------------------------------------------------------------------------------------------------

void TileMachine::configure(const TileShapes& shapes) {
  bool good = shapes.palette == 1;
  for (const std::uint8_t x : shapes.reserved) good = good && x == 0;
  for (int t = 0; t < 16; ++t) {
    const int rows = shapes.rows[t], bytes = shapes.bytes[t];
    good = good && (t < kTiles || (rows == 0 && bytes == 0));
    good = good && rows <= kTileSide && bytes <= kTileBytes && (rows == 0) == (bytes == 0);
  }
  if (!good) return void(++faults);
  for (int t = 0; t < kTiles; ++t) {
    tile[std::size_t(t)] = {};
    tile[std::size_t(t)].rows = shapes.rows[t], tile[std::size_t(t)].bytes = shapes.bytes[t];
  }
  configured = true;
}

void TileMachine::release() {
  tile = {};
  configured = false;
}

bool TileMachine::usable(int t) {
  const bool good = configured && tile[std::size_t(t)].rows > 0;
  faults += !good;
  return good;
}

void TileMachine::zero(int t) {
  if (usable(t)) tile[std::size_t(t)].row = {};
}

void TileMachine::load(int t, const void* p, std::ptrdiff_t stride) {
  if (!usable(t)) return;
  Tile& to = tile[std::size_t(t)];
  to.row = {};
  for (int r = 0; r < to.rows; ++r)
    std::memcpy(&to.row[std::size_t(r)], static_cast<const char*>(p) + r * stride, std::size_t(to.bytes));
}

void TileMachine::store(int t, void* p, std::ptrdiff_t stride) {
  if (!usable(t)) return;
  const Tile& from = tile[std::size_t(t)];
  for (int r = 0; r < from.rows; ++r)
    std::memcpy(static_cast<char*>(p) + r * stride, &from.row[std::size_t(r)], std::size_t(from.bytes));
}

bool TileMachine::fit(int c, int a, int b) {
  if (c == a || a == b || c == b) return ++faults, false;
  if (!usable(c) || !usable(a) || !usable(b)) return false;
  const Tile &sums = tile[std::size_t(c)], &rows = tile[std::size_t(a)], &columns = tile[std::size_t(b)];
  const bool good = sums.rows == rows.rows && sums.bytes == columns.bytes && rows.bytes == 4 * columns.rows &&
                    sums.bytes % 4 == 0;
  faults += !good;
  return good;
}

void TileMachine::dot_codes(int c, int a, int b, bool signed_a, bool signed_b) {
  if (!fit(c, a, b)) return;
  const Tile &rows = tile[std::size_t(a)], &columns = tile[std::size_t(b)];
  const auto code = [](std::byte x, bool is_signed) { return is_signed ? int(std::int8_t(x)) : int(x); };
  for (std::size_t m = 0; m < std::size_t(rows.rows); ++m) {
    std::uint32_t sum[kTileSide];
    std::memcpy(sum, &tile[std::size_t(c)].row[m], sizeof sum);
    for (std::size_t n = 0; n < std::size_t(columns.bytes / 4); ++n)
      for (std::size_t k = 0; k < std::size_t(rows.bytes); ++k)
        sum[n] += std::uint32_t(code(rows.row[m][k], signed_a) * code(columns.row[k / 4][4 * n + k % 4], signed_b));
    std::memcpy(&tile[std::size_t(c)].row[m], sum, sizeof sum);
  }
}

namespace {

/// Subnormals are 0 of their sign.
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

float fma_flushed(float a, float b, float c) { return flushed(std::fma(a, b, c)); }

float element(const std::array<std::byte, kTileBytes>& row, std::size_t i) {
  bf16 x;
  std::memcpy(&x, &row[2 * i], 2);
  return flushed(to_float(x));
}

}  // namespace

void TileMachine::dot_bf16(int c, int a, int b) {
  if (!fit(c, a, b)) return;
  const Tile &rows = tile[std::size_t(a)], &columns = tile[std::size_t(b)];
  for (std::size_t m = 0; m < std::size_t(rows.rows); ++m) {
    float sum[kTileSide], chain[2][kTileSide] = {};
    for (std::size_t k = 0; k < std::size_t(columns.rows); ++k)
      for (std::size_t half = 0; half < 2; ++half) {
        const float x = element(rows.row[m], 2 * k + half);
        for (std::size_t n = 0; n < std::size_t(columns.bytes / 4); ++n)
          chain[half][n] = fma_flushed(x, element(columns.row[k], 2 * n + half), chain[half][n]);
      }
    std::memcpy(sum, &tile[std::size_t(c)].row[m], sizeof sum);
    for (std::size_t n = 0; n < std::size_t(columns.bytes / 4); ++n)
      sum[n] = flushed(flushed(sum[n]) + flushed(chain[0][n] + chain[1][n]));
    std::memcpy(&tile[std::size_t(c)].row[m], sum, sizeof sum);
  }
}

TileMachine& tile_machine() {
  static thread_local TileMachine machine;
  return machine;
}

// ---- the instructions where the processor refuses them --------------------------------------------------------------

#if defined(__x86_64__)
void use_amx(Kernels&);

namespace {

/// What a tile instruction says, which has the form C4 .. .. opcode modrm [sib] [displacement].
class Decoded {
 public:
  Decoded(const std::uint8_t* code, const greg_t* registers) : code_(code), registers_(registers) {
    if (!is_tile()) return;
    const int mod = modrm() >> 6, rm = modrm() & 7;
    length = 5;
    if (mod == 3) return;
    const bool relative = mod == 0 && rm == 5;
    if (rm == 4) {
      const int sib = code[length++], index = (sib >> 3 & 7) | (code[1] & 0x40 ? 0 : 8);
      base_ = value((sib & 7) | (code[1] & 0x20 ? 0 : 8));
      stride = index == 4 ? 0 : value(index) << (sib >> 6);
    } else if (!relative) {
      base_ = value(rm | (code[1] & 0x20 ? 0 : 8));
    }
    if (mod == 1) base_ += std::int8_t(code[length++]);
    if (mod == 2 || relative) base_ += load32(code + length), length += 4;
    if (relative) base_ += registers[REG_RIP] + length;
  }

  bool is_tile() const {
    return code_[0] == 0xc4 && (code_[1] & 31) == 2 && (code_[2] & 0x84) == 0 &&
           (opcode() == 0x49 || opcode() == 0x4b || opcode() == 0x5c || opcode() == 0x5e);
  }
  int opcode() const { return code_[3]; }
  int modrm() const { return code_[4]; }
  int prefix() const { return code_[2] & 3; }  // none, 66, F3, F2
  bool in_memory() const { return modrm() < 0xc0; }
  // c = reg, a = r/m, b = vvvv
  int c() const { return modrm() >> 3 & 7; }
  int a() const { return modrm() & 7; }
  int b() const { return ~code_[2] >> 3 & 7; }
  char* base() const { return reinterpret_cast<char*>(base_); }

  int length = 0;
  std::ptrdiff_t stride = 0;

 private:
  std::ptrdiff_t value(int number) const {
    constexpr int kNumbers[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kNumbers[number]];
  }
  const std::uint8_t* code_;
  const greg_t* registers_;
  std::ptrdiff_t base_ = 0;
};

/// Whether it was one of those that the rung has.
bool execute(const Decoded& x) {
  enum { kNone, k66, kF3, kF2 };
  TileMachine& machine = tile_machine();
  const int p = x.prefix();
  switch (x.opcode()) {
    case 0x49:
      if (x.in_memory() && p == kNone)
        machine.configure(*reinterpret_cast<const TileShapes*>(x.base() + x.stride));
      else if (!x.in_memory() && p == kNone) machine.release();
      else if (!x.in_memory() && p == kF2) machine.zero(x.c());
      else return false;
      return true;
    case 0x4b:
      if (p == kF2) machine.load(x.c(), x.base(), x.stride);
      else if (p == kF3) machine.store(x.c(), x.base(), x.stride);
      else return false;
      return true;
    case 0x5c:
      if (p == kF3) machine.dot_bf16(x.c(), x.a(), x.b());
      return p == kF3;
    default: machine.dot_codes(x.c(), x.a(), x.b(), p == kF2 || p == kF3, p == kF2 || p == k66);
  }
  return true;
}

void on_refused(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Decoded x(reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]), registers);
  if (x.is_tile() && execute(x)) registers[REG_RIP] += x.length;
  else signal(SIGILL, SIG_DFL);  // and so it happens again
}

Rung trapped_rung() {
  static Kernels k;
  const Kernels* below = find_kernels("avx512");
  if (!below || !__builtin_cpu_supports("avx512vbmi"))
    return {"amx_trapped", nullptr, "AVX-512 BF16 and VBMI"};
  struct sigaction action = {};
  action.sa_sigaction = on_refused;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
  k = *below;
  use_amx(k);
  k.isa = "amx_trapped";
  return {k.isa, &k, ""};
}

}  // namespace
#endif

std::vector<Rung> tile_rungs() {
  static Kernels model;
  model = *find_kernels("generic");
  fill_tiles<Vec128, TileModel>(model);
  model.isa = "amx_model";
  std::vector<Rung> rungs = {{model.isa, &model, ""}};
#if defined(__x86_64__)
  rungs.push_back(trapped_rung());
#endif
  return rungs;
}

// ---- their tests ----------------------------------------------------------------------------------------------------

namespace {

bf16 bits(std::uint16_t x) { return {x}; }

class TileInstructions : public ::testing::Test {
 protected:
  void configure(int m, int n, int k) {
    TileShapes shapes;
    shapes.set(0, m, 4 * n), shapes.set(1, m, 4 * k), shapes.set(2, k, 4 * n);
    machine.configure(shapes);
    ASSERT_EQ(machine.faults, 0);
  }
  template <class T>
  void load(int t, std::initializer_list<T> row) {
    machine.load(t, row.begin(), 0);
  }
  template <class T>
  T sum(int row, int column) const {
    T x;
    std::memcpy(&x, &machine.tile[0].row[std::size_t(row)][4 * std::size_t(column)], sizeof x);
    return x;
  }
  TileMachine machine;
};

TEST_F(TileInstructions, NeedAShape) {
  std::byte memory[1024] = {};
  machine.zero(0), machine.load(0, memory, 64), machine.store(0, memory, 64), machine.dot_bf16(0, 1, 2);
  EXPECT_EQ(machine.faults, 4);
  TileShapes shapes;
  shapes.set(0, 17, 64);
  machine.configure(shapes);
  shapes.set(0, 16, 65);
  machine.configure(shapes);
  shapes.set(0, 16, 0);
  machine.configure(shapes);
  shapes.set(0, 16, 64), shapes.set(8, 16, 64);
  machine.configure(shapes);
  EXPECT_EQ(machine.faults, 8);
  EXPECT_FALSE(machine.configured);
}

TEST_F(TileInstructions, NeedShapesThatFit) {
  configure(3, 5, 2);
  machine.dot_bf16(0, 1, 2);
  EXPECT_EQ(machine.faults, 0);
  machine.dot_bf16(0, 2, 1), machine.dot_codes(0, 1, 1, true, true), machine.dot_codes(1, 1, 2, true, true);
  EXPECT_EQ(machine.faults, 3);
}

TEST_F(TileInstructions, TouchTheirShapeOnlyAndClearTheRest) {
  TileShapes shapes;
  shapes.set(0, 16, 64);
  machine.configure(shapes);
  std::byte memory[16 * 64];
  std::memset(memory, 7, sizeof memory);
  machine.load(0, memory, 64);
  EXPECT_EQ(machine.tile[0].row[15][63], std::byte(7));
  shapes.set(0, 2, 12);
  machine.configure(shapes);
  EXPECT_EQ(machine.tile[0].row[0][0], std::byte(0));
  machine.load(0, memory, 64);
  EXPECT_EQ(machine.tile[0].row[1][11], std::byte(7));
  EXPECT_EQ(machine.tile[0].row[1][12], std::byte(0));
  EXPECT_EQ(machine.tile[0].row[2][0], std::byte(0));
  std::byte out[3 * 16] = {};
  machine.store(0, out, 16);
  for (int i = 0; i < 48; ++i) EXPECT_EQ(out[i], std::byte(i % 16 < 12 && i < 32 ? 7 : 0));
  machine.release();
  EXPECT_FALSE(machine.configured);
}

TEST_F(TileInstructions, MultiplyCodesExactly) {
  configure(1, 1, 1);
  load<std::uint8_t>(1, {255, 255, 128, 1});
  load<std::int8_t>(2, {-128, -128, 127, -1});
  machine.dot_codes(0, 1, 2, false, true);
  EXPECT_EQ(sum<std::int32_t>(0, 0), 2 * 255 * -128 + 128 * 127 - 1);  // 16-bit sums of pairs would saturate
  machine.dot_codes(0, 1, 2, true, true);
  EXPECT_EQ(sum<std::int32_t>(0, 0), 2 * 255 * -128 + 128 * 127 - 1 + 256 - 128 * 127 - 1);
}

TEST_F(TileInstructions, AddTheirSumOfPairsToWhatIsThere) {
  configure(1, 1, 2);
  load<float>(0, {0x1p24f});
  load<bf16>(1, {to_bf16(1), to_bf16(1), to_bf16(1), to_bf16(1)});
  machine.load(2, std::array{to_bf16(1), to_bf16(0), to_bf16(0), to_bf16(1)}.data(), 4);
  machine.dot_bf16(0, 1, 2);
  EXPECT_EQ(sum<float>(0, 0), 0x1p24f + 2);  // one after the other they would be lost
}

TEST_F(TileInstructions, KeepChainsOfLowerAndUpperElements) {
  configure(1, 1, 2);
  load<bf16>(1, {to_bf16(1), to_bf16(1), to_bf16(1), to_bf16(1)});
  machine.load(2, std::array{to_bf16(0x1p24f), to_bf16(1), to_bf16(-0x1p24f), to_bf16(1)}.data(), 4);
  machine.dot_bf16(0, 1, 2);
  EXPECT_EQ(sum<float>(0, 0), 2);  // in one chain the first 1 would be lost
}

TEST_F(TileInstructions, FlushSubnormals) {
  configure(1, 1, 1);
  load<bf16>(1, {bits(0x0040), to_bf16(0)});  // 2^-127
  load<bf16>(2, {to_bf16(0x1p10f), to_bf16(0)});
  machine.dot_bf16(0, 1, 2);
  EXPECT_EQ(sum<float>(0, 0), 0);
  load<bf16>(1, {to_bf16(0x1p-100f), to_bf16(0x1p-120f)});
  load<bf16>(2, {to_bf16(0x1p-27f), to_bf16(1)});
  machine.dot_bf16(0, 1, 2);
  EXPECT_EQ(sum<float>(0, 0), 0x1p-120f);
}

#if defined(__x86_64__)
/// Where the processor has tiles, they compute what the software says, in every bit.
class TileProcessor : public TileInstructions {
 protected:
  void SetUp() override {
    if (!find_kernels("amx")) GTEST_SKIP() << "amx: no tiles here";
  }

  /// c + a * b of m x k and k x n words, on both.
  template <class OnProcessor, class OnMachine>
  void compare(int m, int n, int k, OnProcessor on_processor, OnMachine on_machine) {
    TileShapes shapes;
    shapes.set(0, m, 4 * n), shapes.set(1, m, 4 * k), shapes.set(2, k, 4 * n);
    std::int32_t got[kTileSide * kTileSide] = {}, want[kTileSide * kTileSide] = {};
    Tiles::configure(shapes);
    Tiles::load<0>(c, kTileBytes), Tiles::load<1>(a, kTileBytes), Tiles::load<2>(b, kTileBytes);
    on_processor();
    Tiles::store<0>(got, kTileBytes);
    Tiles::release();
    machine.configure(shapes);
    machine.load(0, c, kTileBytes), machine.load(1, a, kTileBytes), machine.load(2, b, kTileBytes);
    on_machine();
    machine.store(0, want, kTileBytes);
    for (int i = 0; i < kTileSide * kTileSide; ++i) different += got[i] != want[i];
    EXPECT_EQ(machine.faults, 0);
  }

  alignas(64) std::int32_t a[kTileSide * kTileSide], b[kTileSide * kTileSide], c[kTileSide * kTileSide];
  int different = 0;
  Random random{7};
};

TEST_F(TileProcessor, MultipliesCodes) {
  for (const auto [m, n, k] : {std::array{16, 16, 16}, {1, 16, 16}, {16, 3, 16}, {5, 7, 9}, {16, 16, 1}}) {
    for (auto* const x : {a, b, c})
      for (int i = 0; i < kTileSide * kTileSide; ++i) x[i] = std::int32_t(random.next());
    compare(m, n, k, [] { Tiles::dot_u8_i8<0, 1, 2>(); }, [&] { machine.dot_codes(0, 1, 2, false, true); });
    compare(m, n, k, [] { Tiles::dot_i8_i8<0, 1, 2>(); }, [&] { machine.dot_codes(0, 1, 2, true, true); });
  }
  EXPECT_EQ(different, 0);
}

TEST_F(TileProcessor, AddsPairsInItsOrder) {
  for (const int octaves : {0, 8, 60, 253})  // the last: with subnormal numbers, products and sums
    for (const auto [m, n, k] : {std::array{16, 16, 16}, {1, 16, 16}, {16, 3, 16}, {5, 7, 9}, {16, 16, 1}})
      for (int round = 0; round < 20; ++round) {
        const auto some = [&] {
          const float x = std::ldexp(random.uniform(1, 2), int(random.below(octaves + 1)) - octaves / 2);
          return random.below(2) == 0 ? x : -x;
        };
        for (auto* const x : {a, b})
          for (int i = 0; i < kTileSide * kTileSide; ++i) {
            const bf16 pair[2] = {to_bf16(some()), to_bf16(some())};
            std::memcpy(x + i, pair, sizeof pair);
          }
        for (std::int32_t& x : c) x = std::bit_cast<std::int32_t>(some());
        compare(m, n, k, [] { Tiles::dot_bf16<0, 1, 2>(); }, [&] { machine.dot_bf16(0, 1, 2); });
      }
  EXPECT_EQ(different, 0);
}
#endif

class TileRung : public ::testing::TestWithParam<Rung> {
 protected:
  void SetUp() override {
    if (!GetParam().kernels) GTEST_SKIP() << GetParam().isa << " lacks " << GetParam().why;
  }
};
INSTANTIATE_TEST_SUITE_P(Tiles, TileRung, ::testing::ValuesIn(tile_rungs()),
                         [](const auto& info) { return info.param.isa; });

TEST_P(TileRung, PeaksCountWhatTheyDo) {
  for (const Dot kind : {Dot::i8, Dot::bf16}) {
    const double operations = GetParam().kernels->peak[int(kind)](3);
    EXPECT_EQ(operations, 3 * 6 * 2.0 * 16 * 16 * (kind == Dot::i8 ? 64 : 32));
  }
  EXPECT_FALSE(tile_machine().configured);
  EXPECT_EQ(tile_machine().faults, 0);
}

TEST_P(TileRung, PassesTheSelfTest) {
  EXPECT_TRUE(passes_self_test(*GetParam().kernels, *find_kernels("generic")));
  EXPECT_FALSE(tile_machine().configured);
  EXPECT_EQ(tile_machine().faults, 0);
}

/// Products of as many rows, of others, and kernels between them that shape tiles otherwise.
TEST_P(TileRung, ProductsLeaveShapesToEachOther) {
  constexpr int kDepth = 96, kRows = 40;
  Random random(5);
  const std::vector<bf16> a = random_bf16(random, kRows * kDepth), panel = random_bf16(random, kDepth * kPanel);
  const std::vector<std::int8_t> keys = random_i8(random, 32 * 64);
  const std::vector<std::uint8_t> codes(64 * 64, 77);
  const std::vector<float> weight(64, 1.0f);
  const Kernels& k = *GetParam().kernels;
  const auto all = [&](auto between) {
    std::vector<float> y, c(kRows * kPanel), scores(32);
    for (const int m : {32, 32, 16, 40, 1, 40, 32}) {
      k.product(a.data(), kDepth, m, panel.data(), kDepth, c.data(), kPanel, false);
      y.insert(y.end(), c.begin(), c.begin() + m * kPanel);
      between();
      if (m != 16) continue;
      k.index_scores(IndexQueryI8{codes.data(), weight.data(), 4, 64}, keys.data(), 64, 32, scores.data(), nullptr);
      y.insert(y.end(), scores.begin(), scores.end());
      EXPECT_FALSE(tile_machine().configured);
    }
    return y;
  };
  const std::vector<float> want = all([] { EXPECT_FALSE(tile_machine().configured); });
  {
    const ShapesKept kept(k);
    const bool asked = GetParam().kernels->isa == std::string_view("amx_model") || !find_kernels("amx");  // or the processor was
    EXPECT_EQ(all([=] { EXPECT_EQ(tile_machine().configured, asked); }), want);
  }
  EXPECT_FALSE(tile_machine().configured);
  EXPECT_EQ(tile_machine().faults, 0);
}

TEST(SelfTest, SeesEachKernelThatDoesNothing) {
  const Kernels& generic = *find_kernels("generic");
  EXPECT_TRUE(passes_self_test(generic, generic));
  const auto without = [&]<class Pointer>(auto Kernels::*member, Pointer) {
    Kernels k = generic;
    static_cast<Entry<Pointer>&>(k.*member).function = [](auto...) noexcept {};
    return passes_self_test(k, generic);
  };
  EXPECT_FALSE(without(&Kernels::product, Product<bf16, bf16>()));
  EXPECT_FALSE(without(&Kernels::product, ProductOfCodes()));
  EXPECT_FALSE(without(&Kernels::index_scores, IndexScoresOfCodes()));
  EXPECT_FALSE(without(&Kernels::gemv_dots, GemvDotsOfPairs()));
  EXPECT_FALSE(without(&Kernels::gemv_sums, GemvSumsOfPairs()));
}

}  // namespace
}  // namespace dsakit
