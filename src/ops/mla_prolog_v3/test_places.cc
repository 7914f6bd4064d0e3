// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <memory>

#include "ops/indexer/cases.hpp"
#include "ops/mla_prolog_v3/runs.hpp"

// Where rows are stored: indices of every kind, strided and interleaved caches, far offsets, the edges of memory.
namespace dsakit::prolog_v3 {
namespace {

/// Over two tiles of tokens.
Case many_tokens(int row, std::string_view mode = "PA_BSND") {
  return {.row = row,
          .cache_mode = mode,
          .b = 1,
          .s = 300,
          .hidden = 12,
          .rank = 8,
          .heads = 1,
          .nope = 4,
          .rope = 32,
          .latent = 32,
          .blocks = 61,
          .exact = true};
}

TEST(MlaPrologV3Places, IndicesOfEveryKind) {
  for (const int row : {1, 3, 4, 6})
    for (const char* mode : {"PA_BSND", "PA_NZ"}) {
      if (row == 4 && std::string_view(mode) == "PA_NZ") continue;
      Data data(many_tokens(row, mode));
      auto* index = data.cache_index.as<std::int64_t>();
      Random r(9);
      auto expect = [&](const char* what, auto slot) {
        for (std::int64_t t = 0; t < 300; ++t) index[t] = slot(t);
        SCOPED_TRACE(data.c.name() + ": " + what);
        expect_everywhere(data, reference_of(data));
      };
      expect("identity", [](std::int64_t t) { return t; });
      expect("reversed", [](std::int64_t t) { return 304 - t; });
      expect("one slot for all", [](std::int64_t) { return 7; });
      expect("random with duplicates", [&](std::int64_t) { return r.below(100); });
      expect("duplicates far apart", [](std::int64_t t) { return t % 150; });
      expect("the last of a slot is skipped", [](std::int64_t t) { return t >= 290 ? -t : t % 10; });
      expect("negative here and there", [](std::int64_t t) { return t % 3 == 1 ? -1 : t; });
      expect("nothing stored", [](std::int64_t) { return INT64_MIN; });
    }
}

/// Two tokens of one slot: what is stored is the later one's row, alone.
TEST(MlaPrologV3Places, TheLastTokenOfASlotWins) {
  Data both(many_tokens(2)), last(many_tokens(2));
  for (Data* d : {&both, &last}) std::fill_n(d->cache_index.as<std::int64_t>(), 300, -1);
  both.cache_index.as<std::int64_t>()[3] = both.cache_index.as<std::int64_t>()[250] = 77;
  last.cache_index.as<std::int64_t>()[250] = 77;
  const Written wanted = run(last);
  EXPECT_NE(wanted.first_difference(last.initial), "");
  for (const int threads : {1, 2, 7}) EXPECT_EQ(run(both, {.threads = threads}).first_difference(wanted), "");
}

/// By blocks: a page listed twice, a page skipped, entries behind the needed ones.
TEST(MlaPrologV3Places, PagesOfEveryKind) {
  for (const int row : {1, 6})
    for (const char* mode : {"PA_BLK_BSND", "PA_BLK_NZ"}) {
      Data data(many_tokens(row, mode));
      const std::int64_t count = data.cache_index.size();
      ASSERT_EQ(count, 60);
      auto* page = data.cache_index.as<std::int64_t>();
      for (std::int64_t i = 0; i < count; ++i) page[i] = i % 17 == 3 ? -7 : i % 40;
      const Written wanted = reference_of(data);
      expect_everywhere(data, wanted);
      std::vector<std::int64_t> longer(page, page + count);
      longer.insert(longer.end(), {INT64_MAX, -1, 1000000});  // not read
      data.cache_index = Array(longer, {count + 3});
      expect_everywhere(data, wanted);
    }
}

/// kv_cache and kr_cache with gaps between rows and pages.
TEST(MlaPrologV3Places, StridedCaches) {
  for (int row = 1; row <= 7; ++row)
    for (int m = 0; m < cache_modes_of(row); ++m) {
      Case c{.row = row, .cache_mode = kCacheModes[m], .exact = true};
      c.batched = c.cache_mode == "BSND";
      const Data data(c);
      const Written wanted = reference_of(data);
      const bool nz = c.cache_mode.ends_with("NZ");
      for (const Kernels* k : supported_kernels())
        for (const bool by_reference : {false, true}) {
          SCOPED_TRACE(c.name() + " " + k->isa);
          std::vector<std::byte> memory[2];
          Tensor strided[2];
          auto spread = [&](const Array& from, int i) {
            Tensor t = from;
            if (t.elements() == 0) return t;
            const std::int64_t e = size_of(t.dtype), width = t.shape[t.rank - 1], row_gap = nz ? 0 : 3;
            if (t.rank == 3) t.stride[0] = width + row_gap;
            else t.stride[1] = t.stride[2] = width + row_gap, t.stride[0] = t.shape[1] * t.stride[1] + 13;
            memory[i].assign(std::size_t(t.shape[0] * t.stride[0] * e), std::byte{0x77});
            t.data = memory[i].data();
            for (std::int64_t j = 0; j < from.size(); ++j)
              std::memcpy(memory[i].data() + offset_of(t, j) * e, from.bytes.data() + j * e, std::size_t(e));
            return strided[i] = t;
          };
          const Change change = [&](MlaPrologV3Args& a, MlaPrologV3Outs&) {
            a.kv_cache = spread(data.initial.kv_cache, 0), a.kr_cache = spread(data.initial.kr_cache, 1);
          };
          Written got = by_reference ? reference_of(data, change) : run(data, {.threads = 2, .isa = k->isa}, change);
          for (int i = 0; i < 2; ++i) {
            Array& to = i == 0 ? got.kv_cache : got.kr_cache;
            const std::int64_t e = size_of(to.shape.dtype);
            std::vector<std::byte> gaps = memory[i];
            for (std::int64_t j = 0; j < to.size(); ++j) {
              std::memcpy(to.bytes.data() + j * e, memory[i].data() + offset_of(strided[i], j) * e, std::size_t(e));
              std::memset(gaps.data() + offset_of(strided[i], j) * e, 0x77, std::size_t(e));
            }
            EXPECT_EQ(gaps, std::vector<std::byte>(gaps.size(), std::byte{0x77})) << "wrote between rows";
          }
          EXPECT_EQ(got.first_difference(wanted), "");
        }
    }
}

/// Latent and rope columns of one buffer of rows.
TEST(MlaPrologV3Places, InterleavedViewsOfOneBuffer) {
  for (const int row : {1, 2, 3, 5}) {
    for (const char* mode : {"PA_BSND", "TND", "BSND", "PA_BLK_BSND"}) {
      Case c{.row = row, .cache_mode = mode, .exact = true};
      c.batched = c.cache_mode == "BSND";
      const Data data(c);
      const Written wanted = reference_of(data);
      const std::int64_t wide = c.latent + c.rope, e = size_of(data.initial.kv_cache.shape.dtype);
      for (const Kernels* k : supported_kernels()) {
        std::vector<std::byte> memory(std::size_t(data.initial.kv_cache.size() / c.latent * wide * e));
        auto columns = [&](const Array& from, std::int64_t first) {
          Tensor t = from;
          for (int axis = 0; axis < t.rank - 1; ++axis) t.stride[axis] = t.stride[axis] / t.shape[t.rank - 1] * wide;
          t.data = memory.data() + first * e;
          for (std::int64_t j = 0; j < from.size(); ++j)
            std::memcpy(static_cast<std::byte*>(t.data) + offset_of(t, j) * e, from.bytes.data() + j * e,
                        std::size_t(e));
          return t;
        };
        Tensor views[2];
        Written got = run(data, {.threads = 2, .isa = k->isa}, [&](MlaPrologV3Args& a, MlaPrologV3Outs&) {
          a.kv_cache = views[0] = columns(data.initial.kv_cache, 0);
          a.kr_cache = views[1] = columns(data.initial.kr_cache, c.latent);
        });
        for (int i = 0; i < 2; ++i) {
          Array& to = i == 0 ? got.kv_cache : got.kr_cache;
          for (std::int64_t j = 0; j < to.size(); ++j)
            std::memcpy(to.bytes.data() + j * e, static_cast<std::byte*>(views[i].data) + offset_of(views[i], j) * e,
                        std::size_t(e));
        }
        EXPECT_EQ(got.first_difference(wanted), "") << c.name() << " " << k->isa;
      }
    }
  }
}

/// Pages whose offsets exceed 2^31 elements, in memory that exists only where it is written.
TEST(MlaPrologV3Places, CachesBeyondTwoToThe31Elements) {
  for (const auto& [row, mode] :
       {std::pair{1, "PA_BSND"}, {4, "PA_BSND"}, {6, "PA_NZ"}, {2, "PA_BLK_NZ"}, {3, "PA_BLK_BSND"}}) {
    const Case c{.row = row, .cache_mode = mode, .hidden = 8, .rank = 8, .heads = 1, .nope = 4, .exact = true};
    Data data(c);
    for (Array* a : {&data.initial.kv_cache, &data.initial.kr_cache}) a->fill(0);
    const Written wanted = reference_of(data);
    const std::int64_t far_pages = (std::int64_t{1} << 32) / (c.block_size * c.rope) / (c.packed() ? 4 : 1);
    auto* index = data.cache_index.as<std::int64_t>();
    for (std::int64_t i = 0; i < data.cache_index.size(); ++i)
      if (index[i] >= 0) index[i] += far_pages * (c.by_block() ? 1 : c.block_size);
    for (const Kernels* k : supported_kernels()) {
      SCOPED_TRACE(c.name() + " " + k->isa);
      Tensor big[2];
      auto spread = [&](Tensor t, int i) {
        if (t.elements() == 0) return t;
        t.shape[0] += far_pages;
        EXPECT_GT(t.elements(), std::int64_t{1} << 31);
        t.data = mmap(nullptr, std::size_t(t.elements() * size_of(t.dtype)), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return big[i] = t;
      };
      Written got = run(data, {.threads = 2, .isa = k->isa}, [&](MlaPrologV3Args& a, MlaPrologV3Outs&) {
        a.kv_cache = spread(a.kv_cache, 0), a.kr_cache = spread(a.kr_cache, 1);
        ASSERT_NE(a.kv_cache.data, MAP_FAILED);
      });
      for (int i = 0; i < 2; ++i) {
        if (!big[i]) continue;
        Array& to = i == 0 ? got.kv_cache : got.kr_cache;
        std::memcpy(to.bytes.data(),
                    static_cast<std::byte*>(big[i].data) + far_pages * big[i].stride[0] * size_of(big[i].dtype),
                    to.bytes.size());
        munmap(big[i].data, std::size_t(big[i].elements() * size_of(big[i].dtype)));
      }
      EXPECT_EQ(got.first_difference(wanted), "");
    }
  }
}

/// Every tensor ends where memory ends.
TEST(MlaPrologV3Places, NothingBehindTheLastElement) {
  for (int row = 1; row <= 7; ++row)
    for (const std::int64_t odd : {1, 7, 33}) {
      const Case c{.row = row,
                   .b = 1,
                   .s = 3,
                   .hidden = odd,
                   .rank = odd + 1,
                   .heads = 1,
                   .nope = odd,
                   .rope = 2 * odd,
                   .latent = 3 * odd,
                   .tile = odd,
                   .exact = true};
      const Data data(c);
      const Written wanted = reference_of(data);
      for (const Kernels* k : supported_kernels()) {
        std::vector<std::unique_ptr<indexer::AtPageEnd>> kept;
        std::vector<std::pair<Tensor, std::string>> outs;
        Context context({.threads = 2, .isa = k->isa});
        Written w = data.initial;
        MlaPrologV3Args a = data.args(w);
        MlaPrologV3Outs o = w.outs();
        auto move = [&]<class T>(const Field&, T& t) {
          if constexpr (std::is_same_v<T, Tensor>) {
            if (t.elements() == 0) return;
            kept.push_back(std::make_unique<indexer::AtPageEnd>(t.data, std::size_t(t.elements() * size_of(t.dtype))));
            t = kept.back()->moved(t);
          }
        };
        for_each_field(a, o, move);
        mla_prolog_v3(a, o, context);
        for (const auto& [to, from] : {std::pair<Array*, Tensor*>{&w.query, &o.query},
                                       {&w.query_rope, &o.query_rope},
                                       {&w.dequant_scale_q_nope, &o.dequant_scale_q_nope},
                                       {&w.query_norm, &o.query_norm},
                                       {&w.dequant_scale_q_norm, &o.dequant_scale_q_norm},
                                       {&w.kv_cache, &a.kv_cache},
                                       {&w.kr_cache, &a.kr_cache}})
          if (to->size() > 0) std::memcpy(to->bytes.data(), from->data, to->bytes.size());
        EXPECT_EQ(w.first_difference(wanted), "") << row << " " << odd << " " << k->isa;
      }
    }
}

}  // namespace
}  // namespace dsakit::prolog_v3
