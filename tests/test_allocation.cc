// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "dsakit/dsakit.h"
#include "dsakit/dsakit.hpp"
#include "dsakit/group.hpp"
#include "dsakit/model.hpp"

// The n-th allocation of a call fails, for every n: OUT_OF_MEMORY before anything is written, and the context works on.
namespace {

std::atomic<long> countdown{0};             // 0: nothing fails
thread_local std::size_t most = SIZE_MAX;  // bytes that this thread gets at a time

void* obtain(std::size_t bytes, std::size_t align) {
  if (bytes > most) return nullptr;
  if (countdown.load(std::memory_order_relaxed) > 0 && --countdown == 0) return nullptr;
  if (align <= alignof(std::max_align_t)) return std::malloc(bytes ? bytes : 1);
  return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}
void* obtain_or_throw(std::size_t bytes, std::size_t align) {
  if (void* p = obtain(bytes, align)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t n) { return obtain_or_throw(n, 1); }
void* operator new[](std::size_t n) { return obtain_or_throw(n, 1); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return obtain(n, 1); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return obtain(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) { return obtain_or_throw(n, std::size_t(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return obtain_or_throw(n, std::size_t(a)); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return obtain(n, std::size_t(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return obtain(n, std::size_t(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace dsakit {
namespace {

/// `call` on a new context with the n-th allocation failing, n = 1, 2, ... until one run needs fewer. `outs`: bytes.
template <class F>
void fail_every_allocation(std::vector<std::int8_t>& outs, F call) {
  const std::vector<std::int8_t> before = outs;
  int failed = 0;
  for (long n = 1; n < 1000; ++n) {
    Context context({.threads = 2});
    Status status = Status::ok;
    std::string sentence;
    countdown = n;
    try {
      call(context);
    } catch (const Error& e) {
      countdown = 0;
      status = e.status, sentence = e.what();
    }
    const bool all_served = countdown.exchange(0) > 0;
    if (all_served) {
      EXPECT_EQ(status, Status::ok) << sentence;
      EXPECT_NE(outs, before) << "the call wrote nothing";
      EXPECT_GE(failed, 1) << "no allocation in a cold call: this test sees nothing";
      return;
    }
    ++failed;
    EXPECT_EQ(status, Status::out_of_memory) << n << ": " << sentence;
    EXPECT_EQ(outs, before) << n;
    call(context);  // the context works on
    EXPECT_NE(outs, before);
    countdown = 1;
    call(context);  // and a warm call allocates nothing
    EXPECT_EQ(countdown.exchange(0), 1) << "a warm call has allocated";
    outs = before;
  }
  FAIL() << "no end of allocations";
}

template <class T>
T* at(std::vector<std::int8_t>& bytes, std::size_t offset) {
  return reinterpret_cast<T*>(bytes.data() + offset);
}

TEST(Allocation, Indexers) {
  Random r(1);
  std::vector<std::int8_t> q(3 * 4 * 16), k(9 * 16), outs(3 * 5 * 4, 9);
  for (auto& x : q) x = std::int8_t(r.below(255) - 127);
  for (auto& x : k) x = std::int8_t(r.below(255) - 127);
  const std::vector<float> w(12, 1.f), qs(12, 0.5f), ks(9, 0.25f);
  fail_every_allocation(outs, [&](Context& c) {
    quant_lightning_indexer({.query = tensor(q.data(), {1, 3, 4, 16}),
                             .key = tensor(k.data(), {1, 9, 1, 16}),
                             .weights = tensor(w.data(), {1, 3, 4}),
                             .query_dequant_scale = tensor(qs.data(), {1, 3, 4}),
                             .key_dequant_scale = tensor(ks.data(), {1, 9, 1}),
                             .sparse_count = 5},
                            {.sparse_indices = tensor(at<std::int32_t>(outs, 0), {1, 3, 1, 5})}, c);
  });
  const std::vector<bf16> qb(3 * 4 * 16, bf16{0x3f80}), kb(9 * 16, bf16{0x3f80});
  fail_every_allocation(outs, [&](Context& c) {
    lightning_indexer({.query = tensor(qb.data(), {1, 3, 4, 16}),
                       .key = tensor(kb.data(), {1, 9, 1, 16}),
                       .weights = tensor(w.data(), {1, 3, 4}),
                       .sparse_count = 5},
                      {.sparse_indices = tensor(at<std::int32_t>(outs, 0), {1, 3, 1, 5}), .sparse_values = {}}, c);
  });
}

TEST(Allocation, DenseAttention) {
  const std::vector<bf16> q(4 * 3 * 16, bf16{0x3f80}), k(2 * 9 * 16, bf16{0x3f80});
  const std::int64_t rows = 2;
  std::vector<std::int8_t> outs(4 * 3 * 16 * 2 + 4 * 3 * 4, 9);
  fail_every_allocation(outs, [&](Context& c) {
    fused_infer_attention_score_v2({.query = tensor(q.data(), {1, 4, 3, 16}),
                                    .key = tensor(k.data(), {1, 2, 9, 16}),
                                    .value = tensor(k.data(), {1, 2, 9, 16}),
                                    .actual_seq_qlen = tensor(&rows, {1}),
                                    .num_query_heads = 4,
                                    .num_key_value_heads = 2,
                                    .input_layout = "BNSD",
                                    .sparse_mode = 3,
                                    .return_softmax_lse = true},
                                   {.attention_out = tensor(at<bf16>(outs, 0), {1, 4, 3, 16}),
                                    .softmax_lse = tensor(at<float>(outs, 4 * 3 * 16 * 2), {1, 4, 3, 1})},
                                   c);
  });
}

TEST(Allocation, Attention) {
  const std::vector<bf16> q(2 * 16, bf16{0x3f80}), qr(2 * 4, bf16{0}), kr(8 * 4, bf16{0});
  const std::vector<std::int8_t> k(8 * 16, 3);
  const std::vector<float> scales(8, 1.f);
  const std::vector<std::int32_t> list = {0, 4, 2}, table = {1, 0}, act = {5};
  std::vector<std::int8_t> outs(2 * 16 * 2, 9);
  fail_every_allocation(outs, [&](Context& c) {
    sparse_flash_attention_quant({.query_nope = tensor(q.data(), {2, 16}),
                                  .query_rope = tensor(qr.data(), {2, 4}),
                                  .key_nope_2d = tensor(k.data(), {8, 16}),
                                  .key_rope_2d = tensor(kr.data(), {8, 4}),
                                  .k_nope_scales = tensor(scales.data(), {8, 1}),
                                  .topk_indices = tensor(list.data(), {1, 3}),
                                  .block_table = tensor(table.data(), {1, 2}),
                                  .kv_act_seqs = tensor(act.data(), {1}),
                                  .b = 1,
                                  .s1 = 1,
                                  .nq = 2,
                                  .softmax_scale = 1,
                                  .topk = 3,
                                  .block_size = 4},
                                 {.attention_out = tensor(at<bf16>(outs, 0), {1, 1, 2, 16})}, c);
  });
}

TEST(Allocation, AttentionByLists) {
  const std::vector<bf16> q(2 * 20, bf16{0x3f80}), k(8 * 20, bf16{0x3f80});
  const std::vector<std::int8_t> rows(8 * 28, 0);
  const std::vector<std::int32_t> list = {0, 4, 2}, table = {1, 0}, act = {5};
  std::vector<std::int8_t> outs(2 * 16 * 2, 9);
  const SparseFlashAttentionOuts out{.attention_out = tensor(at<bf16>(outs, 0), {1, 1, 2, 16})};
  fail_every_allocation(outs, [&](Context& c) {
    const Tensor key = tensor(k.data(), {2, 4, 1, 16});
    sparse_flash_attention({.query = tensor(q.data(), {1, 1, 2, 16}),
                            .key = key,
                            .value = key,
                            .sparse_indices = tensor(list.data(), {1, 1, 1, 3}),
                            .scale_value = 1,
                            .block_table = tensor(table.data(), {1, 2}),
                            .actual_seq_lengths_kv = tensor(act.data(), {1}),
                            .query_rope = tensor(q.data(), {1, 1, 2, 4}),
                            .key_rope = tensor(k.data(), {2, 4, 1, 4}),
                            .layout_kv = "PA_BSND",
                            .attention_mode = 2},
                           out, c);
  });
  fail_every_allocation(outs, [&](Context& c) {
    const Tensor key = tensor(rows.data(), {2, 4, 1, 28});
    kv_quant_sparse_flash_attention({.query = tensor(q.data(), {1, 1, 2, 20}),
                                     .key = key,
                                     .value = key,
                                     .sparse_indices = tensor(list.data(), {1, 1, 1, 3}),
                                     .scale_value = 1,
                                     .key_quant_mode = 2,
                                     .value_quant_mode = 2,
                                     .block_table = tensor(table.data(), {1, 2}),
                                     .actual_seq_lengths_kv = tensor(act.data(), {1}),
                                     .layout_kv = "PA_BSND",
                                     .attention_mode = 2,
                                     .tile_size = 16,
                                     .rope_head_dim = 4},
                                    {.attention_out = out.attention_out}, c);
  });
}

struct MlaCase {
  std::vector<bf16> x = std::vector<bf16>(8, bf16{0x3f80}), w_dq = std::vector<bf16>(8 * 8, bf16{0x3f80}),
                    w_uk = std::vector<bf16>(2 * 4 * 8, bf16{0x3f80}), w_kv = std::vector<bf16>(8 * 10, bf16{0x3f80}),
                    gamma = std::vector<bf16>(8, bf16{0x3f80}), turn = std::vector<bf16>(2, bf16{0x3f80});
  std::vector<std::int8_t> w_uq = std::vector<std::int8_t>(8 * 12, 3);
  std::vector<float> scale = std::vector<float>(12, 0.01f);
  std::int64_t slot = 1;

  MlaPrologQuantArgs args(std::vector<std::int8_t>& outs) {
    return {.token_x = tensor(x.data(), {1, 8}),
            .w_dq = tensor(w_dq.data(), {8, 8}),
            .w_uq_qr = tensor(w_uq.data(), {8, 12}),
            .dequant_scale = tensor(scale.data(), {12, 1}),
            .w_uk = tensor(w_uk.data(), {2, 4, 8}),
            .w_dkv_kr = tensor(w_kv.data(), {8, 10}),
            .gamma_cq = tensor(gamma.data(), {8}),
            .gamma_ckv = tensor(gamma.data(), {8}),
            .cos = tensor(turn.data(), {1, 2}),
            .sin = tensor(turn.data(), {1, 2}),
            .cache_index = tensor(&slot, {1}),
            .kv_cache = tensor(at<std::int8_t>(outs, 0), {1, 4, 1, 8}),
            .kr_cache = tensor(at<bf16>(outs, 64), {1, 4, 1, 2}),
            .k_scale_cache = tensor(at<float>(outs, 128), {1, 4, 1, 1})};
  }
  static MlaPrologQuantOuts outs(std::vector<std::int8_t>& outs) {
    return {.q_norm_out = tensor(at<std::int8_t>(outs, 192), {1, 8}),
            .q_norm_scale_out = tensor(at<float>(outs, 256), {1, 1}),
            .query_nope_out = tensor(at<bf16>(outs, 320), {1, 2, 8}),
            .query_rope_out = tensor(at<bf16>(outs, 384), {1, 2, 2})};
  }
};

TEST(Allocation, PrologAndQuantisation) {
  MlaCase mla;
  std::vector<std::int8_t> outs(448, 9);
  fail_every_allocation(outs, [&](Context& c) { mla_prolog_quant(mla.args(outs), MlaCase::outs(outs), c); });
  const std::vector<float> x(40, 2.5f);
  std::vector<std::int8_t> y(40 + 32, 9);
  fail_every_allocation(y, [&](Context& c) {
    dynamic_quant({.input = tensor(x.data(), {5, 8})},
                  {.y = tensor(y.data(), {5, 8}), .scale = tensor(at<float>(y, 40), {5})}, c);
  });
}

TEST(Allocation, PrologOfModes) {
  MlaCase mla;
  std::vector<std::int8_t> outs(448, 9);
  const MlaPrologQuantArgs a = mla.args(outs);
  const MlaPrologQuantOuts o = MlaCase::outs(outs);
  fail_every_allocation(outs, [&](Context& c) {  // weight_quant_mode 1 with packed rows
    mla_prolog_v3({.token_x = a.token_x,
                   .weight_dq = a.w_dq,
                   .weight_uq_qr = a.w_uq_qr,
                   .weight_uk = a.w_uk,
                   .weight_dkv_kr = a.w_dkv_kr,
                   .rmsnorm_gamma_cq = a.gamma_cq,
                   .rmsnorm_gamma_ckv = a.gamma_ckv,
                   .rope_sin = a.sin,
                   .rope_cos = a.cos,
                   .kv_cache = tensor(at<std::int8_t>(outs, 0), {1, 4, 1, 8 + 2 * 2 + 4}),
                   .cache_index = a.cache_index,
                   .dequant_scale_w_uq_qr = tensor(mla.scale.data(), {1, 12}),
                   .query_norm_flag = true,
                   .weight_quant_mode = 1,
                   .kv_cache_quant_mode = 3,
                   .ckvkr_repo_mode = 1,
                   .quant_scale_repo_mode = 1,
                   .tile_size = 8},
                  {.query = o.query_nope_out,
                   .query_rope = o.query_rope_out,
                   .query_norm = o.q_norm_out,
                   .dequant_scale_q_norm = o.q_norm_scale_out},
                  c);
  });
}

/// What the C interface obtains for itself: nothing, but for lengths of 64 bits and for refusals.
TEST(Allocation, CallsByName) {
  const std::vector<std::int8_t> q(3 * 4 * 16, 1), k(9 * 16, 1);
  const std::vector<float> ones(12, 1.f);
  std::int64_t query[] = {1, 3, 4, 16}, key[] = {1, 9, 1, 16}, heads[] = {1, 3, 4}, keys[] = {1, 9, 1}, out[] = {1, 3, 1, 5};
  std::int64_t lengths[] = {7};
  std::vector<std::int32_t> indices(15, 9);
  const auto before = indices;
  auto* data = const_cast<std::int8_t*>(q.data());
  auto* scales = const_cast<float*>(ones.data());
  const dsakit_tensor tensors[] = {dsakit_cpu_tensor(data, DSAKIT_INT, 8, 4, query),
                                   dsakit_cpu_tensor(const_cast<std::int8_t*>(k.data()), DSAKIT_INT, 8, 4, key),
                                   dsakit_cpu_tensor(scales, DSAKIT_FLOAT, 32, 3, heads),
                                   dsakit_cpu_tensor(scales, DSAKIT_FLOAT, 32, 3, keys),
                                   dsakit_cpu_tensor(indices.data(), DSAKIT_INT, 32, 4, out)};
  const dsakit_argument call[] = {dsakit_tensor_arg("query", &tensors[0]),
                                  dsakit_tensor_arg("key", &tensors[1]),
                                  dsakit_tensor_arg("weights", &tensors[2]),
                                  dsakit_tensor_arg("query_dequant_scale", &tensors[2]),
                                  dsakit_tensor_arg("key_dequant_scale", &tensors[3]),
                                  dsakit_integer_arg("sparse_count", 5),
                                  dsakit_tensor_arg("sparse_indices", &tensors[4]),
                                  dsakit_integers_arg("actual_seq_lengths_key", lengths, 1)};
  const auto run = [&](dsakit_context* context, std::size_t count) {
    return dsakit_run(context, "quant_lightning_indexer", call, count);
  };
  ASSERT_EQ(run(nullptr, 7), DSAKIT_OK) << dsakit_last_error()->message;  // the tables of the interface are made
  indices = before;
  int failed = 0;
  for (bool all_served = false; !all_served; ++failed) {
    dsakit_context* context = nullptr;
    countdown = failed + 1;
    dsakit_status status = dsakit_context_create(nullptr, &context);
    if (status == DSAKIT_OK) status = run(context, 8);
    all_served = countdown.exchange(0) > 0;
    EXPECT_EQ(status, all_served ? DSAKIT_OK : DSAKIT_OUT_OF_MEMORY) << failed;
    EXPECT_EQ(indices == before, !all_served) << failed;
    if (all_served) {
      EXPECT_EQ(run(context, 7), DSAKIT_OK);
      countdown = 1;
      EXPECT_EQ(run(context, 7), DSAKIT_OK);
      EXPECT_EQ(countdown.exchange(0), 1) << "a warm call by name has allocated";
      countdown = 1;
      EXPECT_EQ(run(context, 8), DSAKIT_OUT_OF_MEMORY);
      EXPECT_STREQ(dsakit_last_error()->got, "is exhausted");
      countdown = 1;
      EXPECT_EQ(run(context, 1), DSAKIT_OUT_OF_MEMORY) << "there is no memory for the sentence either";
      countdown = 0;
      EXPECT_EQ(run(context, 1), DSAKIT_INVALID_ARGUMENT);
    }
    dsakit_context_destroy(context);
  }
  EXPECT_GE(failed, 4);
}

TEST(Allocation, PackedWeightWhereNoWeightIs) {
  MlaCase mla;
  std::vector<std::int8_t> outs(448, 9);
  const std::vector<std::int8_t> before = outs;
  const PackedWeight packed(tensor(mla.w_dq.data(), {8, 8}));
  MlaPrologQuantArgs a = mla.args(outs);
  a.w_dq = packed.tensor();
  mla_prolog_quant(a, MlaCase::outs(outs));
  EXPECT_NE(outs, before);
  outs = before;
  for (Tensor* t : {&a.token_x, &a.kv_cache, &a.cos, &a.cache_index, &a.gamma_cq, &a.dequant_scale}) {
    const Tensor good = *t;
    t->format = Format::packed;
    try {
      mla_prolog_quant(a, MlaCase::outs(outs));
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_argument) << e.what();
    }
    *t = good;
  }
  EXPECT_EQ(outs, before);
  std::vector<float> x(16), scale(2);
  std::vector<std::int8_t> y(16);
  for (int which : {0, 1, 2}) {
    Tensor in = tensor(x.data(), {2, 8}), to = tensor(y.data(), {2, 8}), s = tensor(scale.data(), {2});
    (which == 0 ? in : which == 1 ? to : s).format = Format::NZ;
    try {
      dynamic_quant({.input = in}, {.y = to, .scale = s});
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_argument) << e.what();
    }
  }
}

TEST(Allocation, WhatExchangesTakeIsAskedForBeforeACallOfRanks) {
  const std::vector<std::int32_t> text(200, 32);
  std::vector<std::string> said(3);
  std::vector<std::vector<float>> after(3);
  std::vector<float> alone(256);
  const char* const folder = DSAKIT_SOURCE_DIR "/models/tiny-dsa";
  Model(folder).start("sparse_w8a8").append(text, alone);
  threads_as_ranks(3, [&](Group& group) {
    const std::size_t rank = std::size_t(group.rank());
    Context context({.threads = 1});
    const Model model(folder, group, {.parallel = "kv=3"});
    Session session = model.start("sparse_w8a8");
    std::vector<float> logits(256);
    if (rank == 1) most = 100000;  // less than the exchanges of 200 rows
    try {
      session.append(text, logits, context);
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::out_of_memory);
      EXPECT_EQ(e.rank, 1);
      said[rank] = e.what();
    }
    most = SIZE_MAX;
    EXPECT_EQ(session.length(), 0);
    session.append(text, logits, context);
    after[rank] = logits;
  });
  for (const std::string& s : said) {
    EXPECT_EQ(s, said[0]);
    EXPECT_TRUE(s.starts_with("model: exchanges need ")) << s;
    EXPECT_NE(s.find("bytes, wanted as much memory (of rank 1)"), std::string::npos) << s;
  }
  for (const auto& logits : after) EXPECT_EQ(logits, alone);
}

}  // namespace
}  // namespace dsakit
