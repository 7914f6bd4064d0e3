// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/view.hpp"
#include "debug/edit.hpp"
#include "debug/execute.hpp"
#include "debug/rule.hpp"
#include "debug/test_cases.hpp"

// Calls with nothing recorded yet, large enough that mistakes show.
namespace dsakit::debug {

inline Stored random_stored(Random& r, DType type, std::vector<std::int64_t> shape, float low = -1, float high = 1) {
  Stored s(io::file_dtype_of(type), std::move(shape));
  const std::int64_t n = s.elements();
  std::byte* to = s.bytes->data();
  for (std::int64_t i = 0; i < n; ++i) {
    if (type == DType::i8) reinterpret_cast<std::int8_t*>(to)[i] = std::int8_t(r.below(255) - 127);
    else if (type == DType::bf16) reinterpret_cast<bf16*>(to)[i] = to_bf16(r.uniform(low, high));
    else if (type == DType::f16) reinterpret_cast<f16*>(to)[i] = to_f16(r.uniform(low, high));
    else reinterpret_cast<float*>(to)[i] = r.uniform(low, high);
  }
  return s;
}

/// Codes of groups that reach 127 somewhere, as quantised ones do.
inline Stored random_codes(Random& r, std::vector<std::int64_t> shape, std::int64_t group) {
  Stored s = random_stored(r, DType::i8, std::move(shape));
  auto* codes = reinterpret_cast<std::int8_t*>(s.bytes->data());
  for (std::int64_t first = 0, n = s.elements(); first < n; first += group)
    codes[first + r.below(group)] = std::int8_t(r.below(2) ? 127 : -127);
  return s;
}

/// Two sequences with 3 and 5 rows over pages of 16, out of order.
struct PagedBatch {
  static constexpr std::int64_t rows = 8, pages = 64, page = 16;
  std::vector<std::int32_t> table, totals{3, 8}, keys{500, 290};
  explicit PagedBatch(Random& r) : table(64) {
    for (std::int32_t i = 0; i < 64; ++i) table[std::size_t(i)] = i;
    for (std::int64_t i = 63; i > 0; --i) std::swap(table[std::size_t(i)], table[std::size_t(r.below(i + 1))]);
  }
  void add(Case& c, const char* lengths_key, const char* layout_key) const {
    c.tensors["in.block_table"] = stored<std::int32_t>({2, 32}, table);
    c.tensors["in.actual_seq_lengths_query"] = stored<std::int32_t>({2}, totals);
    c.tensors[std::string("in.") + lengths_key] = stored<std::int32_t>({2}, keys);
    c.attributes["layout_query"] = std::string("TND");
    c.attributes[layout_key] = std::string("PA_BSND");
  }
  std::int64_t visible(std::int64_t row) const { return row < 3 ? 500 - 3 + row + 1 : 290 - 8 + row + 1; }
};

inline Case indexer_case(bool quantised, std::uint64_t seed) {
  Random r(seed);
  const PagedBatch batch(r);
  constexpr std::int64_t heads = 8, dims = 64;
  const DType type = quantised ? DType::i8 : DType::bf16;
  Case c;
  c.call = quantised ? "dsakit.quant_lightning_indexer" : "dsakit.lightning_indexer";
  batch.add(c, "actual_seq_lengths_key", "layout_key");
  c.attributes["sparse_count"] = std::int64_t{64};
  const auto rows = [&](std::vector<std::int64_t> shape) {
    return quantised ? random_codes(r, std::move(shape), dims) : random_stored(r, type, std::move(shape));
  };
  c.tensors["in.query"] = rows({batch.rows, heads, dims});
  c.tensors["in.key"] = rows({batch.pages, batch.page, 1, dims});
  c.tensors["in.weights"] = random_stored(r, quantised ? DType::f16 : type, {batch.rows, heads}, -0.5f, 1);
  if (!quantised) return c;
  c.tensors["in.query_dequant_scale"] = random_stored(r, DType::f16, {batch.rows, heads}, 0.01f, 0.05f);
  c.tensors["in.key_dequant_scale"] = random_stored(r, DType::f16, {batch.pages, batch.page, 1}, 0.01f, 0.05f);
  return c;
}

/// Rows in one piece, as long as their tensors.
inline Case contiguous_case(std::uint64_t seed) {
  Random r(seed);
  Case c;
  c.call = "dsakit.lightning_indexer";
  c.attributes["sparse_count"] = std::int64_t{32};
  c.tensors["in.query"] = random_stored(r, DType::bf16, {2, 5, 8, 64});
  c.tensors["in.key"] = random_stored(r, DType::bf16, {2, 200, 1, 64});
  c.tensors["in.weights"] = random_stored(r, DType::bf16, {2, 5, 8}, -0.5f, 1);
  // The newest key is one of the best.
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t row = 0; row < 5; ++row)
      for (std::int64_t d = 0; d < 64; ++d)
        set_number(c.tensors["in.key"], ((b * 200 + 195 + row) * 64 + d),
                   2 * number_at(c.tensors["in.query"].tensor(), ((b * 5 + row) * 8 + 3) * 64 + d));
  return c;
}

