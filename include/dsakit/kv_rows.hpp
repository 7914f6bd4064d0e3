// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

// The packed cache row of a quantised latent, as mla_prolog_v3 writes and kv_quant_sparse_flash_attention reads it:
// Hckv int8 codes, Dr rope values of 16 bits, Hckv/tile_size fp32 scales, little endian, no padding. 656 bytes for
// 512, 64 and 128. docs/operators/kv_rows.md
namespace dsakit {

/// Bytes of such a row.
constexpr std::int64_t kv_row_bytes(std::int64_t latent = 512, std::int64_t rope = 64, std::int64_t tile = 128) {
  return latent + 2 * rope + 4 * (latent / tile);
}

/// Three tensors into rows.
struct PackKvRowsArgs {
  Tensor codes;
  Tensor rope;
  Tensor scales;
  Level level = Level::portable;
};

struct PackKvRowsOuts {
  Tensor rows;
};

void pack_kv_rows(const PackKvRowsArgs&, const PackKvRowsOuts&, Context& = default_context());
void infer(const PackKvRowsArgs&, PackKvRowsOuts&);

/// And back.
struct UnpackKvRowsArgs {
  Tensor rows;
  std::int64_t rope_head_dim = 64;
  std::int64_t tile_size = 128;
  std::string_view rope_dtype = "bfloat16";
  Level level = Level::portable;
};

struct UnpackKvRowsOuts {
  Tensor codes;
  Tensor rope;
  Tensor scales;
};

void unpack_kv_rows(const UnpackKvRowsArgs&, const UnpackKvRowsOuts&, Context& = default_context());
void infer(const UnpackKvRowsArgs&, UnpackKvRowsOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, PackKvRowsArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"codes", Role::in, Kind::data, "int8", "[.., Hckv]", "latent codes"}, a.codes);
  v({"rope", Role::in, Kind::data, "bfloat16, float16", "[.., Dr], as many rows; Dr may be 0",
     "rotated part of the key"},
    a.rope);
  v({"scales", Role::in, Kind::data, "float32", "[.., G], as many rows; G divides Hckv",
     "what a code of each tile is worth"},
    a.scales);
  v(kLevelField, a.level);
  v({"rows", Role::out, Kind::cache, "int8", "[.., Hckv + 2*Dr + 4*G], leading axes of codes", "packed rows"}, o.rows);
}
constexpr Description describe(const PackKvRowsArgs&) {
  return {.summary = "Codes, rope values and scales into packed cache rows",
          .formula =
              "row = Hckv codes, then Dr rope values of 2 bytes, then G scales of 4 bytes, little endian, no padding",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed",
          .source = "the rows of torch_npu.npu_mla_prolog_v3; the call is of dsakit",
          .page = "kv_rows.md",
          .family = Family::dsakit,
          .positional = 3};
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, UnpackKvRowsArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"rows", Role::in, Kind::cache, "int8", "[.., Hckv + 2*Dr + 4*Hckv/tile_size]", "packed rows"}, a.rows);
  v({"rope_head_dim", Role::attribute, Kind::number, "int", ">= 0", "Dr"}, a.rope_head_dim);
  v({"tile_size", Role::attribute, Kind::number, "int", ">= 1, divides Hckv", "codes that share a scale"}, a.tile_size);
  v({"rope_dtype", Role::attribute, Kind::dtype, "dtype", "bfloat16, float16", "type of the rope values"},
    a.rope_dtype);
  v(kLevelField, a.level);
  v({"codes", Role::out, Kind::data, "int8", "[.., Hckv]", "latent codes"}, o.codes);
  v({"rope", Role::out, Kind::data, "rope_dtype", "[.., Dr]", "rotated part of the key"}, o.rope);
  v({"scales", Role::out, Kind::data, "float32", "[.., Hckv/tile_size]", "what a code of each tile is worth"},
    o.scales);
}
constexpr Description describe(const UnpackKvRowsArgs&) {
  return {.summary = "Packed cache rows into codes, rope values and scales",
          .formula =
              "row = Hckv codes, then Dr rope values of 2 bytes, then Hckv/tile_size scales of 4 bytes, little endian",
          .errors =
              "INVALID_ARGUMENT: rows is missing, rope_head_dim, tile_size or rope_dtype is out of range\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed",
          .source = "the rows of torch_npu.npu_mla_prolog_v3; the call is of dsakit",
          .page = "kv_rows.md",
          .family = Family::dsakit,
          .positional = 1};
}

namespace reference {
void pack_kv_rows(const PackKvRowsArgs&, const PackKvRowsOuts&);
void unpack_kv_rows(const UnpackKvRowsArgs&, const UnpackKvRowsOuts&);
}  // namespace reference

}  // namespace dsakit
