// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/dist.hpp"

// Operators whose caches lie on several ranks, beside one call over the whole caches.
namespace dsakit {
namespace {

constexpr std::int64_t kPage = 8;

/// Bytes behind a tensor.
struct Stored {
  std::vector<std::byte> memory;
  Tensor tensor;

  Stored(DType dtype, std::initializer_list<std::int64_t> shape) : tensor(shaped(dtype, shape)) {
    memory.resize(std::size_t(tensor.elements() * size_of(dtype)) + 1);
    tensor.data = memory.data();
  }
  Stored(const Stored&) = delete;
  Stored(Stored&& other) noexcept : memory(std::move(other.memory)), tensor(other.tensor) { tensor.data = memory.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory.data());
  }
};

/// Random numbers of a kind; ties: a few different ones, nans: some are none.
enum class Data { uniform, ties, nans };
void fill(Stored& s, Random& r, Data data, float low = -1) {
  for (std::int64_t i = 0; i < s.tensor.elements(); ++i) {
    if (s.tensor.dtype == DType::i8) {
      s.as<std::int8_t>()[i] = std::int8_t(data == Data::ties ? r.below(2) : r.below(256) - 128);
      continue;
    }
    float x = data == Data::ties ? float(r.below(2)) : r.uniform(low, 1);
    if (data == Data::nans && r.below(200) == 0) x = NAN;
    store(s.tensor, i, x);
  }
}
Stored random(DType dtype, std::initializer_list<std::int64_t> shape, Random& r, Data data = Data::uniform, float low = -1) {
  Stored s(dtype, shape);
  fill(s, r, data, low);
  return s;
}

/// Where the tokens of a rank lie: pages in no order, or each sequence in a row.
struct Places {
  std::vector<std::int32_t> table;  // [sequences, columns]
  std::int64_t columns = 1, pages = 1, longest = 1;
  bool paged;

  Places(const std::vector<std::int32_t>& lengths, const Ownership& owner, bool paged, Random& r) : paged(paged) {
    for (const std::int32_t n : lengths) longest = std::max(longest, owner.below(n));
    columns = (longest + kPage - 1) / kPage, pages = columns * std::int64_t(lengths.size());
    table.resize(std::size_t(pages));
    std::iota(table.begin(), table.end(), 0);
    for (std::size_t i = table.size() - 1; i > 0; --i) std::swap(table[i], table[std::size_t(r.below(std::int64_t(i) + 1))]);
  }
  std::int64_t row(std::int64_t sequence, std::int64_t number) const {
    if (!paged) return sequence * longest + number;
    return table[std::size_t(sequence * columns + number / kPage)] * kPage + number % kPage;
  }
  std::int64_t rows() const { return paged ? pages * kPage : pages / columns * longest; }
};

struct Batch {
  std::vector<std::int32_t> queries, lengths;  // of each sequence

  std::int64_t size() const { return std::int64_t(lengths.size()); }
  std::int64_t rows() const { return std::accumulate(queries.begin(), queries.end(), std::int64_t{0}); }
  std::vector<std::int32_t> totals() const {
    std::vector<std::int32_t> all(queries.size());
    std::partial_sum(queries.begin(), queries.end(), all.begin());
    return all;
  }
  std::int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
};

/// Rows [sequence * longest + position] of a whole cache as a rank keeps its part: pages or [B, S2], one head.
Stored kept(const Stored& whole, const Batch& b, const Ownership& owner, const Places& places) {
  const std::int64_t width = whole.tensor.shape[1], bytes = width * size_of(whole.tensor.dtype);
  Stored s(whole.tensor.dtype, {places.paged ? places.pages : b.size(), places.paged ? kPage : places.longest, 1, width});
  EXPECT_EQ(s.tensor.elements(), places.rows() * width);
  std::memset(s.memory.data(), 0x7f, s.memory.size());  // what nobody may use
  for (std::int64_t i = 0; i < b.size(); ++i)
    for (std::int64_t x = 0; x < b.lengths[std::size_t(i)]; ++x)
      if (owner.owns(x))
        std::memcpy(s.memory.data() + places.row(i, owner.local(x)) * bytes,
                    whole.memory.data() + (i * b.longest() + x) * bytes, std::size_t(bytes));
  return s;
}

template <class T>
std::vector<T> values_of(Stored& s) {
  return {s.as<T>(), s.as<T>() + s.tensor.elements()};
}

const Batch kBatch{{1, 1, 2, 3, 5, 4}, {0, 1, 5, 40, 131, 300}};

// ---- selection

struct Selecting {
  Batch batch = kBatch;
  bool quantised = true;
  Data data = Data::uniform;
  std::int64_t k = 16, mode = 3;
  bool paged = true;

