// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <string>

#include "ops/mla_prolog_v3/door.hpp"

// V15 to V22: values and memory; then names, modes and layouts are gone.
namespace dsakit::mla_prolog_v3_op {
namespace {

using Args = MlaPrologV3Args;

/// Running totals that end in T; how many pages the sequences need is the result.
std::int64_t check_lengths(const Check& check, const Tensor& totals, const Sizes& s) {
  const char* name = "actual_seq_len";
  check.readable(totals, name);
  const Rows ends(totals, 0);
  const std::int64_t n = totals.elements();
  std::int64_t pages = 0, before = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t end = *ends.row<const std::int32_t>(i);
    if (end < before)
      check.fail(Status::invalid_seqlen, name, subscript(totals, i), is(end), "at least " + std::to_string(before),
                 i == 0 ? "lengths are not negative" : "running totals must not decrease");
    pages += (end - before + s.block_size - 1) / s.block_size;
    before = end;
  }
  if (before != s.tokens)
    check.fail(Status::invalid_seqlen, name, n > 0 ? subscript(totals, n - 1) : "",
               n > 0 ? is(before) : "has no elements", std::to_string(s.tokens), "T of token_x");
  return pages;
}

Slots check_slots(const Check& check, const Args& a, const Sizes& s) {
  if (!is_paged(a)) return {.kind = Slots::Kind::own, .index = prolog::no_rows()};
  const bool blocks = is_whole_block(a);
  const Tensor& index = a.cache_index;
  Slots slots{.kind = blocks ? Slots::Kind::pages : Slots::Kind::listed,
              .index = Rows(index, 0),
              .block_size = s.block_size,
              .ends = s.batched ? Tensor{} : a.actual_seq_len,
              .sequence = s.sequence};
  std::int64_t needed = index.elements();
  if (blocks && !s.batched) {
    needed = check_lengths(check, a.actual_seq_len, s);
    if (index.elements() < needed || (check.strict() && index.elements() > needed))
      check.shape(index, "cache_index", {needed}, "pages of the sequences of actual_seq_len");
  }
  check.readable(index, "cache_index");
  if (s.tokens == 0 || s.block_num == 0) return slots;
  const std::int64_t limit = blocks ? s.block_num : s.block_num * s.block_size;
  for (std::int64_t i = 0; i < needed; ++i) {
    const std::int64_t entry = *slots.index.row<const std::int64_t>(i);
    if (entry < limit) continue;
    check.fail(Status::invalid_slot, "cache_index", subscript(index, i), is(entry),
               "below " + std::to_string(limit) +
                   (blocks ? " (pages of kv_cache); negative entries skip their tokens"
                           : " (" + std::to_string(s.block_num) + " pages of " + std::to_string(s.block_size) +
                                 "); negative entries skip the token"));
  }
  return slots;
}

void check_numbers(const Check& check, Form form, const Args& a, const Sizes& s) {
  if (const Tensor& t = a.quant_scale_ckv; form == Form::v2 && s.mode->query_codes()) {
    check.readable(t, "quant_scale_ckv");  // v2 hands the one scale of all channels over as a row of equal ones
    const Rows scales(t, 0);
    const float wanted = *scales.row<const float>(0);
    for (std::int64_t i = 1; i < scales.count; ++i)
      if (const float got = *scales.row<const float>(i); std::memcmp(&got, &wanted, sizeof got) != 0)
        check.fail(Status::invalid_argument, "quant_scale_ckv", subscript(t, i), "is " + std::to_string(got),
                   std::to_string(wanted), "an int8 query takes one scale for all channels: the first");
  }
  if (const Tensor& t = a.k_nope_clip_alpha; t && s.mode->packed()) {
    check.readable(t, "k_nope_clip_alpha");
    check.positive(*static_cast<const float*>(t.data), "k_nope_clip_alpha");
  }
  check.positive(float(a.rmsnorm_epsilon_cq), "rmsnorm_epsilon_cq");
  check.positive(float(a.rmsnorm_epsilon_ckv), "rmsnorm_epsilon_ckv");
  for (const auto& [value, name] : {std::pair{a.qc_qr_scale, "qc_qr_scale"}, std::pair{a.kc_scale, "kc_scale"}})
    if (!std::isfinite(float(value)))
      check.fail(Status::invalid_argument, name, "", "is " + std::to_string(value), "finite, also in float32");
}

/// V19, T3. What is accepted here is never looked at again.
void check_packed_kr_cache(const Check& check, const Args& a) {
  const Tensor &t = a.kr_cache, &kv = a.kv_cache;
  if (t.elements() == 0) return;
  const bool same = t.data == kv.data && t.elements() == kv.elements();
  if (same && check.strict()) check.no_overlap(t, "kr_cache", kv, "kv_cache");
  if (!same)
    check.fail(Status::invalid_argument, "kr_cache", "", shape_text(t), "no elements",
               "ckvkr_repo_mode 1: the rope key lies in kv_cache");
}

/// The rows of a cache: of kr_cache or a part of the packed rows of kv_cache.
prolog::CacheRows cache_rows(const Args& a, const Tensor& t, std::int64_t width, std::int64_t begin = 0) {
  prolog::CacheRows rows = prolog::cache_rows(t, width, is_nz(a));
  rows.begin = begin;
  return rows;
}

/// What the 23 bits of a float cannot tell from 1 is 1.
float factor_of(double scale) {
  const float factor = float(scale);
  return std::fabs(factor - 1.0f) < 0x1p-23f ? 1.0f : factor;
}

}  // namespace

