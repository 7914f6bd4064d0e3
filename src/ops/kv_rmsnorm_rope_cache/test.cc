// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "dsakit/kv_rmsnorm_rope_cache.hpp"
#include "dsakit/mla_prolog_v3.hpp"
#include "kernels/test_rungs.hpp"

namespace dsakit {
namespace {

constexpr const char* kModes[] = {"Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"};

/// A call that owns its memory. Caches of 16-bit numbers or codes; room around every page where `strided`.
struct Case {
  std::int64_t batch = 3, sequence = 11, latent = 64, rope = 32, length = 5, pages = 17;  // length: of a page, or L
  DType dtype = DType::bf16;
  std::string mode = "PA";
  bool latent_codes = false, rope_codes = false, output = false, strided = false;

  bool paged() const { return mode != "Norm"; }
  bool blocks() const { return mode.starts_with("PA_BLK"); }
  bool nz() const { return mode.ends_with("NZ"); }
  std::int64_t leading() const { return paged() ? pages : batch; }
  std::int64_t tokens() const { return batch * sequence; }
  std::int64_t entries() const { return batch * (blocks() ? (sequence + length - 1) / length : sequence); }
};

struct Memory {
  std::vector<std::uint16_t> kv{}, gamma{}, cos{}, sin{};
  std::vector<float> k_scale{}, ckv_scale{};
  std::vector<std::int64_t> index{};
  std::vector<std::uint16_t> k_cache{}, ckv_cache{}, k_rope{}, c_kv{};  // caches: of codes too
};

std::vector<std::uint16_t> halves(Random& r, DType dtype, std::int64_t n) {
  std::vector<std::uint16_t> v;
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = r.uniform(-2, 2);
    v.push_back(dtype == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits);
  }
  return v;
}

std::int64_t page_stride(const Case& c, std::int64_t width) {
  return c.paged() || c.strided ? c.length * width + (c.strided ? 64 : 0) : c.length * width;
}

Memory memory_of(const Case& c, Random& r) {
  const std::int64_t t = c.tokens(), width = c.latent + c.rope + (c.strided ? 8 : 0);
  Memory m{.kv = halves(r, c.dtype, t * width),
           .gamma = halves(r, c.dtype, c.latent),
           .cos = halves(r, c.dtype, t * c.rope),
           .sin = halves(r, c.dtype, t * c.rope),
           .k_scale = random_f32(r, c.rope, 5, 60),
           .ckv_scale = random_f32(r, c.latent, 5, 60),
           .k_cache = halves(r, c.dtype, c.leading() * page_stride(c, c.rope)),
           .ckv_cache = halves(r, c.dtype, c.leading() * page_stride(c, c.latent))};
  m.k_rope = halves(r, c.dtype, t * c.rope), m.c_kv = halves(r, c.dtype, t * c.latent);
  const std::int64_t slots = c.paged() ? c.pages * c.length : c.length;
  for (std::int64_t i = 0; i < c.entries(); ++i)  // some twice, some negative
    if (i % 7 == 3) m.index.push_back(-1 - i);
    else m.index.push_back(c.blocks() ? (i * 7 + 2) % c.pages * c.length : r.below(slots));
  return m;
}

Tensor of(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor t = shaped(dtype, shape);
  t.data = data;
  return t;
}

Tensor cache_of(const Case& c, std::vector<std::uint16_t>& memory, std::int64_t width, bool codes) {
  const DType dtype = codes ? DType::i8 : c.dtype;
  Tensor t = c.paged() ? of(memory.data(), dtype, {c.pages, c.length, 1, width})
                       : of(memory.data(), dtype, {c.batch, 1, c.length, width});
  t.stride[0] = page_stride(c, width);
  return t;
}

KvRmsnormRopeCacheArgs args_of(const Case& c, Memory& m) {
  KvRmsnormRopeCacheArgs a{.kv = of(m.kv.data(), c.dtype, {c.batch, 1, c.sequence, c.latent + c.rope}),
                           .gamma = of(m.gamma.data(), c.dtype, {c.latent}),
                           .cos = of(m.cos.data(), c.dtype, {c.batch, 1, c.sequence, c.rope}),
                           .sin = of(m.sin.data(), c.dtype, {c.batch, 1, c.sequence, c.rope}),
                           .index = of(m.index.data(), DType::i64, {c.entries()}),
                           .k_cache = cache_of(c, m.k_cache, c.rope, c.rope_codes),
                           .ckv_cache = cache_of(c, m.ckv_cache, c.latent, c.latent_codes),
                           .cache_mode = c.mode,
                           .is_output_kv = c.output};
  if (!c.paged()) a.index = of(m.index.data(), DType::i64, {c.batch, c.sequence});
  if (c.strided) a.kv.stride[2] = c.latent + c.rope + 8, a.kv.stride[0] = a.kv.stride[1] = a.kv.stride[2] * c.sequence;
  if (c.rope_codes) a.k_rope_scale = of(m.k_scale.data(), DType::f32, {c.rope});
  if (c.latent_codes) a.c_kv_scale = of(m.ckv_scale.data(), DType::f32, {c.latent});
  return a;
}

void call(const Case& c, Memory& m, Context* context) {
  const KvRmsnormRopeCacheArgs a = args_of(c, m);
  KvRmsnormRopeCacheOuts o{};
  infer(a, o);
  EXPECT_TRUE(o.k_cache_out.data == a.k_cache.data && o.ckv_cache_out.data == a.ckv_cache.data);
  EXPECT_EQ(o.k_rope.elements(), c.output ? c.tokens() * c.rope : 0);
  if (c.output) o.k_rope.data = m.k_rope.data(), o.c_kv.data = m.c_kv.data();
  if (context) kv_rmsnorm_rope_cache(a, o, *context);
  else reference::kv_rmsnorm_rope_cache(a, o);
}

bool same(const Memory& a, const Memory& b) {
  return a.k_cache == b.k_cache && a.ckv_cache == b.ckv_cache && a.k_rope == b.k_rope && a.c_kv == b.c_kv;
}

/// Where the page of the operator puts column h of a token, in elements; negative: nowhere.
std::int64_t place(const Case& c, const Memory& m, std::int64_t t, std::int64_t h, std::int64_t width, int bytes) {
  const std::int64_t b = t / c.sequence, s = t % c.sequence, st0 = page_stride(c, width), c0 = 32 / bytes;
  std::int64_t page, slot;
  if (!c.paged()) {
    page = b, slot = m.index[std::size_t(t)];
  } else if (c.blocks()) {
    const std::int64_t first = m.index[std::size_t(b * ((c.sequence + c.length - 1) / c.length) + s / c.length)];
    page = first / c.length, slot = first < 0 ? first : s % c.length;
  } else {
    slot = m.index[std::size_t(t)], page = slot / c.length, slot = slot < 0 ? slot : slot % c.length;
  }
  if (slot < 0) return -1;
  if (!c.nz()) return page * st0 + slot * width + h;
  return page * st0 + (h / c0 * c.length + slot) * c0 + h % c0;
}

class KvRmsnormRopeCache : public EveryRung {
 protected:
  Memory expect_everywhere(const Case& c, Random& r) {
    const Memory start = memory_of(c, r);
    Memory wanted = start;
    call(c, wanted, nullptr);
    for (int threads : {1, 2, 3}) {
      Memory got = start;
      Context context({.threads = threads, .isa = kernels().isa});
      call(c, got, &context);
      EXPECT_TRUE(same(got, wanted)) << c.mode << ", " << threads << " threads";
    }
    return wanted;
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, KvRmsnormRopeCache, for_every_rung(), rung_name);

TEST_P(KvRmsnormRopeCache, EqualsTheReference) {
  Random r = random_of_test();
  for (const char* mode : kModes)
    for (int bits = 0; bits < 32; ++bits) {
      Case c{.mode = mode,
             .latent_codes = (bits & 1) != 0,
             .rope_codes = (bits & 2) != 0,
             .output = (bits & 4) != 0,
             .strided = (bits & 8) != 0};
      if (bits & 16) c.dtype = DType::f16;
      expect_everywhere(c, r);
    }
  for (std::int64_t sequence : {0, 1, 5, 10, 64}) expect_everywhere({.sequence = sequence, .mode = "PA_BLK_NZ"}, r);
  expect_everywhere({.batch = 0}, r);
  expect_everywhere({.batch = 2, .sequence = 130, .latent = 512, .rope = 64, .length = 128, .pages = 4}, r);
  expect_everywhere({.latent = 1, .rope = 2, .output = true}, r);
}

/// The rows lie where the documents say, the last of a slot wins, and nothing else has changed.
TEST_P(KvRmsnormRopeCache, Places) {
  Random r = random_of_test();
  for (const char* mode : kModes)
    for (bool codes : {false, true})
      for (bool strided : {false, true}) {
        Case c{.mode = mode, .latent_codes = codes, .rope_codes = !codes, .output = true, .strided = strided};
        const Memory start = memory_of(c, r);
        Memory got = start, wanted = start;
        Context context({.threads = 2, .isa = kernels().isa});
        call(c, got, &context);
        for (std::int64_t t = 0; t < c.tokens(); ++t) {
          for (std::int64_t h = 0; h < (codes ? c.rope : c.latent); ++h) {  // the cache of 16-bit numbers
            const std::int64_t width = codes ? c.rope : c.latent, at = place(c, start, t, h, width, 2);
            const auto& row = codes ? got.k_rope : got.c_kv;
            if (at >= 0) (codes ? wanted.k_cache : wanted.ckv_cache)[std::size_t(at)] = row[std::size_t(t * width + h)];
          }
        }
        EXPECT_TRUE(codes ? got.k_cache == wanted.k_cache : got.ckv_cache == wanted.ckv_cache) << mode;
        // Of the codes: the bytes that belong to no stored row are as they were.
        const std::int64_t width = codes ? c.latent : c.rope;
        auto bytes = [](std::vector<std::uint16_t>& v) { return reinterpret_cast<std::int8_t*>(v.data()); };
        auto &after = codes ? got.ckv_cache : got.k_cache, &before = codes ? wanted.ckv_cache : wanted.k_cache;
        for (std::int64_t t = 0; t < c.tokens(); ++t)
          for (std::int64_t h = 0; h < width; ++h)
            if (const std::int64_t at = place(c, start, t, h, width, 1); at >= 0) bytes(before)[at] = bytes(after)[at];
        EXPECT_EQ(after, before) << mode;
      }
}

/// Latent of E8 and rope of E4 of docs/operators/mla_prolog.md.
TEST_P(KvRmsnormRopeCache, WorkedExample) {
  auto bits = [](std::initializer_list<float> x) {
    std::vector<std::uint16_t> v;
    for (float f : x) v.push_back(to_bf16(f).bits);
    return v;
  };
  const Case c{.batch = 1, .sequence = 1, .latent = 4, .rope = 4, .length = 2, .pages = 2, .output = true};
  Memory m{.kv = bits({1, -2, 2, 4, 1, 2, 3, 4}),
           .gamma = bits({1, .5f, 1, 2}),
           .cos = bits({.5f, .25f, 1, 2}),
           .sin = bits({1, .5f, .125f, .75f}),
           .index = {3},
           .k_cache = std::vector<std::uint16_t>(16),
           .ckv_cache = std::vector<std::uint16_t>(16),
           .k_rope = std::vector<std::uint16_t>(4),
           .c_kv = std::vector<std::uint16_t>(4)};
  Context context({.isa = kernels().isa});
  call(c, m, &context);
  std::vector<std::uint16_t> latent(12), rope(12);
  latent.insert(latent.end(), {0x3ecd, 0xbecd, 0x3f4d, 0x404d});
  for (std::uint16_t v : bits({-1.5f, -1.25f, 2.125f, 10.25f})) rope.push_back(v);
  EXPECT_EQ(m.ckv_cache, latent);
  EXPECT_EQ(m.k_cache, rope);
  EXPECT_TRUE(std::equal(m.c_kv.begin(), m.c_kv.end(), latent.begin() + 12));
}

/// Static codes come from fp32, not from the rounded value.
TEST_P(KvRmsnormRopeCache, CodesOfUnroundedValues) {
  auto one = [](float f) { return to_bf16(f).bits; };
  const Case c{.batch = 1, .sequence = 1, .latent = 1, .rope = 2, .length = 1, .pages = 1, .rope_codes = true};
  Memory m{.kv = {one(1), one(1.0078125f), one(0)},
           .gamma = {one(1)},
           .cos = {one(1.0078125f), one(1)},
           .sin = {one(0), one(0)},
           .k_scale = {99.9345f, 1},  // 1.015686 * 99.9345 = 101.502, of bfloat16 101.496
           .index = {0},
           .k_cache = std::vector<std::uint16_t>(1),
           .ckv_cache = std::vector<std::uint16_t>(1)};
  Context context({.isa = kernels().isa});
  call(c, m, &context);
  EXPECT_EQ(m.k_cache[0] & 0xff, 102);
}

TEST_P(KvRmsnormRopeCache, FormsAgree) {
  Random r = random_of_test();
  for (const char* mode : kModes) {
    const Case c{.mode = mode, .latent_codes = true, .output = true, .strided = mode == std::string("PA_NZ")};
    const Memory start = memory_of(c, r);
    Memory first = start, second = start, third = start;
    Context context({.threads = 2, .isa = kernels().isa});
    call(c, first, &context);
    const auto rows = [&](auto& o, Memory& m) { o.k_rope.data = m.k_rope.data(), o.c_kv.data = m.c_kv.data(); };
    KvRmsnormRopeCacheV2Outs v2{};
    infer(KvRmsnormRopeCacheV2Args{args_of(c, second)}, v2);
    rows(v2, second);
    kv_rmsnorm_rope_cache_v2({args_of(c, second)}, v2, context);
    EXPECT_TRUE(same(first, second)) << mode;

    KvRmsnormRopeCacheV2FunctionalOuts copies{};
    const KvRmsnormRopeCacheV2FunctionalArgs a{args_of(c, third)};
    infer(a, copies);
    rows(copies, third);
    std::vector<std::uint16_t> k(std::size_t(copies.k_cache_out.elements())),
        ckv(std::size_t(copies.ckv_cache_out.elements()));
    copies.k_cache_out.data = k.data(), copies.ckv_cache_out.data = ckv.data();
    for (bool twin : {false, true}) {
      std::fill(k.begin(), k.end(), 85), std::fill(ckv.begin(), ckv.end(), 85);
      if (twin) reference::kv_rmsnorm_rope_cache_v2_functional(a, copies);
      else kv_rmsnorm_rope_cache_v2_functional(a, copies, context);
      EXPECT_TRUE(third.k_cache == start.k_cache && third.ckv_cache == start.ckv_cache);
      EXPECT_TRUE(third.k_rope == first.k_rope && third.c_kv == first.c_kv);
      const Tensor in_place[] = {args_of(c, first).k_cache, args_of(c, first).ckv_cache};
      const Tensor copied[] = {copies.k_cache_out, copies.ckv_cache_out};
      for (int i = 0; i < 2; ++i)
        for (std::int64_t e = 0; e < copied[i].elements(); ++e) {
          const std::int64_t size = size_of(copied[i].dtype);
          ASSERT_EQ(std::memcmp(static_cast<std::byte*>(copied[i].data) + e * size,
                                static_cast<std::byte*>(in_place[i].data) + offset_of(in_place[i], e) * size,
                                std::size_t(size)),
                    0)
              << mode << ", " << e;
        }
    }
  }
}

/// As strict takes it: the sizes of DeepSeek, a slice of a projection.
TEST(KvRmsnormRopeCacheDoor, StrictTakesSlices) {
  Random r(2);
  Case c{.batch = 2, .sequence = 3, .latent = 512, .rope = 64, .length = 16, .pages = 3, .strided = true};
  Memory m = memory_of(c, r);
  KvRmsnormRopeCacheArgs a = args_of(c, m);
  a.level = Level::strict;
  KvRmsnormRopeCacheOuts o{};
  infer(a, o);
  kv_rmsnorm_rope_cache(a, o);
}

TEST(KvRmsnormRopeCacheDoor, Refusals) {
  Random r(1);
  const Case c{.output = true};
  Memory m = memory_of(c, r);
  const Memory before = m;
  const KvRmsnormRopeCacheArgs good = args_of(c, m);
  const auto refused = [&](auto change, Status status, const char* parameter, const char* position = "") {
    KvRmsnormRopeCacheArgs a = good;
    KvRmsnormRopeCacheOuts o{};
    infer(good, o);
    o.k_cache_out = o.ckv_cache_out = {};
    o.k_rope.data = m.k_rope.data(), o.c_kv.data = m.c_kv.data();
    if constexpr (requires { change(a, o); }) change(a, o);
    else change(a);
    try {
      kv_rmsnorm_rope_cache(a, o);
      ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
    } catch (const Error& e) {
      EXPECT_EQ(e.status, status) << e.what();
      EXPECT_EQ(e.op, "kv_rmsnorm_rope_cache");
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.position, position) << e.what();
    }
    EXPECT_TRUE(same(m, before)) << parameter;
  };
  using A = KvRmsnormRopeCacheArgs;
  using O = KvRmsnormRopeCacheOuts;
  std::vector<std::int64_t> index = m.index;
  auto with_index = [&](std::int64_t at, std::int64_t entry) {
    return [&, at, entry](A& a) { index = m.index, index[std::size_t(at)] = entry, a.index.data = index.data(); };
  };
  std::vector<std::uint16_t> other(4000);
  std::vector<float> scale(64);
  refused([](A& a) { a.kv = {}; }, Status::invalid_argument, "kv");
  refused([](A& a) { a.ckv_cache = {}; }, Status::invalid_argument, "ckv_cache");
  refused([](A& a) { a.cache_mode = "PA_BSND"; }, Status::invalid_argument, "cache_mode");
  refused([](A& a) { a.epsilon = 0; }, Status::invalid_argument, "epsilon");
  refused([](A& a) { a.kv.shape[1] = 2; }, Status::invalid_shape, "kv");
  refused([](A& a) { --a.kv.shape[3]; }, Status::invalid_shape, "kv");
  refused([](A& a) { a.kv.rank = 3; }, Status::invalid_shape, "kv");
  refused([](A& a) { a.gamma.rank = 2; }, Status::invalid_shape, "gamma");
  refused([](A& a) { a.cos.shape[3] = a.sin.shape[3] = 31; }, Status::invalid_shape, "cos");
  refused([](A& a) { a.cos.shape[0] = 1; }, Status::invalid_shape, "cos");
  refused([](A& a) { a.sin.shape[2] = 2; }, Status::invalid_shape, "sin");
  refused([](A& a) { --a.index.shape[0]; }, Status::invalid_shape, "index");
  refused([](A& a) { a.k_cache.shape[2] = 2; }, Status::invalid_shape, "k_cache");
  refused([](A& a) { --a.ckv_cache.shape[0]; }, Status::invalid_shape, "ckv_cache");
  refused([](A& a) { a.cache_mode = "Norm"; }, Status::invalid_shape, "k_cache");
  refused([](A& a) { a.level = Level::strict; }, Status::unsupported, "gamma");
  refused([](A& a) { a.kv.dtype = DType::f32; }, Status::invalid_dtype, "kv");
  refused([](A& a) { a.cos.dtype = DType::f16; }, Status::invalid_dtype, "cos");
  refused([](A& a) { a.index.dtype = DType::i32; }, Status::invalid_dtype, "index");
  refused([](A& a) { a.k_cache.dtype = DType::f16; }, Status::invalid_dtype, "k_cache");
  refused([](A& a) { a.k_cache.dtype = DType::i8; }, Status::invalid_argument, "k_rope_scale");
  refused([&](A& a) { a.c_kv_scale = of(scale.data(), DType::f32, {64}); }, Status::invalid_argument, "c_kv_scale");
  refused([&](A& a) { a.k_rope_scale = of(scale.data(), DType::f32, {64}); }, Status::invalid_shape, "k_rope_scale");
  refused(with_index(4, 17 * 5), Status::invalid_slot, "index", "[4]");
  refused([&](A& a) { a.k_cache.data = m.ckv_cache.data(); }, Status::aliased, "k_cache");
  refused([&](A&, O& o) { o.k_rope.data = m.kv.data(); }, Status::aliased, "k_rope");
  refused([](A&, O& o) { --o.c_kv.shape[2]; }, Status::invalid_shape, "c_kv");
  refused([&](A& a, O& o) { o.k_cache_out = a.k_cache, o.k_cache_out.data = other.data(); }, Status::invalid_argument,
          "k_cache_out");

  Case blocks{.mode = "PA_BLK_NZ"}, norm{.mode = "Norm"};
  for (const auto& [which, entry] : {std::pair(&blocks, 6), {&blocks, 85}, {&norm, 5}}) {
    Memory mine = memory_of(*which, r);
    mine.index[1] = entry;
    try {
      call(*which, mine, nullptr);
      ADD_FAILURE() << which->mode << " " << entry;
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_slot) << e.what();
      EXPECT_EQ(e.position, which == &norm ? "[0][1]" : "[1]") << e.what();
    }
  }
  Case narrow{.rope = 8, .mode = "PA_NZ"};
  Memory mine = memory_of(narrow, r);
  EXPECT_THROW(call(narrow, mine, nullptr), Error);
}

}  // namespace
}  // namespace dsakit
