// SPDX-License-Identifier: Apache-2.0
#include <span>

#include "bench.hpp"
#include "dsakit/packed_weight.hpp"
#include "dsakit/quant_matmul.hpp"

namespace dsakit {

namespace {

constexpr std::int64_t k = 1536, n = 64 * 128;

/// How a weight lies.
enum class Layout { packed, row_major, NZ, transposed };

constexpr struct {
  Layout layout;
  PageSize pages;
  const char* name;
} kWeights[] = {{Layout::packed, PageSize::huge, "packed"},
                {Layout::packed, PageSize::small, "packed, small pages"},
                {Layout::row_major, PageSize::huge, "row-major"},
                {Layout::row_major, PageSize::small, "row-major, small pages"},
                {Layout::NZ, PageSize::huge, "NZ"},
                {Layout::transposed, PageSize::huge, "transposed"}};

OnPages<std::int8_t> bytes_of(const std::vector<std::int8_t>& weight, Layout layout, PageSize pages) {
  if (layout != Layout::packed) return {weight, pages};
  const PackedWeight packed(tensor(weight.data(), {k, n}));
  return {std::span(static_cast<const std::int8_t*>(packed.tensor().data), packed.bytes()), pages};
}

/// The index queries of tokens of DeepSeek-V3.2: query_norm times wq_b, bf16 out.
BenchCase product(std::int64_t t, Layout layout, PageSize pages, const char* name) {
  return {.op = "quant_matmul",
          .size = "t=" + std::to_string(t) + " " + name,
          .bytes = double(k * n + t * k + 2 * t * n),
          .i8_ops = 2 * double(t) * double(k * n),
          .prepare = [=] {
            struct Data {
              std::vector<std::int8_t> x;
              std::vector<float> row, column;
              std::vector<bf16> y;
              std::vector<OnPages<std::int8_t>> weights;
              std::size_t turn = 0;
            };
            Random r(1);
            auto d = std::make_shared<Data>(Data{random_i8(r, t * k), random_f32(r, t, 0.001f, 0.01f),
                                                 random_f32(r, n, 0.001f, 0.01f), std::vector<bf16>(std::size_t(t * n)), {}});
            // Few rows read the weight from memory, as a model does: 300 MB take turns, of which caches keep less than of 75.
            for (int i = 0; i < (t <= 32 ? 24 : 1); ++i) d->weights.push_back(bytes_of(random_i8(r, k * n), layout, pages));
            return [=](Context& c) {
              Tensor weight = tensor(d->weights[d->turn++ % d->weights.size()].data(), {k, n});
              if (layout == Layout::packed) weight.format = Format::packed;
              if (layout == Layout::NZ) weight.format = Format::NZ;
              if (layout == Layout::transposed) weight.stride = {1, k};
              quant_matmul({.x1 = tensor(d->x.data(), {t, k}),
                            .x2 = weight,
                            .scale = tensor(d->column.data(), {n}),
                            .pertoken_scale = tensor(d->row.data(), {t}),
                            .output_dtype = "bfloat16"},
                           {.y = tensor(d->y.data(), {t, n})}, c);
            };
          }};
}

}  // namespace

void bench_quant_matmul(std::vector<BenchCase>& cases) {
  for (const std::int64_t t : {1, 4, 8, 16, 32, 128, 1024})
    for (const auto& [layout, pages, name] : kWeights) {
      if (t > 8 && pages == PageSize::small) continue;
      if (t == 128 && layout != Layout::packed) continue;
      cases.push_back(product(t, layout, pages, name));
    }
}

}  // namespace dsakit