inline Case sparse_case(bool packed, std::uint64_t seed) {
  Random r(seed);
  const PagedBatch batch(r);
  constexpr std::int64_t heads = 4, dv = 64, dr = 16, tile = 16, list = 96;
  Case c;
  c.call = packed ? "dsakit.kv_quant_sparse_flash_attention" : "dsakit.sparse_flash_attention";
  batch.add(c, "actual_seq_lengths_kv", "layout_kv");
  c.attributes["attention_mode"] = std::int64_t{2};
  c.attributes["scale_value"] = 0.3;
  std::vector<std::int32_t> positions(std::size_t(batch.rows * list));
  for (std::int64_t row = 0; row < batch.rows; ++row)
    for (std::int64_t i = 0; i < list; ++i)  // each once: a step that has no factor with the length, from the newest on
      positions[std::size_t(row * list + i)] = std::int32_t(batch.visible(row) - 1 - i * (batch.visible(row) / list));
  c.tensors["in.sparse_indices"] = stored<std::int32_t>({batch.rows, 1, list}, positions);
  c.tensors["in.sinks"] = random_stored(r, DType::f32, {heads}, 1, 6);
  if (!packed) {
    c.tensors["in.query"] = random_stored(r, DType::bf16, {batch.rows, heads, dv}, -2, 2);
    c.tensors["in.query_rope"] = random_stored(r, DType::bf16, {batch.rows, heads, dr}, -2, 2);
    c.tensors["in.key"] = random_stored(r, DType::bf16, {batch.pages, batch.page, 1, dv});
    c.tensors["in.key_rope"] = random_stored(r, DType::bf16, {batch.pages, batch.page, 1, dr});
    c.layouts["in.value"].of = "in.key";
    return c;
  }
  c.attributes["key_quant_mode"] = c.attributes["value_quant_mode"] = std::int64_t{2};
  c.attributes["tile_size"] = tile, c.attributes["rope_head_dim"] = dr;
  c.tensors["in.query"] = random_stored(r, DType::bf16, {batch.rows, heads, dv + dr}, -2, 2);
  constexpr std::int64_t width = dv + 2 * dr + 4 * (dv / tile);
  Stored key = random_stored(r, DType::i8, {batch.pages, batch.page, 1, width});
  for (std::int64_t row = 0; row < batch.pages * batch.page; ++row) {
    std::byte* at = key.bytes->data() + row * width + dv;
    for (std::int64_t i = 0; i < dr; ++i, at += 2) {
      const bf16 x = to_bf16(r.uniform(-1, 1));
      std::memcpy(at, &x, 2);
    }
    for (std::int64_t i = 0; i < dv / tile; ++i, at += 4) {
      const float s = r.uniform(0.004f, 0.012f);
      std::memcpy(at, &s, 4);
    }
  }
  c.tensors["in.key"] = key;
  c.layouts["in.value"].of = "in.key";
  return c;
}

/// Cosines and sines of tokens far apart.
inline void add_rope(Case& c, const char* cos, const char* sin, std::int64_t tokens, std::int64_t width) {
  std::vector<bf16> x(std::size_t(tokens * width)), y(x);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < width; ++j) {
      const double angle = double(37 * t + 11) * std::pow(100.0, -2.0 * double(j % (width / 2)) / double(width));
      x[std::size_t(t * width + j)] = to_bf16(float(std::cos(angle)));
      y[std::size_t(t * width + j)] = to_bf16(float(std::sin(angle)));
    }
  c.tensors[cos] = stored<bf16>({tokens, width}, x);
  c.tensors[sin] = stored<bf16>({tokens, width}, y);
}

