// SPDX-License-Identifier: Apache-2.0
#include "dsakit/attention_update.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "kernels/test_rungs.hpp"

namespace dsakit {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Lists that own their memory.
template <class T>
struct Shards {
  std::int64_t rows, width;
  std::vector<std::vector<float>> lse;
  std::vector<std::vector<T>> values;

  Shards(Random& r, std::int64_t shards, std::int64_t rows, std::int64_t width) : rows(rows), width(width) {
    for (std::int64_t i = 0; i < shards; ++i) {
      lse.push_back(random_f32(r, rows, -20, 20));
      values.emplace_back();
      for (std::int64_t j = 0; j < rows * width; ++j) values.back().push_back(round_to<T>(r.uniform(-3, 3)));
    }
  }
  std::vector<Tensor> lse_list() {
    std::vector<Tensor> list;
    for (auto& l : lse) list.push_back(tensor(l.data(), {rows}));
    return list;
  }
  std::vector<Tensor> value_list() {
    std::vector<Tensor> list;
    for (auto& v : values) list.push_back(tensor(v.data(), {rows, width}));
    return list;
  }
};

struct Result {
  std::vector<float> out, lse;
  bool operator==(const Result& other) const {  // by bits
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    };
    return same(out, other.out) && same(lse, other.lse);
  }
};

/// By the reference if there is no context.
Result merged(const AttentionUpdateArgs& a, Context* context) {
  AttentionUpdateOuts o{};
  infer(a, o);
  Result r;
  std::vector<float> memory(std::size_t(o.out.elements()) + 1, 99);
  r.lse.assign(std::size_t(o.lse_out.elements()), 99);
  o.out.data = memory.data(), o.lse_out.data = r.lse.data();
  if (context) attention_update(a, o, *context);
  else reference::attention_update(a, o);
  for (std::int64_t i = 0; i < o.out.elements(); ++i) r.out.push_back(float_at(o.out, i));
  return r;
}

float unit_of(DType d) { return d == DType::bf16 ? 0x1p-8f : d == DType::f16 ? 0x1p-11f : 0x1p-24f; }

class AttentionUpdate : public EveryRung {
 protected:
  /// Near the reference; the same bits for every rung and number of threads.
  Result expect_everywhere(const AttentionUpdateArgs& a) {
    const Result wanted = merged(a, nullptr);
    Context plain({.threads = 1, .isa = "generic"});
    const Result first = merged(a, &plain);
    const float unit = unit_of(a.local_out[0].dtype), each = float(a.lse.size() + 2);
    for (std::size_t i = 0; i < wanted.out.size(); ++i)  // values of at most 3
      EXPECT_LE(std::abs(first.out[i] - wanted.out[i]), 2 * unit * std::abs(wanted.out[i]) + 3 * each * 0x1p-24f) << i;
    for (std::size_t i = 0; i < wanted.lse.size(); ++i) EXPECT_EQ(first.lse[i], wanted.lse[i]) << i;
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = kernels().isa});
      EXPECT_TRUE(merged(a, &context) == first) << threads << " threads";
    }
    return first;
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, AttentionUpdate, for_every_rung(), rung_name);

/// More rows than a task takes.
TEST_P(AttentionUpdate, LargeOnesEqualTheReference) {
  Random r = random_of_test();
  Shards<float> s(r, 2, 1100, 1000);
  const auto lse = s.lse_list(), values = s.value_list();
  expect_everywhere(AttentionUpdateArgs{lse, values, 1});
}

template <class T, class Expect>
void every_size(Random& r, Expect expect) {
  for (std::int64_t shards : {1, 2, 3, 16, 20})
    for (std::int64_t width : {1, 7, 8, 64, 2050})
      for (std::int64_t rows : {0, 1, 37}) {
        Shards<T> s(r, shards, rows, width);
        for (std::int64_t i = 0; i < rows; ++i)  // a shard, or all, without a key
          for (std::int64_t shard = 0; shard < shards; ++shard)
            if (i % 7 == 3 || (i % 5 == 2 && shard % 2 == 0))
              s.lse[std::size_t(shard)][std::size_t(i)] = i % 2 ? kInf : -kInf;
        const auto lse = s.lse_list(), values = s.value_list();
        expect(AttentionUpdateArgs{lse, values, 1});
        expect(AttentionUpdateArgs{lse, values, 0});
      }
}

