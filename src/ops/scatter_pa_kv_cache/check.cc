// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "ops/row_operator.hpp"
#include "ops/scatter_pa_kv_cache/problem.hpp"

namespace dsakit {
namespace scatter_pa_kv_cache_op {
namespace {

using Args = ScatterPaKvCacheArgs;

bool is_nz(const Args& a) { return a.cache_mode == "PA_NZ"; }

/// As many pages of as many slots as key_cache has.
void check_cache(const Check& check, const Args& a, const Tensor& cache, const char* name, const Tensor& rows,
                 const char* why) {
  check.rank(cache, name, 4, is_nz(a) ? "block_num, h*d/c0, block_size, c0" : "block_num, block_size, h, d");
  const std::int64_t pages = a.key_cache.shape[0], heads = rows.shape[1], width = rows.shape[2];
  if (!is_nz(a)) return check.shape(cache, name, {pages, a.key_cache.shape[1], heads, width}, why);
  const std::int64_t c0 = 32 / size_of(rows.dtype);
  if (heads * width % c0 != 0)
    check.fail(Status::invalid_shape, &rows == &a.key ? "key" : "value", "", shape_text(rows),
               "h*d a multiple of " + std::to_string(c0), "PA_NZ: 32 bytes");
  check.shape(cache, name, {pages, heads * width / c0, a.key_cache.shape[2], c0}, why);
}

/// Everything but the values of slot_mapping.
void check_inputs(const Check& check, const Args& a, const Tensors& inputs) {
  check_given(check, inputs);
  check.one_of(a.cache_mode, "cache_mode", {"PA_NZ", "Norm"});
  check_countable(check, inputs);
  if (a.key.rank == 4)
    check.fail(Status::unsupported, "key", "", shape_text(a.key), "rank 3",
               "T, h, dk; the compressed form is reserved");
  check.rank(a.key, "key", 3, "T, h, dk");
  check.rank(a.value, "value", 3, "T, h, dv");
  check.shape(a.value, "value", {a.key.shape[0], a.key.shape[1], a.value.shape[2]}, "T and h of key");
  check_any_dtype(check, a.key, "key");
  check.dtype(a.value, "value", {a.key.dtype}, "dtype of key");
  check.dtype(a.key_cache, "key_cache", {a.key.dtype}, "dtype of key");
  check.dtype(a.value_cache, "value_cache", {a.key.dtype}, "dtype of key");
  check.dtype(a.slot_mapping, "slot_mapping", {DType::i32, DType::i64});
  check_cache(check, a, a.key_cache, "key_cache", a.key, "h and dk of key");
  check_cache(check, a, a.value_cache, "value_cache", a.value, "pages of key_cache, h and dv of value");
  check.shape(a.slot_mapping, "slot_mapping", {a.key.shape[0]}, "T of key");
  check_memory(check, inputs, Caches::free_first_axis);
}

Problem resolve(const Check& check, const Args& a, const Tensor& keys, const Tensor& values) {
  Problem p{.nz = is_nz(a),
            .block_size = keys.shape[is_nz(a) ? 2 : 1],
            .slots = a.slot_mapping,
            .parts = {Part{a.key, keys}, Part{a.value, values}}};
  const std::int64_t pages = keys.shape[0];
  for (std::int64_t t = 0; t < p.tokens(); ++t)
    if (const std::int64_t slot = p.slot(t); slot >= pages * p.block_size)
      check.fail(Status::invalid_slot, "slot_mapping", subscript({t}), "is " + std::to_string(slot),
                 "below " + std::to_string(pages * p.block_size) + " (" + std::to_string(pages) + " pages of " +
                     std::to_string(p.block_size) + "); negative entries skip the token");
  return p;
}

}  // namespace

Problem check(const ScatterPaKvCacheArgs& a, const ScatterPaKvCacheOuts& o) {
  const Check check("scatter_pa_kv_cache", a.level);
  const Tensors tensors(a, o);
  check_inputs(check, a, tensors);
  check_separate(check, tensors);
  return resolve(check, a, a.key_cache, a.value_cache);
}

Problem check(const ScatterPaKvCacheFunctionalArgs& a, const ScatterPaKvCacheFunctionalOuts& o) {
  const Check check("scatter_pa_kv_cache_functional", a.level);
  check_inputs(check, a, Tensors::inputs<ScatterPaKvCacheFunctionalOuts>(a));
  check_out(check, o.key_cache_out, "key_cache_out", like(a.key_cache, a.key.dtype), "shape of key_cache");
  check_out(check, o.value_cache_out, "value_cache_out", like(a.value_cache, a.key.dtype), "shape of value_cache");
  check_separate(check, Tensors(a, o));
  Problem p = resolve(check, a, o.key_cache_out, o.value_cache_out);
  p.parts[0].copied = a.key_cache, p.parts[1].copied = a.value_cache;
  return p;
}

}  // namespace scatter_pa_kv_cache_op

void infer(const ScatterPaKvCacheArgs& a, ScatterPaKvCacheOuts&) {
  scatter_pa_kv_cache_op::check_inputs(Check("scatter_pa_kv_cache", a.level), a,
                                       Tensors::inputs<ScatterPaKvCacheOuts>(a));
}

void infer(const ScatterPaKvCacheFunctionalArgs& a, ScatterPaKvCacheFunctionalOuts& o) {
  scatter_pa_kv_cache_op::check_inputs(Check("scatter_pa_kv_cache_functional", a.level), a,
                                       Tensors::inputs<ScatterPaKvCacheFunctionalOuts>(a));
  if (!o.key_cache_out) o.key_cache_out = like(a.key_cache, a.key.dtype);
  if (!o.value_cache_out) o.value_cache_out = like(a.value_cache, a.key.dtype);
}

}  // namespace dsakit
