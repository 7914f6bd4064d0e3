// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/refusals.hpp"

// One refusal per condition of the validation table, and that nothing was written: values and memory.
namespace dsakit::prolog_v3 {
namespace {

TEST(MlaPrologV3Refusals, IndexValues) {  // V15
  Data d = row(1);
  d.cache_index.as<std::int64_t>()[5] = 30;
  refused(d, Status::invalid_slot, "cache_index", "[5]", as_it_is);
  d.cache_index.as<std::int64_t>()[6] = INT64_MAX;  // the lowest position is named
  refused(d, Status::invalid_slot, "cache_index", "[5]", as_it_is);
  Data batched = row(6, "PA_NZ", true);
  batched.cache_index.as<std::int64_t>()[6] = 30;
  refused(batched, Status::invalid_slot, "cache_index", "[1][2]", as_it_is);
  for (const char* mode : {"PA_BLK_BSND", "PA_BLK_NZ"}) {
    Data blocks = row(2, mode);  // lengths 6, 0, 2: pages 2 + 0 + 1
    blocks.cache_index.as<std::int64_t>()[2] = 6;
    refused(blocks, Status::invalid_slot, "cache_index", "[2]", as_it_is);
    blocks = row(2, mode, true);
    blocks.cache_index.as<std::int64_t>()[1] = 6;
    refused(blocks, Status::invalid_slot, "cache_index", "[1][0]", as_it_is);
    auto lengths = [&](std::vector<std::int32_t> totals, const char* position) {
      Data bad = row(2, mode);
      bad.actual_seq_len = Array(totals, {std::int64_t(totals.size())});
      refused(bad, Status::invalid_seqlen, "actual_seq_len", position, as_it_is);
    };
    lengths({6, 5, 8}, "[1]"), lengths({-1, 6, 8}, "[0]"), lengths({6, 6, 7}, "[2]"), lengths({6, 9, 9}, "[2]");
    lengths({6, INT32_MIN, 8}, "[1]");
    refused(row(2, mode), Status::invalid_shape, "cache_index", [](A& a, O&) { --a.cache_index.shape[0]; });
  }
}

TEST(MlaPrologV3Refusals, ClipAlpha) {  // V16
  for (const float bad : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Data d = row(4);
    *d.alpha.as<float>() = bad;
    refused(d, Status::invalid_argument, "k_nope_clip_alpha", as_it_is);
  }
}

TEST(MlaPrologV3Refusals, Memory) {  // V20
  const Data d = row(1);
  refused(d, Status::aliased, "kr_cache", [](A& a, O&) { a.kr_cache.data = a.kv_cache.data; });
  refused(d, Status::aliased, "kr_cache",
          [](A& a, O&) { a.kr_cache.data = static_cast<bf16*>(a.kv_cache.data) + 300; });
  refused(d, Status::aliased, "kv_cache", [](A& a, O&) { a.token_x.data = a.kv_cache.data; });
  refused(d, Status::aliased, "query", [](A& a, O& o) { o.query.data = a.token_x.data; });
  refused(d, Status::aliased, "query_rope", [](A&, O& o) { o.query_rope.data = o.query.data; });
  refused(d, Status::aliased, "query_norm", [](A& a, O& o) { o.query_norm.data = a.kr_cache.data; });
  refused(d, Status::invalid_device, "kv_cache", [](A& a, O&) { a.kv_cache.read_only = true; });
  refused(d, Status::invalid_device, "query", [](A&, O& o) { o.query.read_only = true; });
  refused(d, Status::invalid_stride, "kv_cache", [](A& a, O&) { a.kv_cache.stride[3] = 2; });
  refused(d, Status::invalid_stride, "token_x", [](A& a, O&) {
    a.token_x.stride[1] = 2, a.token_x.shape[1] = 12;
    a.weight_dq.shape[0] = a.weight_dkv_kr.shape[0] = 12;
  });
  refused(d, Status::misaligned, "rope_sin",
          [](A& a, O&) { a.rope_sin.data = static_cast<char*>(a.rope_sin.data) + 1; });
  refused(d, Status::invalid_argument, "weight_uk", [](A& a, O&) { a.weight_uk.data = nullptr; });
  Data nz = row(1, "PA_NZ");
  std::fill_n(nz.cache_index.as<std::int64_t>(), 8, -1);
  refused(nz, Status::invalid_stride, "kv_cache", [](A& a, O&) {  // rows of a block apart from each other
    a.kv_cache.stride[1] += 16, a.kv_cache.stride[0] = 5 * a.kv_cache.stride[1];
    a.kv_cache.shape[0] = a.kr_cache.shape[0] = 4;
  });
}

TEST(MlaPrologV3Refusals, NonFiniteValuesIfAsked) {  // V23
  auto checked = [](Data d, const std::function<void(Data&)>& spoil, const char* parameter, const char* position) {
    Context context({.threads = 1, .check_values = true});
    Written w = d.initial;
    EXPECT_NO_THROW(mla_prolog_v3(d.args(w), w.outs(), context));
    spoil(d);
    w = d.initial;
    try {
      mla_prolog_v3(d.args(w), w.outs(), context);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_value) << e.what();
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.position, position) << e.what();
    }
    EXPECT_EQ(w.first_difference(d.initial), "");
  };
  checked(
      row(1), [](Data& d) { d.token_x.as<bf16>()[30] = bf16{0x7f80}; }, "token_x", "[1][6]");
  checked(
      row(5), [](Data& d) { d.scale_x.as<float>()[2] = -1; }, "dequant_scale_x", "[2][0]");
  checked(
      row(3), [](Data& d) { d.ckr_scale.as<float>()[3] = std::nanf(""); }, "quant_scale_ckr", "[0][3]");
}

