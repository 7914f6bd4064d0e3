// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

// Keys and values of new tokens into paged caches. docs/operators/scatter_pa_kv_cache.md
namespace dsakit {

/// In place.
struct ScatterPaKvCacheArgs {
  Tensor key;
  Tensor value;
  Tensor key_cache;
  Tensor value_cache;
  Tensor slot_mapping;
  std::string_view cache_mode = "PA_NZ";
  Level level = Level::portable;
};

struct ScatterPaKvCacheOuts {};

void scatter_pa_kv_cache(const ScatterPaKvCacheArgs&, const ScatterPaKvCacheOuts&, Context& = default_context());
void infer(const ScatterPaKvCacheArgs&, ScatterPaKvCacheOuts&);

/// On copies of the caches.
struct ScatterPaKvCacheFunctionalArgs : ScatterPaKvCacheArgs {};

struct ScatterPaKvCacheFunctionalOuts {
  Tensor key_cache_out;
  Tensor value_cache_out;
};

void scatter_pa_kv_cache_functional(const ScatterPaKvCacheFunctionalArgs&, const ScatterPaKvCacheFunctionalOuts&,
                                    Context& = default_context());
void infer(const ScatterPaKvCacheFunctionalArgs&, ScatterPaKvCacheFunctionalOuts&);

template <class A, class V>
constexpr void for_each_scatter_pa_kv_cache_input(A& a, bool functional, V&& v) {
  const Role cache = functional ? Role::in : Role::inout;
  v({"key", Role::in, Kind::data, "bfloat16, float16, float32, int8 or any other", "[T, h, dk]", "keys of new tokens"},
    a.key);
  v({"value", Role::in, Kind::data, "dtype of key", "[T, h, dv]", "values of new tokens"}, a.value);
  v({"key_cache", cache, Kind::cache, "dtype of key",
     "Norm: [block_num, block_size, h, dk]; PA_NZ: [block_num, h*dk/c0, block_size, c0], c0 elements are 32 bytes",
     "pages of keys"},
    a.key_cache);
  v({"value_cache", cache, Kind::cache, "dtype of key", "key_cache with dv for dk", "pages of values"}, a.value_cache);
  v({"slot_mapping", Role::in, Kind::index, "int32, int64", "[T]",
     "slot of each token: page * block_size + place; negative: not stored"},
    a.slot_mapping);
  v({"compress_lens", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"compress_seq_offsets", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"seq_lens", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"cache_mode", Role::attribute, Kind::layout, "str", "PA_NZ, Norm (None means Norm)", "how the caches lie"},
    a.cache_mode);
  v(kLevelField, a.level);
}
inline constexpr std::string_view kScatterPaKvCacheErrors =
    "INVALID_ARGUMENT: a tensor is missing, cache_mode is unknown\n"
    "UNSUPPORTED: key of rank 4, the compressed form\n"
    "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
    "INVALID_SLOT: a slot behind the last page";

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, ScatterPaKvCacheArgs>
constexpr void for_each_field(A& a, O&, V&& v) { for_each_scatter_pa_kv_cache_input(a, false, v); }
constexpr Description describe(const ScatterPaKvCacheArgs&) {
  return {.summary = "Store keys and values of new tokens in paged caches, in place",
          .formula =
              "key_cache[slot] = key[t], value_cache[slot] = value[t], slot = slot_mapping[t], for ascending t\n"
              "PA_NZ: column j of slot s is [s / block_size, j / c0, s % block_size, j % c0]",
          .errors = kScatterPaKvCacheErrors,
          .source = "torch_npu.npu_scatter_pa_kv_cache",
          .page = "scatter_pa_kv_cache.md",
          .family = Family::torch_npu,
          .positional = 5};
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, ScatterPaKvCacheFunctionalArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  for_each_scatter_pa_kv_cache_input(a, true, v);
  v({"key_cache_out", Role::out, Kind::cache, "dtype of key", "shape of key_cache", "key_cache with the new keys"},
    o.key_cache_out);
  v({"value_cache_out", Role::out, Kind::cache, "dtype of key", "shape of value_cache",
     "value_cache with the new values"},
    o.value_cache_out);
}
constexpr Description describe(const ScatterPaKvCacheFunctionalArgs&) {
  return {
      .summary = "scatter_pa_kv_cache on copies of the caches, which are left alone",
      .formula =
          "key_cache_out[slot] = key[t], value_cache_out[slot] = value[t], slot = slot_mapping[t], for ascending t\n"
          "PA_NZ: column j of slot s is [s / block_size, j / c0, s % block_size, j % c0]",
      .errors = kScatterPaKvCacheErrors,
      .source = "torch_npu.npu_scatter_pa_kv_cache_functional",
      .page = "scatter_pa_kv_cache.md",
      .family = Family::torch_npu,
      .positional = 5};
}

namespace reference {
void scatter_pa_kv_cache(const ScatterPaKvCacheArgs&, const ScatterPaKvCacheOuts&);
void scatter_pa_kv_cache_functional(const ScatterPaKvCacheFunctionalArgs&, const ScatterPaKvCacheFunctionalOuts&);
}  // namespace reference

}  // namespace dsakit