inline Case mla_case(bool quantised, std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t tokens = 10, hidden = 128, rank = 64, heads = 4, nope = 32, rope = 16, latent = 64;
  constexpr std::int64_t wide = heads * (nope + rope);
  Case c;
  c.call = "dsakit.mla_prolog_v3";
  c.tensors["in.token_x"] = random_stored(r, DType::bf16, {tokens, hidden}, -0.02f, 0.02f);
  c.tensors["in.weight_dq"] = random_stored(r, DType::bf16, {hidden, rank}, -0.1f, 0.1f);
  c.tensors["in.weight_uq_qr"] = random_stored(r, quantised ? DType::i8 : DType::bf16, {rank, wide}, -0.1f, 0.1f);
  c.tensors["in.weight_uk"] = random_stored(r, DType::bf16, {heads, nope, latent}, -0.1f, 0.1f);
  c.tensors["in.weight_dkv_kr"] = random_stored(r, DType::bf16, {hidden, latent + rope}, -0.1f, 0.1f);
  c.tensors["in.rmsnorm_gamma_cq"] = random_stored(r, DType::bf16, {rank}, 0.3f, 2);
  c.tensors["in.rmsnorm_gamma_ckv"] = random_stored(r, DType::bf16, {latent}, 0.3f, 2);
  add_rope(c, "in.rope_cos", "in.rope_sin", tokens, rope);
  c.tensors["in.kv_cache"] = random_stored(r, DType::bf16, {40, 8, 1, latent});
  c.tensors["in.kr_cache"] = random_stored(r, DType::bf16, {40, 8, 1, rope});
  c.tensors["in.cache_index"] = stored<std::int64_t>({tokens}, {3, 4, 5, 6, 7, 8, 9, 12, 13, -1});
  c.attributes["qc_qr_scale"] = 1.25, c.attributes["kc_scale"] = 0.75;
  c.attributes["query_norm_flag"] = true;
  if (!quantised) return c;
  c.attributes["weight_quant_mode"] = std::int64_t{1};
  c.tensors["in.dequant_scale_w_uq_qr"] = random_stored(r, DType::f32, {1, wide}, 0.0005f, 0.002f);
  c.tensors["in.smooth_scales_cq"] = random_stored(r, DType::f32, {1, rank}, 0.5f, 2);
  return c;
}

/// Packed rows: codes, rope part and scales of tiles in one cache.
inline Case packed_mla_case(std::uint64_t seed) {
  Random r(seed + 1);
  Case c = mla_case(true, seed);
  constexpr std::int64_t latent = 64, rope = 16, tile = 16;
  c.attributes["kv_cache_quant_mode"] = std::int64_t{3};
  c.attributes["ckvkr_repo_mode"] = c.attributes["quant_scale_repo_mode"] = std::int64_t{1};
  c.attributes["tile_size"] = tile;
  c.tensors["in.kv_cache"] = random_stored(r, DType::i8, {4, 8, 1, latent + 2 * rope + 4 * latent / tile});
  c.tensors["in.k_nope_clip_alpha"] = stored<float>({1}, {0.8f});
  c.tensors["in.kr_cache"] = random_stored(r, DType::bf16, {4, 8, 1, 0});
  return c;
}

/// Everything int8: activations, weights, absorbed query and latent rows.
inline Case int8_mla_case(std::uint64_t seed) {
  Random r(seed + 2);
  Case c = mla_case(true, seed);
  c.call = "dsakit.mla_prolog_v2";
  for (const char* absent : {"qc_qr_scale", "kc_scale", "query_norm_flag", "weight_quant_mode"})
    c.attributes.erase(absent);
  for (const char* name : {"weight_dq", "weight_uq_qr", "weight_dkv_kr", "kv_cache"}) {
    Stored& t = c.tensors[std::string("in.") + name];
    t = random_stored(r, DType::i8, t.shape);
  }
  c.tensors["in.token_x"] = random_codes(r, {10, 128}, 128);
  c.tensors["in.dequant_scale_x"] = random_stored(r, DType::f32, {10, 1}, 0.0005f, 0.002f);
  c.tensors["in.dequant_scale_w_dq"] = random_stored(r, DType::f32, {1, 64}, 0.0005f, 0.002f);
  c.tensors["in.dequant_scale_w_dkv_kr"] = random_stored(r, DType::f32, {1, 80}, 0.0005f, 0.002f);
  c.tensors["in.quant_scale_ckv"] = stored<float>({1, 64}, std::vector<float>(64, 40.0f));
  return c;
}

