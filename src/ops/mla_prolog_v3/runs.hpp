// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"
#include "ops/mla_prolog_v3/cases.hpp"

// What the tests of mla_prolog_v3 do with a case: run it on every rung, compare it, and expect refusals.
namespace dsakit::prolog_v3 {

using Change = std::function<void(MlaPrologV3Args&, MlaPrologV3Outs&)>;
inline void as_it_is(MlaPrologV3Args&, MlaPrologV3Outs&) {}

inline Written run(const Data& data, const ContextOptions& options = {}, const Change& change = as_it_is) {
  Context context(options);
  Written w = data.initial;
  MlaPrologV3Args a = data.args(w);
  MlaPrologV3Outs o = w.outs();
  change(a, o);
  mla_prolog_v3(a, o, context);
  return w;
}

inline Written reference_of(const Data& data, const Change& change = as_it_is) {
  Written w = data.initial;
  MlaPrologV3Args a = data.args(w);
  MlaPrologV3Outs o = w.outs();
  change(a, o);
  reference::mla_prolog_v3(a, o);
  return w;
}

/// Byte for byte what `wanted` is, on every rung, with 1 and 3 threads, with and without fixed products.
inline void expect_everywhere(const Data& data, const Written& wanted, const Change& change = as_it_is) {
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 3})
      for (bool same : {false, true})
        EXPECT_EQ(
            run(data, {.threads = threads, .isa = k->isa, .same_products = same}, change).first_difference(wanted), "")
            << data.c.name() << ", " << k->isa << ", threads " << threads << ", same " << same;
}

/// The call is refused with this status, parameter and position, and nothing is written, neither by the operator nor by
/// its reference. The sentence of the refusal is the result.
inline std::string expect_refused(const Data& data, const Change& change, Status status, std::string_view parameter,
                                  std::string_view position = "") {
  std::string sentence;
  for (const bool by_reference : {false, true}) {
    Written w = data.initial;
    MlaPrologV3Args a = data.args(w);
    MlaPrologV3Outs o = w.outs();
    change(a, o);
    try {
      if (by_reference) reference::mla_prolog_v3(a, o);
      else mla_prolog_v3(a, o);
      ADD_FAILURE() << data.c.name() << ": accepted, wanted a refusal of " << parameter;
    } catch (const Error& e) {
      EXPECT_EQ(e.status, status) << e.what();
      EXPECT_EQ(e.op, "mla_prolog_v3") << e.what();
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.position, position) << e.what();
      sentence = e.what();
    }
    EXPECT_EQ(w.first_difference(data.initial), "") << sentence;
  }
  return sentence;
}

/// The parts of packed rows as arrays of their own; other caches are as they are.
struct Caches {
  Array latent, rope, scales;

  Caches(const Case& c, const Written& w) : latent(w.kv_cache), rope(w.kr_cache) {
    if (!c.packed()) return;
    const std::int64_t tiles = c.latent / c.tile, width = c.packed_width(), rows = w.kv_cache.size() / width;
    latent = Array(shaped(DType::i8, {rows, c.latent})), rope = Array(shaped(DType::bf16, {rows, c.rope}));
    scales = Array(shaped(DType::f32, {rows, tiles}));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* row = w.kv_cache.bytes.data() + r * width;
      std::memcpy(latent.bytes.data() + r * c.latent, row, std::size_t(c.latent));
      std::memcpy(rope.bytes.data() + r * c.rope * 2, row + c.latent, std::size_t(c.rope * 2));
      std::memcpy(scales.bytes.data() + r * tiles * 4, row + c.latent + 2 * c.rope, std::size_t(tiles * 4));
    }
  }
};

/// No value is further from the wanted one than a step of int8, two of bf16 (one hidden behind another) or 2^-6 of a
/// scale, and at most `share` of an array's differ at all: an order of summation may decide a rounding, nothing else
/// may.
inline void expect_close(const char* name, const Array& got, const Array& wanted, double share) {
  ASSERT_EQ(got.size(), wanted.size()) << name;
  std::int64_t different = 0;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double x = got.at(i), y = wanted.at(i);
    if (x == y || (x != x && y != y)) continue;
    ++different;
    EXPECT_LE(std::fabs(x - y), got.shape.dtype == DType::i8 ? 1 : 0x1p-6 * std::fabs(y) + 1e-6)
        << name << "[" << i << "]";
  }
  EXPECT_LE(double(different), share * double(got.size()) + 1) << name;
}

/// A row-major weight as FRACTAL_NZ storage (rank 4), its padding filled with a pattern that must not matter.
inline Array fractal_nz(const Array& w) {
  const std::int64_t k = w.shape.shape[0], n = w.shape.shape[1], e = size_of(w.shape.dtype), c0 = 32 / e;
  const std::int64_t kp = (k + 15) / 16 * 16;
  Array out(shaped(w.shape.dtype, {(n + c0 - 1) / c0, kp / 16, 16, c0}));
  out.fill(0x7f);
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      std::memcpy(out.bytes.data() + (j / c0 * kp * c0 + i * c0 + j % c0) * e, w.bytes.data() + (i * n + j) * e,
                  std::size_t(e));
  return out;
}
/// The same storage with the logical shape and the format tag.
inline Tensor tagged_nz(const Array& storage, const Array& logical) {
  Tensor t = logical;
  t.data = Tensor(storage).data, t.format = Format::NZ;
  return t;
}

}  // namespace dsakit::prolog_v3
