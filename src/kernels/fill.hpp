// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/columns.hpp"
#include "kernels/gemv.hpp"
#include "kernels/hadamard.hpp"
#include "kernels/index.hpp"
#include "kernels/kernels.hpp"
#include "kernels/panels.hpp"
#include "kernels/peak.hpp"
#include "kernels/products.hpp"
#include "kernels/rows.hpp"
#include "kernels/scaled.hpp"
#include "kernels/select.hpp"
#include "kernels/strip.hpp"

// The table of a rung from its vocabulary and its dots.
namespace dsakit {
namespace {

/// Everything that multiplies codes.
template <class V, class DotOfCodes>
void fill_codes(Kernels& k) {
  static_cast<Entry<ProductOfCodes>&>(k.product) = {product_of_codes<V, DotOfCodes>};
  static_cast<Entry<IndexScoresOfCodes>&>(k.index_scores) = {index_scores_of_codes<V, DotOfCodes>};
  static_cast<Entry<GemvDotsOfCodes>&>(k.gemv_dots) = {gemv_dots_of_codes<V, DotOfCodes>};
  static_cast<Entry<GemvSumsOfCodes>&>(k.gemv_sums) = {gemv_sums_of_codes<V, DotOfCodes>};
  static_cast<Entry<StripProduct<std::uint8_t, std::int8_t, std::int32_t>>&>(k.strip_product) = {
      strip_product<V, ValuesOfCodes<V, DotOfCodes>>};
  k.column_product = column_product<V, DotOfCodes>;
  k.peak[int(Dot::i8)] = peak_of_codes<V, DotOfCodes>;
}

/// Everything that multiplies pairs of bf16.
template <class V, class DotOfPairs>
void fill_pairs(Kernels& k) {
  static_cast<Entry<Product<bf16, bf16>>&>(k.product) = {product<V, DotOfPairs, bf16>};
  k.widens_rows = std::same_as<DotOfPairs, FmaPairs<V, bf16>> && V::kFma;
  static_cast<Entry<ProductOfScaled<bf16>>&>(k.product) = {product_of_scaled<V, DotOfPairs>};
  static_cast<Entry<GemvDotsOfPairs>&>(k.gemv_dots) = {gemv_dots_of_pairs<V, DotOfPairs>};
  static_cast<Entry<GemvSumsOfPairs>&>(k.gemv_sums) = {gemv_sums_of_pairs<V, DotOfPairs>};
  static_cast<Entry<StripProduct<bf16, bf16, float>>&>(k.strip_product) = {
      strip_product<V, ValuesOfPairs<V, DotOfPairs>>};
  k.peak[int(Dot::bf16)] = peak_of_pairs<V, DotOfPairs>;
}

/// The rest, which a register width and its fma decide.
template <class V>
void fill_width(Kernels& k) {
  static_cast<Entry<Product<float, bf16>>&>(k.product) = {product<V, FmaPairs<V, float>, bf16>};
  static_cast<Entry<ProductOfScaled<float>>&>(k.product) = {product_of_scaled<V, FmaPairs<V, float>>};
  k.widen_scaled = widen_scaled<V>;
  static_cast<Entry<Product<float, float>>&>(k.product) = {product<V, Fma<V>, float>};
  static_cast<Entry<IndexScoresOfFloats>&>(k.index_scores) = {index_scores_of_floats<V>};
  k.append_candidates = append_candidates<V>;
  k.sum_squares = sum_squares<V>;
  k.sum = sum<V>;
  k.dequantize = {{dequantize<V, bf16>}, {dequantize<V, f16>}, {dequantize<V, float>}};
  k.widen = {{widen<V, bf16>}, {widen<V, f16>}};
  k.round = {{round<V, bf16>}, {round<V, f16>}};
  k.max_abs = {{max_abs<V, bf16>}, {max_abs<V, f16>}, {max_abs<V, float>}};
  k.quantize = {{quantize<V, bf16>}, {quantize<V, f16>}, {quantize<V, float>}};
  k.quantize_channels = {{quantize_channels<V, bf16>}, {quantize_channels<V, f16>}, {quantize_channels<V, float>}};
  k.divide_channels = {{divide_channels<V, bf16>}, {divide_channels<V, f16>}, {divide_channels<V, float>}};
  k.quantize_blocks = {{quantize_blocks<V, bf16>}, {quantize_blocks<V, f16>}, {quantize_blocks<V, float>}};
  k.rotate = {{rotate<V, bf16>}, {rotate<V, f16>}, {rotate<V, float>}};
  k.hadamard = hadamard<V>;
  k.swiglu = {{swiglu<V, bf16>}, {swiglu<V, f16>}, {swiglu<V, float>}};
  k.rms_norm = {{rms_norm<V, bf16>}, {rms_norm<V, f16>}, {rms_norm<V, float>}};
  k.rms_norm_divided = {{rms_norm_divided<V, bf16>}, {rms_norm_divided<V, f16>}, {rms_norm_divided<V, float>}};
  k.add_rms_norm = {{add_rms_norm<V, bf16>}, {add_rms_norm<V, f16>}, {add_rms_norm<V, float>}};
  k.weighted_sum = {{weighted_sum<V, bf16>}, {weighted_sum<V, f16>}, {weighted_sum<V, float>}};
  k.divide = {{divide<V, bf16>}, {divide<V, f16>}, {divide<V, float>}};
  k.softmax = softmax<V, ToBf16<V>>;
  k.deciding = deciding<V>;
  k.multiply_add = multiply_add<V>;
  k.multiply = {{multiply<V, ToBf16<V>>}, {multiply<V, ToFloat<V>>}};
  k.blend = {{blend<V>}, {blend<V, bf16>}, {blend<V, std::int8_t>}};
  k.transpose = {{transpose<V, bf16, bf16>},
                 {transpose<V, std::int8_t, bf16>},
                 {transpose<V, bf16, float>},
                 {transpose<V, std::int8_t, float>},
                 {transpose<V, f16, float>},
                 {transpose<V, float, float>},
                 {transpose<V, e4m3, e4m3>},
                 {transpose_codes<V>}};
  k.interleave = {{interleave<V, bf16>},
                  {interleave<V, std::int8_t>},
                  {interleave<V, bf16>},
                  {interleave<V, std::int8_t>},
                  {interleave<V, f16>},
                  {interleave<V, float>},
                  {interleave_codes<V>}};
  static_cast<Entry<GemvDotsWidened>&>(k.gemv_dots) = {gemv_dots_widened<V>};
  static_cast<Entry<GemvSumsWidened>&>(k.gemv_sums) = {gemv_sums_widened<V>};
  k.split_codes = split_codes<V>;
  k.join_codes = join_codes<V>;
  k.peak[int(Dot::f32)] = peak_of_floats<V>;
}

template <class V, class DotOfCodes, class DotOfPairs>
void fill(Kernels& k, int gemv_rows) {
  fill_width<V>(k);
  fill_codes<V, DotOfCodes>(k);
  fill_pairs<V, DotOfPairs>(k);
  k.gemv_rows = gemv_rows;
  k.strip_rows = kStripRows;
  k.keep_shapes = [](bool) noexcept {};
}

}  // namespace
}  // namespace dsakit