inline Case index_prolog_case(std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t tokens = 10, hidden = 128, rank = 64, heads = 4, dim = 32, rope = 16;
  Case c;
  c.call = "dsakit.lightning_indexer_prolog_quant";
  c.tensors["in.x"] = random_stored(r, DType::bf16, {tokens, hidden}, -0.02f, 0.02f);
  c.tensors["in.q_norm"] = random_codes(r, {tokens, rank}, rank);
  c.tensors["in.q_norm_scale"] = random_stored(r, DType::f32, {tokens, 1}, 0.005f, 0.02f);
  c.tensors["in.w_qb"] = random_stored(r, DType::i8, {rank, heads * dim});
  c.tensors["in.w_qb_scale"] = random_stored(r, DType::f32, {1, heads * dim}, 0.0005f, 0.002f);
  c.tensors["in.wk"] = random_stored(r, DType::bf16, {hidden, dim}, -0.1f, 0.1f);
  c.tensors["in.w_proj"] = random_stored(r, DType::bf16, {hidden, heads}, -1, 1);
  c.tensors["in.ln_gamma_k"] = random_stored(r, DType::bf16, {dim}, 0.3f, 2);
  c.tensors["in.ln_beta_k"] = random_stored(r, DType::bf16, {dim}, -1, 1);
  add_rope(c, "in.cos", "in.sin", tokens, rope);
  std::vector<bf16> hadamard(dim * dim);
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = 0; j < dim; ++j)
      hadamard[i * dim + j] = to_bf16((std::popcount(i & j) % 2 ? -1.0f : 1.0f) / std::sqrt(float(dim)));
  c.tensors["in.hadamard_q"] = c.tensors["in.hadamard_k"] = stored<bf16>({dim, dim}, hadamard);
  c.tensors["in.k_cache"] = random_stored(r, DType::i8, {4, 8, 1, dim});
  c.tensors["in.k_scale_cache"] = random_stored(r, DType::f16, {4, 8, 1, 1}, 0.01f, 0.02f);
  c.tensors["in.k_cache_index"] = stored<std::int64_t>({tokens}, {3, 4, 5, 6, 7, 8, 9, 12, 13, -1});
  return c;
}

inline Case dense_case(std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t sequences = 2, heads = 4, dv = 64, pages = 64, page = 16;
  const PagedBatch batch(r);
  Case c;
  c.call = "dsakit.fused_infer_attention_score_v2";
  c.attributes = {{"num_query_heads", heads}, {"num_key_value_heads", std::int64_t{2}},
                  {"softmax_scale", 0.3},     {"input_layout", std::string("BSND")},
                  {"block_size", page},       {"return_softmax_lse", true}};
  c.tensors["in.query"] = random_stored(r, DType::bf16, {sequences, 1, heads, dv}, -2, 2);
  c.tensors["in.key"] = random_stored(r, DType::bf16, {pages, page, 2 * dv});
  c.tensors["in.value"] = random_stored(r, DType::bf16, {pages, page, 2 * dv});
  c.tensors["in.block_table"] = stored<std::int32_t>({2, 32}, batch.table);
  c.attributes["actual_seq_kvlen"] = Integers{500, 290};
  return c;
}

/// Rows in one piece, with a mask and a band of their own.
inline Case masked_case(std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t sequences = 2, rows = 6, heads = 4, dv = 32, keys = 40;
  Case c;
  c.call = "dsakit.fused_infer_attention_score_v2";
  c.attributes = {{"num_query_heads", heads},      {"num_key_value_heads", std::int64_t{2}},
                  {"softmax_scale", 0.3},          {"input_layout", std::string("BSND")},
                  {"pre_tokens", std::int64_t{1}}, {"next_tokens", std::int64_t{30}},
                  {"sparse_mode", std::int64_t{0}}};
  c.tensors["in.query"] = random_stored(r, DType::bf16, {sequences, rows, heads, dv}, -2, 2);
  c.tensors["in.key"] = random_stored(r, DType::bf16, {sequences, keys, 2, dv});
  c.tensors["in.value"] = random_stored(r, DType::bf16, {sequences, keys, 2, dv});
  std::vector<std::uint8_t> mask(std::size_t(sequences * rows * keys));
  for (auto& x : mask) x = std::uint8_t(r.below(3) == 0);
  c.tensors["in.atten_mask"] = stored<std::uint8_t>({sequences, rows, keys}, mask);
  return c;
}

