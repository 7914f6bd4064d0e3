// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/door.hpp"

#include "ops/direct.hpp"

namespace dsakit {
namespace mla_prolog_v3_op {
namespace {

using Args = MlaPrologV3FunctionalArgs;
using Outs = MlaPrologV3FunctionalOuts;

/// The updated copies of the caches. Rows that hold both leave nothing for kr_cache: an empty one comes back empty.
Outs outs_of(const Args& a, const Sizes& s) {
  const auto like = [](Tensor t) {
    t.data = nullptr, t.read_only = false;
    make_contiguous(t);
    return t;
  };
  Outs wanted{mla_prolog_v3_op::outs_of(static_cast<const MlaPrologV3Args&>(a), s)};
  wanted.kv_cache_out = like(a.kv_cache);
  const bool empty = a.kr_cache && a.kr_cache.elements() == 0;
  wanted.kr_cache_out = s.mode->packed() && !empty ? shaped(DType::bf16, {0}) : like(a.kr_cache);
  return wanted;
}

}  // namespace

Problem check(const Args& a, const Outs& o) {
  const Check check("mla_prolog_v3_functional", a.level);
  Tensors tensors(a, o);
  const Sizes s = check_inputs(check, Form::functional, a, tensors);
  const Outs wanted = outs_of(a, s);
  check_outs(check, o, wanted);
  check_out(check, o.kv_cache_out, wanted.kv_cache_out, "kv_cache_out");
  check_out(check, o.kr_cache_out, wanted.kr_cache_out, "kr_cache_out");
  // An empty output may be absent; the cache in its place has as few rows.
  const Tensor& kv = o.kv_cache_out ? o.kv_cache_out : wanted.kv_cache_out;
  const Tensor& kr = o.kr_cache_out ? o.kr_cache_out : wanted.kr_cache_out;
  Problem p = resolve(check, Form::functional, a, o, kv, kr, s, tensors);
  p.copies[p.copy_count++] = {a.kv_cache, kv, s.width};
  if (!s.mode->packed()) p.copies[p.copy_count++] = {a.kr_cache, kr, s.rope};
  return p;
}

}  // namespace mla_prolog_v3_op

void infer(const MlaPrologV3FunctionalArgs& a, MlaPrologV3FunctionalOuts& o) {
  using namespace mla_prolog_v3_op;
  const Check check("mla_prolog_v3_functional", a.level);
  const Sizes s = check_inputs(check, Form::functional, a, Tensors::inputs<MlaPrologV3FunctionalOuts>(a));
  const MlaPrologV3FunctionalOuts wanted = outs_of(a, s);
  fill(o, wanted);
  if (!o.kv_cache_out) o.kv_cache_out = wanted.kv_cache_out;
  if (!o.kr_cache_out) o.kr_cache_out = wanted.kr_cache_out;
}

void direct::mla_prolog_v3_functional(const MlaPrologV3FunctionalArgs& a, const MlaPrologV3FunctionalOuts& o,
                                      Context& context) {
  using namespace mla_prolog_v3_op;
  const Problem problem = check(a, o);
  const Check check("mla_prolog_v3_functional", a.level);
  run_call(check, Tensors::inputs<MlaPrologV3FunctionalOuts>(a), problem, context);
}

}  // namespace dsakit
