// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/fused_infer_attention_score_v2/judge.hpp"

// Calls drawn at random from everything that portable takes.
namespace dsakit {
namespace {

using namespace fused_infer_attention_score_v2_op;

template <class T>
T pick(Random& r, std::initializer_list<T> from) {
  return from.begin()[r.below(std::int64_t(from.size()))];
}

Spec drawn(std::uint64_t seed) {
  Random r(seed);
  Spec s{.seed = seed};
  s.layout = pick(r, {"BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "BSH_BNSD", "BSND_BNSD",
                      "NSD", "TND", "TND_NTD", "NTD_TND", "NTD"});
  const bool folded = s.layout[0] == 'T' || s.layout.starts_with("NT"), alone = s.layout == "NSD";
  s.b = alone ? 1 : 1 + r.below(3);
  s.nk = 1 + r.below(3), s.nq = s.nk * pick<std::int64_t>(r, {1, 2, 5, 16});
  s.d = pick<std::int64_t>(r, {8, 16, 40, 64, 128}), s.dv = pick<std::int64_t>(r, {s.d, 8, 24, 128});
  s.type = pick(r, {DType::f16, DType::bf16, DType::f32, DType::i8});
  const bool full = s.type == DType::i8;
  s.dr = full || r.below(3) == 0 ? pick<std::int64_t>(r, {8, 64}) : -1;
  if (!full && r.below(3) == 0) s.kv = pick(r, {DType::i8, DType::i32});
  s.s1 = pick<std::int64_t>(r, {1, 1, 2, 5, 17, 130}), s.s2 = pick<std::int64_t>(r, {1, 15, 256, 257, 600});
  for (std::int64_t b = 0; b < s.b; ++b) {
    s.ql.push_back(r.below(4) ? 1 + r.below(s.s1) : r.below(s.s1 + 1));
    s.kl.push_back(r.below(5) ? 1 + r.below(s.s2) : r.below(2) * s.s2);
  }
  s.narrow = r.below(2), s.pad = folded ? r.below(3) : 0;
  if (r.below(2)) {
    s.rank = pick(r, {3, 4, 5}), s.bs = pick<std::int64_t>(r, {1, 16, 100, 128}), s.page_seed = seed;
    if (s.rank == 5 && s.kv == DType::i32) s.rank = 4;
    const std::int64_t unit = full || s.kv == DType::i8 ? 32 : 16;  // columns of a block; fp32 and rope fit too
    if (s.rank == 5) s.d = (s.d + unit - 1) / unit * unit, s.dv = (s.dv + unit - 1) / unit * unit;
    if (s.rank == 5 && s.dr == 8) s.dr = 64;
  }
  const std::int64_t keys = s.s2 + r.below(9), rows = s.s1;
  s.mode = pick<std::int64_t>(r, {0, 0, 2, 3, 4});
  s.pre = r.below(40) - 5, s.next = std::max<std::int64_t>(r.below(40) - 5, -s.pre);
  if (!folded && s.mode == 0 && r.below(2)) {
    s.mask = pick<Shape>(r, {Shape{rows == 1 ? s.b : rows, keys}, Shape{s.b, rows, keys}, Shape{1, 1, rows, keys}});
    s.mode = r.below(2);
    if (r.below(2)) s.pre = s.next = 2147483647;
    s.mask_type = pick(r, {DType::boolean, DType::u8, DType::i8});
  }
  if (!folded && !full && r.below(4) == 0) s.pse = {pick<std::int64_t>(r, {1, s.b}), s.nq, rows + r.below(3), keys};
  if (s.kv != DType::other) {
    s.km = s.vm = r.below(s.rank ? 6 : 4);
    if (r.below(5) == 0) s.km = 0, s.vm = 1;
    const auto shape_of = [&](std::int64_t mode, std::int64_t width) -> Shape {
      switch (mode) {
        case 0:
          return pick<Shape>(r, {Shape{s.nk, width}, Shape{1, 1, s.nk, width}, Shape{s.nk * width}});
        case 1:
          return {s.b, keys};
        case 2:
          return {s.nk};
        case 3:
          return {s.b, s.nk, keys};
        default:
          break;
      }
      std::int64_t pages = 1;
      for (const std::int64_t n : s.kl) pages += (n + s.bs - 1) / s.bs;
      return mode == 4 ? Shape{pages, s.bs} : Shape{pages, s.nk, s.bs};
    };
    s.ks = shape_of(s.km, s.d), s.vs = s.ks;
    if (s.vm == 1) s.vs = {s.b, keys};
    if (s.vm == 0) s.vs.back() = s.ks.size() == 1 ? s.nk * s.dv : s.dv;
    s.scale_type = s.value_scale_type = pick(r, {DType::f32, DType::f16, DType::bf16});
    s.offsets = r.below(2);
  }
  const bool bsh = s.layout == "BSH";
  if (!full && r.below(5) == 0) {
    s.os = r.below(2) ? Shape{1} : bsh ? Shape{s.nq * s.dv} : Shape{s.nq, s.dv};
    s.os_type = pick(r, {DType::f32, DType::bf16});
  }
  s.lse = r.below(4) != 0;
  if (full) s.scale = 0.3;
  if (r.below(4) == 0) s.sinks = full ? DType::f32 : pick(r, {DType::f32, s.type});
  return s;
}

TEST(FusedInferRandom, CallsAreRight) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Spec s = drawn(seed);
    Case c(s);
    const Judged judged(c);
    reference::fused_infer_attention_score_v2(c.args(), c.outs());
    expect_right(c, judged, true);
    for (const Kernels* kernels : supported_kernels()) {
      SCOPED_TRACE(kernels->isa);
      run(c, *kernels, int(1 + seed % 3), seed % 5 == 0);
      expect_right(c, judged, false);
    }
    if (HasFatalFailure()) break;
  }
}

}  // namespace
}  // namespace dsakit
