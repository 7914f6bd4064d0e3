// SPDX-License-Identifier: Apache-2.0
#include "kernels/self_test.hpp"

#include <vector>

#include "dsakit/float16.hpp"

namespace dsakit {
namespace {

/// Not random enough for anything else.
class Numbers {
 public:
  template <class T>
  std::vector<T> codes(std::int64_t n) {
    std::vector<T> x(static_cast<std::size_t>(n));
    for (T& v : x) v = T(next());
    return x;
  }
  std::vector<bf16> small(std::int64_t n) {
    std::vector<bf16> x(static_cast<std::size_t>(n));
    for (bf16& v : x) v = to_bf16(float(int(next() % 7) - 3));
    return x;
  }

 private:
  std::uint32_t next() { return (state_ = state_ * 1664525u + 1013904223u) >> 16; }
  std::uint32_t state_ = 1;
};

}  // namespace

bool passes_self_test(const Kernels& rung, const Kernels& judge) {
  Numbers numbers;
  // Results of `call(kernels, y)` on both.
  const auto agree = [&]<class T>(T, std::size_t n, auto call) {
    std::vector<T> got(n), wanted(n);
    call(rung, got.data()), call(judge, wanted.data());
    return got == wanted;
  };
  constexpr int kDepth = 77, kCodes = 76, kHeads = 80, kDims = 100, kKeys = 20, kPitch = 32, kMost = 40;
  const auto pairs = numbers.small(kMost * kDepth), panel = numbers.small(Panel<bf16>::elements(kDepth));
  const auto codes = numbers.codes<std::uint8_t>(kMost * kCodes);
  const auto weight = numbers.codes<std::int8_t>(Panel<std::int8_t>::elements(kCodes));
  std::vector<std::int32_t> sums(kPanel);
  for (int p = 0; p < kCodes; ++p)
    for (int j = 0; j < kPanel; ++j) sums[std::size_t(j)] += weight[std::size_t(Panel<std::int8_t>::at(p, j))];

  bool good = true;
  for (const int m : {1, 7, 35}) {
    good = good && agree(float(), std::size_t(m * kPanel), [&](const Kernels& k, float* y) {
      for (const bool add : {false, true})
        k.product(pairs.data(), kDepth, m, panel.data(), kDepth, y, kPanel, add);
    });
    good = good && agree(std::int32_t(), std::size_t(m * kPanel), [&](const Kernels& k, std::int32_t* y) {
      k.product(codes.data(), kCodes, m, weight.data(), sums.data(), kCodes, y, kPanel);
    });
  }

  using Query = IndexQueryLayout<std::uint8_t>;
  const auto query = numbers.codes<std::uint8_t>(Query::elements(kHeads, kDims));
  const auto key = numbers.codes<std::int8_t>(kKeys * kDims);
  std::vector<float> head_weight;
  for (const std::int8_t x : numbers.codes<std::int8_t>(kHeads)) head_weight.push_back(0.37f * float(x));
  good = good && agree(float(), kKeys, [&](const Kernels& k, float* y) {
    k.index_scores({query.data(), head_weight.data(), int(Query::blocks(kHeads)), kDims}, key.data(), kDims, kKeys, y, nullptr);
  });

  const std::byte* rows[kPitch];  // apart from each other by the same, and then not
  for (int j = 0; j < kPitch; ++j)
    rows[j] = reinterpret_cast<const std::byte*>(pairs.data() + (j < kGemvKeys ? j : 7 * j % 13) * kDepth);
  constexpr int kRows = 5;
  const int words = GemvQuery::words(kDepth, 2, 2);
  std::vector<std::int32_t> gemv(static_cast<std::size_t>(GemvQuery::elements(kRows, words)));
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kDepth; ++c)
      gemv[std::size_t(GemvQuery::at(kRows, r, c / 2))] |=
          std::int32_t(std::uint32_t(panel[std::size_t(r * kDepth + c)].bits) << 16 * (c % 2));
  good = good && agree(float(), kRows * kKeys, [&](const Kernels& k, float* y) {
    float all[kRows * kPitch] = {};
    k.gemv_dots(gemv.data(), kRows, rows, kKeys, kDepth, all, kPitch, rows, kDepth);
    for (int r = 0; r < kRows; ++r)
      for (int j = 0; j < kKeys; ++j) y[r * kKeys + j] = all[r * kPitch + j];
  });
  return good && agree(float(), kRows * kPanel, [&](const Kernels& k, float* y) {
    float all[kRows * kGemvColumns] = {};
    k.gemv_sums(pairs.data(), kKeys, kRows, rows, kKeys, 3, kPanel, all, rows);
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kPanel; ++c) y[r * kPanel + c] = all[r * kGemvColumns + c];
  });
}

}  // namespace dsakit
