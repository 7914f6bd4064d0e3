// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/attention_update.hpp"
#include "run/call.hpp"

namespace dsakit::attention_update_op {

struct Problem {
  TensorList lse, local_out;  // of shard i: a float for each row, and the rows
  Rows out, lse_out;          // lse_out may be without memory
  std::int64_t rows, width;

  std::int64_t shards() const { return std::int64_t(lse.size()); }
  Rows lse_of(std::int64_t shard) const { return Rows(lse[std::size_t(shard)], 0); }
  Rows rows_of(std::int64_t shard) const { return Rows(local_out[std::size_t(shard)], 1); }
};

Problem check(const AttentionUpdateArgs&, const AttentionUpdateOuts&);
std::size_t workspace(const Problem&, int threads);
void run(const Problem&, Call&);

}  // namespace dsakit::attention_update_op