/// Latent attention: a rope part of its own, one key head whose rows are values too, a sink, causal rows.
inline Case latent_case(bool nz, std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t heads = 4, dv = 64, dr = 16, pages = 64, page = 16;
  const PagedBatch batch(r);
  Case c;
  c.call = "dsakit.fused_infer_attention_score_v2";
  c.attributes = {{"num_query_heads", heads}, {"num_key_value_heads", std::int64_t{1}},
                  {"softmax_scale", 0.3},     {"input_layout", std::string("TND")},
                  {"block_size", page},       {"sparse_mode", std::int64_t{3}}};
  c.tensors["in.query"] = random_stored(r, DType::bf16, {batch.rows, heads, dv}, -2, 2);
  c.tensors["in.query_rope"] = random_stored(r, DType::bf16, {batch.rows, heads, dr}, -2, 2);
  const auto shape = [&](std::int64_t width) {
    return nz ? std::vector<std::int64_t>{pages, 1, width / 16, page, 16}
              : std::vector<std::int64_t>{pages, page, width};
  };
  c.tensors["in.key"] = random_stored(r, DType::bf16, shape(dv));
  c.tensors["in.key_rope"] = random_stored(r, DType::bf16, shape(dr));
  c.layouts["in.value"].of = "in.key";
  c.tensors["in.block_table"] = stored<std::int32_t>({2, 32}, batch.table);
  c.tensors["in.learnable_sink"] = random_stored(r, DType::f32, {heads}, 1, 6);
  c.attributes["actual_seq_qlen"] = Integers{3, 8};
  c.attributes["actual_seq_kvlen"] = Integers{500, 290};
  std::vector<std::uint8_t> stencil(2048 * 2048);
  for (std::size_t i = 0; i < 2048; ++i)
    for (std::size_t j = i + 1; j < 2048; ++j) stencil[i * 2048 + j] = 1;
  c.tensors["in.atten_mask"] = stored<std::uint8_t>({2048, 2048}, stencil);
  return c;
}

/// Pages of codes, int8 or eight int4 in a word, with a scale and an offset for each row of a page.
inline Case coded_case(bool int4, std::uint64_t seed) {
  Random r(seed);
  Case c = dense_case(seed);
  constexpr std::int64_t pages = 64, page = 16, dv = 64;
  for (const char* name : {"key", "value"}) {
    const std::string key = std::string("in.") + name, scale = std::string("in.dequant_scale_") + name;
    c.tensors[key] = random_stored(r, DType::i8, {pages, page, 2 * dv / (int4 ? 2 : 1)});
    if (int4) c.tensors[key].type = &io::file_dtype_of(DType::i32), c.tensors[key].shape.back() /= 4;
    c.attributes[std::string(name) + "_quant_mode"] = std::int64_t{4};
    c.tensors[scale] = random_stored(r, DType::f32, {pages, page}, 0.004f, int4 ? 0.2f : 0.012f);
    c.tensors[std::string("in.dequant_offset_") + name] = random_stored(r, DType::f32, {pages, page}, -2, 2);
  }
  return c;
}

/// dynamic_quant, with groups of zeros and of small numbers; `int4`: eight codes in a word.
inline Case dynamic_quant_case(bool int4, std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t rows = 128, width = 128;
  Case c;
  c.call = "dsakit.dynamic_quant";
  if (int4) c.attributes["dst_type"] = std::string("quint4x2");
  Stored x = random_stored(r, DType::bf16, {rows, width});
  for (std::int64_t i = 0; i < x.elements(); ++i) {  // one row without any, two of small numbers
    const std::int64_t row = i / width;
    const double times = row == 5 ? 0 : row == 6 ? 1e-6 : row == 7 ? 1e-10 : 1;
    set_number(x, i, times * number_at(x.tensor(), i));
  }
  c.tensors["in.input"] = x;
  c.tensors["in.smooth_scales"] = random_stored(r, DType::bf16, {width}, 0.5f, 2);
  return c;
}

