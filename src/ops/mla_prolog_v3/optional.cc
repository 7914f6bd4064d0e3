// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>

#include "ops/mla_prolog_v3/door.hpp"

// V10 to V14: dtypes, formats, and what is optional.
namespace dsakit::mla_prolog_v3_op {
namespace {

using Args = MlaPrologV3Args;

/// The optional scales of a call, with what its row wants of them.
struct Scale {
  const Tensor& tensor;
  const char* name;
  Need need;
  std::int64_t columns;  // of a [1, columns]; 0: a [T, 1]
  const char* why;
};
struct Scales {
  Scale list[8];

  Scales(const Check& check, Form form, const Args& a, const Sizes& s)
      : list{{a.dequant_scale_x, "dequant_scale_x", s.mode->hidden_scales, 0, "tokens of token_x"},
             {a.dequant_scale_w_dq, "dequant_scale_w_dq", s.mode->hidden_scales, s.rank, "Hcq of rmsnorm_gamma_cq"},
             {a.dequant_scale_w_uq_qr, "dequant_scale_w_uq_qr", s.mode->dequant_scale_w_uq_qr, s.wide,
              "N*(D+Dr) of weight_uk and rope_sin"},
             {a.dequant_scale_w_dkv_kr, "dequant_scale_w_dkv_kr", s.mode->hidden_scales, s.latent + s.rope,
              "Hckv+Dr of weight_uk and rope_sin"},
             {a.quant_scale_ckv, "quant_scale_ckv", s.mode->quant_scale_ckv, s.latent, "Hckv of weight_uk"},
             {a.quant_scale_ckr, "quant_scale_ckr", s.mode->quant_scale_ckr, s.rope, "Dr of rope_sin"},
             {a.smooth_scales_cq, "smooth_scales_cq", s.mode->smooth_scales_cq, s.rank, "Hcq of rmsnorm_gamma_cq"},
             {a.k_nope_clip_alpha, "k_nope_clip_alpha", s.mode->k_nope_clip_alpha, 1, "one value"}} {
    Need& ckv = list[4].need;
    if (form == Form::v2 && ckv == Need::single && (check.strict() || a.quant_scale_ckv.elements() != 1))
      ckv = Need::required;  // there it is a row of equal values
  }
};

const char* because(Form form, std::initializer_list<const char*> by_mode, int mode) {
  return form == Form::v2 ? "the dtypes of token_x, weight_uq_qr and kv_cache choose the mode" : by_mode.begin()[mode];
}

/// [1, columns]; portable: any shape with these elements in one row (T6).
void check_scale_shape(const Check& check, const Scale& scale, std::int64_t tokens) {
  const auto& [t, name, need, columns, why] = scale;
  if (columns == 0) check.rows(t, name, tokens, {1}, why);
  else if (need == Need::single) check.vector(t, name, 1, "one value");
  else if (check.strict()) check.shape(t, name, {1, columns}, why);
  else check.rows(t, name, 1, {columns}, why);
}

}  // namespace

bool ignores_ckv_scale(const Check& check, const Args& a, const Mode& mode) {
  return mode.packed() && !check.strict() && a.quant_scale_ckv.elements() > 0;
}

void check_dtypes(const Check& check, Form form, const Args& a, const Sizes& s) {
  const Mode& m = *s.mode;
  const char* weight =
      because(form, {"weight_quant_mode 0", "weight_quant_mode 1", "weight_quant_mode 2"}, m.weight_quant);
  const char* cache = because(
      form, {"kv_cache_quant_mode 0", "kv_cache_quant_mode 1", "kv_cache_quant_mode 2", "kv_cache_quant_mode 3"},
      m.kv_cache_quant);
  check.dtype(
      a.token_x, "token_x", {m.token_x},
      m.token_x == DType::i8 && form != Form::v2
          ? "weight_quant_mode 2; npu_dynamic_quant makes it and dequant_scale_x; weight_quant_mode 1 takes bfloat16"
          : weight);
  check.dtype(a.weight_dq, "weight_dq", {m.weight_dq}, weight);
  check.dtype(a.weight_uq_qr, "weight_uq_qr", {m.weight_uq_qr}, weight);
  check.dtype(a.weight_uk, "weight_uk", {DType::bf16});
  check.dtype(a.weight_dkv_kr, "weight_dkv_kr", {m.weight_dq}, weight);
  check.dtype(a.rmsnorm_gamma_cq, "rmsnorm_gamma_cq", {DType::bf16});
  check.dtype(a.rmsnorm_gamma_ckv, "rmsnorm_gamma_ckv", {DType::bf16});
  check.dtype(a.rope_sin, "rope_sin", {DType::bf16});
  check.dtype(a.rope_cos, "rope_cos", {DType::bf16});
  check.dtype(a.kv_cache, "kv_cache", {m.kv_cache}, cache);
  if (!m.packed() || (check.strict() && a.kr_cache)) check.dtype(a.kr_cache, "kr_cache", {m.kr_cache}, cache);
  if (a.cache_index && is_paged(a)) check.dtype(a.cache_index, "cache_index", {DType::i64});
  for (const Scale& scale : Scales(check, form, a, s).list)
    if (scale.tensor && scale.need != Need::absent) check.dtype(scale.tensor, scale.name, {m.dequant_scale});
  if (ignores_ckv_scale(check, a, m)) check.dtype(a.quant_scale_ckv, "quant_scale_ckv", {DType::f32});
  if (a.actual_seq_len && is_whole_block(a)) check.dtype(a.actual_seq_len, "actual_seq_len", {DType::i32});
  check_weight_format(check, a.weight_dq, "weight_dq");
  check_weight_format(check, a.weight_uq_qr, "weight_uq_qr");
  check_weight_format(check, a.weight_dkv_kr, "weight_dkv_kr");
}

void check_optional(const Check& check, Form form, const Args& a, const Sizes& s) {
  const Scales scales(check, form, a, s);
  const bool ignored = ignores_ckv_scale(check, a, *s.mode);
  for (const Scale& scale : scales.list) {
    const bool alpha = scale.need == Need::single && &scale.tensor == &a.k_nope_clip_alpha;
    if (scale.need == Need::absent) {
      if (!ignored || &scale.tensor != &a.quant_scale_ckv)
        check.absent(scale.tensor, scale.name,
                     form == Form::v2 ? "not used in the mode of these dtypes" : "not used in this mode");
    } else if (scale.need != Need::optional && !(alpha && !check.strict())) {
      check.required(scale.tensor, scale.name);
    }
  }
  for (const Scale& scale : scales.list)
    if (scale.need != Need::absent && scale.tensor) check_scale_shape(check, scale, s.tokens);
  if (ignored) check.rows(a.quant_scale_ckv, "quant_scale_ckv", 1, {s.latent}, "Hckv of weight_uk");
  if (is_paged(a)) check.required(a.cache_index, "cache_index");
  else check.absent(a.cache_index, "cache_index", "a token has a row of its own in BSND and TND");
  if (is_whole_block(a) && !s.batched) check.required(a.actual_seq_len, "actual_seq_len");
  else check.absent(a.actual_seq_len, "actual_seq_len", "only PA_BLK_BSND and PA_BLK_NZ with token_x [T, He]");
}

}  // namespace dsakit::mla_prolog_v3_op