  template <class F>
  void with_arguments(const Ownership& owner, F f) const {
    Random r(7);
    const std::int64_t heads = 3, dims = 32, rows = batch.rows(), all = batch.size() * batch.longest();
    const DType type = quantised ? DType::i8 : DType::bf16, scale = quantised ? DType::f32 : DType::bf16;
    Stored query = random(type, {rows, heads, dims}, r, data == Data::ties ? data : Data::uniform),
           weights = random(scale, {rows, heads}, r, data == Data::ties ? data : Data::uniform),
           query_scale = random(DType::f32, {rows, heads}, r, Data::uniform, 0.1f),
           whole = random(type, {all, dims}, r, data), whole_scale = random(DType::f32, {all, 1}, r, data, 0.1f);
    Random places_of(std::uint64_t(owner.rank) + 1);
    Places places(batch.lengths, owner, paged, places_of);
    const Stored key = kept(whole, batch, owner, places), key_scale = kept(whole_scale, batch, owner, places);
    std::vector<std::int32_t> totals = batch.totals(), lengths = batch.lengths;
    Tensor scales = key_scale.tensor;
    scales.rank = 3;
    const Tensor table = paged ? tensor(places.table.data(), {batch.size(), places.columns}) : Tensor{};
    // [B, S1] where every sequence has as many queries, else one behind the other.
    const bool folded = paged;
    const auto rows_of = [&](const Stored& s, std::int64_t last) {
      Tensor t = s.tensor;
      if (folded) return t;
      t = last > 0 ? shaped(t.dtype, {batch.size(), rows / batch.size(), heads, last})
                   : shaped(t.dtype, {batch.size(), rows / batch.size(), heads});
      t.data = s.tensor.data;
      return t;
    };
    const Tensor query_lengths = folded ? tensor(totals.data(), {batch.size()}) : Tensor{};
    const char *layout = folded ? "TND" : "BSND", *layout_key = paged ? "PA_BSND" : "BSND";
    if (quantised)
      f(QuantLightningIndexerArgs{.query = rows_of(query, dims),
                                  .key = key.tensor,
                                  .weights = rows_of(weights, 0),
                                  .query_dequant_scale = rows_of(query_scale, 0),
                                  .key_dequant_scale = scales,
                                  .actual_seq_lengths_query = query_lengths,
                                  .actual_seq_lengths_key = tensor(lengths.data(), {batch.size()}),
                                  .block_table = table,
                                  .layout_query = layout,
                                  .layout_key = layout_key,
                                  .sparse_count = k,
                                  .sparse_mode = mode});
    else
      f(LightningIndexerArgs{.query = rows_of(query, dims),
                             .key = key.tensor,
                             .weights = rows_of(weights, 0),
                             .actual_seq_lengths_query = query_lengths,
                             .actual_seq_lengths_key = tensor(lengths.data(), {batch.size()}),
                             .block_table = table,
                             .layout_query = layout,
                             .layout_key = layout_key,
                             .sparse_count = k,
                             .sparse_mode = mode,
                             .return_value = true});
  }

  /// Positions, and the bits of their scores where the operator has them.
  template <class F>
  std::vector<std::int32_t> lists_by(F call, const Ownership& owner) const {
    std::vector<std::int32_t> all;
    with_arguments(owner, [&](const auto& args) {
      Stored indices(DType::i32, {batch.rows(), 1, k}), values(DType::bf16, {batch.rows(), 1, k});
      if constexpr (requires { args.query_dequant_scale; }) {
        call(args, QuantLightningIndexerOuts{indices.tensor});
        all = values_of<std::int32_t>(indices);
      } else {
        call(args, LightningIndexerOuts{indices.tensor, values.tensor});
        all = values_of<std::int32_t>(indices);
        for (const std::uint16_t x : values_of<std::uint16_t>(values)) all.push_back(x);
      }
    });
    return all;
  }
  std::vector<std::int32_t> alone() const {
    Context context({.threads = 1});
    return lists_by(
        [&](const auto& args, const auto& outs) {
          if constexpr (requires { args.query_dequant_scale; }) quant_lightning_indexer(args, outs, context);
          else lightning_indexer(args, outs, context);
        },
        {});
  }
  /// By a call of all ranks, on each of them.
  std::vector<std::vector<std::int32_t>> shared(int ranks, const dist::SelectOptions& options, int threads = 1) const {
    std::vector<std::vector<std::int32_t>> lists(static_cast<std::size_t>(ranks));
    threads_as_ranks(ranks, [&](Group& group) {
      Context context({.threads = threads});
      lists[std::size_t(group.rank())] =
          lists_by([&](const auto& args, const auto& outs) { dist::select(group, args, outs, options, context); },
                   {ranks, group.rank(), options.interleave});
    });
    return lists;
  }
  /// By the parts of it.
  std::vector<std::int32_t> in_parts(std::int64_t ranks, std::int64_t interleave) const {
    Context context({.threads = 2});
    std::vector<Stored> candidates;
    std::vector<Tensor> tensors;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Ownership owner{ranks, rank, interleave};
      candidates.emplace_back(rank % 2 ? DType::i64 : DType::u64, std::initializer_list<std::int64_t>{batch.rows(), k});
      with_arguments(owner, [&](const auto& args) {
        dist::index_candidates(args, owner, candidates.back().tensor, context);
      });
    }
    for (const Stored& s : candidates) tensors.push_back(s.tensor);
    Stored lists(DType::i32, {batch.rows(), k});
    dist::merge_candidates(tensors, lists.tensor);
    return values_of<std::int32_t>(lists);
  }
};

