// SPDX-License-Identifier: Apache-2.0
#include "debug/golden_plan.hpp"

// Small sizes of every operator, and what a mode brings along. What the descriptions say in axes is not said again.
namespace dsakit::debug {

const std::vector<Form> kForms{
    // ---- rows
    {"rms_norm", "", "T=8 row=128 self=[T,row] gamma=[row]"},
    {"add_rms_norm*", "", "T=8 row=128 x1=[T,row] gamma=[row]"},
    {"add_rms_norm_bias", "", "beta=given"},
    {"swiglu", "", "T=8 n=64 self=[T,2*n]"},
    {"dynamic_block_quant", "", "rows=8 n=256"},
    {"dynamic_quant", "", "T=8 n=128 input=[T,n]"},
    {"dynamic_quant", "group_index=given", "G=2 smooth_scales=[G,n]"},
    {"dynamic_quant", "quant_mode=perchannel smooth_scales=given", "smooth_scales=[T]"},
    {"quantize", "", "T=8 n=128 input=[T,n] scales=[n] dtype=qint8"},
    {"quantize", "input=float16 div_mode=true", "scales=float32"},
    {"quantize", "dtype=quint8", "zero_points=uint8[n]"},
    {"quantize", "div_mode=false", "axis=-1 scales=float32 zero_points=float32[n]"},
    {"quantize", "div_mode=false input=float16", "scales=float16 zero_points=float16[n]"},
    {"quantize", "div_mode=false input=bfloat16", "scales=bfloat16 zero_points=bfloat16[n]"},
    {"rotary_mul", "", "B=1 N=4 S=8 D=64 x=[B,N,S,D] r1=[1,1,S,D] r2=[1,1,S,D]"},
    {"interleave_rope", "", "B=2 N=4 S=8 Dr=64 cos=[B,1,S,Dr] sin=[B,1,S,Dr]"},
    {"pack_kv_rows", "", "T=8 Hckv=64 Dr=16 G=4 codes=[T,Hckv] rope=[T,Dr] scales=[T,G]"},
    {"unpack_kv_rows", "",
     "T=8 Hckv=64 rope_head_dim=16 tile_size=16 rows=[T,Hckv+2*rope_head_dim+4*Hckv/tile_size]"},
    // ---- products
    {"batch_matmul_transpose", "", "T=8 h=4 k=64 n=32"},
    {"transpose_batchmatmul", "", "b=4 m=8 k=64 n=32"},
    {"transpose_batchmatmul", "perm_x1=1+0+2", "input=[m,b,k]"},
    {"transpose_batchmatmul", "perm_x2=0+2+1", "weight=[b,n,k]"},
    {"quant_matmul", "", "m=8 k=64 n=32 x1=[m,k] x2=[k,n] scale=[n]"},
    {"quant_matmul", "pertoken_scale=given", "output_dtype=bfloat16"},
    {"quant_matmul", "pertoken_scale=given bias=given", "bias=float32"},
    {"attention_update", "", "shards=2 M=8 d=64 update_type=1"},
    // ---- rows of caches
    {"gather_pa_kv_cache*", "",
     "B=2 Lk=40 T=B*Lk h=2 dk=32 dv=32 block_size=16 columns=ceil(Lk/block_size) block_num=B*columns+1 "
     "block_tables=[B,columns]"},
    {"scatter_pa_kv_cache*", "", "T=8 h=2 dk=32 dv=32 block_size=16 block_num=ceil(T/block_size)+1"},
    {"scatter_pa_kv_cache*", "cache_mode=PA_NZ",
     "c0=32/key.bytes key_cache=[block_num,h*dk/c0,block_size,c0] value_cache=[block_num,h*dv/c0,block_size,c0]"},
    {"scatter_nd_update*", "", "T=8 rows=32 n=64 self=[rows,n] indices=[T,1] updates=[T,n]"},
    {"store_kv_block", "", "T=8 d=64 G=T block_size=16 block_num=ceil(T/block_size)+1 key_in=[T,d] "
     "key_cache_in=[block_num,block_size,d]"},
    {"store_kv_block_metadata", "", "T=8 block_size=16 block_num=ceil(T/block_size)+1"},
    {"kv_rmsnorm_rope_cache*", "", "B=2 S=4 Hckv=128 Dr=64"},
    {"kv_rmsnorm_rope_cache*", "cache_mode=Norm", "L=16"},
    {"kv_rmsnorm_rope_cache*", "cache_mode=PA*", "block_size=16 block_num=B*ceil(S/block_size)+1 index=[B*S]"},
    {"kv_rmsnorm_rope_cache*", "cache_mode=PA_BLK*", "index=[B*ceil(S/block_size)]"},
    {"kv_rmsnorm_rope_cache*", "k_cache=int8", "k_rope_scale=given"},
    {"kv_rmsnorm_rope_cache*", "ckv_cache=int8", "c_kv_scale=given"},
    // ---- prologs
    {"mla_prolog_v*", "", "T=8 He=128 Hcq=64 N=4 D=32 Dr=16 Hckv=64"},
    {"mla_prolog_v*", "S=*",
     "B=2 T=B*S token_x=[B,S,He] rope_sin=[B,S,Dr] rope_cos=[B,S,Dr] cache_index=[B,S]"},
    {"mla_prolog_v*", "cache_mode=PA*", "block_size=16 block_num=ceil(T/block_size)+1 cache_index=given"},
    {"mla_prolog_v3*", "cache_mode=PA_BLK* !S=*",
     "B=2 block_num=B+ceil(T/block_size) cache_index=[B+ceil(T/block_size)] actual_seq_len=[B]"},
    {"mla_prolog_v3*", "cache_mode=PA_BLK* S=*",
     "block_num=B*ceil(S/block_size)+1 cache_index=[B,ceil(S/block_size)]"},
    {"mla_prolog_v3*", "cache_mode=TND", "kv_cache=[T,1,Hckv]"},
    {"mla_prolog_v3*", "cache_mode=BSND", "B=2 S=4 T=B*S token_x=[B,S,He] rope_sin=[B,S,Dr] rope_cos=[B,S,Dr] "
     "kv_cache=[B,S,1,Hckv]"},
    {"mla_prolog_v3*", "", "kr_cache=given"},
    {"mla_prolog_v3*", "weight_quant_mode=1", "weight_uq_qr=int8 dequant_scale_w_uq_qr=given"},
    {"mla_prolog_v3*", "weight_quant_mode=2",
     "token_x=int8 weight_dq=int8 weight_uq_qr=int8 weight_dkv_kr=int8 dequant_scale_x=given "
     "dequant_scale_w_dq=given dequant_scale_w_uq_qr=given dequant_scale_w_dkv_kr=given"},
    {"mla_prolog_v3*", "kv_cache_quant_mode=1", "kv_cache=int8 quant_scale_ckv=[1] query_quant_mode=1"},
    {"mla_prolog_v3*", "kv_cache_quant_mode=2", "kv_cache=int8 kr_cache=int8 quant_scale_ckv=[1,Hckv] "
     "quant_scale_ckr=given"},
    {"mla_prolog_v3*", "kv_cache_quant_mode=3",
     "tile_size=16 ckvkr_repo_mode=1 quant_scale_repo_mode=1 row=Hckv+2*Dr+4*Hckv/tile_size "
     "kv_cache=int8[block_num,block_size,1,row] kr_cache=[0]"},
    {"mla_prolog_v3*", "kv_cache_quant_mode=3 cache_mode=TND", "kv_cache=[T,1,row]"},
    {"mla_prolog_v3*", "kv_cache_quant_mode=3 cache_mode=BSND", "kv_cache=[B,S,1,row]"},
    {"mla_prolog_v2", "token_x=int8", "weight_dq=int8 weight_uq_qr=int8 weight_dkv_kr=int8 dequant_scale_x=given "
     "dequant_scale_w_dq=given dequant_scale_w_dkv_kr=given"},
    {"mla_prolog_v2", "weight_uq_qr=int8", "dequant_scale_w_uq_qr=given"},
    {"mla_prolog_v2", "kv_cache=int8", "quant_scale_ckv=given"},
    {"mla_prolog_v2", "kv_cache=int8 !token_x=int8", "kr_cache=int8 quant_scale_ckr=given"},
    {"mla_prolog_quant", "",
     "t=8 He=128 Hcq=64 N=4 D=32 Dr=16 Hckv=128 G=4 block_size=16 block_num=ceil(t/block_size)+1 "
     "dequant_scale=given k_scale_cache=given"},
    {"mla_prolog_quant", "w_uq_qr=bfloat16", "kv_cache=bfloat16 dequant_scale=absent k_scale_cache=absent"},
    {"lightning_indexer_prolog_quant", "",
     "t=8 He=128 Hcq=64 Ni=4 Di=32 Dr=16 block_size=16 block_num=ceil(t/block_size)+1 hadamard_q=given "
     "hadamard_k=given"},
    {"mla_indexer_prolog_quant", "",
     "t=8 He=128 Hcq=64 N=4 D=32 Dr=16 Hckv=128 G=4 Ni=4 Di=32 block_size=16 block_num=ceil(t/block_size)+1 "
     "hadamard_q=given hadamard_k=given"},
    // ---- indexers and sparse attention
    {"*lightning_indexer", "", "N1=8 D=64 sparse_count=16"},
    {"*sparse_flash_attention", "", "N1=4 Dv=64 Dr=16 K=32 attention_mode=2 value=@key scale_value=rsqrt(Dv+Dr)"},
    {"kv_quant_sparse_flash_attention", "",
     "rope_head_dim=Dr tile_size=16 key_quant_mode=2 value_quant_mode=2 quant_scale_repo_mode=1 "
     "row=Dv+2*Dr+4*Dv/tile_size"},
    {"*lightning_indexer", "layout_query=TND", "B=2 T1=8 actual_seq_lengths_query=given"},
    {"*sparse_flash_attention", "layout_query=TND", "B=2 T1=8 actual_seq_lengths_query=given"},
    {"*lightning_indexer", "layout_query=BSND", "B=2 S1=4"},
    {"*sparse_flash_attention", "layout_query=BSND", "B=2 S1=4"},
    {"*lightning_indexer", "layout_key=BSND", "S2=64"},
    {"*sparse_flash_attention", "layout_kv=BSND", "S2=64"},
    {"*lightning_indexer", "layout_key=TND", "T2=128 actual_seq_lengths_key=given"},
    {"*sparse_flash_attention", "layout_kv=TND", "T2=128 actual_seq_lengths_kv=given"},
    {"*lightning_indexer", "layout_key=PA_BSND",
     "Lk=64 block_size=16 columns=ceil(Lk/block_size) block_num=B*columns+1 block_table=[B,columns] "
     "actual_seq_lengths_key=given"},
    {"*sparse_flash_attention", "layout_kv=PA_BSND",
     "Lk=64 block_size=16 columns=ceil(Lk/block_size) block_num=B*columns+1 block_table=[B,columns] "
     "actual_seq_lengths_kv=given"},
    {"sparse_flash_attention_quant", "",
     "b=2 s1=1 nq=4 n_kv=1 topk=32 K=topk Dv=64 Dr=16 G=16 Lk=64 block_size=16 max_blocks=ceil(Lk/block_size) "
     "block_num=b*max_blocks+1 softmax_scale=rsqrt(Dv+Dr) k_nope_scales=given"},
    {"sparse_flash_attention_quant", "key_nope_2d=bfloat16", "k_nope_scales=absent"},
    // ---- dense attention; `codes`: numbers in an element of key
    {"fused_infer*", "",
     "Nq=4 Nk=2 D=64 Dv=D Dr=32 codes=1 num_query_heads=Nq num_key_value_heads=Nk softmax_scale=rsqrt(D)"},
    {"fused_infer*", "input_layout=BSH*",
     "B=2 S1=4 S2=64 query=[B,S1,Nq*D] key=[B,S2,Nk*D/codes] value=[B,S2,Nk*Dv/codes]"},
    {"fused_infer*", "input_layout=BSND*",
     "B=2 S1=4 S2=64 query=[B,S1,Nq,D] key=[B,S2,Nk,D/codes] value=[B,S2,Nk,Dv/codes]"},
    {"fused_infer*", "input_layout=BNSD*",
     "B=2 S1=4 S2=64 query=[B,Nq,S1,D] key=[B,Nk,S2,D/codes] value=[B,Nk,S2,Dv/codes]"},
    {"fused_infer*", "input_layout=TND*",
     "B=2 T1=8 T2=128 query=[T1,Nq,D] key=[T2,Nk,D/codes] value=[T2,Nk,Dv/codes] actual_seq_qlen=[B] "
     "actual_seq_kvlen=[B]"},
    {"fused_infer*", "input_layout=NTD*",
     "B=2 T1=8 T2=128 query=[Nq,T1,D] key=[Nk,T2,D/codes] value=[Nk,T2,Dv/codes] actual_seq_qlen=[B] "
     "actual_seq_kvlen=[B]"},
    {"fused_infer*", "input_layout=NSD",
     "B=1 S1=4 S2=64 query=[Nq,S1,D] key=[Nk,S2,D/codes] value=[Nk,S2,Dv/codes]"},
    {"fused_infer*", "key=int32", "codes=8"},
    {"fused_infer*", "query_rope=given", "key_rope=given"},
    {"fused_infer*", "query_rope=float16", "key_rope=float16"},
    {"fused_infer*", "query_rope=bfloat16", "key_rope=bfloat16"},
    {"fused_infer*", "query_rope=float32", "key_rope=float32"},
    {"fused_infer*", "block_table=given",
     "Lk=64 block_size=16 columns=ceil(Lk/block_size) S2=columns*block_size block_num=B*columns+1 "
     "block_table=[B,columns] key=[block_num,block_size,Nk*D/codes] value=[block_num,block_size,Nk*Dv/codes] "
     "actual_seq_kvlen=[B]"},
    {"fused_infer*", "sparse_mode=1", "atten_mask=[S1,S2]"},
    {"fused_infer*", "atten_mask=given", "atten_mask=[S1,S2]"},
    {"fused_infer*", "sparse_mode=2", "atten_mask=[2048,2048]"},
    {"fused_infer*", "sparse_mode=3", "atten_mask=[2048,2048]"},
    {"fused_infer*", "sparse_mode=4", "atten_mask=[2048,2048]"},
    {"fused_infer*", "pse_shift=given", "pse_shift=[B,Nq,S1,S2]"},
    {"fused_infer*", "quant_scale_out=given", "quant_scale_out=[1]"},
    {"fused_infer*", "query=int8",
     "D=512 Dr=64 key=int8 query_rope=bfloat16 key_rope=bfloat16 query_quant_mode=3 dequant_scale_query=[B,S1,Nq] "
     "dequant_scale_key=float32[1] dequant_scale_value=float32[1]"},
    {"fused_infer*", "query=int8 block_table=given",
     "key=[block_num,Nk,D/32,block_size,32] value=[block_num,Nk,Dv/32,block_size,32] "
     "key_rope=[block_num,Nk,Dr/16,block_size,16]"},
    {"fused_infer*", "key=int8 !query=int8", "dequant_scale_key=given dequant_scale_value=given"},
    {"fused_infer*", "key=int32", "dequant_scale_key=given dequant_scale_value=given"},
    {"fused_infer*", "key_quant_mode=0 dequant_scale_key=given !query=int8", "dequant_scale_key=[Nk,D]"},
    {"fused_infer*", "value_quant_mode=0 dequant_scale_value=given !query=int8", "dequant_scale_value=[Nk,Dv]"},
    {"fused_infer*", "key_quant_mode=1", "dequant_scale_key=[B,S2] value_quant_mode=1"},
    {"fused_infer*", "value_quant_mode=1", "dequant_scale_value=[B,S2]"},
    {"fused_infer*", "key_quant_mode=2", "dequant_scale_key=[Nk] dequant_scale_value=[Nk] value_quant_mode=2"},
    {"fused_infer*", "key_quant_mode=3",
     "dequant_scale_key=[B,Nk,S2] dequant_scale_value=[B,Nk,S2] value_quant_mode=3"},
    {"fused_infer*", "key_quant_mode=4",
     "dequant_scale_key=[block_num,block_size] dequant_scale_value=[block_num,block_size] value_quant_mode=4"},
    {"fused_infer*", "key_quant_mode=5",
     "dequant_scale_key=[block_num,Nk,block_size] dequant_scale_value=[block_num,Nk,block_size] value_quant_mode=5"},
};

}  // namespace dsakit::debug
