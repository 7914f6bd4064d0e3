// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/random.hpp"
#include "dsakit/context.hpp"
#include "dsakit/error.hpp"
#include "dsakit/field.hpp"

// What the tests of operators that move rows share.
namespace dsakit::moves {

/// A tensor of random bytes in memory of its own; `gap` elements behind every step of every axis but the last.
struct Filled {
  Tensor shape;
  std::vector<std::int8_t> memory;

  Filled(DType dtype, std::vector<std::int64_t> axes, Random& r, std::int64_t gap = 0) {
    shape.dtype = dtype, shape.rank = int(axes.size());
    std::copy(axes.begin(), axes.end(), shape.shape.begin());
    std::int64_t step = 1;
    for (int i = shape.rank - 1; i >= 0; --i) {
      shape.stride[i] = step;
      step = step * axes[std::size_t(i)] + gap;
    }
    memory = random_i8(r, (step + 1) * size_of(dtype));
  }
  Tensor tensor() {
    Tensor t = shape;
    t.data = memory.data();
    return t;
  }
};

/// The memory of a tensor from its first element to its last, gaps included.
inline std::vector<std::int8_t> bytes_of(const Tensor& t) {
  if (t.elements() == 0) return {};
  std::int64_t last = 0;
  for (int axis = 0; axis < t.rank; ++axis) last += (t.shape[axis] - 1) * t.stride[axis];
  const auto* data = static_cast<const std::int8_t*>(t.data);
  return {data, data + (last + 1) * size_of(t.dtype)};
}

/// f(tensor, name) for every tensor that the call writes.
template <class Args, class Outs, class F>
void each_written(const Args& a, const Outs& o, F f) {
  for_each_field(a, o, [&](const Field& field, const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Tensor>)
      if (field.is_written() && value) f(value, field.name);
  });
}

template <class Args, class Outs>
std::vector<std::vector<std::int8_t>> written(const Args& a, const Outs& o) {
  std::vector<std::vector<std::int8_t>> all;
  each_written(a, o, [&](const Tensor& t, const char*) { all.push_back(bytes_of(t)); });
  return all;
}

template <class Args, class Outs>
using Run = void (*)(const Args&, const Outs&, Context&);
template <class Args, class Outs>
using Twin = void (*)(const Args&, const Outs&);

/// Every number of threads leaves in memory what the reference leaves, gaps and other rows included; so does the last
/// call.
template <class Args, class Outs>
void expect_as_reference(const Args& a, const Outs& o, Run<Args, Outs> run, Twin<Args, Outs> twin) {
  const auto before = written(a, o);
  const auto restore = [&] {
    std::size_t i = 0;
    each_written(a, o, [&](const Tensor& t, const char*) {
      if (!before[i].empty()) std::memcpy(t.data, before[i].data(), before[i].size());
      ++i;
    });
  };
  twin(a, o);
  const auto wanted = written(a, o);
  for (int threads : {1, 2, 3}) {
    Context context({.threads = threads});
    restore();
    run(a, o, context);
    EXPECT_TRUE(written(a, o) == wanted) << threads << " threads";
  }
}

/// The call and its twin refuse this parameter, and write nothing.
template <class Args, class Outs>
void expect_refused(const Args& a, const Outs& o, Run<Args, Outs> run, Twin<Args, Outs> twin, Status status,
                    std::string_view parameter, std::string_view position = "") {
  const auto before = written(a, o);
  for (bool fast : {true, false}) try {
      if (fast) run(a, o, default_context());
      else twin(a, o);
      ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
    } catch (const Error& e) {
      EXPECT_EQ(e.status, status) << e.what();
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.position, position) << e.what();
    }
  EXPECT_TRUE(written(a, o) == before);
}

}  // namespace dsakit::moves
