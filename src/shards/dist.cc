// SPDX-License-Identifier: Apache-2.0
#include "dsakit/dist.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "core/check.hpp"
#include "core/hash.hpp"
#include "core/out_of_memory.hpp"
#include "core/text.hpp"
#include "kernels/order.hpp"
#include "ops/door.hpp"
#include "ops/lightning_indexer/problem.hpp"
#include "ops/quant_lightning_indexer/problem.hpp"
#include "ops/sparse_attention/problem.hpp"
#include "ops/sparse_flash_attention_quant/problem.hpp"
#include "parallel/selection.hpp"
#include "shards/attend.hpp"
#include "shards/select.hpp"

namespace dsakit::dist {
namespace {

using shards::Attention;
using shards::Part;
using std::to_string;

constexpr std::int64_t kMaxInterleave = 1 << 20;

/// What an operator refuses, f() refuses as `name`.
template <class F>
void under(const char* name, F f) {
  try {
    f();
  } catch (const Error& e) {
    throw Error(e.status, name, e.parameter, e.position, e.got, e.wanted, e.why, e.reason);
  }
}

void check_owner(const Check& c, const Ownership& owner) {
  const auto within = [&](std::int64_t value, const char* name, std::int64_t lowest, std::int64_t most) {
    if (value < lowest || value > most)
      c.fail(Status::invalid_argument, name, "", "is " + to_string(value), to_string(lowest) + ".." + to_string(most));
  };
  within(owner.ranks, "ranks", 1, std::numeric_limits<std::int32_t>::max());
  within(owner.rank, "rank", 0, owner.ranks - 1);
  within(owner.interleave, "interleave", 1, kMaxInterleave);
}

Ownership owner_of(const Group& group, std::int64_t interleave) { return {group.size(), group.rank(), interleave}; }

/// Rows one behind the other.
void check_plain(const Check& c, const Tensor& t, const char* name, std::initializer_list<std::int64_t> shape, const char* why,
                 bool written) {
  c.required(t, name);
  c.sizes(t, name);
  c.shape(t, name, shape, why);
  if (written) c.writable(t, name);
  else c.readable(t, name);
  Tensor dense = t;
  make_contiguous(dense);
  if (!same_storage(t, dense) && t.elements() > 0)
    c.fail(Status::invalid_stride, name, "", "has strides " + brackets({t.stride.data(), std::size_t(t.rank)}),
           brackets({dense.stride.data(), std::size_t(t.rank)}), "one row behind the other");
}

template <class Args>
constexpr bool kQuantised = std::is_same_v<Args, QuantLightningIndexerArgs>;
template <class Args>
constexpr const char* kName = kQuantised<Args> ? "quant_lightning_indexer" : "lightning_indexer";
template <>
constexpr const char* kName<SparseFlashAttentionArgs> = "sparse_flash_attention";
template <>
constexpr const char* kName<KvQuantSparseFlashAttentionArgs> = "kv_quant_sparse_flash_attention";
template <>
constexpr const char* kName<SparseFlashAttentionQuantArgs> = "sparse_flash_attention_quant";

// ---- selection

/// Positions of all ranks that each query row sees.
std::vector<std::int64_t> seen_by(const Sequences& sequences) {
  std::vector<std::int64_t> seen(std::size_t(sequences.total_rows));
  for (std::int64_t b = 0; b < sequences.count(); ++b) {
    const SequenceRows s = sequences.at(b);
    for (std::int64_t i = 0; i < s.rows; ++i) seen[std::size_t(s.first_row + i)] = s.seen(i);
  }
  return seen;
}

template <class Args, class Outs>
void select_by(Group& group, const Args& args, const Outs& outs, const SelectOptions& options, Context& context) try {
  constexpr char kOp[] = "dist.select";
  const Ownership owner = owner_of(group, options.interleave);
  MergeSteps merge{};
  indexer::Problem problem;
  std::vector<std::int64_t> seen;
  Conversation talk(group);
  Greeting greeting;
  talk.begin(greeting, [&] {
    under(kOp, [&] {
      const Check c(kOp, args.level);
      check_owner(c, owner);
      merge = parallel_options_of({.merge = std::string(options.merge)}, group.size(), kOp).merge;
      problem = shards::check(args, outs, owner, context);
    });
    seen = seen_by(problem.sequences);
    const bool any_isa = args.numerics != "fast" || context.same_products();
    greeting.facts = {{"operation", std::string(kOp) + " " + kName<Args>},
                      {"rows", to_string(seen.size())},
                      {"heads", to_string(problem.heads)},
                      {"width", to_string(problem.dims)},
                      {"sparse_count", to_string(problem.count)},
                      {"visible positions", to_string(hash_of(seen.data(), seen.size() * sizeof seen[0]))},
                      {"numerics", std::string(args.numerics)},
                      {"interleave", to_string(owner.interleave)},
                      {"merge", std::string(options.merge)},
                      {"isa", any_isa ? "any" : context.isa()}};
  });
  std::vector<std::uint64_t> candidates(seen.size() * std::size_t(problem.count));
  talk.work([&] {
    under(kOp, [&] { shards::find_candidates(problem, kQuantised<Args>, candidates.data(), context); });
  });
  MergedRows(talk, group, merge, {problem.count, owner, seen}, candidates.data())
      .finish([&](std::int64_t row, std::span<const std::uint64_t> best) {
        indexer::write_list(problem, row, best.data(), std::int64_t(best.size()));
      });
  talk.end();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

template <class Args, class Outs>
void candidates_by(const Args& args, Outs outs, const Ownership& owner, const Tensor& candidates,
                   Context& context) try {
  constexpr char kOp[] = "dist.index_candidates";
  under(kOp, [&] {
    const Check c(kOp, args.level);
    check_owner(c, owner);
    infer(args, outs, owner);
    const std::int64_t rows = outs.sparse_indices.elements() / args.sparse_count;
    check_plain(c, candidates, "candidates", {rows, args.sparse_count}, "query tokens, sparse_count", true);
    c.dtype(candidates, "candidates", {DType::u64, DType::i64});
    std::vector<std::int32_t> lists(std::size_t(outs.sparse_indices.elements()));
    outs.sparse_indices.data = lists.data();
    shards::find_candidates(args, outs, owner, static_cast<std::uint64_t*>(candidates.data), context);
  });
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

// ---- attention

struct Checked {
  attention::sparse::Problem problem;
  std::vector<attention::sparse::Token> tokens;
};

template <class Args, class Outs>
Checked check_attention(const Args& args, const Outs& outs, const Ownership& owner, const Context& context) {
  Checked checked;
  const auto take = [&](const auto& p) {
    checked.problem = p.attention;
    checked.tokens.resize(std::size_t(p.attention.tokens));
    p.each_token([&](std::int64_t t, const attention::sparse::Token& token) { checked.tokens[std::size_t(t)] = token; });
  };
  if constexpr (std::is_same_v<Args, SparseFlashAttentionQuantArgs>) {
    const auto p = sparse_flash_attention_quant_op::check(args, outs, owner);
    if (context.check_values()) sparse_flash_attention_quant_op::check_values(args, p, owner);
    take(p);
  } else {
    Outs given = outs;
    take(sparse_attention::check(args, given, false, context.check_values(), owner));
  }
  return checked;
}

std::uint64_t hash_of_lists(std::span<const attention::sparse::Token> tokens) {
  std::uint64_t hash = 0;
  for (const attention::sparse::Token& t : tokens) {
    const std::int64_t numbers[] = {t.sequence, t.block, t.count, t.visible};
    hash = hash_of(numbers, sizeof numbers, hash);
    if (t.list) hash = hash_of(t.list, std::size_t(t.count / t.block) * sizeof *t.list, hash);
  }
  return hash;
}

/// Parts are merged in float32, without anybody's roundings.
void check_exact(const Check& c, std::string_view numerics) {
  if (numerics != "exact")
    c.fail(Status::unsupported, "numerics", "", "is '" + printable(numerics) + "'", "'exact'",
           "parts of attention are merged in float32");
}

template <class Args, class Outs>
void attend_by(Group& group, const Args& args, const Outs& outs, const AttendOptions& options, Context& context) try {
  constexpr char kOp[] = "dist.attend";
  const Ownership owner = owner_of(group, options.interleave);
  const bool partials = options.exchange == "partials";
  Checked checked;
  Conversation talk(group);
  Greeting greeting;
  talk.begin(greeting, [&] {
    under(kOp, [&] {
      const Check c(kOp, args.level);
      check_owner(c, owner);
      c.one_of(options.exchange, "exchange", {"rows", "partials"});
      checked = check_attention(args, outs, owner, context);
      if (partials) check_exact(c, args.numerics);
    });
    const attention::sparse::Problem& p = checked.problem;
    const bool any_isa = !partials || context.same_products();
    greeting.facts = {{"operation", std::string(kOp) + " " + kName<Args>},
                      {"exchange", std::string(options.exchange)},
                      {"rows", to_string(p.tokens)},
                      {"lists and lengths", to_string(hash_of_lists(checked.tokens))},
                      {"dtype", name_of(p.type)},
                      {"widths", to_string(p.latent) + " and " + to_string(p.rope)},
                      {"tile", to_string(p.keys.tile)},
                      {"scale", partials ? to_string(p.scale) : "any"},
                      {"interleave", to_string(owner.interleave)},
                      {"isa", any_isa ? "any" : context.isa()}};
  });
  const Attention all{talk, group, owner, checked.problem, std::move(checked.tokens)};
  if (partials) {
    const std::int64_t mine = all.problem.heads;
    std::vector<std::int64_t> heads(std::size_t(group.size()));
    talk.all_gather(group, "heads", std::as_bytes(std::span(&mine, 1)), std::vector(heads.size(), sizeof mine),
                    reinterpret_cast<std::byte*>(heads.data()));
    shards::SharedParts parts(all, heads);
    talk.work([&] { parts.attend(kOp, context); });
    parts.merge();
  } else {
    const std::int64_t rows = all.problem.tokens, step = all.step();
    for (std::int64_t from = 0; from < rows; from += step) {
      const shards::FetchedRows fetched(all, from, std::min(from + step, rows));
      talk.work([&] { fetched.attend(kOp, context); });
    }
  }
  talk.end();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

template <class Args, class Outs>
void part_by(Args args, Outs outs, const Ownership& owner, const Partials& out, Context& context) try {
  constexpr char kOp[] = "dist.partial_attention";
  under(kOp, [&] {
    const Check c(kOp, args.level);
    check_owner(c, owner);
    check_exact(c, args.numerics);
    dsakit::infer(args, outs);
    // The operator's own results are not written.
    const Tensor& result = outs.attention_out;
    const auto unused = std::make_unique_for_overwrite<std::byte[]>(std::size_t(result.elements() * size_of(result.dtype)));
    outs.attention_out.data = unused.get();
    if constexpr (requires { args.return_softmax_lse; }) {
      args.return_softmax_lse = false;
      outs.softmax_max = outs.softmax_sum = {};
    }
    const Checked checked = check_attention(args, outs, owner, context);
    const attention::sparse::Problem& p = checked.problem;
    check_plain(c, out.softmax_max, "softmax_max", {p.tokens, p.heads}, "query tokens and heads", true);
    check_plain(c, out.softmax_sum, "softmax_sum", {p.tokens, p.heads}, "query tokens and heads", true);
    check_plain(c, out.attention_out, "attention_out", {p.tokens, p.heads, p.latent}, "query tokens and heads, Dv", true);
    c.dtype(out.softmax_max, "softmax_max", {DType::f32});
    c.dtype(out.softmax_sum, "softmax_sum", {DType::f32});
    c.dtype(out.attention_out, "attention_out", {DType::f32});
    shards::attend_own(kOp, p, checked.tokens, owner,
                       {static_cast<float*>(out.softmax_max.data), static_cast<float*>(out.softmax_sum.data),
                        static_cast<float*>(out.attention_out.data)},
                       context);
  });
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace

void select(Group& group, const QuantLightningIndexerArgs& args, const QuantLightningIndexerOuts& outs,
            const SelectOptions& options, Context& context) {
  select_by(group, args, outs, options, context);
}
void select(Group& group, const LightningIndexerArgs& args, const LightningIndexerOuts& outs, const SelectOptions& options,
            Context& context) {
  select_by(group, args, outs, options, context);
}

void infer(const QuantLightningIndexerArgs& args, QuantLightningIndexerOuts& outs, const Ownership& owner) try {
  quant_lightning_indexer_op::check(args, outs, true, false, owner);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
void infer(const LightningIndexerArgs& args, LightningIndexerOuts& outs, const Ownership& owner) try {
  lightning_indexer_op::check(args, outs, true, false, owner);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void attend(Group& group, const SparseFlashAttentionArgs& args, const SparseFlashAttentionOuts& outs,
            const AttendOptions& options, Context& context) {
  attend_by(group, args, outs, options, context);
}
void attend(Group& group, const KvQuantSparseFlashAttentionArgs& args, const KvQuantSparseFlashAttentionOuts& outs,
            const AttendOptions& options, Context& context) {
  attend_by(group, args, outs, options, context);
}
void attend(Group& group, const SparseFlashAttentionQuantArgs& args, const SparseFlashAttentionQuantOuts& outs,
            const AttendOptions& options, Context& context) {
  attend_by(group, args, outs, options, context);
}

void refuse(Group& group, std::exception_ptr error) {
  Conversation talk(group);
  talk.begin({}, [&] { std::rethrow_exception(error); });
  std::rethrow_exception(error);
}

void index_candidates(const QuantLightningIndexerArgs& args, const Ownership& owner, const Tensor& candidates,
                      Context& context) {
  candidates_by(args, QuantLightningIndexerOuts{}, owner, candidates, context);
}
void index_candidates(const LightningIndexerArgs& args, const Ownership& owner, const Tensor& candidates, Context& context) {
  LightningIndexerArgs without_values = args;
  without_values.return_value = false;
  candidates_by(without_values, LightningIndexerOuts{}, owner, candidates, context);
}

void merge_candidates(const TensorList& candidates, const Tensor& sparse_indices) try {
  const Check c("dist.merge_candidates", Level::portable);
  c.rank(sparse_indices, "sparse_indices", 2, "query tokens, K");
  const std::int64_t rows = sparse_indices.shape[0], k = sparse_indices.shape[1];
  check_plain(c, sparse_indices, "sparse_indices", {rows, k}, "query tokens, K", true);
  c.dtype(sparse_indices, "sparse_indices", {DType::i32});
  each(candidates, [&](const Tensor& t) {
    check_plain(c, t, "candidates", {rows, k}, "shape of sparse_indices", false);
    c.dtype(t, "candidates", {DType::u64, DType::i64});
  });
  std::vector<std::uint64_t> lists, best(static_cast<std::size_t>(k)), scratch;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < rows; ++i) {
    lists.clear(), sizes.clear();
    for (const Tensor& t : candidates) {
      const auto* row = static_cast<const std::uint64_t*>(t.data) + i * k;
      sizes.push_back(std::find(row, row + k, std::uint64_t{0}) - row);
      lists.insert(lists.end(), row, row + sizes.back());
    }
    const std::int64_t n = std::min<std::int64_t>(k, std::int64_t(lists.size()));
    dsakit::merge_candidates(lists, sizes, k, best.data(), scratch);
    std::int32_t* out = static_cast<std::int32_t*>(sparse_indices.data) + i * k;
    for (std::int64_t j = 0; j < k; ++j) out[j] = j < n ? std::int32_t(position_of(best[std::size_t(j)])) : -1;
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void partial_attention(const SparseFlashAttentionArgs& args, const Ownership& owner, const Partials& out, Context& context) {
  part_by(args, SparseFlashAttentionOuts{}, owner, out, context);
}
void partial_attention(const KvQuantSparseFlashAttentionArgs& args, const Ownership& owner, const Partials& out,
                       Context& context) {
  part_by(args, KvQuantSparseFlashAttentionOuts{}, owner, out, context);
}
void partial_attention(const SparseFlashAttentionQuantArgs& args, const Ownership& owner, const Partials& out,
                       Context& context) {
  part_by(args, SparseFlashAttentionQuantOuts{}, owner, out, context);
}

void merge_partials(const TensorList& softmax_max, const TensorList& softmax_sum, const TensorList& attention_out,
                    const Tensor& sinks, const Tensor& out) try {
  const Check c("dist.merge_partials", Level::portable);
  c.rank(out, "out", 3, "query tokens, heads, Dv");
  const std::int64_t rows = out.shape[0], heads = out.shape[1], latent = out.shape[2];
  check_plain(c, out, "out", {rows, heads, latent}, "query tokens, heads, Dv", true);
  c.dtype(out, "out", {DType::bf16, DType::f16, DType::f32});
  const auto floats = [&](const TensorList& list, const char* name, std::initializer_list<std::int64_t> shape) {
    if (list.size() != softmax_max.size())
      c.fail(Status::invalid_shape, name, "", "has " + to_string(list.size()) + " tensors", to_string(softmax_max.size()),
             "as softmax_max");
    each(list, [&](const Tensor& t) {
      check_plain(c, t, name, shape, "query tokens, heads, Dv of out", false);
      c.dtype(t, name, {DType::f32});
    });
  };
  floats(softmax_max, "softmax_max", {rows, heads});
  floats(softmax_sum, "softmax_sum", {rows, heads});
  floats(attention_out, "attention_out", {rows, heads, latent});
  if (sinks) {
    check_plain(c, sinks, "sinks", {heads}, "heads of out", false);
    c.dtype(sinks, "sinks", {DType::f32});
  }
  std::vector<float> values(static_cast<std::size_t>(latent));
  std::vector<Part> parts(softmax_max.size());
  const auto at = [](const Tensor& t, std::int64_t i) { return static_cast<const float*>(t.data) + i; };
  for (std::int64_t r = 0; r < rows * heads; ++r) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      parts[rank] = {*at(softmax_max[rank], r), *at(softmax_sum[rank], r), at(attention_out[rank], r * latent)};
    shards::merged(parts, sinks ? *at(sinks, r % heads) : -INFINITY, latent, values.data());
    for (std::int64_t j = 0; j < latent; ++j) store(out, r * latent + j, values[std::size_t(j)]);
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit::dist
