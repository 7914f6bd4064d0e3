// SPDX-License-Identifier: Apache-2.0
#include "ops/scatter_nd_update/problem.hpp"

#include "ops/direct.hpp"

namespace dsakit {
namespace {

using scatter_nd_update_op::Problem;

void run(Call& call, const Problem& p) {
  if (p.copied) copy_all(call, p.self, p.copied);
  const auto walk = [&](auto&& write) {
    for (std::int64_t r = 0; r < p.indices.count; ++r)
      if (!p.skipped(r)) write(p.place(r), r);
  };
  scatter(call, p.indices.count, p.copy.bytes(), walk, [&p] {
    return [&p, move = Mover(p.copy, p.indices.count * p.copy.bytes())](std::int64_t, std::int64_t r) mutable {
      move(bytes_at(p.self, p.offset(r)), bytes_at(p.updates.tensor, p.updates.offset(r)));
    };
  });
  call.finish();
}

}  // namespace

void direct::scatter_nd_update_(const ScatterNdUpdateInPlaceArgs& a, const ScatterNdUpdateInPlaceOuts& o,
                                Context& context) {
  const Problem problem = scatter_nd_update_op::check(a, o);
  Call call(context, "scatter_nd_update_", std::size_t(0));
  run(call, problem);
}

void direct::scatter_nd_update(const ScatterNdUpdateArgs& a, const ScatterNdUpdateOuts& o, Context& context) {
  const Problem problem = scatter_nd_update_op::check(a, o);
  Call call(context, "scatter_nd_update", std::size_t(0));
  run(call, problem);
}

}  // namespace dsakit
