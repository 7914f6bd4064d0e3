// SPDX-License-Identifier: Apache-2.0
#include "layer/exchange_sizes.hpp"

#include "layer/cache.hpp"

namespace dsakit {

ExchangeSizes exchange_sizes(const io::ModelConfig& c, Mode mode) {
  const RowKinds kinds(c, true, mode);
  ExchangeSizes s{.hidden = c.hidden_size, .heads = c.num_attention_heads, .value_dim = c.v_head_dim,
                  .q_lora = c.q_lora_rank, .latent = c.kv_lora_rank, .rope = c.qk_rope_head_dim,
                  .vocab = c.vocab_size};
  s.latent_row_bytes = kinds.latent.row_bytes() + kinds.rope.row_bytes() + kinds.latent_scale.row_bytes();
  if (!is_sparse(mode)) return s;
  s.index_heads = c.index_n_heads;
  s.index_dim = c.index_head_dim;
  s.topk = c.index_topk;
  s.float_index = !is_quantised(mode);
  s.index_row_bytes = kinds.index_key.row_bytes() + kinds.index_scale.row_bytes();
  return s;
}

}  // namespace dsakit
