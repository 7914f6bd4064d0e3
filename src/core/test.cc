// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "core/check.hpp"
#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"

namespace dsakit {
namespace {

// ---- 16-bit floats

TEST(Float16, EveryValueSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float b = to_float(bf16{std::uint16_t(bits)}), h = to_float(f16{std::uint16_t(bits)});
    if (!std::isnan(b)) { ASSERT_EQ(to_bf16(b).bits, bits); }
    if (!std::isnan(h)) { ASSERT_EQ(to_f16(h).bits, bits); }
    ASSERT_EQ(std::isnan(b), std::isnan(to_float(to_bf16(b))));
    ASSERT_EQ(std::isnan(h), std::isnan(to_float(to_f16(h))));
  }
}

// Between two neighbours: below the middle goes down, above goes up, the middle goes to the even one.
template <class T, class Round>
void boundaries(std::uint32_t last_finite, Round round) {
  for (std::uint32_t bits = 0; bits < last_finite; ++bits) {
    const double low = to_float(T{std::uint16_t(bits)}), high = to_float(T{std::uint16_t(bits + 1)});
    const float middle = float((low + high) / 2);
    ASSERT_EQ(double(middle), (low + high) / 2);
    ASSERT_EQ(round(middle).bits, bits + (bits & 1));
    ASSERT_EQ(round(std::nextafter(middle, 0.f)).bits, bits);
    ASSERT_EQ(round(std::nextafter(middle, INFINITY)).bits, bits + 1);
    ASSERT_EQ(round(-middle).bits, 0x8000u + bits + (bits & 1));
  }
}

TEST(Float16, RoundsToNearestEven) {
  // The smallest bf16 midpoints are themselves floats: subnormals are kept.
  boundaries<bf16>(0x7f7f, to_bf16);
  boundaries<f16>(0x7bff, to_f16);
  EXPECT_EQ(to_f16(65519.f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.f).bits, 0x7c00);
  EXPECT_EQ(to_f16(1e30f).bits, 0x7c00);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0);  // a tie goes to even
  EXPECT_EQ(to_f16(std::nextafter(0x1p-25f, 1.f)).bits, 1);
}

TEST(Float16, DoubleIsRoundedOnce) {
  const double just_above_tie = 1 + 0x1p-8 + 0x1p-40;  // through float it would be the tie itself, and go down
  EXPECT_EQ(to_bf16_once(just_above_tie).bits, to_bf16(1.f).bits + 1);
  EXPECT_EQ(to_bf16_once(-just_above_tie).bits, to_bf16(-1.f).bits + 1);
  EXPECT_EQ(to_bf16_once(1 + 0x1p-8 - 0x1p-40).bits, to_bf16(1.f).bits);
  EXPECT_EQ(to_bf16_once(1 + 0x1p-8).bits, to_bf16(1.f).bits);
}

// ---- memory

TEST(Overlap, Intervals) {
  std::vector<float> m(64);
  const Tensor a = tensor(m.data(), {4, 4}), b = tensor(m.data() + 16, {4, 4}), c = tensor(m.data() + 15, {4, 4});
  EXPECT_FALSE(overlap(a, b));
  EXPECT_TRUE(overlap(a, c));
  EXPECT_TRUE(overlap(a, a));
  EXPECT_FALSE(overlap(a, tensor(m.data(), {0, 4})));
}

TEST(Overlap, ColumnsOfOnePitchedBuffer) {
  std::vector<float> m(40 * 576);
  auto columns = [&](std::int64_t first, std::int64_t width) {
    Tensor t = tensor(m.data() + first, {5, 8, 1, width});
    t.stride = {8 * 576, 576, 576, 1};
    return t;
  };
  EXPECT_FALSE(overlap(columns(0, 512), columns(512, 64)));
  EXPECT_FALSE(overlap(columns(512, 64), columns(0, 512)));
  EXPECT_TRUE(overlap(columns(0, 512), columns(511, 64)));
  EXPECT_TRUE(overlap(columns(511, 64), columns(0, 512)));
  Tensor other_pitch = tensor(m.data() + 512, {8, 64});
  other_pitch.stride = {577, 1};
  EXPECT_TRUE(overlap(columns(0, 512), other_pitch)) << "not decidable by pitch: refused";
}

