// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ops/mla_prolog_v3/door.hpp"

// V5 to V9, and V21: shapes and sizes.
namespace dsakit::mla_prolog_v3_op {
namespace {

using Args = MlaPrologV3Args;

std::int64_t last_axis(const Check& check, const Tensor& t, const char* name, const char* what) {
  if (t.rank < 1 || t.shape[t.rank - 1] < 1)
    check.fail(Status::invalid_shape, name, "", shape_text(t), "a last axis of at least 1", what);
  return t.shape[t.rank - 1];
}

void check_ranks(const Check& check, const Args& a) {
  if (a.cache_mode == "TND") {
    check.rank(a.token_x, "token_x", 2, "T, He: cache_mode TND");
    check.rank(a.kv_cache, "kv_cache", 3, "T, 1, width: cache_mode TND");
  } else {
    if (a.cache_mode == "BSND") check.rank(a.token_x, "token_x", 3, "B, S, He: cache_mode BSND");
    check.rank(a.kv_cache, "kv_cache", 4,
               is_paged(a) ? "block_num, block_size, 1, width" : "B, S, 1, width: cache_mode BSND");
  }
  if (a.token_x.rank != 2) check.rank(a.token_x, "token_x", 3, "B, S, He; or rank 2: T, He");
  for (const auto& [t, name] : {std::pair{&a.rope_sin, "rope_sin"}, std::pair{&a.rope_cos, "rope_cos"}}) {
    check.rank(*t, name, a.token_x.rank, "as token_x");
    if (!std::equal(t->shape.begin(), t->shape.begin() + t->rank - 1, a.token_x.shape.begin()))
      check.fail(Status::invalid_shape, name, "", shape_text(*t), "the leading axes of token_x",
                 shape_text(a.token_x).substr(4));
  }
  check.rank(a.weight_uk, "weight_uk", 3, "N, D, Hckv");
  check.rank(a.rmsnorm_gamma_cq, "rmsnorm_gamma_cq", 1, "Hcq");
}

/// The axes before the last, and the last one, of a cache in the mode's layout.
void check_cache(const Check& check, const Args& a, const Tensor& t, const char* name, const Sizes& s,
                 std::int64_t width, const char* why) {
  const bool nothing = !check.strict() && !is_paged(a) && t.elements() == 0 && t.shape[t.rank - 2] == 1;
  if (is_paged(a)) check.shape(t, name, {s.block_num, s.block_size, 1, width}, why);
  else if (nothing && t.shape[t.rank - 1] == width) return;  // nothing is stored
  else if (s.batched) check.shape(t, name, {s.batch, s.sequence, 1, width}, why);
  else check.shape(t, name, {s.tokens, 1, width}, why);
}

void check_cache_index(const Check& check, const Args& a, const Sizes& s) {
  const Tensor& t = a.cache_index;
  if (!t || !is_paged(a)) return;
  const bool blocks = is_whole_block(a);
  if (blocks && !s.batched) return check.strict() ? check.rank(t, "cache_index", 1, "pages of all sequences") : void();
  const std::int64_t columns = blocks ? (s.sequence + s.block_size - 1) / s.block_size : s.sequence;
  const char* why = blocks ? "B and the pages of S tokens" : "the tokens of token_x";
  if (!check.strict()) check.rows(t, "cache_index", s.batched ? s.batch * columns : s.tokens, {}, why);
  else if (s.batched) check.shape(t, "cache_index", {s.batch, columns}, why);
  else check.shape(t, "cache_index", {s.tokens}, why);
}

void check_tile_size(const Check& check, const Args& a, const Sizes& s) {
  if (!s.mode->packed() || (a.tile_size >= 1 && s.latent % a.tile_size == 0)) return;
  check.fail(Status::invalid_argument, "tile_size", "", is(a.tile_size), "a divisor of " + std::to_string(s.latent),
             "Hckv of weight_uk");
}

}  // namespace

Sizes check_shapes(const Check& check, const Args& a, const Mode& mode) {
  check_ranks(check, a);
  Sizes s{};
  s.mode = &mode, s.batched = a.token_x.rank == 3;
  s.hidden = last_axis(check, a.token_x, "token_x", "He");
  s.batch = a.token_x.shape[0], s.sequence = s.batched ? a.token_x.shape[1] : 0;
  s.tokens = s.batched ? s.batch * s.sequence : s.batch;
  s.rank = last_axis(check, a.rmsnorm_gamma_cq, "rmsnorm_gamma_cq", "Hcq");
  check.shape(a.rmsnorm_gamma_cq, "rmsnorm_gamma_cq", {s.rank}, "Hcq");
  s.heads = a.weight_uk.shape[0], s.nope = a.weight_uk.shape[1], s.latent = a.weight_uk.shape[2];
  if (s.heads == 0 || s.nope == 0 || s.latent == 0)
    check.fail(Status::invalid_shape, "weight_uk", "", shape_text(a.weight_uk), "N, D and Hckv of at least 1");
  s.rope = last_axis(check, a.rope_sin, "rope_sin", "Dr");
  if (s.rope % 2 != 0 || s.rope > INT32_MAX || __builtin_mul_overflow(s.heads, s.nope + s.rope, &s.wide))
    check.fail(Status::invalid_shape, "rope_sin", "", "has Dr " + std::to_string(s.rope), "an even number, at least 2");
  const DType dq = mode.weight_dq, uq = mode.weight_uq_qr;
  check_weight_shape(check, a.weight_dq, "weight_dq", dq, 0, s.hidden, s.rank,
                     "He of token_x, Hcq of rmsnorm_gamma_cq");
  check_weight_shape(check, a.weight_uq_qr, "weight_uq_qr", uq, 0, s.rank, s.wide,
                     "Hcq of rmsnorm_gamma_cq, N*(D+Dr) of weight_uk and rope_sin");
  check_weight_shape(check, a.weight_dkv_kr, "weight_dkv_kr", dq, 0, s.hidden, s.latent + s.rope,
                     "He of token_x, Hckv+Dr of weight_uk and rope_sin");
  check.shape(a.rmsnorm_gamma_ckv, "rmsnorm_gamma_ckv", {s.latent}, "Hckv of weight_uk");
  for (const auto& [t, name] : {std::pair{&a.rope_sin, "rope_sin"}, std::pair{&a.rope_cos, "rope_cos"}}) {
    if (s.batched) check.shape(*t, name, {s.batch, s.sequence, s.rope}, "B and S of token_x, Dr of rope_sin");
    else check.shape(*t, name, {s.tokens, s.rope}, "T of token_x, Dr of rope_sin");
  }
  check_tile_size(check, a, s);
  s.width = mode.packed() ? s.latent + 2 * s.rope + 4 * (s.latent / a.tile_size) : s.latent;
  if (is_paged(a)) s.block_num = a.kv_cache.shape[0], s.block_size = a.kv_cache.shape[1];
  if (is_paged(a) && s.block_size == 0)
    check.fail(Status::invalid_shape, "kv_cache", "", "has block_size 0", "at least 1");
  if (mode.packed() && a.kv_cache.dtype != DType::i8)  // before the width, which counts bytes
    check.dtype(a.kv_cache, "kv_cache", {DType::i8},
                ("rows of " + std::to_string(s.width) +
                 " bytes; dsakit.pack_kv_rows makes them, dsakit.empty_kv_rows an empty cache")
                    .c_str());
  if (is_paged(a) && s.block_size == 1 && a.kv_cache.shape[2] > 1 && a.kv_cache.shape[3] == s.width)
    check.fail(Status::invalid_shape, "kv_cache", "", shape_text(a.kv_cache),
               "[block_num, block_size, 1, " + std::to_string(s.width) + "]",
               "axes of [B, N, S, H]: kv_cache.transpose(1, 2) has the order that is wanted");
  check_cache(check, a, a.kv_cache, "kv_cache", s, s.width,
              mode.packed() ? "bytes of latent codes, rope key and scales; dsakit.pack_kv_rows makes them"
                            : "Hckv of weight_uk");
  if (!mode.packed()) {
    check.rank(a.kr_cache, "kr_cache", a.kv_cache.rank, "as kv_cache");
    check_cache(check, a, a.kr_cache, "kr_cache", s, s.rope, "rows of kv_cache, Dr of rope_sin");
    if ((a.kr_cache.elements() == 0) != (a.kv_cache.elements() == 0))
      check.fail(Status::invalid_shape, "kr_cache", "", shape_text(a.kr_cache), "the rows of kv_cache",
                 shape_text(a.kv_cache).substr(4));
  }
  check_cache_index(check, a, s);
  if (const Tensor& t = a.actual_seq_len; t && is_whole_block(a) && !s.batched)
    check.rows(t, "actual_seq_len", t.elements(), {}, "B");
  return s;
}

/// V9, but for tile_size and S, which come later.
void check_chip_sizes(const Check& check, Form form, const Args& a, const Sizes& s) {
  const auto size = [&](std::int64_t value, std::initializer_list<std::int64_t> offered, const char* parameter,
                        const char* name, const char* wanted) {
    const bool fits = std::find(offered.begin(), offered.end(), value) != offered.end();
    if (!fits) check.chip(false, parameter, std::string("has ") + name + " " + std::to_string(value), wanted);
  };
  if (form == Form::v2) {
    size(s.hidden, {7168}, "token_x", "He", "7168");
    size(s.rank, {1536}, "rmsnorm_gamma_cq", "Hcq", "1536");
    size(s.nope, {128}, "weight_uk", "D", "128");
  } else {
    size(s.hidden, {1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192}, "token_x", "He",
         "1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680 or 8192");
    size(s.rank, {1536, 2048}, "rmsnorm_gamma_cq", "Hcq", "1536 or 2048");
    size(s.nope, {128, 192}, "weight_uk", "D", "128 or 192");
  }
  size(s.heads, {1, 2, 4, 8, 16, 32, 64, 128}, "weight_uk", "N", "1, 2, 4, 8, 16, 32, 64 or 128");
  size(s.latent, {512}, "weight_uk", "Hckv", "512");
  size(s.rope, {64}, "rope_sin", "Dr", "64");
  if (!is_paged(a)) return;
  if (form == Form::v2) size(s.block_size, {16, 128}, "kv_cache", "block_size", "16 or 128");
  else if (s.block_size % 16 != 0 || s.block_size > 1024)
    check.chip(false, "kv_cache", "has block_size " + std::to_string(s.block_size), "a multiple of 16 in 16..1024");
}

/// V21. What is longer does not fit an int32 sum.
void check_inner(const Check& check, const Args& a, const Sizes& s) {
  const auto one = [&](DType weight, std::int64_t k, const char* parameter, const char* name) {
    if (weight != DType::i8 || k <= kMaxInnerI8) return;
    check.fail(Status::invalid_shape, parameter, "", std::string("has ") + name + " " + std::to_string(k),
               "at most " + std::to_string(kMaxInnerI8), "int32 sums of int8 products are exact up to there");
  };
  one(a.weight_dq.dtype, s.hidden, "token_x", "He");
  one(a.weight_uq_qr.dtype, s.rank, "rmsnorm_gamma_cq", "Hcq");
}

}  // namespace dsakit::mla_prolog_v3_op
