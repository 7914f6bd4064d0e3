// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor_list.hpp"

namespace dsakit {

/// Partial results of attention over shards of the keys become one. A shard whose lse is infinite saw no key: it weighs
/// nothing and its rows are not read.
struct AttentionUpdateArgs {
  TensorList lse;
  TensorList local_out;
  std::int64_t update_type = 0;
  Level level = Level::portable;
};

struct AttentionUpdateOuts {
  Tensor out;
  Tensor lse_out;
};

void attention_update(const AttentionUpdateArgs&, const AttentionUpdateOuts&, Context& = default_context());
void infer(const AttentionUpdateArgs&, AttentionUpdateOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, AttentionUpdateArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"lse", Role::in, Kind::data, "float32", "[M] each, one or more; strict: at most 16",
     "log of the sum of exponentials of each row of each shard; infinite: no key"},
    a.lse);
  v({"local_out", Role::in, Kind::data, "float32, float16, bfloat16, all the same",
     "[M, d] each, as many as lse; strict: d a multiple of 8 in 8..512", "attention of each shard"},
    a.local_out);
  v({"update_type", Role::attribute, Kind::mode, "int", "0: out alone, 1: lse_out too", "what is returned",
     kWithoutDefault},
    a.update_type);
  v(kLevelField, a.level);
  v({"out", Role::out, Kind::data, "dtype of local_out", "[M, d]", "attention over all keys"}, o.out);
  v({"lse_out", Role::out, Kind::data, "float32", "[M]; update_type 0: [0]", "its log of the sum of exponentials"},
    o.lse_out);
}
constexpr Description describe(const AttentionUpdateArgs&) {
  return {.summary = "Merge attention over shards of the keys",
          .formula =
              "m = max_i lse[i], L = m + log(sum_i exp(lse[i] - m))\n"
              "out = sum_i local_out[i] * exp(lse[i] - L), lse_out = L\n"
              "a shard with an infinite lse counts for nothing; without another one out = 0, L = -inf",
          .errors =
              "INVALID_ARGUMENT: a list is missing or empty, the lists differ in length, update_type is not 0 or 1\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: strict: more than 16 shards, another d",
          .source = "torch_npu.npu_attention_update",
          .page = "attention_update.md",
          .family = Family::torch_npu,
          .positional = 3};
}

namespace reference {
void attention_update(const AttentionUpdateArgs&, const AttentionUpdateOuts&);
}

}  // namespace dsakit