inline Case block_quant_case(std::uint64_t seed) {
  Case c = dynamic_quant_case(false, seed);
  c.call = "dsakit.dynamic_block_quant";
  c.attributes["col_block_size"] = std::int64_t{32};
  c.tensors["in.x"] = c.tensors["in.input"];
  c.tensors.erase("in.input"), c.tensors.erase("in.smooth_scales");
  return c;
}

/// Numbers that are halfway between two codes: exactly in odd columns, as nearly as a float can be in even ones.
inline Case quantize_case(bool divides, std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t rows = 40, width = 96;
  constexpr double zero = 3;
  Case c;
  c.call = "dsakit.quantize";
  c.attributes = {{"dtype", std::string("qint8")}, {"div_mode", divides}, {"axis", std::int64_t{-1}}};
  Stored x(io::file_dtype_of(DType::f32), {rows, width}), scales(io::file_dtype_of(DType::f32), {width});
  for (std::int64_t i = 0; i < width; ++i) set_number(scales, i, i % 2 ? 0.5 : r.uniform(0.4f, 1.2f));
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    const double code = double(r.below(120) - 60) + (i % 4 == 3 ? 0.3 : 0.5);
    const double scale = number_at(scales.tensor(), i % width);
    set_number(x, i, divides ? code * scale : (code - zero) / scale);
  }
  c.tensors["in.input"] = x, c.tensors["in.scales"] = scales;
  c.tensors["in.zero_points"] = divides
                                    ? stored<std::int32_t>({width}, std::vector<std::int32_t>(std::size_t(width), 3))
                                    : stored<float>({width}, std::vector<float>(std::size_t(width), 3.0f));
  return c;
}

/// The PyPTO form: int8 rows with a scale for each group of 128 latent columns; `fused`: with the index prolog.
inline Case pypto_prolog_case(bool fused, std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t tokens = 10, hidden = 128, rank = 64, heads = 4, nope = 32, rope = 16, latent = 128;
  constexpr std::int64_t wide = heads * (nope + rope), index_heads = 4, dim = 32;
  Case c;
  c.call = fused ? "dsakit.mla_indexer_prolog_quant" : "dsakit.mla_prolog_quant";
  c.tensors["in.token_x"] = random_stored(r, DType::bf16, {tokens, hidden}, -0.02f, 0.02f);
  c.tensors["in.w_dq"] = random_stored(r, DType::bf16, {hidden, rank}, -0.1f, 0.1f);
  c.tensors["in.w_uq_qr"] = random_stored(r, DType::i8, {rank, wide});
  c.tensors["in.dequant_scale"] = random_stored(r, DType::f32, {wide, 1}, 0.0005f, 0.002f);
  c.tensors["in.w_uk"] = random_stored(r, DType::bf16, {heads, nope, latent}, -0.1f, 0.1f);
  c.tensors["in.w_dkv_kr"] = random_stored(r, DType::bf16, {hidden, latent + rope}, -0.1f, 0.1f);
  c.tensors["in.gamma_cq"] = random_stored(r, DType::bf16, {rank}, 0.3f, 2);
  c.tensors["in.gamma_ckv"] = random_stored(r, DType::bf16, {latent}, 0.3f, 2);
  add_rope(c, "in.cos", "in.sin", tokens, rope);
  c.tensors["in.cache_index"] = stored<std::int64_t>({tokens}, {3, 4, 5, 6, 7, 8, 9, 12, 13, -1});
  c.tensors["in.kv_cache"] = random_stored(r, DType::i8, {4, 8, 1, latent});
  c.tensors["in.kr_cache"] = random_stored(r, DType::bf16, {4, 8, 1, rope});
  c.tensors["in.k_scale_cache"] = random_stored(r, DType::f32, {4, 8, 1, 4}, 0.01f, 0.02f);
  if (!fused) return c;
  const Case index = index_prolog_case(seed);
  for (const char* name : {"w_qb", "w_qb_scale", "wk", "w_proj", "ln_gamma_k", "ln_beta_k", "hadamard_q", "hadamard_k"})
    c.tensors[std::string("in.") + name] = index.tensors.at(std::string("in.") + name);
  c.tensors["in.ip_k_cache"] = index.tensors.at("in.k_cache");
  c.tensors["in.ip_k_scale_cache"] = index.tensors.at("in.k_scale_cache");
  static_assert(index_heads * dim == 128);
  return c;
}

