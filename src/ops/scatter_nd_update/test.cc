// SPDX-License-Identifier: Apache-2.0
#include "dsakit/scatter_nd_update.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "ops/moves_cases.hpp"

namespace dsakit {
namespace {

using moves::Filled;
using Args = ScatterNdUpdateInPlaceArgs;

void expect_everywhere(const Args& a) {
  moves::expect_as_reference<Args, ScatterNdUpdateInPlaceOuts>(a, {}, scatter_nd_update_,
                                                               reference::scatter_nd_update_);
}

/// The twin that returns a copy: as many bytes as the call in place would leave, and self as it was.
void expect_functional(const Args& in_place) {
  const ScatterNdUpdateArgs a{in_place};
  ScatterNdUpdateOuts o{};
  infer(a, o);
  std::vector<std::int8_t> memory(std::size_t(o.out.elements() * size_of(o.out.dtype)) + 1, 99);
  o.out.data = memory.data();
  const auto self = moves::bytes_of(a.self);
  moves::expect_as_reference<ScatterNdUpdateArgs, ScatterNdUpdateOuts>(a, o, scatter_nd_update,
                                                                       reference::scatter_nd_update);
  EXPECT_TRUE(moves::bytes_of(a.self) == self);
}

template <class I>
std::vector<I> random_places(Random& r, std::int64_t n, std::int64_t rows, bool skips) {
  std::vector<I> places;
  for (std::int64_t i = 0; i < n; ++i) places.push_back(I(r.uniform(skips ? -2 : 0, float(rows) - 0.01f)));
  return places;
}

TEST(ScatterNdUpdate, SlotsOfACache) {
  Random r(1);
  for (DType d : {DType::f32, DType::f16, DType::bf16, DType::i64, DType::i8, DType::boolean})
    for (std::int64_t gap : {0, 3}) {
      Filled self(d, {50, 3, 5}, r, gap), updates(d, {4, 30, 3, 5}, r, 2 * gap);
      auto places = random_places<std::int64_t>(r, 120, 50, true);
      const Args a{.self = self.tensor(), .indices = tensor(places.data(), {4, 30, 1}), .updates = updates.tensor()};
      expect_everywhere(a);
      expect_functional(a);
    }
}

/// Rows that are worth several threads, many of them for the same place.
TEST(ScatterNdUpdate, LastRowWinsOnAnyNumberOfThreads) {
  Random r(2);
  Filled self(DType::bf16, {700, 576}, r, 8), updates(DType::bf16, {4000, 576}, r);
  auto places = random_places<std::int32_t>(r, 4000, 700, true);
  const Args a{.self = self.tensor(), .indices = tensor(places.data(), {4000, 1}), .updates = updates.tensor()};
  expect_everywhere(a);
  expect_functional(a);
}

TEST(ScatterNdUpdate, AnyDepth) {
  Random r(3);
  Filled self(DType::f32, {4, 5, 6}, r, 1);
  for (std::int64_t depth : {1, 2, 3}) {
    std::vector<std::int64_t> places;
    for (std::int64_t i = 0; i < 20; ++i)
      for (std::int64_t axis = 0; axis < depth; ++axis)
        places.push_back(std::int64_t(r.uniform(0, float(self.shape.shape[std::size_t(axis)]) - 0.01f)));
    std::vector<std::int64_t> axes{20};
    for (std::int64_t axis = depth; axis < 3; ++axis) axes.push_back(self.shape.shape[std::size_t(axis)]);
    Filled updates(DType::f32, axes, r);
    expect_everywhere(
        {.self = self.tensor(), .indices = tensor(places.data(), {20, depth}), .updates = updates.tensor()});
  }
}

TEST(ScatterNdUpdate, DocumentedExample) {
  float self[] = {10, 20, 30}, updates[] = {1, 2, 3, 4};
  const std::int64_t places[] = {2, -1, 0, 2};
  scatter_nd_update_(
      {.self = tensor(self, {3, 1}), .indices = tensor(places, {3, 1}), .updates = tensor(updates, {3, 1})}, {});
  EXPECT_EQ(std::vector<float>(self, self + 3), (std::vector<float>{3, 20, 1}));
  scatter_nd_update_(
      {.self = tensor(self, {3, 1}), .indices = tensor(places, {4, 1}), .updates = tensor(updates, {4, 1})}, {});
  EXPECT_EQ(std::vector<float>(self, self + 3), (std::vector<float>{3, 20, 4}));
}

/// Places more than 2^32 elements behind the first, in memory that is there only where it is touched.
TEST(ScatterNdUpdate, OffsetsOf64Bits) {
  const std::int64_t rows = (std::int64_t(1) << 32) + 5, bytes = rows * 2;
  void* memory =
      mmap(nullptr, std::size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto* last = static_cast<std::int8_t*>(memory) + bytes - 2;
  std::int8_t updates[] = {1, 2, 3, 4};
  const std::int64_t places[] = {rows - 1, 4};
  scatter_nd_update_({.self = tensor(static_cast<std::int8_t*>(memory), {rows, 2}),
                      .indices = tensor(places, {2, 1}),
                      .updates = tensor(updates, {2, 2})},
                     {});
  EXPECT_EQ(last[0], 1);
  EXPECT_EQ(last[1], 2);
  EXPECT_EQ(static_cast<std::int8_t*>(memory)[8], 3);
  munmap(memory, std::size_t(bytes));
}

TEST(ScatterNdUpdate, NothingToMove) {
  float self[] = {1, 2};
  const std::int32_t skipped[] = {-1, -7};
  expect_everywhere({.self = tensor(self, {2, 1}),
                     .indices = tensor(skipped, {0, 1}),
                     .updates = tensor(static_cast<float*>(nullptr), {0, 1})});
  expect_everywhere(
      {.self = tensor(self, {2, 0}), .indices = tensor(skipped, {2, 1}), .updates = tensor(self, {2, 0})});
  float updates[] = {3, 4};
  expect_everywhere(
      {.self = tensor(self, {0, 1}), .indices = tensor(skipped, {2, 1}), .updates = tensor(updates, {2, 1})});
}

TEST(ScatterNdUpdate, Refusals) {
  const auto refused = [](Status status, const char* parameter, const char* position, auto change) {
    float memory[12] = {}, rows[6] = {};
    std::int64_t places[3] = {0, 1, 3};
    Args a{.self = tensor(memory, {4, 2}), .indices = tensor(places, {3, 1}), .updates = tensor(rows, {3, 2})};
    change(a, places);
    moves::expect_refused<Args, ScatterNdUpdateInPlaceOuts>(a, {}, scatter_nd_update_, reference::scatter_nd_update_,
                                                            status, parameter, position);
  };
  using P = std::int64_t*;
  refused(Status::invalid_argument, "updates", "", [](Args& a, P) { a.updates = {}; });
  refused(Status::invalid_shape, "self", "", [](Args& a, P) { a.self.rank = 0; });
  refused(Status::invalid_shape, "indices", "", [](Args& a, P) { a.indices.rank = 0; });
  refused(Status::invalid_shape, "indices", "", [](Args& a, P) { a.indices.shape = {1, 3}; });
  refused(Status::invalid_shape, "indices", "", [](Args& a, P) { a.indices.shape[1] = 0; });
  refused(Status::invalid_shape, "updates", "", [](Args& a, P) { a.updates.shape[0] = 2; });
  refused(Status::invalid_shape, "updates", "", [](Args& a, P) { a.updates.shape[1] = 1; });
  refused(Status::invalid_dtype, "self", "", [](Args& a, P) { a.self.dtype = a.updates.dtype = DType::i32; });
  refused(Status::invalid_dtype, "indices", "", [](Args& a, P) { a.indices.dtype = DType::f32; });
  refused(Status::invalid_dtype, "updates", "", [](Args& a, P) { a.updates.dtype = DType::i64; });
  refused(Status::invalid_stride, "self", "", [](Args& a, P) { a.self.stride[0] = 1; });
  refused(Status::invalid_device, "self", "", [](Args& a, P) { a.self.read_only = true; });
  refused(Status::aliased, "self", "", [](Args& a, P) { a.updates.data = a.self.data; });
  refused(Status::invalid_index, "indices", "[2][0]", [](Args&, P p) { p[2] = 4; });
  refused(Status::invalid_index, "indices", "[1][0]", [](Args&, P p) { p[1] = INT64_MAX; });
  refused(Status::invalid_index, "indices", "[0][1]", [](Args& a, P p) {  // of two axes no entry is negative
    a.indices.shape = {1, 2}, a.updates = tensor(static_cast<float*>(a.updates.data), {1}), p[1] = -1;
  });
  refused(Status::invalid_index, "indices", "[0][0]", [](Args& a, P p) {
    a.indices.shape = {1, 2}, a.updates = tensor(static_cast<float*>(a.updates.data), {1}), p[0] = 4;
  });
}

TEST(ScatterNdUpdate, OutputIsChecked) {
  float memory[8] = {}, out[8] = {}, rows[2] = {};
  const std::int64_t place[] = {1};
  const ScatterNdUpdateArgs a{
      {.self = tensor(memory, {4, 2}), .indices = tensor(place, {1, 1}), .updates = tensor(rows, {1, 2})}};
  const auto refused = [&](Status status, Tensor t) {
    moves::expect_refused<ScatterNdUpdateArgs, ScatterNdUpdateOuts>(a, {t}, scatter_nd_update,
                                                                    reference::scatter_nd_update, status, "out");
  };
  refused(Status::invalid_shape, tensor(out, {2, 4}));
  refused(Status::aliased, tensor(memory, {4, 2}));
  refused(Status::invalid_device, tensor(static_cast<const float*>(out), {4, 2}));
}

}  // namespace
}  // namespace dsakit