TEST_P(AttentionUpdate, MeetsTheReference) {
  Random r = random_of_test();
  const auto expect = [&](const AttentionUpdateArgs& a) { expect_everywhere(a); };
  every_size<bf16>(r, expect);
  every_size<f16>(r, expect);
  every_size<float>(r, expect);
}

/// As if the keys had never been cut.
TEST_P(AttentionUpdate, IsAttentionOverAllKeys) {
  Random r = random_of_test();
  const std::int64_t rows = 9, width = 16, keys = 50;
  for (std::size_t shards : {1u, 2u, 16u}) {
    Shards<float> s(r, std::int64_t(shards), rows, width);
    std::vector<double> whole(std::size_t(rows * width)), total(std::size_t(rows), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<double> out(std::size_t(width), 0);
      std::vector<std::vector<double>> part(shards, out);
      std::vector<double> sum(shards, 0);
      for (std::int64_t k = 0; k < keys; ++k) {
        const double e = std::exp(double(r.uniform(-9, 9)));
        const std::size_t shard = std::size_t(k) % shards;
        sum[shard] += e, total[std::size_t(row)] += e;
        for (std::size_t c = 0; c < out.size(); ++c) {
          const double v = double(r.uniform(-3, 3));
          part[shard][c] += e * v, out[c] += e * v;
        }
      }
      for (std::size_t c = 0; c < out.size(); ++c) {
        whole[std::size_t(row * width) + c] = out[c] / total[std::size_t(row)];
        for (std::size_t i = 0; i < shards; ++i) s.values[i][std::size_t(row * width) + c] = float(part[i][c] / sum[i]);
      }
      for (std::size_t i = 0; i < shards; ++i) s.lse[i][std::size_t(row)] = float(std::log(sum[i]));
    }
    const auto lse = s.lse_list(), values = s.value_list();
    const Result got = expect_everywhere({lse, values, 1});
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(got.out[i], whole[i], 1e-5);
    for (std::size_t i = 0; i < total.size(); ++i) EXPECT_NEAR(got.lse[i], std::log(total[i]), 1e-5);
  }
}

TEST_P(AttentionUpdate, WorkedExample) {
  const float lse[] = {1, 2}, values[] = {10, 20};
  const std::vector<Tensor> l{tensor(lse, {1}), tensor(lse + 1, {1})},
      v{tensor(values, {1, 1}), tensor(values + 1, {1, 1})};
  const Result got = expect_everywhere({l, v, 1});
  EXPECT_EQ(got.lse[0], 2.3132617f);
  EXPECT_FLOAT_EQ(got.out[0], 17.310586f);
}

TEST_P(AttentionUpdate, ShardsWithoutKeys) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float seen = 3, none[] = {-kInf, kInf}, values[] = {1.5f, -2}, unread[] = {nan, nan};
  std::vector<Tensor> l{tensor(none, {1}), tensor(&seen, {1}), tensor(none + 1, {1})},
      v{tensor(unread, {1, 2}), tensor(values, {1, 2}), tensor(unread, {1, 2})};
  Result got = expect_everywhere({l, v, 1});
  EXPECT_EQ(got.out, (std::vector{1.5f, -2.f}));  // the only one: its very bits
  EXPECT_EQ(got.lse[0], 3);
  l[1] = l[0], v[1] = v[0];
  got = expect_everywhere({l, v, 1});
  EXPECT_EQ(got.out, (std::vector{0.f, 0.f}));
  EXPECT_EQ(got.lse[0], -kInf);
  EXPECT_TRUE(merged({l, v, 0}, nullptr).lse.empty());
}

/// Rows as attention returns them: [B, S, N, D] beside [B, N, S, 1] seen from outside, and slices.
TEST_P(AttentionUpdate, FoldedAndStrided) {
  Random r = random_of_test();
  Shards<bf16> s(r, 3, 24, 10);
  const auto lse = s.lse_list(), values = s.value_list();
  const Result wanted = expect_everywhere({lse, values, 1});
  std::vector<Tensor> folded_lse, folded;
  for (int i = 0; i < 3; ++i) {
    folded_lse.push_back(tensor(s.lse[std::size_t(i)].data(), {2, 3, 4, 1}));
    folded.push_back(tensor(s.values[std::size_t(i)].data(), {2, 3, 4, 10}));
  }
  EXPECT_TRUE(expect_everywhere({folded_lse, folded, 1}) == wanted);
  for (Tensor& t : folded) t.shape[3] = 6;
  for (auto* list : {&folded, &folded_lse})
    for (Tensor& t : *list) std::swap(t.shape[0], t.shape[2]), std::swap(t.stride[0], t.stride[2]);
  expect_everywhere({folded_lse, folded, 1});
}