TEST(SharedSelection, IsThatOfOneIndexerOverAllCaches) {
  for (const bool quantised : {true, false})
    for (const Data data : {Data::uniform, Data::ties, Data::nans})
      for (const std::int64_t k : {1, 16, 100, 512}) {
        const Selecting s{.quantised = quantised, .data = data, .k = k, .mode = k == 16 ? 0 : 3};
        const std::vector<std::int32_t> wanted = s.alone();
        const std::vector<std::int32_t> lists(wanted.begin(), wanted.begin() + s.batch.rows() * k);
        for (const int ranks : {1, 2, 3, 4, 5, 7, 8})
          for (const std::int64_t interleave : {1, 16}) {
            const char* merge = ranks % 2 ? "two" : interleave == 1 ? "one" : "auto";
            for (const auto& got : s.shared(ranks, {interleave, merge}))
              ASSERT_EQ(got, wanted) << quantised << " " << int(data) << " " << k << " " << ranks << " " << interleave;
            ASSERT_EQ(s.in_parts(ranks, interleave), lists);
          }
      }
}

TEST(SharedSelection, OfCachesWithoutPages) {
  for (const bool quantised : {true, false}) {
    const Selecting s{.batch = {{2, 2, 2}, {3, 70, 200}}, .quantised = quantised, .paged = false};
    for (const int ranks : {2, 5})
      for (const auto& got : s.shared(ranks, {.interleave = 4}, 2)) ASSERT_EQ(got, s.alone());
  }
}

TEST(SharedSelection, OfAMillionKeysOn64Ranks) {
  constexpr std::int64_t kKeys = 1 << 20, kDims = 16, kHeads = 2, k = 2048;
  Random r(5);
  const Stored query = random(DType::i8, {1, 1, kHeads, kDims}, r), weights = random(DType::f32, {1, 1, kHeads}, r),
               scale = random(DType::f32, {1, 1, kHeads}, r, Data::uniform, 0.1f),
               key = random(DType::i8, {kKeys, kDims}, r, Data::ties), key_scale = random(DType::f32, {kKeys, 1}, r, Data::ties);
  const std::int32_t length = kKeys;
  // Of few different scores most are equal, and what is selected of those are the lowest positions.
  const auto select = [&](const Ownership& owner, auto call) {
    const std::int64_t n = owner.below(kKeys);
    Stored keys(DType::i8, {1, n, 1, kDims}), scales(DType::f32, {1, n, 1}), lists(DType::i32, {1, 1, 1, k});
    for (std::int64_t j = 0; j < n; ++j) {
      std::copy_n(key.memory.data() + owner.global(j) * kDims, kDims, keys.memory.data() + j * kDims);
      std::copy_n(key_scale.memory.data() + owner.global(j) * 4, 4, scales.memory.data() + j * 4);
    }
    Context context({.threads = 1});
    call(QuantLightningIndexerArgs{.query = query.tensor,
                                   .key = keys.tensor,
                                   .weights = weights.tensor,
                                   .query_dequant_scale = scale.tensor,
                                   .key_dequant_scale = scales.tensor,
                                   .actual_seq_lengths_key = tensor(&length, {1}),
                                   .sparse_count = k},
         QuantLightningIndexerOuts{lists.tensor}, context);
    return values_of<std::int32_t>(lists);
  };
  const std::vector<std::int32_t> wanted =
      select({}, [](const auto& args, const auto& outs, Context& c) { quant_lightning_indexer(args, outs, c); });
  for (const char* merge : {"one", "two"})
    threads_as_ranks(64, [&](Group& group) {
      const auto got = select({64, group.rank(), 128}, [&](const auto& args, const auto& outs, Context& c) {
        dist::select(group, args, outs, {128, merge}, c);
      });
      EXPECT_TRUE(got == wanted) << merge << " " << group.rank();
    }, 60);
}

// ---- attention

/// Which operator, and what of its caches.
enum class Form { bf16, f16, packed, int8_rows, bf16_rows };

struct Attending {
  Form form = Form::bf16;
  Batch batch = kBatch;
  std::int64_t k = 300, block = 1, mode = 3;
  bool sinks = false;
  std::string numerics = "exact";
  bool paged = true;

  bool rows_form() const { return form == Form::int8_rows || form == Form::bf16_rows; }

