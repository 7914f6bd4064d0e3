// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"
#include "ops/sparse_attention/cases.hpp"

namespace dsakit {
namespace {

using namespace sparse_attention;
using indexer::AtPageEnd;
using indexer::Batch;

std::string isa_of(const ::testing::TestParamInfo<const Kernels*>& info) { return info.param->isa; }

/// Every test of this suite runs on every instruction set of this machine.
class SparseAttention : public ::testing::TestWithParam<const Kernels*> {
 protected:
  Result run(Case& c, int threads = 1, bool same_products = false) {
    Context context({.threads = threads, .isa = GetParam()->isa, .same_products = same_products});
    return c.run(context);
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, SparseAttention,
                         ::testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()), isa_of);

Batch batch_of(std::vector<std::int32_t> queries, std::vector<std::int32_t> keys, const char* layout_query = "BSND",
               const char* layout_key = "BSND", std::int64_t block_size = 16, std::uint64_t page_seed = 0) {
  Batch b;
  b.layout_query = layout_query, b.layout_key = layout_key;
  b.queries = std::move(queries), b.keys = std::move(keys);
  b.block_size = block_size, b.page_seed = page_seed;
  b.place();
  return b;
}

/// The limits of the accuracy rules; `plain` has the documented roundings.
void expect_accurate(const Case& c, const Result& ours, const Exact& wanted, const Result& plain) {
  const double absolute = c.type == DType::f16 ? 2.5e-4 : 1e-3, relative = c.type == DType::f16 ? 0x1p-10 : 0x1p-7;
  double our_squares = 0, plain_squares = 0, plain_worst = 0;
  for (std::size_t i = 0; i < wanted.out.size(); ++i) {
    const double error = std::fabs(plain.out[i] - wanted.out[i]);
    plain_squares += error * error, plain_worst = std::fmax(plain_worst, error);
  }
  ASSERT_EQ(ours.out.size(), wanted.out.size());
  for (std::size_t i = 0; i < wanted.out.size(); ++i) {
    const double error = std::fabs(ours.out[i] - wanted.out[i]);
    ASSERT_LE(error, std::fmax(absolute + relative * std::fabs(wanted.out[i]), 1.1 * plain_worst)) << "element " << i;
    our_squares += error * error;
  }
  if (ours.out.size() >= 4096) {
    EXPECT_LE(std::sqrt(our_squares), 1.1 * std::sqrt(plain_squares));
  }
  for (std::size_t i = 0; i < ours.most.size(); ++i) {
    ASSERT_NEAR(ours.most[i], wanted.most[i], 1e-6 + 0x1p-20 * wanted.largest[i]) << "row " << i;
    // Scores of hundreds have steps of more than 1e-5 in fp32, and a sum of exponentials has their error.
    ASSERT_NEAR(ours.sum[i], wanted.sum[i], (1e-5 + 0x1p-20 * wanted.largest[i]) * wanted.sum[i]) << "row " << i;
  }
}

/// Accuracy in fast and in fixed products, and the same bits for every number of threads.
void judge(Case& c, const Kernels& kernels) {
  const auto run = [&](int threads, bool same_products) {
    Context context({.threads = threads, .isa = kernels.isa, .same_products = same_products});
    return c.run(context);
  };
  const Exact wanted(c);
  const Result plain = c.run(ProbabilityRounding::normalised), one = run(1, false);
  expect_accurate(c, one, wanted, plain);
  expect_accurate(c, run(2, true), wanted, plain);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(one, run(threads, false)) << threads << " threads";
}

struct Form {
  DType type;
  bool packed;
};
const Form kForms[] = {{DType::bf16, false}, {DType::f16, false}, {DType::bf16, true}, {DType::f16, true}};

/// Each test below draws its case from a shape, in all four forms of query and key.
template <class Change>
void each_form(Change change, const std::function<void(Case&)>& f) {
  for (const Form form : kForms) {
    Case c;
    c.type = form.type;
    change(c);
    if (form.packed) c.tile = c.tile > 0 ? c.tile : c.dv;
    else c.tile = 0;
    c.fill();
    SCOPED_TRACE(std::string(name_of(c.type)) + (c.packed() ? " packed" : ""));
    f(c);
  }
}

// ---- acceptance ---------------------------------------------------------------------------------------------------

TEST_P(SparseAttention, A1_OneQueryOverManyKeys) {
  each_form(
      [](Case& c) {
        c.batch = batch_of({1}, {600}), c.heads = 64, c.dv = 512, c.dr = 64, c.tile = 128, c.entries = 520;
        c.scale = 0.06f;
      },
      [&](Case& c) { judge(c, *GetParam()); });
}

TEST_P(SparseAttention, A2_RaggedBatchInEveryLayoutAndMode) {
  for (const std::int64_t mode : {0, 3})
    each_form(
        [&](Case& c) {
          c.batch = batch_of({3, 3, 0, 2, 3, 1}, {0, 1, 40, 300, 2, 700}, "TND", "PA_BSND", 128);
          c.mode = mode, c.entries = 300, c.dv = 64, c.tile = 16;
        },
        [&](Case& c) {
          judge(c, *GetParam());
          const Result paged = run(c);
          for (const char* layout : {"TND", "BSND"}) {
            c.batch = batch_of(c.batch.queries, c.batch.keys, layout, layout);
            EXPECT_EQ(run(c), paged) << layout;
            c.batch = batch_of(c.batch.queries, c.batch.keys, layout, "PA_BSND", 16, 5);
            EXPECT_EQ(run(c), paged) << layout << " paged";
          }
        });
}

TEST_P(SparseAttention, A3_BlocksOfTokens) {
  for (const std::int64_t block : {1, 2, 7, 16, 128, 300})
    each_form(
        [&](Case& c) {
          c.batch = batch_of({3, 4}, {300, 50}), c.block = block, c.dv = 32, c.tile = 16;
          c.entries = 400 / block + 2;
        },
        [&](Case& c) {
          // The last block is in every list: it is partial, and cut where the row stops seeing.
          c.each_query([&](std::size_t b, std::int64_t, std::int64_t token, std::int64_t) {
            c.lists[std::size_t(token)][0] = std::int32_t((c.batch.keys[b] - 1) / block);
          });
          judge(c, *GetParam());
          const Result wanted = run(c);
          // The same tokens one by one are the same list: the same bits, unless a block reaches past what is visible.
          if (block > 16) return;
          Case one = c;
          one.block = 1, one.entries = c.entries * block, one.mode = c.mode;
          for (auto& list : one.lists) {
            std::vector<std::int32_t> tokens;
            for (const std::int32_t e : list) {
              if (e == -1) break;
              for (std::int64_t t = 0; t < block; ++t) tokens.push_back(std::int32_t(e * block + t));
            }
            tokens.resize(std::size_t(one.entries), -1);
            list = tokens;
          }
          one.index_check = "mask";
          EXPECT_EQ(run(one), wanted);
        });
}

TEST_P(SparseAttention, A4_HeadsAndShapesOfSoftmax) {
  for (const std::int64_t heads : {1, 3, 8, 48, 64, 128, 131})
    for (const Data data : {Data::peaked, Data::flat, Data::large})
      each_form(
          [&](Case& c) {
            c.batch = batch_of({2}, {280}), c.heads = heads, c.entries = 270, c.dv = 48, c.tile = 16, c.data = data;
            c.seed = std::uint64_t(heads);
          },
          [&](Case& c) { judge(c, *GetParam()); });
}

/// m, l and unnormalised values of two halves give those of the whole.
TEST_P(SparseAttention, A5_MergeOfTwoHalfLists) {
  for (const bool sinks : {false, true})
    each_form(
        [&](Case& c) {
          c.batch = batch_of({2, 2}, {500, 9}), c.entries = 400, c.with_sinks = sinks;
        },
        [&](Case& c) {
          const Result whole = run(c);
          expect_accurate(c, whole, Exact(c), c.run(ProbabilityRounding::normalised));
          Case head = c, tail = c;
          head.with_sinks = tail.with_sinks = false;
          for (std::size_t t = 0; t < c.lists.size(); ++t) {
            const auto end = std::find(c.lists[t].begin(), c.lists[t].end(), -1);
            const auto half = c.lists[t].begin() + (end - c.lists[t].begin()) / 2;
            std::vector<std::int32_t> first(c.lists[t].begin(), half), second(half, end);
            first.resize(std::size_t(c.entries), -1), second.resize(std::size_t(c.entries), -1);
            head.lists[t] = first, tail.lists[t] = second;
          }
          const Result a = run(head), b = run(tail);
          for (std::size_t row = 0; row < whole.most.size(); ++row) {
            const bool none = a.sum[row] == 0 && b.sum[row] == 0;
            const float sink = sinks ? c.sinks[row % std::size_t(c.heads)] : -INFINITY;
            float m = sink;
            for (const Result* part : {&a, &b})
              if (part->sum[row] > 0) m = std::fmax(m, part->most[row]);
            if (none && m == -INFINITY) m = 0;
            const float wa = a.sum[row] > 0 ? a.sum[row] * std::exp(a.most[row] - m) : 0,
                        wb = b.sum[row] > 0 ? b.sum[row] * std::exp(b.most[row] - m) : 0,
                        l = wa + wb + (sink > -INFINITY ? std::exp(sink - m) : 0);
            EXPECT_EQ(whole.most[row], m);
            EXPECT_NEAR(whole.sum[row], l, 2e-6 * l);
            for (int d = 0; d < c.dv && l > 0; ++d) {
              const std::size_t i = row * std::size_t(c.dv) + std::size_t(d);
              ASSERT_NEAR(whole.out[i], (wa * a.out[i] + wb * b.out[i]) / l, 0x1p-7);
            }
          }
        });
}

TEST_P(SparseAttention, A6_ScalesOverTwoToThe20AndZeroTiles) {
  for (const DType type : {DType::bf16, DType::f16}) {
    Case c;
    c.batch = batch_of({2, 2, 2, 2}, {1300, 600, 66, 15}, "TND", "PA_BSND", 128);
    c.type = type, c.heads = 16, c.dv = 128, c.dr = 64, c.tile = 32, c.entries = 512, c.data = Data::wide_scales;
    c.fill();
    judge(c, *GetParam());
  }
}

TEST_P(SparseAttention, A7_PackedRowsAreTheirDequantisedLatents) {
  // Powers of two as scales make every key exact in bf16, so both operators have the same problem.
  Case c;
  c.batch = batch_of({2, 3}, {280, 40}), c.dv = 32, c.tile = 8, c.heads = 5, c.entries = 270;
  c.fill();
  for (float& x : c.scales) x = std::exp2(std::rint(std::log2(x + 0x1p-9f)));
  Case plain = c;
  plain.tile = 0, plain.latent.clear();
  for (std::int64_t key = 0; key < c.key_tokens(); ++key)
    for (int d = 0; d < c.dv; ++d) plain.latent.push_back(bits_of(c.type, float(c.latent_at(key, d))));
  EXPECT_EQ(c.run(ProbabilityRounding::none), plain.run(ProbabilityRounding::none));
  expect_accurate(c, run(c), Exact(plain), plain.run(ProbabilityRounding::normalised));
}

/// Pages whose offsets exceed 2^31 elements, in memory that exists only where it is written.
TEST_P(SparseAttention, A10_CachesBeyondTwoToThe31Elements) {
  each_form(
      [](Case& c) {
        c.batch = batch_of({1}, {300}, "BSND", "PA_BSND", 16), c.dv = 512, c.dr = 64, c.tile = 128, c.entries = 280;
      },
      [&](Case& c) {
        const Result wanted = run(c);
        c.place();
        const std::int64_t far = 300000, pages = far + c.batch.pages;
        std::vector<Tensor> mapped;
        const auto spread = [&](Tensor t) {
          const std::size_t page = std::size_t(t.stride[0]) * std::size_t(size_of(t.dtype));
          void* big = mmap(nullptr, page * std::size_t(pages), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
          EXPECT_NE(big, MAP_FAILED);
          std::memcpy(static_cast<char*>(big) + std::size_t(far) * page, t.data, std::size_t(t.shape[0]) * page);
          t.data = big, t.shape[0] = pages;
          mapped.push_back(t);
          return t;
        };
        for (auto& entry : c.table_memory)
          if (entry >= 0 && entry != INT32_MAX) entry += std::int32_t(far);
        Context context({.threads = 2, .isa = GetParam()->isa});
        if (c.packed()) {
          auto a = c.kv_args();
          a.key = a.value = spread(a.key);
          attend(a, c.outs<KvQuantSparseFlashAttentionOuts>(), context);
        } else {
          auto a = c.args();
          a.key = a.value = spread(a.key), a.key_rope = spread(a.key_rope);
          attend(a, c.outs<SparseFlashAttentionOuts>(), context);
        }
        EXPECT_GT(mapped[0].elements(), std::int64_t{1} << 31);
        EXPECT_EQ(c.result(), wanted);
        for (const Tensor& t : mapped) munmap(t.data, std::size_t(t.elements()) * std::size_t(size_of(t.dtype)));
      });
}

/// A list of everything is dense attention, in any order of the list.
TEST_P(SparseAttention, A11_EveryKeyListedIsDenseAttention) {
  each_form([](Case& c) { c.batch = batch_of({4}, {300}), c.entries = 310, c.heads = 4; },
            [&](Case& c) {
              for (auto& list : c.lists)
                for (std::int64_t e = 0; e < c.entries; ++e)
                  list[std::size_t(e)] = e < 300 ? std::int32_t(299 - e) : -1;
              judge(c, *GetParam());
            });
}

TEST_P(SparseAttention, A12_WhatNoListNamesHasNoInfluence) {
  each_form(
      [](Case& c) {
        c.batch = batch_of({3, 2}, {200, 40}, "TND", "PA_BSND"), c.entries = 30, c.mode = 3;
      },
      [&](Case& c) {
        const Result poisoned = run(c);
        c.poison = false;
        EXPECT_EQ(run(c), poisoned);
        for (auto& list : c.lists) {  // garbage behind the end
          const auto end = std::find(list.begin(), list.end(), -1);
          if (end != list.end()) std::fill(end + 1, list.end(), -5);
        }
        EXPECT_EQ(run(c), poisoned);
      });
}

// ---- properties ---------------------------------------------------------------------------------------------------

TEST_P(SparseAttention, RandomCasesKeepTheDocumentedAccuracy) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c = random_case(seed);
    const Exact wanted(c);
    const Result one = run(c);
    expect_accurate(c, one, wanted, c.run(ProbabilityRounding::normalised));
    EXPECT_EQ(run(c, 3), one);
  }
}

/// Where there are no dots of bf16 nothing is rounded for them: the bits of `same_products`; so it is for fp16 everywhere.
TEST_P(SparseAttention, ProbabilitiesAreRoundedForDotsAlone) {
  each_form(
      [](Case& c) {
        c.batch = batch_of({3}, {400}, "BSND", "PA_BSND", 128), c.heads = 16, c.dv = 64, c.dr = 16, c.tile = 16,
        c.entries = 300, c.block = 1;
      },
      [&](Case& c) {
        const bool alike = run(c) == run(c, 1, true);
        EXPECT_EQ(alike, c.type == DType::f16 || GetParam()->widens_rows);
      });
}

TEST_P(SparseAttention, BitsDoNotDependOnPagesOrBatch) {
  each_form(
      [](Case& c) {
        c.batch = batch_of({2, 3}, {400, 290}, "BSND", "PA_BSND", 128), c.heads = 8, c.dv = 64, c.dr = 16, c.tile = 16,
        c.entries = 300, c.block = 1;
      },
      [&](Case& c) {
        const Result wanted = run(c, 2);
        for (const std::int64_t block_size : {1, 16, 128, 1024})
          for (const std::uint64_t page_seed : {2, 3}) {
            c.batch = batch_of(c.batch.queries, c.batch.keys, "BSND", "PA_BSND", block_size, page_seed);
            EXPECT_EQ(run(c), wanted) << block_size << " " << page_seed;
          }
        // One sequence at a time, as views of the whole batch.
        c.batch = batch_of(c.batch.queries, c.batch.keys, "BSND", "BSND");
        c.place();
        Context context({.threads = 3, .isa = GetParam()->isa});
        const auto part = [&](Tensor t, std::int64_t b) {
          if (!t || t.elements() == 0) return t;
          t.data = static_cast<char*>(t.data) + b * t.stride[0] * size_of(t.dtype);
          return t.shape[0] = 1, t;
        };
        const auto parts = [&](auto a, const auto& o, std::int64_t b) {
          for (Tensor* t :
               {&a.query, &a.key, &a.value, &a.sparse_indices, &a.actual_seq_lengths_query, &a.actual_seq_lengths_kv})
            *t = part(*t, b);
          if constexpr (requires { a.query_rope; })
            a.query_rope = part(a.query_rope, b), a.key_rope = part(a.key_rope, b);
          attend(a, {part(o.attention_out, b), part(o.softmax_max, b), part(o.softmax_sum, b)}, context);
        };
        for (std::int64_t b = 0; b < 2; ++b) {
          if (c.packed()) parts(c.kv_args(), c.outs<KvQuantSparseFlashAttentionOuts>(), b);
          else parts(c.args(), c.outs<SparseFlashAttentionOuts>(), b);
        }
        EXPECT_EQ(c.result(), wanted);
      });
}

/// A masked position counts for where chunks begin, a chunk of masked ones counts for nothing.
TEST_P(SparseAttention, ChunksCountMaskedPositions) {
  each_form([](Case& c) { c.batch = batch_of({1}, {2000}), c.mode = 3, c.entries = 1100, c.heads = 2; },
            [&](Case& c) {
              c.batch = batch_of({400}, {2000}), c.fill();  // row 0 sees 1601
              auto& list = c.lists[0];
              for (std::int64_t e = 0; e < c.entries; ++e)  // chunk 0 and 3 hidden, some of 1 and 4
                list[std::size_t(e)] = std::int32_t(e / 256 % 3 == 0 || e % 5 == 0 ? 1700 + e % 200 : e);
              Case first = c;
              first.lists.resize(1);
              const Result ours = run(c, 2);
              const Exact wanted(c);
              for (int i = 0; i < 2 * c.dv; ++i)
                ASSERT_NEAR(ours.out[std::size_t(i)], wanted.out[std::size_t(i)], 4e-3);
              // Hidden entries in front of a list of whole chunks change no bit.
              auto shifted = c;
              std::fill(list.begin() + 600, list.end(), -1);
              auto& longer = shifted.lists[0];
              longer.assign(512, 1900), longer.insert(longer.end(), list.begin(), list.begin() + 588);
              list.assign(list.begin(), list.begin() + 588), list.resize(1100, -1);
              const Result a = run(c), b = run(shifted, 3);
              EXPECT_TRUE(std::equal(a.bits.begin(), a.bits.begin() + 2 * c.dv, b.bits.begin()));
              EXPECT_EQ(a.sum[0], b.sum[0]);
            });
}

TEST_P(SparseAttention, OneTokenIsItsLatent) {
  each_form(
      [](Case& c) {
        c.batch = batch_of({1, 2}, {1, 5}), c.data = Data::large, c.dv = 96, c.tile = 32, c.entries = 1, c.heads = 5;
      },
      [&](Case& c) {
        for (auto& list : c.lists) list[0] = 0;
        for (const bool same_products : {false, true}) {
          const Result r = run(c, 1, same_products);
          c.each_query([&](std::size_t, std::int64_t, std::int64_t token, std::int64_t first_key) {
            for (std::int64_t h = 0; h < c.heads; ++h) {
              const std::int64_t row = token * c.heads + h;
              for (int d = 0; d < c.dv; ++d)
                ASSERT_EQ(r.out[std::size_t(row * c.dv + d)],
                          number(c.type, bits_of(c.type, float(c.latent_at(first_key, d)))));
              ASSERT_EQ(r.sum[std::size_t(row)], 1);
            }
          });
        }
      });
}

/// Odd row widths and strides put scales and rope at any address; buffers end where memory ends.
TEST_P(SparseAttention, PackedRowsAtAnyAddress) {
  for (const DType type : {DType::bf16, DType::f16})
    for (const int dv : {1, 7, 33, 512}) {
      Case c;
      c.type = type, c.batch = batch_of({2}, {70}, "BSND", "PA_BSND", 8), c.dv = c.tile = dv, c.dr = 3;
      c.entries = 70;
      c.fill();
      const Result wanted = run(c);
      c.place();
      const std::int64_t row = c.row_bytes() + 5, page = 8 * row + 3;  // rows and pages apart
      std::vector<std::int8_t> apart(std::size_t((c.batch.pages - 1) * page + 7 * row + c.row_bytes()), -1);
      for (std::int64_t r = 0; r < c.batch.key_rows; ++r)
        std::copy_n(c.row_memory.begin() + r * c.row_bytes(), c.row_bytes(),
                    apart.begin() + r / 8 * page + r % 8 * row);
      const AtPageEnd guarded(apart.data(), apart.size());
      auto a = c.kv_args();
      a.key.stride = {page, row, row, 1};
      a.key = a.value = guarded.moved(a.key);
      const AtPageEnd lists(c.list_memory.data(), c.list_memory.size() * 4);
      const AtPageEnd query(c.query_memory.data(), c.query_memory.size() * 2);
      a.sparse_indices = lists.moved(a.sparse_indices), a.query = query.moved(a.query);
      Context context({.isa = GetParam()->isa});
      attend(a, c.outs<KvQuantSparseFlashAttentionOuts>(), context);
      EXPECT_EQ(c.result(), wanted);
    }
}

TEST_P(SparseAttention, BuffersThatEndWhereMemoryEnds) {
  for (const DType type : {DType::bf16, DType::f16})
    for (int dv = 1; dv <= 257; dv += dv < 40 ? 1 : 31) {
      Case c;
      c.type = type, c.batch = batch_of({1}, {5}), c.dv = dv, c.dr = dv % 9, c.entries = 5, c.heads = 2;
      c.poison = false;
      c.fill();
      const Result wanted = run(c);
      c.place();
      auto a = c.args();
      const AtPageEnd q(c.query_memory.data(), 2 * c.query_memory.size()),
          qr(c.query_rope_memory.data(), 2 * c.query_rope_memory.size()),
          k(c.key_memory.data(), 2 * c.key_memory.size()), kr(c.key_rope_memory.data(), 2 * c.key_rope_memory.size()),
          out(c.out_memory.data(), 2 * c.out_memory.size());
      a.query = q.moved(a.query), a.query_rope = qr.moved(a.query_rope);
      a.key = a.value = k.moved(a.key), a.key_rope = kr.moved(a.key_rope);
      auto o = c.outs<SparseFlashAttentionOuts>();
      o.attention_out = out.moved(o.attention_out);
      Context context({.isa = GetParam()->isa});
      attend(a, o, context);
      std::memcpy(c.out_memory.data(), o.attention_out.data, 2 * c.out_memory.size());
      ASSERT_EQ(c.result(), wanted) << dv;
    }
}

TEST_P(SparseAttention, AClonedValueAndStridedOperands) {
  each_form(
      [](Case& c) {
        c.batch = batch_of({2, 3}, {60, 40}, "TND", "PA_BSND"), c.dv = 32, c.tile = 8, c.heads = 4;
      },
      [&](Case& c) {
        const Result wanted = run(c);
        c.place();
        Context context({.isa = GetParam()->isa});
        const std::vector<std::uint16_t> clone = c.key_memory;
        const std::vector<std::int8_t> rows = c.row_memory;
        // Heads of the output apart from each other, and their order in memory the other way round.
        const std::int64_t tokens = c.batch.query_rows;
        std::vector<std::uint16_t> apart(std::size_t(tokens * 4 * 40), 7);
        Tensor out = c.as_type(tensor(reinterpret_cast<bf16*>(apart.data()), {tokens, 4, c.dv}));
        out.stride = {40, tokens * 40, 1};
        const auto call = [&](auto a, auto o) {
          a.value.data = const_cast<void*>(c.packed() ? static_cast<const void*>(rows.data()) : clone.data());
          o.attention_out = out;
          attend(a, o, context);
        };
        if (c.packed()) call(c.kv_args(), c.outs<KvQuantSparseFlashAttentionOuts>());
        else call(c.args(), c.outs<SparseFlashAttentionOuts>());
        for (std::int64_t row = 0; row < tokens * 4; ++row)
          std::copy_n(apart.begin() + (row / 4 + row % 4 * tokens) * 40, c.dv, c.out_memory.begin() + row * c.dv);
        EXPECT_EQ(c.result(), wanted);
      });
}

/// Folded and unfolded shapes of the same rows.
TEST_P(SparseAttention, ShapesFitTogether) {
  Case c;
  c.batch = batch_of({2, 2}, {20, 9}), c.fill();
  const Result wanted = run(c);
  const std::int64_t rows = c.batch.query_rows;
  auto a = c.args();
  auto o = c.outs<SparseFlashAttentionOuts>();
  a.sparse_indices = tensor(c.list_memory.data(), {rows, c.entries});
  a.query_rope.rank = 3, a.query_rope.shape = {rows, c.heads, c.dr}, make_contiguous(a.query_rope);
  o.attention_out.rank = 3, o.attention_out.shape = {rows, c.heads, c.dv}, make_contiguous(o.attention_out);
  o.softmax_max = tensor(c.most_memory.data(), {rows, c.heads});
  o.softmax_sum = tensor(c.sum_memory.data(), {rows * c.heads});
  Context context({.isa = GetParam()->isa});
  attend(a, o, context);
  EXPECT_EQ(c.result(), wanted);
}

TEST_P(SparseAttention, PaddingRowsAndUnwantedResults) {
  for (const char* layout : {"TND", "BSND"}) {
    Case c;
    c.batch = batch_of({2, 1}, {20, 9}, layout, layout), c.with_sinks = true;
    c.fill();
    run(c);
    std::vector<bool> real(std::size_t(c.batch.query_rows));
    for (const std::int64_t row : c.batch.query_place) real[std::size_t(row)] = true;
    for (std::size_t row = 0; row < real.size(); ++row)
      for (std::int64_t h = 0; h < c.heads && !real[row]; ++h) {
        const std::size_t at = row * std::size_t(c.heads) + std::size_t(h);
        EXPECT_EQ(c.most_memory[at], 0);
        EXPECT_EQ(c.sum_memory[at], 0);
        for (int d = 0; d < c.dv; ++d) EXPECT_EQ(c.out_memory[at * std::size_t(c.dv) + std::size_t(d)], 0);
      }
    auto a = c.args();
    auto o = c.outs<SparseFlashAttentionOuts>();
    const auto out = c.out_memory;
    a.return_softmax_lse = false, o.softmax_max = {}, o.softmax_sum = tensor(c.sum_memory.data(), {0});
    Context context({.isa = GetParam()->isa});
    attend(a, o, context);
    EXPECT_EQ(c.out_memory, out);
  }
}

TEST(SparseAttentionReference, RoundsTheFormulaOnce) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Case c = random_case(seed);
    const Exact wanted(c);
    const Result r = c.run(ProbabilityRounding::none);
    for (std::size_t i = 0; i < r.out.size(); ++i) {
      const double x = wanted.out[i], slack = x == 0 ? 0 : 1e-12;
      const auto once = [&](double y) {
        return c.type == DType::f16 ? to_float(to_f16_once(y)) : to_float(to_bf16_once(y));
      };
      ASSERT_GE(r.out[i], once(x - slack)) << seed;
      ASSERT_LE(r.out[i], once(x + slack)) << seed;
    }
    for (std::size_t i = 0; i < r.most.size(); ++i) {
      ASSERT_FLOAT_EQ(r.most[i], float(wanted.most[i]));
      ASSERT_FLOAT_EQ(r.sum[i], float(wanted.sum[i]));
    }
  }
}

}  // namespace
}  // namespace dsakit
