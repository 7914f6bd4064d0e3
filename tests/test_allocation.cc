// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "dsakit/dsakit.hpp"

// The n-th allocation of a call fails, for every n: OUT_OF_MEMORY before anything is written, and the context works on.
namespace {

std::atomic<long> countdown{0};  // 0: nothing fails

void* obtain(std::size_t bytes, std::size_t align) {
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

}  // namespace
}  // namespace dsakit