  /// f(arguments) of heads begin .. end - 1 of 7.
  template <class F>
  void with_arguments(const Ownership& owner, std::int64_t begin, std::int64_t end, F f) const {
    Random r(11);
    const std::int64_t dv = 32, dr = 8, tile = 16, heads = 7, n = end - begin, rows = batch.rows(),
                       all = batch.size() * batch.longest();
    const DType type = form == Form::f16 ? DType::f16 : DType::bf16;
    const Stored queries = random(type, {rows, heads, dv + dr}, r), latents = random(type, {all, dv}, r),
                 ropes = random(type, {all, dr}, r), sink = random(DType::f32, {heads}, r),
                 scales = random(DType::f32, {all, dv / tile}, r, Data::uniform, 0.1f), codes = random(DType::i8, {all, dv}, r);
    // Packed rows: codes, rope, scales.
    Stored packed(DType::i8, {all, dv + 2 * dr + 4 * (dv / tile)});
    for (std::int64_t x = 0; x < all; ++x) {
      std::byte* row = packed.memory.data() + x * packed.tensor.shape[1];
      row = std::copy_n(codes.memory.data() + x * dv, dv, row);
      row = std::copy_n(ropes.memory.data() + x * dr * 2, dr * 2, row);
      std::copy_n(scales.memory.data() + x * (dv / tile) * 4, dv / tile * 4, row);
    }
    // Queries of these heads; blocks that a row sees, in no order and some of them twice, one of them unseen.
    Stored query(type, {rows, n, dv}), rope(type, {rows, n, dr}), both(type, {rows, n, dv + dr});
    for (std::int64_t i = 0; i < rows * n; ++i) {
      const std::byte* from = queries.memory.data() + (i / n * heads + begin + i % n) * (dv + dr) * 2;
      std::copy_n(from, dv * 2, query.memory.data() + i * dv * 2);
      std::copy_n(from + dv * 2, dr * 2, rope.memory.data() + i * dr * 2);
      std::copy_n(from, (dv + dr) * 2, both.memory.data() + i * (dv + dr) * 2);
    }
    Stored lists(DType::i32, {rows, 1, k});
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < batch.size(); ++b)
      for (std::int64_t i = 0; i < batch.queries[std::size_t(b)]; ++i, ++row) {
        const std::int64_t length = batch.lengths[std::size_t(b)],
                           seen = std::max<std::int64_t>(length - batch.queries[std::size_t(b)] + i + 1, 0),
                           choices = rows_form() ? seen : (length + block - 1) / block;
        std::int64_t used = std::min(k, rows_form() ? seen : choices + 3);
        if (!rows_form() && row % 4 == 3) used = std::min<std::int64_t>(used, 2);
        for (std::int64_t e = 0; e < k; ++e)
          lists.as<std::int32_t>()[row * k + e] = e < used && choices > 0 ? std::int32_t(r.below(choices)) : -1;
      }
    Random places_of(std::uint64_t(owner.rank) + 1);
    Places places(batch.lengths, owner, paged, places_of);
    const Stored key = kept(form == Form::packed ? packed : form == Form::int8_rows ? codes : latents, batch, owner, places),
                 key_rope = kept(ropes, batch, owner, places), key_scale = kept(scales, batch, owner, places);
    std::vector<std::int32_t> totals = batch.totals(), lengths = batch.lengths;
    const Tensor table = paged ? tensor(places.table.data(), {batch.size(), places.columns}) : Tensor{},
                 query_lengths = paged ? tensor(totals.data(), {batch.size()}) : Tensor{},
                 key_lengths = tensor(lengths.data(), {batch.size()});
    const char *layout = paged ? "TND" : "BSND", *layout_kv = paged ? "PA_BSND" : "BSND";
    const auto rows_of = [&](const Stored& s) {  // [B, S1] where there are no pages
      if (paged) return s.tensor;
      Tensor t = shaped(s.tensor.dtype, {batch.size(), rows / batch.size(), s.tensor.shape[1], s.tensor.shape[2]});
      t.data = s.tensor.data;
      return t;
    };
    std::vector<float> own_sinks;
    for (std::int64_t h = begin; h < end; ++h) own_sinks.push_back(float_at(sink.tensor, h));
    const Tensor given_sinks = sinks ? tensor(own_sinks.data(), {n}) : Tensor{};
    if (rows_form()) {
      const auto two = [](const Stored& s) {
        Tensor t = shaped(s.tensor.dtype, {s.tensor.shape[0] * s.tensor.shape[1], s.tensor.shape[3]});
        t.data = s.tensor.data;
        return t;
      };
      const auto flat = [&](const Stored& s) {
        Tensor t = shaped(s.tensor.dtype, {rows * n, s.tensor.shape[2]});
        t.data = s.tensor.data;
        return t;
      };
      Tensor listed = shaped(DType::i32, {rows, k});
      listed.data = lists.tensor.data;
      f(SparseFlashAttentionQuantArgs{.query_nope = flat(query),
                                      .query_rope = flat(rope),
                                      .key_nope_2d = two(key),
                                      .key_rope_2d = two(key_rope),
                                      .k_nope_scales = form == Form::int8_rows ? two(key_scale) : Tensor{},
                                      .topk_indices = listed,
                                      .block_table = table,
                                      .kv_act_seqs = key_lengths,
                                      .b = batch.size(),
                                      .s1 = rows / batch.size(),
                                      .nq = n,
                                      .softmax_scale = 0.25,
                                      .topk = k,
                                      .block_size = kPage,
                                      .numerics = numerics});
    } else if (form == Form::packed) {
      f(KvQuantSparseFlashAttentionArgs{.query = rows_of(both),
                                        .key = key.tensor,
                                        .value = key.tensor,
                                        .sparse_indices = rows_of(lists),
                                        .scale_value = 0.25,
                                        .key_quant_mode = 2,
                                        .value_quant_mode = 2,
                                        .block_table = table,
                                        .actual_seq_lengths_query = query_lengths,
                                        .actual_seq_lengths_kv = key_lengths,
                                        .sparse_block_size = block,
                                        .layout_query = layout,
                                        .layout_kv = layout_kv,
                                        .sparse_mode = mode,
                                        .attention_mode = 2,
                                        .tile_size = tile,
                                        .rope_head_dim = dr,
                                        .sinks = given_sinks,
                                        .return_softmax_lse = true,
                                        .numerics = numerics});
    } else {
      f(SparseFlashAttentionArgs{.query = rows_of(query),
                                 .key = key.tensor,
                                 .value = key.tensor,
                                 .sparse_indices = rows_of(lists),
                                 .scale_value = 0.25,
                                 .block_table = table,
                                 .actual_seq_lengths_query = query_lengths,
                                 .actual_seq_lengths_kv = key_lengths,
                                 .query_rope = rows_of(rope),
                                 .key_rope = key_rope.tensor,
                                 .sparse_block_size = block,
                                 .layout_query = layout,
                                 .layout_kv = layout_kv,
                                 .sparse_mode = mode,
                                 .attention_mode = 2,
                                 .return_softmax_lse = true,
                                 .sinks = given_sinks,
                                 .numerics = numerics});
    }
  }

  struct Result {
    std::vector<std::uint16_t> out;
    std::vector<float> max, sum;
    bool operator==(const Result&) const = default;
  };
  DType type() const { return form == Form::f16 ? DType::f16 : DType::bf16; }

  template <class F>
  Result result_by(F call, const Ownership& owner, std::int64_t begin, std::int64_t end) const {
    Result result;
    const std::int64_t rows = batch.rows(), n = end - begin;
    with_arguments(owner, begin, end, [&](const auto& args) {
      Stored out(type(), {rows, n, 32}), max(DType::f32, {1, rows, n}), sum(DType::f32, {1, rows, n});
      if constexpr (requires { args.k_nope_scales; }) {
        out.tensor = shaped(DType::bf16, {batch.size(), rows / batch.size(), n, 32});
        out.tensor.data = out.memory.data();
        call(args, SparseFlashAttentionQuantOuts{out.tensor});
      } else if constexpr (requires { args.key_quant_mode; }) {
        call(args, KvQuantSparseFlashAttentionOuts{out.tensor, max.tensor, sum.tensor});
      } else {
        call(args, SparseFlashAttentionOuts{out.tensor, max.tensor, sum.tensor});
      }
      result = {values_of<std::uint16_t>(out), values_of<float>(max), values_of<float>(sum)};
    });
    return result;
  }
  Result alone(std::int64_t begin, std::int64_t end) const {
    Context context({.threads = 1});
    return result_by(
        [&](const auto& args, const auto& outs) {
          if constexpr (requires { args.k_nope_scales; }) sparse_flash_attention_quant(args, outs, context);
          else if constexpr (requires { args.key_quant_mode; }) kv_quant_sparse_flash_attention(args, outs, context);
          else sparse_flash_attention(args, outs, context);
        },
        {}, begin, end);
  }
  /// The first and last heads of a rank: some of seven, as many as it likes.
  static std::pair<std::int64_t, std::int64_t> heads_of(int rank) { return {rank % 3, rank % 3 + 1 + rank % 5}; }
  std::vector<Result> shared(int ranks, const dist::AttendOptions& options) const {
    std::vector<Result> results(static_cast<std::size_t>(ranks));
    threads_as_ranks(ranks, [&](Group& group) {
      Context context({.threads = 1 + group.rank() % 2});
      const auto [begin, end] = heads_of(group.rank());
      results[std::size_t(group.rank())] =
          result_by([&](const auto& args, const auto& outs) { dist::attend(group, args, outs, options, context); },
                    {ranks, group.rank(), options.interleave}, begin, end);
    });
    return results;
  }
};