// An oracle by enumeration over small random views: overlap() may refuse too much, never too little.
TEST(Overlap, NeverMissesASharedElement) {
  Random r(7);
  std::vector<std::int16_t> m(4096);
  int exact = 0;
  for (int round = 0; round < 3000; ++round) {
    auto random_view = [&] {
      Tensor t{.data = m.data() + r.below(64), .dtype = DType::i16, .rank = int(1 + r.below(3))};
      for (int a = 0; a < t.rank; ++a) t.shape[a] = 1 + r.below(4), t.stride[a] = r.below(3) ? r.below(40) : 16;
      t.stride[t.rank - 1] = 1;
      return t;
    };
    const Tensor a = random_view(), b = random_view();
    auto elements = [&](const Tensor& t) {
      std::set<const void*> all;
      for (std::int64_t i = 0; i < t.elements(); ++i) all.insert(static_cast<std::int16_t*>(t.data) + offset_of(t, i));
      return all;
    };
    bool shared = false;
    for (const auto* p : elements(a)) shared |= elements(b).contains(p);
    ASSERT_TRUE(!shared || overlap(a, b)) << round;
    exact += shared == overlap(a, b);
  }
  EXPECT_GT(exact, 2000);
}

TEST(OffsetsFrom, AreThoseOfElementsOfAnyShapeAndStrides) {
  Random r(8);
  for (int round = 0; round < 300; ++round) {
    Tensor t{.dtype = DType::f32, .rank = int(r.below(4))};
    for (int a = 0; a < t.rank; ++a) t.shape[a] = 1 + r.below(4), t.stride[a] = r.below(40);
    OffsetsFrom all(t, 0);
    for (std::int64_t i = 0; i < t.elements(); ++i, ++all) {
      ASSERT_EQ(*all, offset_of(t, i));
      ASSERT_EQ(*OffsetsFrom(t, i), offset_of(t, i));
    }
  }
}

TEST(Rows, AnyLeadingAxes) {
  std::vector<float> m(1000);
  Tensor t = tensor(m.data(), {3, 1, 4, 1, 5});
  const Rows even(t, 1);
  EXPECT_EQ(even.count, 12);
  EXPECT_EQ(even.uniform_stride, 5);
  t.stride = {50, 7, 10, 3, 1};
  const Rows uneven(t, 1);
  EXPECT_EQ(uneven.uniform_stride, -1);
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(uneven.offset(i), i / 4 * 50 + i % 4 * 10);
}

// ---- the door

template <class F>
Error refusal(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  return Error(Status::ok, "", "", "", "", "");
}

TEST(Check, SentencesNameEverything) {
  std::vector<float> m(512);
  const Check check("lightning_indexer", Level::portable), strict("lightning_indexer", Level::strict);
  Error e = refusal([&] { check.shape(tensor(m.data(), {4, 63}), "weights", {4, 64}, "T and N1 of query"); });
  EXPECT_EQ(e.status, Status::invalid_shape);
  EXPECT_STREQ(e.what(), "lightning_indexer: weights has shape [4, 63], wanted [4, 64] (T and N1 of query)");
  e = refusal([&] { check.dtype(tensor(m.data(), {4}), "query", {DType::bf16, DType::f16}); });
  EXPECT_STREQ(e.what(), "lightning_indexer: query has dtype float32, wanted bfloat16 or float16");
  e = refusal([&] { strict.chip(false, "sparse_count", "is 3000", "at most 2048"); });
  EXPECT_EQ(e.status, Status::unsupported);
  EXPECT_STREQ(e.what(), "lightning_indexer: sparse_count is 3000, wanted at most 2048 [strict: Atlas A2/A3]");
  EXPECT_EQ(refusal([&] { check.chip(false, "sparse_count", "is 3000", "at most 2048"); }).status, Status::ok);
  e = refusal([&] { check.one_of("XYZ", "layout_query", {"BSND", "TND"}); });
  EXPECT_STREQ(e.what(), "lightning_indexer: layout_query is 'XYZ', wanted BSND or TND");
  e = refusal([&] { check.one_of("B\x7f\xff\n", "layout_query", {"BSND", "TND"}); });
  EXPECT_STREQ(e.what(), "lightning_indexer: layout_query is 'B\\u007f\\xff\\u000a', wanted BSND or TND");
}

TEST(Check, StridesOfAShapeWithoutAProduct) {
  Tensor t{.rank = 3, .shape = {0, 33, INT64_MAX}};
  make_contiguous(t);
  EXPECT_EQ(t.elements(), 0);
  EXPECT_EQ(t.stride[0], INT64_MAX);
  EXPECT_EQ(t.stride[1], INT64_MAX);
  EXPECT_EQ(t.stride[2], 1);
}

