// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/float16.hpp"
#include "dsakit/context.hpp"
#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"
#include "ops/prolog/cases.hpp"

// What the tests of the prologs do with a call: run it on every rung, compare it, and expect refusals.
namespace dsakit::prolog {

using Operator = std::function<void(Data&, Written&, Context&)>;

inline Written run(const Operator& op, Data& data, const ContextOptions& options = {}) {
  Context context(options);
  Written w = data.initial;
  op(data, w, context);
  return w;
}

/// Byte for byte what `wanted` is, on every rung, with 1, 2 and 3 threads, with and without fixed products.
inline void expect_everywhere(const Operator& op, Data& data, const Written& wanted) {
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 2, 3})
      for (bool same : {false, true}) {
        const Written got = run(op, data, {.threads = threads, .isa = k->isa, .same_products = same});
        EXPECT_EQ(got.first_difference(wanted), "") << k->isa << ", threads " << threads << ", same " << same;
      }
}

inline double value(std::int8_t x) { return x; }
inline double value(float x) { return x; }
inline double value(bf16 x) { return to_float(x); }
inline double value(f16 x) { return to_float(x); }

/// No value is further from `wanted` than a step of int8 or two of bf16 (one hidden behind another), and at most
/// `share` of a tensor's differ at all: an order of summation may decide a rounding, nothing else may.
inline void expect_close(Written got, Written wanted, double share) {
  Written::each(got, wanted, [&](const char* name, const auto& a, const auto& b) {
    ASSERT_EQ(a.size(), b.size()) << name;
    using T = typename std::remove_cvref_t<decltype(a)>::value_type;
    std::size_t different = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(&a[i], &b[i], sizeof a[i]) == 0) continue;
      ++different;
      const double x = value(a[i]), y = value(b[i]);
      const double step = std::is_same_v<T, std::int8_t> ? 1 : 0x1p-6 * std::fabs(y) + 1e-6;  // two steps of bf16
      EXPECT_LE(std::fabs(x - y), step) << name << "[" << i << "]";
    }
    EXPECT_LE(double(different), share * double(a.size()) + 1) << name;
  });
}

/// The call is refused with this status, parameter and position, and writes nothing.
inline void expect_refused(const std::function<void(Data&, Written&, Context&)>& call, Data& data, Status status,
                           const char* op, const char* parameter, const char* position = "") {
  Context context({.threads = 1});
  Written w = data.initial;
  try {
    call(data, w, context);
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.op, op) << e.what();
    EXPECT_EQ(e.parameter, parameter) << e.what();
    EXPECT_EQ(e.position, position) << e.what();
  }
  EXPECT_EQ(w.first_difference(data.initial), "");
}

/// A row-major weight as FRACTAL_NZ storage, padding filled with a pattern that must not matter.
template <class T>
std::vector<T> fractal_nz(const std::vector<T>& w, std::int64_t k, std::int64_t n) {
  const std::int64_t c0 = 32 / std::int64_t(sizeof(T)), kp = (k + 15) / 16 * 16;
  std::vector<T> out(std::size_t((n + c0 - 1) / c0 * kp * c0));
  std::memset(out.data(), 0x7f, out.size() * sizeof(T));
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      out[std::size_t(j / c0 * kp * c0 + i * c0 + j % c0)] = w[std::size_t(i * n + j)];
  return out;
}
inline Tensor as_nz(Tensor t) {
  t.format = Format::NZ;
  return t;
}

}  // namespace dsakit::prolog