/// The copies of the functional form are memory of their own.
TEST(MlaPrologV3Refusals, FunctionalForm) {
  const Data d = row(1);
  using FA = MlaPrologV3FunctionalArgs;
  using FO = MlaPrologV3FunctionalOuts;
  auto refused = [&](Status status, const char* parameter, const std::function<void(FA&, FO&)>& change) {
    SCOPED_TRACE(parameter);
    for (const bool by_reference : {false, true}) {
      Written in = d.initial, w = d.initial;
      FA a{d.args(in)};
      FO o{w.outs(), w.kv_cache, w.kr_cache};
      change(a, o);
      try {
        by_reference ? reference::mla_prolog_v3_functional(a, o) : mla_prolog_v3_functional(a, o);
        ADD_FAILURE() << "accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.status, status) << e.what();
        EXPECT_EQ(e.op, "mla_prolog_v3_functional") << e.what();
        EXPECT_EQ(e.parameter, parameter) << e.what();
      }
      EXPECT_EQ(in.first_difference(d.initial), "");
      EXPECT_EQ(w.first_difference(d.initial), "");
    }
  };
  refused(Status::invalid_argument, "kv_cache_out", [](FA&, FO& o) { o.kv_cache_out = {}; });
  refused(Status::invalid_argument, "kr_cache_out", [](FA&, FO& o) { o.kr_cache_out = {}; });
  refused(Status::invalid_shape, "kv_cache_out", [](FA&, FO& o) { --o.kv_cache_out.shape[0]; });
  refused(Status::invalid_dtype, "kr_cache_out", [](FA&, FO& o) { o.kr_cache_out.dtype = DType::f16; });
  refused(Status::aliased, "kv_cache_out", [](FA& a, FO& o) { o.kv_cache_out.data = a.kv_cache.data; });
  refused(Status::aliased, "kr_cache_out", [](FA& a, FO& o) { o.kr_cache_out.data = a.token_x.data; });
  refused(Status::invalid_device, "kr_cache_out", [](FA&, FO& o) { o.kr_cache_out.read_only = true; });
  refused(Status::invalid_argument, "kv_cache", [](FA& a, FO&) { a.kv_cache = {}; });

  // Its caches are inputs: they may be read-only, and overlap.
  Written w = d.initial;
  const Written in = d.initial;
  FA a{d.args(in)};
  a.kv_cache.read_only = a.kr_cache.read_only = true;
  mla_prolog_v3_functional(a, {w.outs(), w.kv_cache, w.kr_cache});
  EXPECT_EQ(w.first_difference(run(d)), "");
}

/// Rows that are all one row: a stride of 0 is fine for what is only read.
TEST(MlaPrologV3Refusals, BroadcastInputs) {
  const Data d = row(2);
  Data repeated = d;
  for (Array* a : {&repeated.token_x, &repeated.rope_sin, &repeated.rope_cos})
    for (std::size_t i = a->bytes.size() / 8; i < a->bytes.size(); ++i) a->bytes[i] = a->bytes[i - a->bytes.size() / 8];
  const Change broadcast = [](A& a, O&) { a.token_x.stride[0] = a.rope_sin.stride[0] = a.rope_cos.stride[0] = 0; };
  EXPECT_EQ(run(d, {}, broadcast).first_difference(run(repeated)), "");
  EXPECT_EQ(reference_of(d, broadcast).first_difference(reference_of(repeated)), "");
  refused(d, Status::invalid_stride, "kv_cache", [](A& a, O&) { a.kv_cache.stride[1] = 0; });
}

}  // namespace
}  // namespace dsakit::prolog_v3
