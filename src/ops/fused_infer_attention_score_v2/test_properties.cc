// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include "ops/fused_infer_attention_score_v2/judge.hpp"

// What holds whatever the call: bits do not depend on threads, storage, batch or other rows; nothing outside is
// touched.
namespace dsakit {
namespace {

using namespace fused_infer_attention_score_v2_op;

constexpr DType kF16 = DType::f16, kBf16 = DType::bf16, kF32 = DType::f32, kI8 = DType::i8, kInt4 = DType::i32;

template <class Change>
Spec changed(Spec s, Change change) {
  change(s);
  return s;
}

/// One call of each kind of arithmetic, contiguous, of two sequences.
std::vector<Spec> kinds() {
  const Spec base{
      .layout = "BNSD", .b = 2, .nk = 2, .s1 = 7, .s2 = 600, .d = 64, .ql = {7, 4}, .kl = {600, 270}, .mode = 3};
  std::vector<Spec> all;
  for (const DType type : {kF16, kBf16, kF32}) {
    all.push_back(changed(base, [&](Spec& s) { s.type = type; }));
    all.push_back(changed(base, [&](Spec& s) { s.type = type, s.dr = 32, s.nq = 8, s.nk = 1; }));
    for (const DType kv : {kI8, kInt4})
      for (const std::int64_t mode : {0, 1, 3})
        all.push_back(changed(base, [&](Spec& s) {
          s.type = type, s.kv = kv, s.km = s.vm = mode, s.offsets = mode != 3;
          s.ks = mode == 0 ? Shape{2, 64} : mode == 1 ? Shape{2, 640} : Shape{2, 2, 640};
        }));
  }
  all.push_back(changed(base, [](Spec& s) { s.type = kI8, s.dr = 32, s.nq = 8, s.nk = 1, s.scale = 1; }));
  return all;
}

TEST(FusedInferProperties, PagesAndTheirOrderKeepTheBits) {
  for (const Spec& s : kinds())
    for (const Kernels* kernels : supported_kernels()) {
      const Results wanted = bits(s, *kernels);
      for (const int rank : {3, 4, 5}) {
        if (rank == 5 && s.kv == kInt4) continue;
        for (const std::int64_t bs : {16, 100})
          EXPECT_EQ(
              bits(changed(s, [&](Spec& x) { x.rank = rank, x.bs = bs, x.page_seed = std::uint64_t(bs); }), *kernels),
              wanted)
              << kernels->isa << " " << rank << " " << bs;
      }
    }
}

TEST(FusedInferProperties, SequencesDoNotKnowEachOther) {
  for (const Spec& s : kinds())
    for (const Kernels* kernels : supported_kernels()) {
      Case both(s);
      run(both, *kernels, 2);
      for (std::int64_t b = 0; b < 2; ++b) {
        Case alone(changed(s, [&](Spec& x) {
          x.b = 1, x.first_b = b, x.ql = {s.ql[b]}, x.kl = {s.kl[b]};
          if (x.ks.size() > 2 || x.km == 1) x.ks[0] = 1;
        }));
        run(alone, *kernels, 1);
        const std::size_t out = std::size_t(alone.attention.t.elements() * size_of(alone.attention.t.dtype)),
                          lse = std::size_t(alone.lse.t.elements()) * 4;
        EXPECT_EQ(std::memcmp(alone.attention.bytes.data(), both.attention.bytes.data() + std::size_t(b) * out, out),
                  0);
        EXPECT_EQ(std::memcmp(alone.lse.bytes.data(), both.lse.bytes.data() + std::size_t(b) * lse, lse), 0);
      }
    }
}

TEST(FusedInferProperties, ThreadsKeepTheBits) {
  for (const Spec& s : kinds())
    for (const Kernels* kernels : supported_kernels())
      for (const bool same_products : {false, true}) {
        Case c(s);
        const Results wanted = run(c, *kernels, 1, same_products);
        for (const int threads : {2, 3, 8}) EXPECT_EQ(run(c, *kernels, threads, same_products), wanted) << threads;
      }
}

TEST(FusedInferProperties, QueriesDoNotKnowEachOther) {  // rows 3.. of a causal call are a shorter call
  for (const Spec& s : kinds()) {
    if (s.type == kI8) continue;
    for (const Kernels* kernels : supported_kernels()) {
      Case all(changed(s, [](Spec& x) {
        x.b = 1, x.ql = {7}, x.kl = {600};
        if (x.km == 1 || x.km == 3) x.ks[0] = 1;
      }));
      run(all, *kernels, 1);
      FusedInferAttentionScoreV2Args a = all.args();
      Buffer out;
      out.make(all.attention.t.dtype, {1, s.nq, 4, 64});
      for (Tensor* t : {&a.query, &a.query_rope})
        if (*t) t->shape[2] = 4, t->data = static_cast<std::byte*>(t->data) + 3 * t->stride[2] * size_of(t->dtype);
      a.actual_seq_qlen = {};
      a.return_softmax_lse = false;
      Context context({.threads = 1, .isa = kernels->isa});
      fused_infer_attention_score_v2(a, {.attention_out = out.t}, context);
      for (std::int64_t h = 0; h < s.nq; ++h)
        for (std::int64_t q = 0; q < 4; ++q)
          for (std::int64_t d = 0; d < 64; ++d)
            ASSERT_EQ(out.get((h * 4 + q) * 64 + d), all.attention.get(all.out_at(0, h, q + 3, d)));
    }
  }
}

/// Equal sums in every order: exact data.
TEST(FusedInferProperties, ExactNumbersAreExact) {
  // One key stands out by so much that the others' weights are 0: the output is its value row.
  for (const DType type : {kF16, kBf16, kF32})
    for (const Kernels* kernels : supported_kernels()) {
      Case c({.layout = "BNSD", .nk = 2, .s1 = 3, .s2 = 700, .d = 32, .type = type, .scale = 1});
      for (std::int64_t i = 0; i < c.query.t.elements(); ++i) c.query.put(i, 1);
      for (std::int64_t i = 0; i < c.key.t.elements(); ++i) c.key.put(i, 0);
      for (const std::int64_t winner : {0, 255, 256, 699}) {
        for (std::int64_t g = 0; g < 2; ++g)
          for (std::int64_t d = 0; d < 32; ++d) c.key.put(c.key_at(c.key, 32, 0, g, winner, d), 8);
        run(c, *kernels, 1);
        for (std::int64_t h = 0; h < 4; ++h)
          for (std::int64_t q = 0; q < 3; ++q) {
            EXPECT_EQ(c.lse.get(c.lse_at(0, h, q)), 256);
            for (std::int64_t d = 0; d < 32; ++d)
              ASSERT_EQ(c.attention.get(c.out_at(0, h, q, d)), c.value.get(c.key_at(c.value, 32, 0, h / 2, winner, d)));
          }
        for (std::int64_t g = 0; g < 2; ++g)
          for (std::int64_t d = 0; d < 32; ++d) c.key.put(c.key_at(c.key, 32, 0, g, winner, d), 0);
      }
    }
}

/// One score 30 or 100 above the rest, in the first, a middle and the last chunk, or two equal ones.
TEST(FusedInferProperties, PeaksAnywhere) {
  for (const DType type : {kF16, kBf16, kF32})
    for (const float height : {5.0f, 16.0f})
      for (const std::vector<std::int64_t>& peaks :
           {std::vector<std::int64_t>{0}, {255}, {256}, {300}, {699}, {3, 600}, {511, 512}}) {
        Case c({.layout = "BNSD", .nk = 2, .s1 = 2, .s2 = 700, .d = 64, .type = type});
        for (const std::int64_t k : peaks)
          for (std::int64_t g = 0; g < 2; ++g)
            for (std::int64_t d = 0; d < 64; ++d)
              c.key.put(c.key_at(c.key, 64, 0, g, k, d),
                        std::copysign(height, c.query.get(c.query_at(64, 0, g * 2, 0, d))));
        const Judged judged(c);
        for (const Kernels* kernels : supported_kernels()) {
          run(c, *kernels, 1);
          expect_right(c, judged, false);
        }
      }
}

/// A tensor whose last byte is followed by a page that nobody may touch.
class Guarded {
 public:
  explicit Guarded(const Tensor& t) : tensor_(t) {
    if (!t) return;
    const std::size_t bytes = std::size_t(t.elements()) * std::size_t(size_of(t.dtype));
    size_ = (bytes / kPage + 1) * kPage;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, size_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + size_, kPage, PROT_NONE);
    tensor_.data = base_ + size_ - bytes;
    std::memcpy(tensor_.data, t.data, bytes);
  }
  ~Guarded() {
    if (base_) munmap(base_, size_ + kPage);
  }
  Guarded(const Guarded&) = delete;
  Tensor operator*() const { return tensor_; }

