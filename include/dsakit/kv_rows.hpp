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
  Tensor codes;   // i8 [.., Hckv]
  Tensor rope;    // bf16 f16 [.., Dr], as many rows
  Tensor scales;  // f32 [.., G], as many rows; G divides Hckv
  Level level = Level::portable;
};

struct PackKvRowsOuts {
  Tensor rows;    // i8 [.., Hckv + 2*Dr + 4*G], leading axes of codes
};

void pack_kv_rows(const PackKvRowsArgs&, const PackKvRowsOuts&, Context& = default_context());
void infer(const PackKvRowsArgs&, PackKvRowsOuts&);

/// And back.
struct UnpackKvRowsArgs {
  Tensor rows;                              // i8 [.., Hckv + 2*Dr + 4*Hckv/tile_size]
  std::int64_t rope_head_dim = 64;          // Dr
  std::int64_t tile_size = 128;
  std::string_view rope_dtype = "bfloat16";  // bfloat16, float16
  Level level = Level::portable;
};

struct UnpackKvRowsOuts {
  Tensor codes;                             // i8 [.., Hckv]
  Tensor rope;                              // rope_dtype [.., Dr]
  Tensor scales;                            // f32 [.., Hckv/tile_size]
};

void unpack_kv_rows(const UnpackKvRowsArgs&, const UnpackKvRowsOuts&, Context& = default_context());
void infer(const UnpackKvRowsArgs&, UnpackKvRowsOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, PackKvRowsArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("codes", a.codes, Role::in);
  v("rope", a.rope, Role::in);
  v("scales", a.scales, Role::in);
  v("level", a.level, Role::attribute);
  v("rows", o.rows, Role::out);
}
constexpr int positional(const PackKvRowsArgs&) { return 3; }

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, UnpackKvRowsArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("rows", a.rows, Role::in);
  v("rope_head_dim", a.rope_head_dim, Role::attribute);
  v("tile_size", a.tile_size, Role::attribute);
  v("rope_dtype", a.rope_dtype, Role::attribute);
  v("level", a.level, Role::attribute);
  v("codes", o.codes, Role::out);
  v("rope", o.rope, Role::out);
  v("scales", o.scales, Role::out);
}
constexpr int positional(const UnpackKvRowsArgs&) { return 1; }

namespace reference {
void pack_kv_rows(const PackKvRowsArgs&, const PackKvRowsOuts&);
void unpack_kv_rows(const UnpackKvRowsArgs&, const UnpackKvRowsOuts&);
}

}  // namespace dsakit