/// The PyPTO form of sparse attention: rows of two axes, codes and scales apart.
inline Case pypto_sparse_case(std::uint64_t seed) {
  Random r(seed);
  constexpr std::int64_t sequences = 2, heads = 4, dv = 64, dr = 16, pages = 64, page = 16, list = 96;
  const PagedBatch batch(r);
  Case c;
  c.call = "dsakit.sparse_flash_attention_quant";
  c.attributes = {{"b", sequences}, {"s1", std::int64_t{1}}, {"nq", heads},         {"n_kv", std::int64_t{1}},
                  {"topk", list},   {"block_size", page},    {"softmax_scale", 0.3}};
  c.tensors["in.query_nope"] = random_stored(r, DType::bf16, {sequences * heads, dv}, -2, 2);
  c.tensors["in.query_rope"] = random_stored(r, DType::bf16, {sequences * heads, dr}, -2, 2);
  c.tensors["in.key_nope_2d"] = random_stored(r, DType::bf16, {pages * page, dv});
  c.tensors["in.key_rope_2d"] = random_stored(r, DType::bf16, {pages * page, dr});
  std::vector<std::int32_t> positions;
  for (const std::int32_t keys : batch.keys)
    for (std::int32_t i = 0; i < list; ++i) positions.push_back(keys - 1 - i * (keys / std::int32_t(list)));
  c.tensors["in.topk_indices"] = stored<std::int32_t>({sequences, list}, positions);
  c.tensors["in.block_table"] = stored<std::int32_t>({2, 32}, batch.table);
  c.tensors["in.kv_act_seqs"] = stored<std::int32_t>({2}, batch.keys);
  return c;
}

/// The same over int8 rows with scales of tiles.
inline Case coded_sparse_case(std::uint64_t seed) {
  Random r(seed + 3);
  Case c = pypto_sparse_case(seed);
  c.tensors["in.key_nope_2d"] = random_codes(r, {64 * 16, 64}, 16);
  c.tensors["in.k_nope_scales"] = random_stored(r, DType::f32, {64 * 16, 4}, 0.004f, 0.012f);
  return c;
}

inline Case interleaved_case(std::uint64_t seed) {
  Random r(seed);
  Case c;
  c.call = "dsakit.interleave_rope";
  c.tensors["in.x"] = random_stored(r, DType::bf16, {1, 3, 12, 32});
  add_rope(c, "in.cos", "in.sin", 12, 32);
  for (const char* table : {"in.cos", "in.sin"}) c.tensors[table].shape = {1, 1, 12, 32};
  return c;
}

inline Case rotation_case(std::uint64_t seed) {
  Random r(seed);
  Case c;
  c.call = "dsakit.rotary_mul";
  c.tensors["in.x"] = random_stored(r, DType::bf16, {1, 3, 12, 32});
  add_rope(c, "in.r1", "in.r2", 12, 32);
  for (const char* table : {"in.r1", "in.r2"}) c.tensors[table].shape = {1, 1, 12, 32};
  return c;
}

/// What a run of `how` leaves becomes what was recorded, with a last rounding of every 8th number that went the other
/// way, as another machine's may.
inline Case recorded(Case c, const Execution& how, bool noisy = true) {
  const Outcome outcome = execute(c, how);
  if (outcome.refusal) throw *outcome.refusal;
  Random r(77);
  for (const auto& [key, result] : outcome.results) {
    Stored s(result.tensor);
    const DType type = result.tensor.dtype;
    if (noisy && (type == DType::bf16 || type == DType::f16) && key.find("cache") == key.npos) {
      auto* bits = reinterpret_cast<std::uint16_t*>(s.bytes->data());
      for (std::int64_t i = 0, n = s.elements(); i < n; ++i)
        if (r.below(8) == 0 && (bits[i] & 0x7fff) != 0 && (bits[i] & 0x7f) != 0x7f)
          bits[i] = std::uint16_t(bits[i] + 1);
    }
    c.tensors[key] = s;
  }
  return c;
}

}  // namespace dsakit::debug