TEST(Check, AbsentIsWithoutElements) {
  const Check check("lightning_indexer", Level::portable), strict("lightning_indexer", Level::strict);
  const auto refused = [](const Check& c, std::initializer_list<std::int64_t> shape) {
    Tensor t{.rank = 0};  // as callers give it: the product of such a shape may be no number
    for (const std::int64_t n : shape) t.shape[std::size_t(t.rank++)] = n;
    return refusal([&] { c.absent(t, "block_table", "BSND"); }).status;
  };
  EXPECT_EQ(refused(check, {4, 0}), Status::ok);
  EXPECT_EQ(refused(strict, {4, 0}), Status::invalid_argument);
  EXPECT_EQ(refused(check, {1, 2}), Status::invalid_argument);
  EXPECT_EQ(refused(check, {std::int64_t{1} << 32, std::int64_t{1} << 32}), Status::invalid_argument);
  EXPECT_EQ(refusal([&] { strict.absent(Tensor{}, "block_table", "BSND"); }).status, Status::ok);
}

TEST(Check, Memory) {
  std::vector<float> m(512);
  const Check check("op", Level::portable), strict("op", Level::strict);
  auto status = [&](Tensor t, const Check& c, bool written = false) {
    return refusal([&] { written ? c.writable(t, "x") : c.readable(t, "x"); }).status;
  };
  Tensor t = tensor(m.data(), {4, 8});
  EXPECT_EQ(status(t, strict, true), Status::ok);
  t.stride = {9, 1};
  EXPECT_EQ(status(t, check, true), Status::ok);
  EXPECT_EQ(status(t, strict), Status::invalid_stride);
  t.stride = {0, 1};
  EXPECT_EQ(status(t, check), Status::ok) << "a broadcast input";
  EXPECT_EQ(status(t, check, true), Status::invalid_stride);
  t.stride = {-8, 1};
  EXPECT_EQ(status(t, check), Status::invalid_stride);
  t.stride = {1, 4};
  EXPECT_EQ(status(t, check), Status::invalid_stride);
  t.stride = {7, 1};
  EXPECT_EQ(status(t, check, true), Status::invalid_stride) << "rows that share an element";
  t = tensor(m.data(), {4, -1});
  EXPECT_EQ(status(t, check), Status::invalid_shape);
  t = shaped(DType::f32, {4, 8});
  EXPECT_EQ(status(t, check), Status::invalid_argument) << "no memory";
  EXPECT_EQ(status(shaped(DType::f32, {0, 8}), check), Status::ok);
  t = tensor(m.data(), {std::int64_t(1) << 32, std::int64_t(1) << 31, 0});
  EXPECT_EQ(status(t, check), Status::invalid_shape) << "overflow on the way to zero";
  t = tensor(m.data(), {std::int64_t(1) << 61});
  EXPECT_EQ(status(t, check), Status::invalid_shape) << "bytes overflow";
  t = tensor(m.data(), {4, 8});
  t.data = reinterpret_cast<char*>(t.data) + 1;
  EXPECT_EQ(status(t, check), Status::misaligned);
  t = tensor(static_cast<const float*>(m.data()), {4, 8});
  EXPECT_EQ(status(t, check), Status::ok);
  EXPECT_EQ(status(t, check, true), Status::invalid_device);
}

TEST(Check, RowsInAnyFolding) {
  std::vector<float> m(512);
  const Check check("op", Level::portable), strict("op", Level::strict);
  auto rows = [&](std::initializer_list<std::int64_t> shape, const Check& c) {
    return refusal([&] {
      const Rows r = c.rows(tensor(m.data(), shape), "x", 6, {4}, "");
      EXPECT_EQ(r.count, 6);
      EXPECT_EQ(r.offset(5), 20);
    }).status;
  };
  EXPECT_EQ(rows({6, 4}, strict), Status::ok);
  for (auto shape : {std::initializer_list<std::int64_t>{6, 4}, {2, 3, 4}, {6, 1, 4}, {1, 6, 1, 4}, {6, 4, 1}})
    EXPECT_EQ(rows(shape, check), Status::ok);
  EXPECT_EQ(rows({2, 3, 4}, strict), Status::invalid_shape);
  for (auto shape : {std::initializer_list<std::int64_t>{4, 6}, {24}, {3, 8}, {5, 4}, {6, 2, 2}})
    EXPECT_EQ(rows(shape, check), Status::invalid_shape);
}

}  // namespace
}  // namespace dsakit
