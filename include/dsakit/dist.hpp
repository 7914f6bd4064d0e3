// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <exception>
#include <string_view>

#include "dsakit/context.hpp"
#include "dsakit/group.hpp"
#include "dsakit/kv_quant_sparse_flash_attention.hpp"
#include "dsakit/lightning_indexer.hpp"
#include "dsakit/ownership.hpp"
#include "dsakit/quant_lightning_indexer.hpp"
#include "dsakit/sparse_flash_attention.hpp"
#include "dsakit/sparse_flash_attention_quant.hpp"
#include "dsakit/tensor_list.hpp"

// Selection and attention for engines with caches of their own, whose tokens lie on several ranks: the operators with the
// arguments that one process would have, but for keys and block table, which are the rank's. It has the positions that
// Ownership says, each sequence's from number 0 on; lengths and lists are those of whole sequences. Keys are BSND or PA_BSND.
// docs/distributed.md
namespace dsakit::dist {

struct SelectOptions {
  std::int64_t interleave = 1;      // positions in a row of one rank
  std::string_view merge = "auto";  // "one" exchange of all candidates, "two" with samples first
};

/// On all ranks the lists of one indexer over the keys of all, from the same queries. What differs between ranks, or is
/// refused on one of them, is refused on all.
void select(Group&, const QuantLightningIndexerArgs&, const QuantLightningIndexerOuts&, const SelectOptions& = {},
            Context& = default_context());
void select(Group&, const LightningIndexerArgs&, const LightningIndexerOuts&, const SelectOptions& = {},
            Context& = default_context());

struct AttendOptions {
  std::int64_t interleave = 1;
  /// "rows": the selected rows travel to all ranks; the bits of one process. "partials": queries and results travel instead;
  /// the same bits whenever it is run again.
  std::string_view exchange = "rows";
};

/// Of this rank's heads, any number of them; the lists are the same on all ranks.
void attend(Group&, const SparseFlashAttentionArgs&, const SparseFlashAttentionOuts&, const AttendOptions& = {},
            Context& = default_context());
void attend(Group&, const KvQuantSparseFlashAttentionArgs&, const KvQuantSparseFlashAttentionOuts&,
            const AttendOptions& = {}, Context& = default_context());
void attend(Group&, const SparseFlashAttentionQuantArgs&, const SparseFlashAttentionQuantOuts&, const AttendOptions& = {},
            Context& = default_context());

/// Fills in dtype and shape of what select leaves absent of its results; attend's are those of the operators' own infer.
void infer(const QuantLightningIndexerArgs&, QuantLightningIndexerOuts&, const Ownership&);
void infer(const LightningIndexerArgs&, LightningIndexerOuts&, const Ownership&);

/// What a rank calls that cannot make such a call: it and all others throw the error.
[[noreturn]] void refuse(Group&, std::exception_ptr);

// ---- The parts, for those who exchange by themselves. T rows of queries, K entries of a list, N heads.

/// This rank's best candidates uint64 or int64 [T, K], best first: score and position, or 0.
void index_candidates(const QuantLightningIndexerArgs&, const Ownership&, const Tensor& candidates,
                      Context& = default_context());
void index_candidates(const LightningIndexerArgs&, const Ownership&, const Tensor& candidates,
                      Context& = default_context());
/// Of each rank's, the lists int32 [T, K] of one indexer: best first, then -1.
void merge_candidates(const TensorList& candidates, const Tensor& sparse_indices);

/// Attention to those of the listed positions that this rank has: float32 maximum and sum of the softmax [T, N], both 0
/// without any, and values [T, N, Dv]. Without sinks, which merge_partials counts once.
struct Partials {
  Tensor softmax_max, softmax_sum, attention_out;
};
void partial_attention(const SparseFlashAttentionArgs&, const Ownership&, const Partials&, Context& = default_context());
void partial_attention(const KvQuantSparseFlashAttentionArgs&, const Ownership&, const Partials&,
                       Context& = default_context());
void partial_attention(const SparseFlashAttentionQuantArgs&, const Ownership&, const Partials&,
                       Context& = default_context());
/// Each rank's, in their order, as one: bfloat16, float16 or float32 [T, N, Dv], with `sinks` [N] if given. All in float32,
/// added in that order.
void merge_partials(const TensorList& softmax_max, const TensorList& softmax_sum, const TensorList& attention_out,
                    const Tensor& sinks, const Tensor& out);

}  // namespace dsakit::dist