Attending attending(Form form) {
  Attending a{.form = form};
  // That operator has as many queries in every sequence, and its lists are as long as what a row sees.
  if (a.rows_form()) a.batch = {{3, 3, 3, 3}, {2, 7, 131, 300}};
  return a;
}

TEST(SharedAttention, OverRowsThatTravelHasTheBitsOfOneProcess) {
  for (const Form form : {Form::bf16, Form::f16, Form::packed, Form::int8_rows, Form::bf16_rows})
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8})
      for (const std::int64_t interleave : {1, 16}) {
        Attending a = attending(form);
        a.sinks = interleave == 16;
        if (!a.rows_form() && interleave == 16) a.block = 4, a.mode = ranks % 2 ? 0 : 3;
        if (ranks == 3) a.numerics = "device";
        const auto got = a.shared(ranks, {.interleave = interleave});
        for (int rank = 0; rank < ranks; ++rank) {
          const auto [begin, end] = Attending::heads_of(rank);
          ASSERT_EQ(got[std::size_t(rank)], a.alone(begin, end)) << int(form) << " " << ranks << " " << interleave;
        }
      }
}

void expect_close(const Attending& a, const Attending::Result& got, const Attending::Result& wanted) {
  const bool half = a.form == Form::f16;
  ASSERT_EQ(got.out.size(), wanted.out.size());
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const float x = half ? to_float(f16{got.out[i]}) : to_float(bf16{got.out[i]}),
                y = half ? to_float(f16{wanted.out[i]}) : to_float(bf16{wanted.out[i]});
    ASSERT_LE(std::fabs(x - y), half ? 2.5e-4 + std::ldexp(std::fabs(y), -10) : 1e-3 + std::ldexp(std::fabs(y), -7)) << i;
  }
  for (std::size_t i = 0; i < got.max.size() && !a.rows_form(); ++i) {
    ASSERT_LE(std::fabs(got.max[i] - wanted.max[i]), 1e-6 + 1e-5 * std::fabs(wanted.max[i])) << i;
    ASSERT_LE(std::fabs(got.sum[i] - wanted.sum[i]), 1e-5 * std::fabs(wanted.sum[i])) << i;
  }
}