Problem resolve(const Check& check, Form form, const Args& a, const MlaPrologV3Outs& o, const Tensor& kv_cache,
                const Tensor& kr_cache, const Sizes& s, Tensors& tensors) {
  const Mode& mode = *s.mode;
  const Slots slots = check_slots(check, a, s);
  check_numbers(check, form, a, s);
  using prolog::check_nz;
  using prolog::check_nz_strides;
  if (is_nz(a)) check_nz(check, a.kv_cache, "kv_cache"), check_nz(check, a.kr_cache, "kr_cache");
  if (!mode.packed() && a.tile_size != 128)
    check.fail(Status::invalid_argument, "tile_size", "", is(a.tile_size), "128", "this mode has no tiles");
  if (a.tile_size != 128) check.chip(false, "tile_size", is(a.tile_size), "128");
  if (mode.packed()) {
    check_packed_kr_cache(check, a);
    tensors.forget("kr_cache");
    tensors.forget("quant_scale_ckv");
  }
  check_memory(check, tensors, Caches::free_first_axis);
  check_separate(check, tensors, Named::later);
  if (is_nz(a)) check_nz_strides(check, a.kv_cache, "kv_cache"), check_nz_strides(check, a.kr_cache, "kr_cache");
  if (is_nz(a)) check_nz_strides(check, kv_cache, "kv_cache_out"), check_nz_strides(check, kr_cache, "kr_cache_out");
  const std::int64_t batch = s.batched ? s.batch : a.actual_seq_len.elements();
  if (batch > 65536)
    check.chip(false, s.batched ? "token_x" : "actual_seq_len", "has B " + std::to_string(batch), "at most 65536");
  if (form == Form::v2 && s.sequence > 16)
    check.chip(false, "token_x", "has S " + std::to_string(s.sequence), "at most 16");

  const auto rows = [](const Tensor& t, std::int64_t width) {
    return t && t.elements() > 0 ? prolog::flat_rows(t, width) : prolog::no_rows();
  };
  const auto weight = [&](const Tensor& t, const char* name, std::int64_t stack, std::int64_t k, std::int64_t n) {
    return check_weight(check, t, name, t.dtype, stack, k, n, "");
  };
  const bool packed = mode.packed();
  const std::int64_t tiles = packed ? s.latent / a.tile_size : 1;
  const auto store = [&](DType dtype) { return dtype == DType::i8 ? prolog::Store::given_scale : prolog::Store::bf16; };
  const Tensor& alpha = a.k_nope_clip_alpha;
  Problem p{
      .mla = {.numerics = prolog::kTorchNpu,
              .tokens = s.tokens,
              .hidden = s.hidden,
              .rank = s.rank,
              .heads = s.heads,
              .nope = s.nope,
              .rope = s.rope,
              .latent = s.latent,
              .epsilon_cq = float(a.rmsnorm_epsilon_cq),
              .epsilon_ckv = float(a.rmsnorm_epsilon_ckv),
              .query_factor = factor_of(a.qc_qr_scale),
              .latent_factor = factor_of(a.kc_scale),
              .w_dq = weight(a.weight_dq, "weight_dq", 0, s.hidden, s.rank),
              .w_uq_qr = weight(a.weight_uq_qr, "weight_uq_qr", 0, s.rank, s.wide),
              .w_uk = weight(a.weight_uk, "weight_uk", s.heads, s.nope, s.latent),
              .w_dkv_kr = weight(a.weight_dkv_kr, "weight_dkv_kr", 0, s.hidden, s.latent + s.rope),
              .gamma_cq = static_cast<const bf16*>(a.rmsnorm_gamma_cq.data),
              .gamma_ckv = static_cast<const bf16*>(a.rmsnorm_gamma_ckv.data),
              .x = prolog::flat_rows(a.token_x, s.hidden),
              .cos = prolog::flat_rows(a.rope_cos, s.rope),
              .sin = prolog::flat_rows(a.rope_sin, s.rope),
              .x_scale = rows(a.dequant_scale_x, 1),
              .dq_scale = rows(a.dequant_scale_w_dq, 1),
              .uq_qr_scale = rows(a.dequant_scale_w_uq_qr, 1),
              .dkv_kr_scale = rows(a.dequant_scale_w_dkv_kr, 1),
              .smooth = rows(a.smooth_scales_cq, 1),
              .cache_index = prolog::no_rows(),
              .q_norm = a.query_norm_flag ? rows(o.query_norm, s.rank) : prolog::no_rows(),
              .q_norm_scale = rows(o.dequant_scale_q_norm, 1),
              .query_nope = s.tokens > 0 ? prolog::flat_rows(o.query, s.latent) : prolog::no_rows(),
              .query_rope = rows(o.query_rope, s.rope),
              .query_scale = rows(o.dequant_scale_q_nope, 1),
              .latent_store = packed ? prolog::Store::groups : store(mode.kv_cache),
              .key_store = store(mode.kr_cache),
              .groups = tiles,
              .clip = packed && alpha ? *static_cast<const float*>(alpha.data) : 1,
              .latent_scale = rows(a.quant_scale_ckv, 1),
              .key_scale = rows(a.quant_scale_ckr, 1),
              .kv_cache = cache_rows(a, kv_cache, s.width),
              .kr_cache = packed ? cache_rows(a, kv_cache, s.width, s.latent) : cache_rows(a, kr_cache, s.rope),
              .k_scale_cache = packed ? cache_rows(a, kv_cache, s.width, s.latent + 2 * s.rope)
                                      : prolog::CacheRows{prolog::no_rows()}},
      .slots = slots,
      .mode = &mode,
      .warns_ckv_scale = ignores_ckv_scale(check, a, mode),
  };
  return p;
}

}  // namespace dsakit::mla_prolog_v3_op