TEST(AttentionUpdateDoor, Refusals) {
  Random r(1);
  Shards<bf16> s(r, 3, 4, 8);
  Shards<float> wide(r, 17, 4, 8);
  const std::vector<Tensor> lse = s.lse_list(), values = s.value_list();
  std::vector<bf16> out(32);
  std::vector<float> lse_out(4);
  const auto refused = [&](AttentionUpdateArgs a, Status status, const char* parameter, const char* position = "",
                           AttentionUpdateOuts o = {}) {
    try {
      if (o.out) attention_update(a, o);
      else infer(a, o);
      ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
    } catch (const Error& e) {
      EXPECT_EQ(e.status, status) << e.what();
      EXPECT_EQ(e.op, "attention_update");
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.position, position) << e.what();
    }
  };
  const auto with = [](std::vector<Tensor> list, std::size_t i, auto change) {
    change(list[i]);
    return list;
  };
  using V = std::vector<Tensor>;
  V bad;
  refused({{}, values, 0}, Status::invalid_argument, "lse");
  refused({lse, {}, 0}, Status::invalid_argument, "local_out");
  refused({lse, values, 2}, Status::invalid_argument, "update_type");
  refused({lse, TensorList(values).first(2), 0}, Status::invalid_argument, "local_out");
  bad = with(lse, 1, [](Tensor& t) { t = {}; });
  refused({bad, values, 0}, Status::invalid_argument, "lse", "[1]");
  bad = with(values, 2, [](Tensor& t) { t.shape[0] = -1; });
  refused({lse, bad, 0}, Status::invalid_shape, "local_out", "[2]");
  bad = with(values, 2, [](Tensor& t) { t.shape[1] = 7; });
  refused({lse, bad, 0}, Status::invalid_shape, "local_out", "[2]");
  bad = with(values, 1, [](Tensor& t) { t.rank = 1; });
  refused({lse, bad, 0}, Status::invalid_shape, "local_out", "[1]");
  bad = with(lse, 2, [](Tensor& t) { t.shape[0] = 3; });
  refused({bad, values, 0}, Status::invalid_shape, "lse", "[2]");
  bad = with(lse, 0, [](Tensor& t) { t.dtype = DType::i32; });
  refused({bad, values, 0}, Status::invalid_dtype, "lse", "[0]");
  bad = with(values, 1, [](Tensor& t) { t.dtype = DType::f16; });
  refused({lse, bad, 0}, Status::invalid_dtype, "local_out", "[1]");
  bad = with(values, 0, [](Tensor& t) { t.dtype = DType::i8; });
  refused({lse, bad, 0}, Status::invalid_dtype, "local_out");
  bad = with(values, 1, [](Tensor& t) { t.data = nullptr; });
  refused({lse, bad, 0}, Status::invalid_argument, "local_out", "[1]");
  bad = with(values, 1, [](Tensor& t) { t.stride[1] = 2; });
  refused({lse, bad, 0}, Status::invalid_stride, "local_out", "[1]");
  const auto many = wide.lse_list(), many_values = wide.value_list();
  refused({many, many_values, 0, Level::strict}, Status::unsupported, "lse");
  bad = s.value_list();
  for (Tensor& t : bad) t.shape[1] = 7;
  refused({lse, bad, 0, Level::strict}, Status::unsupported, "local_out");

  const Tensor good = tensor(out.data(), {4, 8}), good_lse = tensor(lse_out.data(), {4});
  refused({lse, values, 1}, Status::invalid_argument, "lse_out", "", {.out = good, .lse_out = {}});
  refused({lse, values, 1}, Status::invalid_shape, "out", "", {.out = good_lse, .lse_out = good_lse});
  refused({lse, values, 1}, Status::aliased, "out", "", {.out = values[2], .lse_out = good_lse});
  refused({lse, values, 1}, Status::aliased, "lse_out", "", {.out = good, .lse_out = lse[1]});
  Context checking({.check_values = true});
  s.values[1][9] = to_bf16(kInf);
  try {
    attention_update({lse, values, 0}, {.out = good, .lse_out = {}}, checking);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_value);
    EXPECT_EQ(e.position, "[1][1][1]");
  }
  s.lse[1][1] = -kInf;  // then nobody looks at that row
  attention_update({lse, values, 0}, {.out = good, .lse_out = {}}, checking);
}

}  // namespace
}  // namespace dsakit
