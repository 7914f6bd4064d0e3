// SPDX-License-Identifier: Apache-2.0
#include "ops/scatter_pa_kv_cache/problem.hpp"

#include "ops/direct.hpp"

namespace dsakit {
namespace {

using namespace scatter_pa_kv_cache_op;

/// Rows [h, d] into the panels of c0 columns of their pages, 32 bytes each. A few rows at a time, which stay in the first
/// cache, panel by panel: the tokens of a page are neighbours there.
struct NzCopy {
  static constexpr int kRows = 32;
  Tensor rows, cache;

  void operator()(std::byte* const* to, const std::byte* const* from, int n, bool streamed) const {
    for (int i = 0; i < n; i += kRows) {
      const int some = std::min(n - i, kRows);
      copy(to + i, from + i, i + 2 * kRows <= n ? from + i + kRows : from + i, some, streamed);
    }
  }

 private:
  void copy(std::byte* const* to, const std::byte* const* from, const std::byte* const* ahead, int n,
            bool streamed) const {
    const std::int64_t heads = rows.shape[1], width = rows.shape[2], c0 = cache.shape[3], size = size_of(rows.dtype);
    for (std::int64_t h = 0, column = 0; h < heads; ++h)
      for (std::int64_t done = 0, some; done < width; done += some, column += some) {
        some = std::min(width - done, c0 - column % c0);
        const std::int64_t source = (h * rows.stride[1] + done) * size,
                           panel = (column / c0 * cache.stride[1] + column % c0) * size;
        if (some == c0 && streamed) stream_parts(to, panel, from, source, ahead, n);
        else
          for (int i = 0; i < n; ++i) std::memcpy(to[i] + panel, from[i] + source, std::size_t(some * size));
      }
  }
};

/// Moves keys and values.
template <class Block>
class PartMover {
 public:
  PartMover(const Problem& p, const Block* blocks, std::int64_t all) : p_(p), move_{{blocks[0], all}, {blocks[1], all}} {}
  void operator()(std::int64_t slot, std::int64_t token) {
    for (int i : {0, 1}) {
      const Part& part = p_.parts[std::size_t(i)];
      move_[i](bytes_at(part.cache, p_.place(part.cache, slot)), bytes_at(part.rows, token * part.rows.stride[0]));
    }
  }

 private:
  const Problem& p_;
  Mover<Block> move_[2];
};

template <class Block>
void move_rows(Call& call, const Problem& p, const Block* blocks) {
  std::int64_t bytes = 0;
  for (const Part& part : p.parts) bytes += part.rows.shape[1] * part.rows.shape[2] * size_of(part.rows.dtype);
  const auto walk = [&](auto&& write) {
    for (std::int64_t t = 0; t < p.tokens(); ++t)
      if (const std::int64_t slot = p.slot(t); slot >= 0) write(slot, t);
  };
  scatter(call, p.tokens(), bytes, walk, [&] { return PartMover<Block>(p, blocks, p.tokens() * bytes); });
}

void run(Call& call, const Problem& p) {
  for (const Part& part : p.parts)
    if (part.copied) copy_all(call, part.cache, part.copied);
  const auto& [keys, values] = p.parts;
  if (p.nz) {
    const NzCopy blocks[] = {{keys.rows, keys.cache}, {values.rows, values.cache}};
    move_rows(call, p, blocks);
  } else {
    const BlockCopy blocks[] = {{keys.cache, 2, keys.rows, 1}, {values.cache, 2, values.rows, 1}};
    move_rows(call, p, blocks);
  }
  call.finish();
}

}  // namespace

void direct::scatter_pa_kv_cache(const ScatterPaKvCacheArgs& a, const ScatterPaKvCacheOuts& o, Context& context) {
  const Problem problem = check(a, o);
  Call call(context, "scatter_pa_kv_cache", std::size_t(0));
  run(call, problem);
}

void direct::scatter_pa_kv_cache_functional(const ScatterPaKvCacheFunctionalArgs& a,
                                            const ScatterPaKvCacheFunctionalOuts& o, Context& context) {
  const Problem problem = check(a, o);
  Call call(context, "scatter_pa_kv_cache_functional", std::size_t(0));
  run(call, problem);
}

}  // namespace dsakit