 private:
  static constexpr std::size_t kPage = 4096;
  Tensor tensor_;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
};

TEST(FusedInferProperties, NothingBehindATensorIsTouched) {
  std::vector<Spec> all;
  for (const std::int64_t d : {1, 3, 8, 16, 17, 31, 40, 64, 65, 96, 100})
    for (const DType type : {kF16, kBf16, kF32}) {
      all.push_back({.layout = "BNSD", .nk = 2, .s1 = 3, .s2 = d + 7, .d = d, .type = type, .mode = 3});
      all.push_back({.layout = "BSH",
                     .nk = 1,
                     .s1 = 2,
                     .s2 = d + 1,
                     .d = d,
                     .dv = d + 2,
                     .dr = d % 9,
                     .type = type,
                     .mask = {2, d + 1}});
      all.push_back({.layout = "TND",
                     .nk = 2,
                     .d = d,
                     .type = type,
                     .kv = kI8,
                     .ql = {2},
                     .kl = {d},
                     .rank = 3,
                     .bs = 8,
                     .more_columns = 0,
                     .km = 3,
                     .vm = 3,
                     .ks = {1, 2, d},
                     .offsets = true});
      if (d % 8 == 0)
        all.push_back({.layout = "BNSD",
                       .nk = 2,
                       .s1 = 1,
                       .s2 = d,
                       .d = d,
                       .type = type,
                       .kv = kInt4,
                       .km = 1,
                       .vm = 1,
                       .ks = {1, d},
                       .os = {4, d},
                       .lse = false});
    }
  all.push_back({.layout = "TND",
                 .nq = 8,
                 .nk = 1,
                 .d = 64,
                 .dr = 32,
                 .type = kI8,
                 .ql = {2, 1},
                 .kl = {40, 33},
                 .rank = 5,
                 .bs = 16,
                 .more_columns = 0});
  for (const Spec& s : all)
    for (const Kernels* kernels : supported_kernels()) {
      Case c(s);
      const Results wanted = run(c, *kernels, 1);
      FusedInferAttentionScoreV2Args a = c.args();
      FusedInferAttentionScoreV2Outs o = c.outs();
      const Guarded query(a.query), key(a.key), value(a.value), query_rope(a.query_rope), key_rope(a.key_rope),
          mask(a.atten_mask), ql(a.actual_seq_qlen), kl(a.actual_seq_kvlen), table(a.block_table),
          sq(a.dequant_scale_query), ks(a.dequant_scale_key), ko(a.dequant_offset_key), vs(a.dequant_scale_value),
          vo(a.dequant_offset_value), os(a.quant_scale_out), out(o.attention_out), lse(o.softmax_lse);
      a.query = *query, a.key = *key, a.value = *value, a.query_rope = *query_rope, a.key_rope = *key_rope;
      a.atten_mask = *mask, a.actual_seq_qlen = *ql, a.actual_seq_kvlen = *kl, a.block_table = *table;
      a.dequant_scale_query = *sq, a.dequant_scale_key = *ks, a.dequant_offset_key = *ko;
      a.dequant_scale_value = *vs, a.dequant_offset_value = *vo, a.quant_scale_out = *os;
      o.attention_out = *out, o.softmax_lse = *lse;
      Context context({.threads = 1, .isa = kernels->isa});
      fused_infer_attention_score_v2(a, o, context);
      const std::size_t bytes = std::size_t(c.attention.t.elements()) * std::size_t(size_of(c.attention.t.dtype));
      EXPECT_EQ(std::memcmp(o.attention_out.data, wanted.out.data(), bytes), 0) << kernels->isa << " " << s.d;
    }
}

TEST(FusedInferProperties, WorkspaceDoesNotGrowWithTheContext) {
  const auto held = [](const Spec& s) {
    Case c(s);
    Context context({.threads = 8});
    fused_infer_attention_score_v2(c.args(), c.outs(), context);
    EXPECT_LE(context.workspace_bytes(), (std::size_t{64} << 20) + 2 * c.attention.bytes.size());
    return context.workspace_bytes();
  };
  Spec decode{.layout = "BSND", .nq = 128, .nk = 1, .s1 = 1, .s2 = 300, .d = 512, .dr = 64, .type = kBf16};
  const std::size_t few = held(decode);
  decode.s2 = 3000;
  EXPECT_EQ(held(decode), few);
  Spec prefill{.layout = "TND", .nq = 8, .nk = 2, .ql = {40}, .kl = {40}, .mode = 3};
  const std::size_t small = held(prefill);
  prefill.ql = prefill.kl = {900};
  EXPECT_EQ(held(prefill), small);
}

/// portable takes rows in any order: strides of every axis but the last.
TEST(FusedInferProperties, StridesAreFree) {
  for (const Kernels* kernels : supported_kernels()) {
    Case c({.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 300, .d = 64, .dr = 16, .mode = 3});
    const Results wanted = run(c, *kernels, 1);
    FusedInferAttentionScoreV2Args a = c.args();
    a.input_layout = "BSND_BNSD";  // the same memory, its axes named in another order
    for (Tensor* t : {&a.query, &a.query_rope, &a.key, &a.key_rope, &a.value})
      std::swap(t->shape[1], t->shape[2]), std::swap(t->stride[1], t->stride[2]);
    Context context({.threads = 1, .isa = kernels->isa});
    fused_infer_attention_score_v2(a, c.outs(), context);
    EXPECT_EQ(results(c), wanted);
    std::fill(c.attention.bytes.begin(), c.attention.bytes.end(), std::byte{0});
    reference::fused_infer_attention_score_v2(a, c.outs());
    expect_right(c, Judged(c), true);
  }
}

}  // namespace
}  // namespace dsakit
