// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "dsakit/packed_weight.hpp"
#include "ops/mla_prolog_v3/runs.hpp"

// What must not change a bit: threads, splits, weight formats, cache layouts, the form of the call.
namespace dsakit::prolog_v3 {
namespace {

/// Rows first .. first+count-1 of the first axis.
Tensor part(Tensor t, std::int64_t first, std::int64_t count) {
  if (t.elements() == 0) return t;
  t.data = static_cast<std::byte*>(t.data) + first * t.stride[0] * size_of(t.dtype);
  t.shape[0] = count;
  return t;
}

Case random_case(int row, std::int64_t tokens) {
  return {.row = row,
          .b = 1,
          .s = tokens,
          .hidden = 70,
          .rank = 52,
          .heads = 3,
          .nope = 10,
          .rope = 16,
          .latent = 64,
          .blocks = 40,
          .smooth = row >= 2,
          .seed = 11};
}

TEST(MlaPrologV3SameBits, ThreadsAndSplits) {
  for (int row = 1; row <= 7; ++row) {
    const Data data(random_case(row, 150));
    for (const Kernels* k : supported_kernels()) {
      SCOPED_TRACE("R" + std::to_string(row) + " " + k->isa);
      const Written wanted = run(data, {.threads = 1, .isa = k->isa});
      for (const int threads : {2, 3, 7, 16})
        EXPECT_EQ(run(data, {.threads = threads, .isa = k->isa}).first_difference(wanted), "") << threads << " threads";
      Random r(5);
      for (const bool one_by_one : {true, false}) {
        Context context({.threads = 2, .isa = k->isa});
        Written w = data.initial;
        for (std::int64_t first = 0, count; first < 150; first += count) {
          count = one_by_one ? 1 : std::min(150 - first, 1 + r.below(70));
          MlaPrologV3Args a = data.args(w);
          MlaPrologV3Outs o = w.outs();
          for (Tensor* t : {&a.token_x, &a.rope_sin, &a.rope_cos, &a.cache_index, &a.dequant_scale_x, &o.query,
                            &o.query_rope, &o.dequant_scale_q_nope, &o.query_norm, &o.dequant_scale_q_norm})
            *t = part(*t, first, count);
          mla_prolog_v3(a, o, context);
        }
        EXPECT_EQ(w.first_difference(wanted), "") << (one_by_one ? "one by one" : "random splits");
      }
    }
  }
}

TEST(MlaPrologV3SameBits, WeightFormats) {
  for (int row = 1; row <= 7; ++row) {
    const Data d(random_case(row, 20));
    const Array dq = fractal_nz(d.weight_dq), uq = fractal_nz(d.weight_uq_qr), dkv = fractal_nz(d.weight_dkv_kr);
    const PackedWeight p_dq{Tensor(d.weight_dq)}, p_uq{Tensor(d.weight_uq_qr)}, p_uk{Tensor(d.weight_uk)},
        p_dkv{Tensor(d.weight_dkv_kr)};
    const Change storage = [&](MlaPrologV3Args& a, MlaPrologV3Outs&) {
      a.weight_dq = dq, a.weight_uq_qr = uq, a.weight_dkv_kr = dkv;
    };
    const Change tagged = [&](MlaPrologV3Args& a, MlaPrologV3Outs&) {
      a.weight_dq = tagged_nz(dq, d.weight_dq), a.weight_uq_qr = tagged_nz(uq, d.weight_uq_qr);
      a.weight_dkv_kr = tagged_nz(dkv, d.weight_dkv_kr);
    };
    const Change packed = [&](MlaPrologV3Args& a, MlaPrologV3Outs&) {
      a.weight_dq = p_dq, a.weight_uq_qr = p_uq, a.weight_uk = p_uk, a.weight_dkv_kr = p_dkv;
    };
    const Written by_reference = reference_of(d);
    for (const Change& change : {storage, tagged, packed}) {
      EXPECT_EQ(reference_of(d, change).first_difference(by_reference), "") << row;
      for (const Kernels* k : supported_kernels()) {
        const Written wanted = run(d, {.isa = k->isa});
        EXPECT_EQ(run(d, {.isa = k->isa}, change).first_difference(wanted), "") << row << " " << k->isa;
      }
    }
  }
}

TEST(MlaPrologV3SameBits, FixedProductsOnEveryRung) {
  for (int row = 1; row <= 7; ++row) {
    const Data d({.row = row, .b = 2, .s = 9, .hidden = 600, .blocks = 9, .seed = 2});
    const Written wanted = run(d, {.isa = "generic", .same_products = true});
    for (const Kernels* k : supported_kernels())
      EXPECT_EQ(run(d, {.isa = k->isa, .same_products = true}).first_difference(wanted), "") << row << " " << k->isa;
  }
}

/// Every cache mode stores the rows that PA_BSND stores, elsewhere: token t in slot t (by blocks: its sequence's).
TEST(MlaPrologV3SameBits, CacheModes) {
  for (int row = 1; row <= 7; ++row)
    for (int m = 0; m < cache_modes_of(row); ++m)
      for (const bool batched : {false, true}) {
        Case c{.row = row,
               .b = 2,
               .s = 10,
               .hidden = 40,
               .rank = 20,
               .heads = 2,
               .nope = 8,
               .rope = 32,
               .latent = 64,
               .blocks = 4};
        c.batched = batched;
        Data lines(c);
        c.cache_mode = kCacheModes[m];
        if (c.cache_mode == (batched ? "TND" : "BSND")) continue;
        SCOPED_TRACE(c.name());
        Data other(c);
        std::iota(lines.cache_index.as<std::int64_t>(), lines.cache_index.as<std::int64_t>() + 20, 0);
        if (c.paged())
          std::iota(other.cache_index.as<std::int64_t>(),
                    other.cache_index.as<std::int64_t>() + other.cache_index.size(), 0);
        if (c.by_block() && !batched) other.actual_seq_len = Array(std::vector<std::int32_t>{10, 20}, {2});
        const Written a = run(lines), b = run(other);
        EXPECT_TRUE(a.query == b.query && a.query_rope == b.query_rope && a.query_norm == b.query_norm);
        for (const auto& [line, block] : {std::pair(&a.kv_cache, &b.kv_cache), std::pair(&a.kr_cache, &b.kr_cache)}) {
          const std::int64_t width = line->shape.shape[line->shape.rank - 1], e = size_of(line->shape.dtype),
                             c0 = 32 / e;
          if (line->size() == 0) continue;
          for (std::int64_t slot = 0; slot < 20; ++slot)
            for (std::int64_t h = 0; h < width; ++h) {
              const std::int64_t at = slot * width + h;
              const std::int64_t there =
                  !c.cache_mode.ends_with("NZ") ? at : slot / 5 * 5 * width + (h / c0 * 5 + slot % 5) * c0 + h % c0;
              ASSERT_EQ(std::memcmp(line->bytes.data() + at * e, block->bytes.data() + there * e, std::size_t(e)), 0);
            }
        }
      }
}

TEST(MlaPrologV3SameBits, FunctionalForm) {
  for (int row = 1; row <= 7; ++row)
    for (const bool by_reference : {false, true}) {
      const Data d({.row = row, .exact = true});
      const Written wanted = run(d);
      Written given = d.initial, got = d.initial;
      MlaPrologV3FunctionalArgs a{d.args(given)};
      MlaPrologV3FunctionalOuts o{};
      infer(a, o);
      EXPECT_EQ(o.kv_cache_out.elements(), d.initial.kv_cache.size());
      EXPECT_EQ(o.kr_cache_out.elements(), d.initial.kr_cache.size());
      EXPECT_EQ(o.kr_cache_out.dtype, d.initial.kr_cache.shape.dtype);
      got.kv_cache.fill(0x33), got.kr_cache.fill(0x33);
      o = {got.outs(), got.kv_cache, got.kr_cache};
      by_reference ? reference::mla_prolog_v3_functional(a, o) : mla_prolog_v3_functional(a, o);
      EXPECT_EQ(got.first_difference(wanted), "") << row;
      EXPECT_EQ(given.first_difference(d.initial), "") << row;
    }
}

}  // namespace
}  // namespace dsakit::prolog_v3
