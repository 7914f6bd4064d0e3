// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

// Keys and values of sequences out of paged caches, one sequence after the other. docs/operators/gather_pa_kv_cache.md
namespace dsakit {

/// key and value are written in place.
struct GatherPaKvCacheArgs {
  Tensor key_cache;
  Tensor value_cache;
  Tensor block_tables;
  Tensor seq_lens;
  Tensor key;
  Tensor value;
  Tensor seq_offset{};
  bool is_seq_lens_cumsum = false;
  Level level = Level::portable;
};

struct GatherPaKvCacheOuts {};

void gather_pa_kv_cache(const GatherPaKvCacheArgs&, const GatherPaKvCacheOuts&, Context& = default_context());
void infer(const GatherPaKvCacheArgs&, GatherPaKvCacheOuts&);

/// On copies of key and value.
struct GatherPaKvCacheFunctionalArgs : GatherPaKvCacheArgs {};

struct GatherPaKvCacheFunctionalOuts {
  Tensor key_out;
  Tensor value_out;
};

void gather_pa_kv_cache_functional(const GatherPaKvCacheFunctionalArgs&, const GatherPaKvCacheFunctionalOuts&,
                                   Context& = default_context());
void infer(const GatherPaKvCacheFunctionalArgs&, GatherPaKvCacheFunctionalOuts&);

template <class A, class V>
constexpr void for_each_gather_pa_kv_cache_input(A& a, bool functional, V&& v) {
  const Role rows = functional ? Role::in : Role::inout;
  v({"key_cache", Role::in, Kind::cache, "bfloat16, float16, float32, int8 or any other",
     "[block_num, block_size, h, dk]", "pages of keys"},
    a.key_cache);
  v({"value_cache", Role::in, Kind::cache, "dtype of key_cache", "[block_num, block_size, h, dv]", "pages of values"},
    a.value_cache);
  v({"block_tables", Role::in, Kind::table, "int32", "[B, pages per sequence]", "pages of each sequence"},
    a.block_tables);
  v({"seq_lens", Role::in, Kind::lengths, "int32", "[B]; running totals: also [B+1], the first 0",
     "rows to copy of each sequence"},
    a.seq_lens);
  v({"key", rows, Kind::data, "dtype of key_cache", "[T, h, dk], T at least the sum of seq_lens",
     "rows of all sequences; what lies behind them stays"},
    a.key);
  v({"value", rows, Kind::data, "dtype of key_cache", "[T, h, dv]", "likewise"}, a.value);
  v({"seq_offset", Role::in_opt, Kind::lengths, "int32", "[B]", "position of the first row of each sequence, else 0"},
    a.seq_offset);
  v({"is_seq_lens_cumsum", Role::attribute, Kind::flag, "bool", "", "seq_lens are running totals"},
    a.is_seq_lens_cumsum);
  v(kLevelField, a.level);
}
inline constexpr std::string_view kGatherPaKvCacheErrors =
    "INVALID_ARGUMENT: a tensor is missing\n"
    "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
    "INVALID_SEQLEN: a length or offset below 0, totals that decrease, more rows than key or block_tables has\n"
    "INVALID_BLOCK: a page that the caches do not have";

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, GatherPaKvCacheArgs>
constexpr void for_each_field(A& a, O&, V&& v) { for_each_gather_pa_kv_cache_input(a, false, v); }
constexpr Description describe(const GatherPaKvCacheArgs&) {
  return {.summary = "Copy keys and values of sequences out of paged caches, one sequence after the other, in place",
          .formula =
              "for each sequence b and i < seq_lens[b], p = seq_offset[b] + i, the next rows of key and value are\n"
              "key_cache[block_tables[b, p / block_size], p % block_size] and that of value_cache",
          .errors = kGatherPaKvCacheErrors,
          .source = "torch_npu.npu_gather_pa_kv_cache",
          .page = "gather_pa_kv_cache.md",
          .family = Family::torch_npu,
          .positional = 6};
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, GatherPaKvCacheFunctionalArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  for_each_gather_pa_kv_cache_input(a, true, v);
  v({"key_out", Role::out, Kind::data, "dtype of key_cache", "shape of key", "key with the rows"}, o.key_out);
  v({"value_out", Role::out, Kind::data, "dtype of key_cache", "shape of value", "value with the rows"}, o.value_out);
}
constexpr Description describe(const GatherPaKvCacheFunctionalArgs&) {
  return {.summary = "gather_pa_kv_cache on copies of key and value, which are left alone",
          .formula =
              "for each sequence b and i < seq_lens[b], p = seq_offset[b] + i, the next rows of key_out and value_out "
              "are\nkey_cache[block_tables[b, p / block_size], p % block_size] and that of value_cache",
          .errors = kGatherPaKvCacheErrors,
          .source = "torch_npu.npu_gather_pa_kv_cache_functional",
          .page = "gather_pa_kv_cache.md",
          .family = Family::torch_npu,
          .positional = 6};
}

namespace reference {
void gather_pa_kv_cache(const GatherPaKvCacheArgs&, const GatherPaKvCacheOuts&);
void gather_pa_kv_cache_functional(const GatherPaKvCacheFunctionalArgs&, const GatherPaKvCacheFunctionalOuts&);
}  // namespace reference

}  // namespace dsakit