TEST(SharedAttention, OfCachesWithoutPages) {
  for (const Form form : {Form::bf16, Form::packed}) {
    const Attending a{.form = form, .batch = {{2, 2, 2}, {3, 70, 200}}, .paged = false};
    const auto got = a.shared(3, {.interleave = 4});
    for (int rank = 0; rank < 3; ++rank) {
      const auto [begin, end] = Attending::heads_of(rank);
      ASSERT_EQ(got[std::size_t(rank)], a.alone(begin, end));
    }
  }
}

TEST(SharedAttention, OfPartsIsCloseAndAlwaysTheSame) {
  for (const Form form : {Form::bf16, Form::f16, Form::packed, Form::int8_rows, Form::bf16_rows})
    for (const int ranks : {1, 2, 3, 8}) {
      Attending a = attending(form);
      a.sinks = ranks != 2;
      const auto got = a.shared(ranks, {.interleave = 4, .exchange = "partials"});
      for (int rank = 0; rank < ranks; ++rank) {
        const auto [begin, end] = Attending::heads_of(rank);
        expect_close(a, got[std::size_t(rank)], a.alone(begin, end));
      }
      for (int again = 0; again < (ranks == 3 ? 20 : 1); ++again)
        ASSERT_EQ(a.shared(ranks, {.interleave = 4, .exchange = "partials"}), got);
    }
}

TEST(SharedAttention, InPartsThatTheCallerMerges) {
  for (const Form form : {Form::bf16, Form::f16, Form::packed, Form::int8_rows, Form::bf16_rows}) {
    Attending a = attending(form);
    a.sinks = form == Form::packed;
    const std::int64_t ranks = 3, rows = a.batch.rows(), n = 5;
    std::vector<Stored> parts;
    std::vector<Tensor> max, sum, values;
    Context context({.threads = 2});
    Tensor sinks;
    std::vector<float> sink;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Ownership owner{ranks, rank, 2};
      for (const std::int64_t width : {0, 0, 32})
        if (width > 0) parts.emplace_back(DType::f32, std::initializer_list<std::int64_t>{rows, n, width});
        else parts.emplace_back(DType::f32, std::initializer_list<std::int64_t>{rows, n});
      const Stored* p = &parts[parts.size() - 3];
      a.with_arguments(owner, 1, 1 + n, [&](const auto& args) {
        if constexpr (requires { args.sinks; })
          if (args.sinks) {
            const auto* values_of_sinks = static_cast<const float*>(args.sinks.data);
            sink.assign(values_of_sinks, values_of_sinks + n);
          }
        dist::partial_attention(args, owner, {p[0].tensor, p[1].tensor, p[2].tensor}, context);
      });
    }
    if (a.sinks) sinks = tensor(sink.data(), {n});
    for (std::size_t i = 0; i < parts.size(); i += 3)
      max.push_back(parts[i].tensor), sum.push_back(parts[i + 1].tensor), values.push_back(parts[i + 2].tensor);
    Stored out(a.type(), {rows, n, 32});
    dist::merge_partials(max, sum, values, sinks, out.tensor);
    Attending::Result wanted = a.alone(1, 1 + n);
    wanted.max.clear(), wanted.sum.clear();
    expect_close(a, {values_of<std::uint16_t>(out), {}, {}}, wanted);
  }
}

