// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "core/check.hpp"
#include "ops/mla_prolog_v3/problem.hpp"
#include "ops/prolog/door.hpp"

// The door of mla_prolog_v3 in steps, for the three operators that go through it; the checks V1 to V22 of
// docs/operators/mla_prolog.md in their order.
namespace dsakit::mla_prolog_v3_op {

/// Who asks. The v2 form brings its arguments as those of v3, the mode integers made from dtypes.
enum class Form { v3, functional, v2 };

struct Sizes {
  const Mode* mode;
  bool batched;  // token_x is [B, S, He]
  std::int64_t batch, sequence, tokens, hidden, rank, heads, nope, rope, latent;
  std::int64_t wide;                   // N*(D+Dr)
  std::int64_t width;                  // of a row of kv_cache
  std::int64_t block_num, block_size;  // PA_* modes
};

/// V1 to V14: everything that does not look at values or addresses.
Sizes check_inputs(const Check&, Form, const MlaPrologV3Args&, const Tensors&);
// Its parts.
Sizes check_shapes(const Check&, const MlaPrologV3Args&, const Mode&);
void check_chip_sizes(const Check&, Form, const MlaPrologV3Args&, const Sizes&);
void check_dtypes(const Check&, Form, const MlaPrologV3Args&, const Sizes&);
void check_optional(const Check&, Form, const MlaPrologV3Args&, const Sizes&);
void check_inner(const Check&, const MlaPrologV3Args&, const Sizes&);

/// T2: per-tile scales are made from the values, so given ones are of no use.
bool ignores_ckv_scale(const Check&, const MlaPrologV3Args&, const Mode&);

/// The outputs of v3 as infer() describes them; these for those that are absent; and whether the given ones are these.
MlaPrologV3Outs outs_of(const MlaPrologV3Args&, const Sizes&);
void fill(MlaPrologV3Outs&, const MlaPrologV3Outs& wanted);
void check_outs(const Check&, const MlaPrologV3Outs& given, const MlaPrologV3Outs& wanted);
void check_out(const Check&, const Tensor& given, const Tensor& wanted, const char* name);

/// V15 to V22, and what run() needs. `kv_cache` and `kr_cache` are written; tensors lose what is not looked at.
Problem resolve(const Check&, Form, const MlaPrologV3Args&, const MlaPrologV3Outs&, const Tensor& kv_cache,
                const Tensor& kr_cache, const Sizes&, Tensors&);

/// Of the mode words only these speak of blocks, and only these of NZ.
inline bool is_paged(const MlaPrologV3Args& a) { return a.cache_mode.starts_with("PA_"); }
inline bool is_whole_block(const MlaPrologV3Args& a) { return a.cache_mode.starts_with("PA_BLK_"); }
inline bool is_nz(const MlaPrologV3Args& a) { return a.cache_mode.ends_with("_NZ"); }

inline std::string shape_text(const Tensor& t) {
  return "has shape " + brackets({t.shape.data(), std::size_t(t.rank)});
}
inline std::string is(std::int64_t value) { return "is " + std::to_string(value); }

/// From check to the last store: value checking (V23), warnings, the computation.
void run_call(const Check&, const Tensors& inputs, const Problem&, Context&);

}  // namespace dsakit::mla_prolog_v3_op
