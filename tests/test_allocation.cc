// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/convert.hpp"
#include "core/random.hpp"
#include "debug/execute.hpp"
#include "dsakit/dsakit.h"
#include "dsakit/dsakit.hpp"
#include "dsakit/group.hpp"
#include "dsakit/model.hpp"

// The n-th allocation of a call fails, for every n: OUT_OF_MEMORY before anything is written, and the context works on.
namespace {

std::atomic<long> countdown{0};             // 0: nothing fails
std::atomic<long> live{0};                  // given and not given back
thread_local std::size_t most = SIZE_MAX;  // bytes that this thread gets at a time

void* obtain(std::size_t bytes, std::size_t align) {
  if (bytes > most) return nullptr;
  if (countdown.load(std::memory_order_relaxed) > 0 && --countdown == 0) return nullptr;
  void* p = nullptr;
  if (align <= alignof(std::max_align_t)) p = std::malloc(bytes ? bytes : 1);
  else if (posix_memalign(&p, align, bytes) != 0) return nullptr;
  if (p) ++live;
  return p;
}
void give_back(void* p) {
  if (p) --live;
  std::free(p);
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
void operator delete(void* p) noexcept { give_back(p); }
void operator delete[](void* p) noexcept { give_back(p); }
void operator delete(void* p, std::size_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
// Weights are prepared in memory of this kind; it goes back by free(), and is not counted.
extern "C" void* aligned_alloc(std::size_t align, std::size_t bytes) noexcept {
  if (countdown.load(std::memory_order_relaxed) > 0 && --countdown == 0) return nullptr;
  void* p = nullptr;
  return posix_memalign(&p, align, bytes) == 0 ? p : nullptr;
}

namespace dsakit {
namespace {

/// `call` on a new context with the n-th allocation failing, n = 1, 2, ... until one run needs fewer. `outs`: bytes.
/// `least` of them are there to fail: 0 for operators that need no workspace.
template <class F>
void fail_every_allocation(std::vector<std::int8_t>& outs, F call, int least = 1) {
  const std::vector<std::int8_t> before = outs;
  {  // what all contexts share is there
    Context context({.threads = 2});
    call(context);
  }
  const std::vector<std::int8_t> after = outs;
  EXPECT_NE(after, before) << "the call wrote nothing";
  outs = before;
  int failed = 0;
  for (long n = 1; n < 1000; ++n) {
    const long at_first = live;
    {
      Context context({.threads = 2});
      Status status = Status::ok;
      countdown = n;
      try {
        call(context);
      } catch (const Error& e) {
        countdown = 0;
        status = e.status;
      }
      const bool all_served = countdown.exchange(0) > 0;
      EXPECT_EQ(status, all_served ? Status::ok : Status::out_of_memory) << n;
      EXPECT_TRUE(outs == (all_served ? after : before)) << n;
      outs = before;
      call(context);  // the context works on
      EXPECT_TRUE(outs == after) << n;
      outs = before;
      countdown = 1;
      call(context);  // and a warm call allocates nothing
      EXPECT_EQ(countdown.exchange(0), 1) << "a warm call has allocated";
      outs = before;
      if (all_served) {
        EXPECT_GE(failed, least) << "no allocation in a cold call: this test sees nothing";
        return;
      }
      ++failed;
    }
    EXPECT_EQ(live, at_first) << n;
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

/// Tensors of calls whose numbers do not matter: inputs of one number or of these, outputs one after the other.
struct Memory {
  std::deque<std::vector<std::byte>> inputs;
  std::vector<std::int8_t> outs = std::vector<std::int8_t>(8192, 9);
  std::size_t used = 0;

  template <class T>
  Tensor in(std::initializer_list<std::int64_t> shape, std::initializer_list<T> numbers) {
    const std::size_t count = elements(shape);
    T* data = reinterpret_cast<T*>(inputs.emplace_back(count * sizeof(T) + 64).data());
    for (std::size_t i = 0; i < count; ++i) data[i] = numbers.begin()[i % numbers.size()];
    return tensor(data, shape);
  }
  Tensor ones(std::initializer_list<std::int64_t> shape) { return in<bf16>(shape, {bf16{0x3f80}, bf16{0x3f00}}); }
  Tensor codes(std::initializer_list<std::int64_t> shape) { return in<std::int8_t>(shape, {3, -5, 7}); }
  Tensor scales(std::initializer_list<std::int64_t> shape) { return in<float>(shape, {0.5f, 0.25f}); }
  template <class T>
  Tensor out(std::initializer_list<std::int64_t> shape) {
    used = (used + 15) / 16 * 16;
    T* data = at<T>(outs, used);
    used += elements(shape) * sizeof(T);
    EXPECT_LE(used, outs.size());
    return tensor(data, shape);
  }
  static std::size_t elements(std::initializer_list<std::int64_t> shape) {
    return std::size_t(std::accumulate(shape.begin(), shape.end(), std::int64_t(1), std::multiplies<>()));
  }
};

TEST(Allocation, Rows) {
  Memory m;
  const Tensor x = m.ones({3, 16}), gamma = m.ones({16}), y = m.out<bf16>({3, 16}), rstd = m.out<float>({3, 1}),
               sum = m.out<bf16>({3, 16}), q = m.out<std::int8_t>({3, 16}), scale = m.out<float>({3, 1});
  const auto each = [&](auto call) { fail_every_allocation(m.outs, call, 0); };
  each([&](Context& c) { rms_norm({.self = x, .gamma = gamma}, {.y = y, .rstd = rstd}, c); });
  each([&](Context& c) { add_rms_norm({.x1 = x, .x2 = x, .gamma = gamma}, {.y = y, .rstd = rstd, .x = sum}, c); });
  each([&](Context& c) {
    add_rms_norm_bias({.x1 = x, .x2 = x, .gamma = gamma, .beta = gamma}, {.y = y, .rstd = rstd, .x = sum}, c);
  });
  const Tensor half = m.out<bf16>({3, 8});
  each([&](Context& c) { swiglu({.self = x}, {.y = half}, c); });
  each([&](Context& c) { dynamic_block_quant({.x = x}, {.y = q, .scale = scale}, c); });
  const Tensor steps = m.scales({16});
  each([&](Context& c) { quantize({.input = x, .scales = steps, .dtype = "qint8"}, {.y = q}, c); });
  const Tensor heads = m.ones({1, 2, 3, 8}), cos = m.ones({1, 1, 3, 8}), turned = m.out<bf16>({1, 2, 3, 8});
  each([&](Context& c) { interleave_rope({.x = heads, .cos = cos, .sin = cos}, {.y = turned}, c); });
  each([&](Context& c) { rotary_mul({.x = heads, .r1 = cos, .r2 = cos}, {.y = turned}, c); });
  const Tensor latent = m.codes({3, 16}), rope = m.ones({3, 4}), steps_of_rows = m.scales({3, 2});
  const Tensor packed = m.codes({3, 32}), rows = m.out<std::int8_t>({3, 32}), tail = m.out<bf16>({3, 4}),
               two = m.out<float>({3, 2});
  each([&](Context& c) { pack_kv_rows({.codes = latent, .rope = rope, .scales = steps_of_rows}, {.rows = rows}, c); });
  each([&](Context& c) {
    unpack_kv_rows({.rows = packed, .rope_head_dim = 4, .tile_size = 8}, {.codes = q, .rope = tail, .scales = two}, c);
  });
  const Tensor lse[] = {m.scales({3}), m.scales({3})}, parts[] = {x, x}, merged = m.out<float>({3});
  each([&](Context& c) {
    attention_update({.lse = lse, .local_out = parts, .update_type = 1}, {.out = y, .lse_out = merged}, c);
  });
}

TEST(Allocation, Products) {
  Memory m;
  const Tensor x1 = m.codes({5, 24}), x2 = m.codes({24, 16}), scale = m.scales({16}), y = m.out<std::int8_t>({5, 16});
  fail_every_allocation(m.outs, [&](Context& c) { quant_matmul({.x1 = x1, .x2 = x2, .scale = scale}, {.y = y}, c); });
  const Tensor a = m.ones({3, 5, 24}), b = m.ones({3, 24, 16}), t = m.ones({5, 3, 24}),
               turned = m.out<bf16>({5, 3, 16});
  fail_every_allocation(m.outs,
                        [&](Context& c) { transpose_batchmatmul({.input = a, .weight = b}, {.y = turned}, c); });
  fail_every_allocation(m.outs, [&](Context& c) {
    batch_matmul_transpose({.tensor_a = t, .tensor_b = b, .tensor_c = turned}, {}, c);
  });
}

TEST(Allocation, Moves) {
  Memory m;
  const auto each = [&](auto call) { fail_every_allocation(m.outs, call, 0); };
  const Tensor rows = m.ones({3, 2, 8}), cache = m.ones({2, 4, 2, 8}), slots = m.in<std::int32_t>({3}, {6, -1, 0}),
               index = m.in<std::int64_t>({3, 1}, {1, -1, 0}), k = m.out<bf16>({2, 4, 2, 8}),
               v = m.out<bf16>({2, 4, 2, 8}), rows_of_pages = m.ones({3, 4, 2, 8});
  each([&](Context& c) { scatter_nd_update_({.self = k, .indices = index, .updates = rows_of_pages}, {}, c); });
  const ScatterNdUpdateArgs copied{{.self = cache, .indices = index, .updates = rows_of_pages}};
  each([&](Context& c) { scatter_nd_update(copied, {.out = k}, c); });
  const ScatterPaKvCacheArgs scatter{
      .key = rows, .value = rows, .key_cache = k, .value_cache = v, .slot_mapping = slots, .cache_mode = "Norm"};
  each([&](Context& c) { scatter_pa_kv_cache(scatter, {}, c); });
  ScatterPaKvCacheFunctionalArgs copies{scatter};
  copies.key_cache = copies.value_cache = cache;
  each([&](Context& c) { scatter_pa_kv_cache_functional(copies, {.key_cache_out = k, .value_cache_out = v}, c); });
  const Tensor key = m.out<bf16>({3, 2, 8}), value = m.out<bf16>({3, 2, 8}), to_key = m.out<bf16>({3, 2, 8}),
               to_value = m.out<bf16>({3, 2, 8});
  const GatherPaKvCacheArgs gather{.key_cache = cache,
                                   .value_cache = cache,
                                   .block_tables = m.in<std::int32_t>({1, 1}, {1}),
                                   .seq_lens = m.in<std::int32_t>({1}, {3}),
                                   .key = key,
                                   .value = value};
  each([&](Context& c) { gather_pa_kv_cache(gather, {}, c); });
  each([&](Context& c) { gather_pa_kv_cache_functional({gather}, {.key_out = to_key, .value_out = to_value}, c); });
  const Tensor lengths = m.out<std::int32_t>({3}), from = m.out<std::int32_t>({3}), to = m.out<std::int32_t>({3});
  each([&](Context& c) {
    store_kv_block_metadata({.slot_mapping = slots,
                             .group_len = lengths,
                             .group_key_idx = from,
                             .group_key_cache_idx = to,
                             .block_size = 4},
                            {}, c);
  });
  const Tensor runs = m.in<std::int32_t>({2}, {2, 1}), sources = m.in<std::int32_t>({2}, {0, 2}),
               places = m.in<std::int32_t>({2}, {4, 1});
  each([&](Context& c) {
    store_kv_block({.key_in = rows,
                    .key_cache_in = k,
                    .group_len = runs,
                    .group_key_idx = sources,
                    .group_key_cache_idx = places,
                    .block_size = 4},
                   {}, c);
  });
}

TEST(Allocation, RowsIntoCaches) {
  Memory m;
  const Tensor k = m.out<bf16>({2, 4, 1, 4}), ckv = m.out<std::int8_t>({2, 4, 1, 16}),
               k_rope = m.out<bf16>({1, 1, 3, 4}), c_kv = m.out<bf16>({1, 1, 3, 16}), k_out = m.out<bf16>({2, 4, 1, 4}),
               ckv_out = m.out<std::int8_t>({2, 4, 1, 16});
  const KvRmsnormRopeCacheArgs args{.kv = m.ones({1, 1, 3, 20}),
                                    .gamma = m.ones({16}),
                                    .cos = m.ones({1, 1, 3, 4}),
                                    .sin = m.ones({1, 1, 3, 4}),
                                    .index = m.in<std::int64_t>({3}, {5, -1, 0}),
                                    .k_cache = k,
                                    .ckv_cache = ckv,
                                    .c_kv_scale = m.scales({16}),
                                    .cache_mode = "PA",
                                    .is_output_kv = true};
  const auto each = [&](auto call) { fail_every_allocation(m.outs, call); };
  each([&](Context& c) { kv_rmsnorm_rope_cache(args, {.k_rope = k_rope, .c_kv = c_kv}, c); });
  each([&](Context& c) { kv_rmsnorm_rope_cache_v2({args}, {.k_rope = k_rope, .c_kv = c_kv}, c); });
  KvRmsnormRopeCacheV2FunctionalArgs copies{args};
  copies.k_cache = m.ones({2, 4, 1, 4}), copies.ckv_cache = m.codes({2, 4, 1, 16});
  each([&](Context& c) {
    kv_rmsnorm_rope_cache_v2_functional(
        copies, {{.k_cache_out = k_out, .ckv_cache_out = ckv_out, .k_rope = k_rope, .c_kv = c_kv}}, c);
  });
}

TEST(Allocation, OtherPrologs) {
  Memory m;
  const Tensor slot = m.in<std::int64_t>({1}, {1}), turn = m.ones({1, 4}), x = m.ones({1, 8}), w_dq = m.ones({8, 8}),
               w_uq_qr = m.codes({8, 16}), w_uk = m.ones({2, 4, 16}), w_dkv_kr = m.ones({8, 20}),
               scale = m.scales({16, 1}), gamma_cq = m.ones({8}), gamma_ckv = m.ones({16});
  const Tensor kv = m.out<bf16>({2, 4, 1, 16}), kr = m.out<bf16>({2, 4, 1, 4}), query = m.out<bf16>({1, 2, 16}),
               query_rope = m.out<bf16>({1, 2, 4});
  const MlaPrologV3Args v3{.token_x = x,
                           .weight_dq = w_dq,
                           .weight_uq_qr = w_uq_qr,
                           .weight_uk = w_uk,
                           .weight_dkv_kr = w_dkv_kr,
                           .rmsnorm_gamma_cq = gamma_cq,
                           .rmsnorm_gamma_ckv = gamma_ckv,
                           .rope_sin = turn,
                           .rope_cos = turn,
                           .kv_cache = kv,
                           .kr_cache = kr,
                           .cache_index = slot,
                           .dequant_scale_w_uq_qr = m.scales({1, 16}),
                           .weight_quant_mode = 1};
  const auto each = [&](auto call) { fail_every_allocation(m.outs, call); };
  const Tensor kv_out = m.out<bf16>({2, 4, 1, 16}), kr_out = m.out<bf16>({2, 4, 1, 4}), one = m.out<float>({1});
  MlaPrologV3FunctionalArgs copies{v3};
  copies.kv_cache = m.ones({2, 4, 1, 16}), copies.kr_cache = m.ones({2, 4, 1, 4});
  each([&](Context& c) {
    mla_prolog_v3_functional(copies, {{.query = query, .query_rope = query_rope}, kv_out, kr_out}, c);
  });
  each([&](Context& c) {
    mla_prolog_v2({.token_x = x,
                   .weight_dq = w_dq,
                   .weight_uq_qr = w_uq_qr,
                   .weight_uk = w_uk,
                   .weight_dkv_kr = w_dkv_kr,
                   .rmsnorm_gamma_cq = gamma_cq,
                   .rmsnorm_gamma_ckv = gamma_ckv,
                   .rope_sin = turn,
                   .rope_cos = turn,
                   .cache_index = slot,
                   .kv_cache = kv,
                   .kr_cache = kr,
                   .dequant_scale_w_uq_qr = v3.dequant_scale_w_uq_qr},
                  {.query = query, .query_rope = query_rope, .dequant_scale_q_nope = one}, c);
  });
  const Tensor w_qb = m.codes({8, 16}), w_qb_scale = m.scales({16, 1}), wk = m.ones({8, 8}), w_proj = m.ones({8, 2}),
               ln = m.ones({8}), hadamard = m.ones({8, 8}), codes = m.codes({1, 8}), one_scale = m.scales({1, 1});
  const Tensor ip_k = m.out<std::int8_t>({2, 4, 1, 8}), ip_scale = m.out<f16>({2, 4, 1, 1}),
               q_int8 = m.out<std::int8_t>({1, 2, 8}), q_scale = m.out<f16>({1, 2, 1}),
               weights = m.out<f16>({1, 2});
  each([&](Context& c) {
    lightning_indexer_prolog_quant({.x = x,
                                    .q_norm = codes,
                                    .q_norm_scale = one_scale,
                                    .w_qb = w_qb,
                                    .w_qb_scale = w_qb_scale,
                                    .wk = wk,
                                    .w_proj = w_proj,
                                    .ln_gamma_k = ln,
                                    .ln_beta_k = ln,
                                    .cos = turn,
                                    .sin = turn,
                                    .hadamard_q = hadamard,
                                    .hadamard_k = hadamard,
                                    .k_cache_index = slot},
                                   {.q_int8 = q_int8,
                                    .q_scale = q_scale,
                                    .k_cache = ip_k,
                                    .k_scale_cache = ip_scale,
                                    .weights = weights},
                                   c);
  });
  const Tensor latent = m.out<std::int8_t>({2, 4, 1, 16}), latent_scale = m.out<float>({2, 4, 1, 1});
  each([&](Context& c) {
    mla_indexer_prolog_quant({.token_x = x,
                              .w_dq = w_dq,
                              .w_uq_qr = w_uq_qr,
                              .dequant_scale = scale,
                              .w_uk = w_uk,
                              .w_dkv_kr = w_dkv_kr,
                              .gamma_cq = gamma_cq,
                              .gamma_ckv = gamma_ckv,
                              .cos = turn,
                              .sin = turn,
                              .cache_index = slot,
                              .w_qb = w_qb,
                              .w_qb_scale = w_qb_scale,
                              .wk = wk,
                              .w_proj = w_proj,
                              .ln_gamma_k = ln,
                              .ln_beta_k = ln,
                              .hadamard_q = hadamard,
                              .hadamard_k = hadamard},
                             {.query_nope = query,
                              .query_rope = query_rope,
                              .kv_cache = latent,
                              .kr_cache = kr,
                              .k_scale_cache = latent_scale,
                              .q_int8 = q_int8,
                              .q_scale = q_scale,
                              .ip_k_cache = ip_k,
                              .ip_k_scale_cache = ip_scale,
                              .weights = weights},
                             c);
  });
}

/// `work` with one request for memory refused: each of the first ones, then some. It throws OUT_OF_MEMORY; nothing is
/// lost; `same` finds everything as it was. `prepare` comes before each time. Returns how many were refused.
template <class Work, class Same>
int refuse_requests(Work work, Same same, const std::function<void()>& prepare = [] {}) {
  prepare();
  work();  // what the process keeps is there
  prepare();
  countdown = LONG_MAX;
  work();
  const long all = LONG_MAX - countdown.exchange(0);
  int refused = 0;
  for (long n = 1; n <= all; n += n < 60 ? 1 : n / 6) {
    prepare();
    const long before = live;
    bool said = false;
    countdown = n;
    try {
      work();
      countdown = 0;
    } catch (const Error& e) {
      countdown = 0;
      said = e.status == Status::out_of_memory;
      EXPECT_TRUE(said) << n << ": " << e.what();
    } catch (const std::bad_alloc&) {
      countdown = 0;
    }
    EXPECT_TRUE(said) << n << " of " << all;
    EXPECT_EQ(live, before) << n << " of " << all;
    same();
    ++refused;
  }
  return refused;
}

/// A folder of its own for one test, gone afterwards.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "dsakit-XXXXXX").string();
  Folder() {
    if (!::mkdtemp(path.data())) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};
std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::string kModel = DSAKIT_SOURCE_DIR "/models/tiny-dsa";

TEST(Allocation, OpeningModelsAndLayers) {
  EXPECT_GE(refuse_requests([&] { Model{kModel}; }, [] {}), 60);
  EXPECT_GE(refuse_requests([&] { AttentionLayer{kModel, 0}; }, [] {}), 60);
}

TEST(Allocation, Sessions) {
  const std::vector<std::int32_t> text = {'T', 'h', 'e', ' ', 's', 'e', 'a', ' ', 'i', 's', ' '};
  for (const std::string_view mode : kModes) {
    const Model model(kModel);
    std::vector<float> want(256), logits(256);
    model.start(mode).append(text, want);
    // A session begins, takes a text and a token more.
    const auto work = [&] {
      Context context({.threads = 1});
      Session session = model.start(mode, 4);
      session.append(std::span(text).first(10), {}, context);
      session.append(std::span(text).last(1), logits, context);
      EXPECT_EQ(logits, want);
    };
    EXPECT_GE(refuse_requests(work, [] {}), 50) << mode;
    // One that is refused memory for a text has not taken it, and goes on.
    Session session = model.start(mode, 4);
    session.append(std::span(text).first(4), logits);
    const std::vector<float> first = logits;
    const auto go_on = [&] {
      Context context({.threads = 1});
      Session copy = session;
      copy.append(std::span(text).subspan(4), logits, context);
      EXPECT_EQ(logits, want);
    };
    const auto same = [&] {
      EXPECT_EQ(session.length(), 4);
      Session copy = session;
      copy.append(std::span(text).subspan(4), logits);
      EXPECT_EQ(logits, want);
    };
    refuse_requests(go_on, same);
  }
}

TEST(Allocation, SessionsTakeATextWholeOrNotAtAll) {
  const Model model(kModel);
  const std::vector<std::int32_t> text(20, 'a');
  std::vector<float> want(256), logits(256);
  model.start("sparse_w8a8").append(text, want);
  int refused = 0;
  for (bool all_served = false; !all_served; ++refused) {
    Session session = model.start("sparse_w8a8", 4);
    session.append(std::span(text).first(3));
    Context context({.threads = 1});
    countdown = refused + 1;
    try {
      session.append(std::span(text).subspan(3), logits, context);
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::out_of_memory);
    }
    all_served = countdown.exchange(0) > 0;
    EXPECT_EQ(session.length(), all_served ? 20 : 3) << refused;
    if (!all_served) session.append(std::span(text).subspan(3), logits, context);
    EXPECT_EQ(logits, want) << refused;
  }
  EXPECT_GE(refused, 20);
}

TEST(Allocation, EverythingElseOfModels) {
  const Model model(kModel);
  const std::vector<std::int32_t> text(20, 'a');
  const std::vector<std::uint8_t> bytes(20, 'a');
  const AttentionLayer layer = model.attention(0);
  const std::vector<bf16> hidden(std::size_t(4 * layer.hidden_size()), bf16{0x3f80});
  std::vector<bf16> out(hidden.size());
  std::vector<float> logits(2 * 256);
  const Session session = model.start("sparse_bf16");
  const auto each = [](int least, const std::function<void(Context&)>& work) {
    EXPECT_GE(refuse_requests(
                  [&] {
                    Context context({.threads = 1});
                    work(context);
                  },
                  [] {}),
              least);
  };
  each(1, [](Context&) {});  // the context itself
  each(20, [&](Context& c) { model.logits(text, "dense_bf16", c); });
  each(20, [&](Context& c) { model.generate(text, 3, "sparse_bf16", 0.5, 1, c); });
  each(20, [&](Context& c) { model.score(bytes, 8, "sparse_w8a8", c); });
  each(20, [&](Context& c) { model.score(text, 8, "sparse_w8a8", c); });
  each(10, [&](Context& c) {
    LayerCache cache = layer.make_cache("sparse_w8a8", 2);
    layer.forward(tensor(hidden.data(), {4, layer.hidden_size()}), tensor(out.data(), {4, layer.hidden_size()}), cache,
                  {}, c);
    LayerCache copy(cache);
    copy = cache;
  });
  each(4, [&](Context& c) {
    Session one = session, other = session;
    Session* const both[] = {&one, &other};
    step(both, std::span(text).first(2), logits, c);
  });
  each(2, [&](Context&) { model.modes(); });
  each(2, [&](Context&) { supported_isas(); });
  each(2, [&](Context& c) { c.warn("a sentence that no string holds in place"), c.warnings(); });
  each(2, [&](Context&) { PackedWeight{tensor(hidden.data(), {4, layer.hidden_size()})}; });
}

TEST(Allocation, RefusalsForWhichThereIsNoMemory) {
  const Model model(kModel);
  Session session = model.start("sparse_bf16");
  for (const std::function<void()>& refused :
       {std::function<void()>([&] { model.start("no mode"); }), std::function<void()>([&] { session.crop(1); }),
        std::function<void()>([&] { (void)model.attention(99); }), std::function<void()>([&] { Model{"/nowhere"}; })}) {
    Status status = Status::out_of_memory;
    for (long n = 1; status == Status::out_of_memory; ++n) {
      ASSERT_LT(n, 1000);
      status = Status::ok;
      countdown = n;
      try {
        refused();
      } catch (const Error& e) {
        countdown = 0;
        status = e.status;
        EXPECT_FALSE(std::string(e.what()).empty());
      }
    }
    countdown = 0;
    EXPECT_NE(status, Status::ok) << "it was accepted";
  }
}

TEST(Allocation, SavedSessions) {
  const Folder folder;
  const Model model(kModel);
  const std::vector<std::int32_t> text(20, 'a');
  Session session = model.start("sparse_w8a8_packed");
  session.append(text);
  for (const char* name : {"kept", "new"}) std::filesystem::create_directory(folder / name);
  session.save(folder / "kept");
  const auto loads = [&](const std::string& name) {
    std::vector<float> logits(256), want(256);
    Session again = model.load_session(folder / name), here = session;
    again.append(std::span(text).first(1), logits);
    here.append(std::span(text).first(1), want);
    EXPECT_EQ(logits, want) << name;
  };
  const std::string kept = folder / "kept", made = folder / "new";
  EXPECT_GE(refuse_requests([&] { session.save(made); }, [&] { loads("kept"); }), 20);
  loads("new");
  EXPECT_GE(refuse_requests([&] { model.load_session(kept); }, [&] { loads("kept"); }), 20);
}

TEST(Allocation, Conversion) {
  const Folder folder;
  ConvertOptions options{.checkpoint = kModel, .out = folder / "want", .format = TargetFormat::w8a8, .layers = "0"};
  convert(options);
  options.out = folder / "out";
  // A new attempt takes over what the one that was refused has left.
  const auto same = [&] {
    convert(options);
    for (const auto& file : std::filesystem::directory_iterator(folder / "want"))
      EXPECT_EQ(bytes_of(folder / "out/" + file.path().filename().string()), bytes_of(file.path()));
  };
  EXPECT_GE(refuse_requests([&] { convert(options); }, same, [&] { std::filesystem::remove_all(options.out); }), 60);
}

TEST(Allocation, Cases) {
  const Folder folder;
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6};
  debug::Case c;
  c.call = "dsakit.rms_norm";
  c.tensors.emplace("in.self", debug::Stored(tensor(rows.data(), {3, 4})));
  c.tensors.emplace("in.gamma", debug::Stored(tensor(rows.data(), {4})));
  const std::string kept = folder / "kept.safetensors";
  debug::write_case(c, kept);
  const std::string bytes = bytes_of(kept);
  const auto same = [&] { EXPECT_EQ(bytes_of(kept), bytes); };
  EXPECT_GE(refuse_requests([&] { debug::write_case(c, kept); }, same), 20);
  EXPECT_GE(refuse_requests([&] { debug::read_case(kept); }, same), 20);
  const debug::Case read = debug::read_case(kept);
  const auto results = [&] {
    Context context({.threads = 1});
    debug::Outcome done = debug::execute(read, {.context = &context});
    if (done.refusal) throw Error(*done.refusal);
    return done.results.size();
  };
  EXPECT_GE(refuse_requests([&] { EXPECT_EQ(results(), 2u); }, same), 10);
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