// ---- refusals

/// What every rank says.
template <class F>
std::vector<std::string> refusals(int ranks, F f) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  threads_as_ranks(ranks, [&](Group& group) {
    for (int i = 0; i < 2; ++i) try {  // and once more: the group is alive
        f(group);
      } catch (const Error& e) {
        said[std::size_t(group.rank())] = e.what();
      }
  });
  return said;
}

void expect_all(const std::vector<std::string>& said, const std::string& sentence) {
  for (const std::string& s : said) EXPECT_EQ(s, sentence);
}

TEST(SharedOperators, AreRefusedOnAllRanks) {
  const auto select = [](Group& group, const Selecting& s, const dist::SelectOptions& options, auto change) {
    Context context({.threads = 1});
    s.lists_by(
        [&](auto args, const auto& outs) {
          change(args);
          dist::select(group, args, outs, options, context);
        },
        {group.size(), group.rank(), 1});
  };
  const auto attend = [](Group& group, const Attending& a, const dist::AttendOptions& options, auto change) {
    Context context({.threads = 1});
    a.result_by(
        [&](auto args, const auto& outs) {
          change(args);
          dist::attend(group, args, outs, options, context);
        },
        {group.size(), group.rank(), 1}, 0, 2);
  };
  const auto nothing = [](auto&) {};
  expect_all(refusals(3, [&](Group& g) { select(g, {}, {.interleave = 0}, nothing); }),
             "dist.select: interleave is 0, wanted 1..1048576");
  expect_all(refusals(3, [&](Group& g) { select(g, {}, {.merge = "three"}, nothing); }),
             "dist.select: merge is three, wanted auto, one or two");
  expect_all(refusals(2, [&](Group& g) { select(g, {.k = 16 + g.rank()}, {}, nothing); }),
             "parallel: sparse_count is 16 on rank 0 and 17 on rank 1, wanted the same on all ranks");
  expect_all(refusals(2, [&](Group& g) { select(g, {.quantised = g.rank() == 0}, {}, nothing); }),
             "parallel: operation is dist.select quant_lightning_indexer on rank 0 and dist.select lightning_indexer on rank 1, "
             "wanted the same on all ranks");
  // One rank alone.
  expect_all(refusals(3, [&](Group& g) {
               select(g, {}, {}, [&](auto& args) {
                 if (g.rank() == 1) args.sparse_mode = 2;
               });
             }),
             "dist.select: sparse_mode is 2, wanted 0 or 3");
  expect_all(refusals(2, [&](Group& g) {
               select(g, {}, {}, [&](auto& args) { args.block_table.shape[1] = 5; });
             }),
             "dist.select: actual_seq_lengths_key[4] is 131, wanted 0..80 (columns of block_table times block_size of key)");
  expect_all(refusals(2, [&](Group& g) {
               select(g, {}, {}, [](auto& args) { args.layout_key = "TND", args.block_table = {}; });
             }),
             "dist.select: layout_key is 'TND', wanted BSND or PA_BSND (several ranks have keys: running totals of whole "
             "sequences are not those of one rank's rows)");
  expect_all(refusals(3, [&](Group& g) { attend(g, {}, {.exchange = "all"}, nothing); }),
             "dist.attend: exchange is 'all', wanted rows or partials");
  expect_all(refusals(3, [&](Group& g) { attend(g, {.numerics = "device"}, {.exchange = "partials"}, nothing); }),
             "dist.attend: numerics is 'device', wanted 'exact' (parts of attention are merged in float32)");
  expect_all(refusals(3, [&](Group& g) { attend(g, {.block = 4}, {}, nothing); }),
             "dist.attend: sparse_block_size is 4, wanted a divisor of 1 (interleave: what an entry names is one rank's)");
  expect_all(refusals(3, [&](Group& g) { attend(g, {.form = g.rank() == 2 ? Form::f16 : Form::bf16}, {}, nothing); }),
             "parallel: dtype is bfloat16 on rank 0 and float16 on rank 2, wanted the same on all ranks");
  for (const std::string& s : refusals(3, [&](Group& g) { attend(g, {.k = g.rank() == 2 ? 299 : 300}, {}, nothing); }))
    EXPECT_NE(s.find("parallel: lists and lengths is "), std::string::npos) << s;
  // A page that a rank does not have.
  const auto said = refusals(3, [&](Group& g) {
    attend(g, {}, {}, [&](auto& args) {
      if constexpr (requires { args.sparse_indices; })
        if (g.rank() == 2) static_cast<std::int32_t*>(args.block_table.data)[5 * args.block_table.shape[1]] = -7;
    });
  });
  for (const std::string& s : said) {
    EXPECT_EQ(s, said[0]);
    EXPECT_NE(s.find("dist.attend: block_table[5][0] is -7, wanted 0.."), std::string::npos) << s;
  }
  expect_all(refusals(2, [&](Group& g) {
               if (g.rank() == 0) select(g, {}, {}, nothing);
               const Error error(Status::invalid_dtype, "engine", "query", "", "is a list", "a tensor");
               dist::refuse(g, std::make_exception_ptr(error));
             }),
             "engine: query is a list, wanted a tensor");
}

