// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/refusals.hpp"

// One refusal per condition of the validation table, and that nothing was written: shapes and sizes.
namespace dsakit::prolog_v3 {
namespace {

/// V6 to V8: every axis of every tensor one too long or short, and one axis too many. Where a tensor itself tells a
/// size, another one does not fit and may be the one named.
TEST(MlaPrologV3Refusals, ShapeOfEveryTensor) {
  for (int r = 1; r <= 7; ++r)
    for (int m = 0; m < cache_modes_of(r); ++m)
      for (const bool batched : {false, true}) {
        if (std::string_view(kCacheModes[m]) == (batched ? "TND" : "BSND")) continue;
        const Data d = row(r, kCacheModes[m], batched);
        each_tensor(d, [&](const std::string& name, Tensor A::*t) {
          if (d.c.packed() && name == "kr_cache") return;
          const Tensor right = d.args(d.initial).*t;
          for (int axis = 0; axis < right.rank; ++axis)
            for (const int by : {-1, 1}) {
              if (d.c.packed() && d.c.paged() && name == "kv_cache" && axis < 2) continue;  // says so itself
              if (name == "cache_index" && by == 1 && d.c.by_block() && !batched)
                continue;                                         // entries behind are not read
              if (name == "actual_seq_len" && by == 1) continue;  // reads on: the value is the fault
              Written w = d.initial;
              A a = d.args(w);
              O o = w.outs();
              (a.*t).shape[axis] += by;
              SCOPED_TRACE(d.c.name() + ", " + name + " axis " + std::to_string(axis) + " by " + std::to_string(by));
              try {
                mla_prolog_v3(a, o);
                ADD_FAILURE() << "accepted";
              } catch (const Error& e) {
                EXPECT_TRUE(e.status == Status::invalid_shape || e.status == Status::invalid_argument ||
                            e.status == Status::invalid_seqlen)
                    << e.what();
                EXPECT_TRUE(std::string(e.what()).find(name) != std::string::npos || e.status == Status::invalid_shape)
                    << e.what();
              }
              EXPECT_EQ(w.first_difference(d.initial), "");
            }
          for (const int rank : {1, 5})
            if (rank != right.rank && right.elements() > 0 && name.find("scale") == std::string::npos &&
                !name.ends_with("index") && !name.ends_with("len") && !name.ends_with("alpha"))
              expect_refused(
                  d,
                  [&](A& a, O&) {
                    Tensor& wrong = a.*t;
                    wrong = Tensor{.data = wrong.data, .dtype = wrong.dtype, .rank = rank};
                    for (int i = 0; i < rank; ++i) wrong.shape[i] = i == 0 ? right.elements() : 1;
                    make_contiguous(wrong);
                  },
                  Status::invalid_shape, name);
        });
      }
}

TEST(MlaPrologV3Refusals, PackedRowsAndTheirMemory) {  // V8, V19
  for (const int r : {4, 7}) {
    const Data d = row(r);  // 64 + 64 + 8 = 136 wide
    for (const std::int64_t width : {64, 96, 135, 137})
      refused(d, Status::invalid_shape, "kv_cache", [&](A& a, O&) {
        a.kv_cache = tensor(static_cast<std::int8_t*>(a.kv_cache.data), {2, 5, 1, width});
      });
    std::vector<bf16> other(6 * 5 * 32);
    refused(d, Status::invalid_argument, "kr_cache", [&](A& a, O&) {
      a.kr_cache = tensor(other.data(), {6, 5, 1, 32});
    });
    // A bf16 cache of concatenated columns, or one as wide as it should be: the message names who makes the right one.
    std::string sentence;
    for (const std::int64_t width : {96, 136})
      sentence = expect_refused(
          d,
          [&](A& a, O&) {
            a.kv_cache = tensor(other.data(), {2, 5, 1, width});
          },
          Status::invalid_dtype, "kv_cache");
    EXPECT_NE(sentence.find("pack_kv_rows"), std::string::npos) << sentence;
  }
}

TEST(MlaPrologV3Refusals, Sizes) {
  const Data d = row(1);
  refused(d, Status::invalid_shape, "kv_cache",
          [](A& a, O&) { a.kv_cache.shape[2] = 2, a.kv_cache.shape[0] = 3; });  // Nkv
  const Data odd({.row = 1, .heads = 1, .rope = 6});
  EXPECT_NO_THROW(run(odd));
  refused(Data({.row = 1, .rope = 4}), Status::invalid_shape, "rope_sin", [](A& a, O&) {
    a.rope_sin.shape[1] = a.rope_cos.shape[1] = 3, a.weight_uq_qr.shape[1] -= 3, a.weight_dkv_kr.shape[1] -= 1,
    a.kr_cache.shape[3] = 3;
  });
  for (const Tensor A::*t : {&A::token_x, &A::weight_uk, &A::rmsnorm_gamma_cq, &A::rmsnorm_gamma_ckv}) {
    Written w = d.initial;
    A a = d.args(w);
    Tensor& empty = const_cast<Tensor&>(a.*t);
    empty.shape[empty.rank - 1] = 0;
    EXPECT_THROW(mla_prolog_v3(a, w.outs()), Error);
  }
  // V17: rows of NZ blocks are whole 32-byte pieces
  for (const auto& [r, latent, rope, name] :
       {std::tuple{1, 40, 16, "kv_cache"}, {1, 32, 8, "kr_cache"}, {6, 48, 16, "kv_cache"}, {3, 32, 16, "kr_cache"}})
    for (const char* mode : {"PA_NZ", "PA_BLK_NZ"}) {
      const Data nz({.row = r, .cache_mode = mode, .rope = rope, .latent = latent});
      refused(nz, Status::invalid_shape, name, [](A&, O&) {});
    }
  // V21: one int8 sum too long for int32, counts beyond 63 bits
  const std::vector<std::int8_t> x(131072), long_weight(131072 * 96);
  const Data full = row(5);
  refused(full, Status::invalid_shape, "token_x", [&](A& a, O& o) {
    a.token_x = tensor(x.data(), {1, 131072});
    for (Tensor* t : {&a.rope_sin, &a.rope_cos, &a.cache_index, &a.dequant_scale_x, &o.query, &o.query_rope,
                      &o.query_norm, &o.dequant_scale_q_norm})
      t->shape[0] = 1;
    a.weight_dq = tensor(long_weight.data(), {131072, 20}), a.weight_dkv_kr = tensor(long_weight.data(), {131072, 96});
  });
  refused(d, Status::invalid_shape, "token_x", [](A& a, O&) { a.token_x.shape[0] = std::int64_t{1} << 61; });
  refused(d, Status::invalid_shape, "kv_cache", [](A& a, O&) { a.kv_cache.shape[0] = INT64_MAX / 4; });
  refused(d, Status::invalid_shape, "weight_uk", [](A& a, O&) { a.weight_uk.shape[0] = -1; });
  // V6
  refused(row(1, "PA_BSND", true), Status::invalid_shape, "rope_cos", [](A& a, O&) {
    a.rope_cos = tensor(static_cast<bf16*>(a.rope_cos.data), {8, 32});
  });
  refused(row(1, "PA_BSND", true), Status::invalid_shape, "rope_sin", [](A& a, O&) {
    a.rope_sin = tensor(static_cast<bf16*>(a.rope_sin.data), {4, 2, 32});
  });
}

/// Caches of no rows where every token has its own: nothing is stored in portable.
TEST(MlaPrologV3Refusals, EmptyCachesOfOwnRows) {
  for (const bool batched : {false, true}) {
    const Data d = row(1, batched ? "BSND" : "TND", batched);
    const Written wanted = run(d);
    const Change empty = [](A& a, O&) { a.kv_cache.shape[0] = a.kr_cache.shape[0] = 0; };
    for (Written w : {run(d, {}, empty), reference_of(d, empty)}) {
      EXPECT_TRUE(w.kv_cache == d.initial.kv_cache && w.kr_cache == d.initial.kr_cache);
      EXPECT_TRUE(w.query_norm.size() == wanted.query_norm.size() && w.query_rope.size() == wanted.query_rope.size());
      expect_close("query", w.query, wanted.query, 0.02);
    }
    const Change strict = [&](A& a, O& o) { empty(a, o), a.level = Level::strict; };
    refused(d, Status::invalid_shape, "kv_cache", strict);
    refused(d, Status::invalid_shape, "kr_cache", [](A& a, O&) { a.kr_cache.shape[0] = 0; });
  }
}

}  // namespace
}  // namespace dsakit::prolog_v3