/// The bytes that come to a rank in its exchange `number` are damaged on their way.
class Damaging : public Group {
 public:
  Damaging(Group& group, int number) : group_(group), number_(number) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::unique_ptr<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                      std::span<const std::size_t> bytes_of_rank) override {
    auto pending = group_.all_gather(mine, all, bytes_of_rank);
    if (++exchanges_ == number_) pending->wait(), all[0] = all[1] = all[2] = all[3] = std::byte(0);  // of the first candidate
    return pending;
  }
  std::unique_ptr<Pending> all_to_all(std::span<const std::byte> mine, std::span<const std::size_t> to,
                                      std::span<std::byte> got, std::span<const std::size_t> from) override {
    return group_.all_to_all(mine, to, got, from);
  }
  std::unique_ptr<Pending> broadcast(std::span<std::byte> bytes, int root) override { return group_.broadcast(bytes, root); }
  std::unique_ptr<Group> split(int colour, int key) override { return group_.split(colour, key); }
  void abort(Status status, const std::string& sentence) override { group_.abort(status, sentence); }

 private:
  Group& group_;
  int number_, exchanges_ = 0;
};

TEST(SharedOperators, DoNotReadByDamagedPositions) {
  std::vector<std::string> said(3);
  EXPECT_THROW(threads_as_ranks(3, [&](Group& group) {
    Damaging damaging(group, group.rank() == 1 ? 2 : 0);  // the first compares
    Context context({.threads = 1});
    try {
      Selecting{.batch = {{1}, {300}}}.lists_by(
          [&](const auto& args, const auto& outs) { dist::select(damaging, args, outs, {.merge = "one"}, context); },
          {3, group.rank(), 1});
    } catch (const Error& e) {
      said[std::size_t(group.rank())] = e.what();
      EXPECT_EQ(e.status, Status::peer_failed);
      throw;
    }
  }), Error);
  EXPECT_EQ(said[1], "parallel: candidates have position 4294967295, wanted below 300 (damaged on its way)");
  EXPECT_NE(said[0].find("misses rank 1"), std::string::npos) << said[0];
}

TEST(SharedOperators, RefuseWhatTheirPartsCannotTake) {
  const auto refusal = [](auto f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing";
  };
  const Selecting s;
  Stored candidates(DType::u64, {s.batch.rows(), s.k}), floats(DType::f32, {s.batch.rows(), s.k}), few(DType::u64, {2, s.k});
  const auto candidates_of = [&](const Ownership& owner, const Stored& to) {
    return refusal([&] {
      s.with_arguments({2, 0, 1}, [&](const auto& args) { dist::index_candidates(args, owner, to.tensor); });
    });
  };
  EXPECT_EQ(candidates_of({2, 2, 1}, candidates), "dist.index_candidates: rank is 2, wanted 0..1");
  EXPECT_EQ(candidates_of({2, 0, 0}, candidates), "dist.index_candidates: interleave is 0, wanted 1..1048576");
  EXPECT_EQ(candidates_of({2, 0, 1}, few),
            "dist.index_candidates: candidates has shape [2, 16], wanted [16, 16] (query tokens, sparse_count)");
  EXPECT_EQ(candidates_of({2, 0, 1}, floats), "dist.index_candidates: candidates has dtype float32, wanted uint64 or int64");
  Stored lists(DType::i32, {2, s.k});
  const Tensor two[] = {few.tensor, candidates.tensor};
  EXPECT_EQ(refusal([&] { dist::merge_candidates(two, lists.tensor); }),
            "dist.merge_candidates: candidates[1] has shape [16, 16], wanted [2, 16] (shape of sparse_indices)");
  Stored out(DType::bf16, {2, 3, 4}), max(DType::f32, {2, 3}), values(DType::f32, {2, 3, 4});
  const Tensor maxima[] = {max.tensor, max.tensor}, all[] = {values.tensor, values.tensor};
  EXPECT_EQ(refusal([&] { dist::merge_partials(maxima, std::span(maxima, 1), all, {}, out.tensor); }),
            "dist.merge_partials: softmax_sum has 1 tensors, wanted 2 (as softmax_max)");
  EXPECT_EQ(refusal([&] { dist::merge_partials(maxima, maxima, all, out.tensor, out.tensor); }),
            "dist.merge_partials: sinks has shape [2, 3, 4], wanted [3] (heads of out)");
}

}  // namespace
}  // namespace dsakit
