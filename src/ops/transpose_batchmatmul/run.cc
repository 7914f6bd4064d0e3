// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/door.hpp"
#include "ops/linear.hpp"
#include "ops/transpose_batchmatmul/problem.hpp"

namespace dsakit {
namespace {

using transpose_batchmatmul_op::Problem;

constexpr std::int64_t kRows = 512;  // of a task: so many meet a panel that had to be packed

/// Of a thread: a panel, unless the weight is packed; float16 and float32 weights become float32.
struct Scratch {
  bf16* narrow;
  float* wide;

  Scratch(const Problem& p, Carver& memory) {
    const bool is_narrow = p.w.dtype == DType::bf16;
    narrow = memory.take<bf16>(is_narrow && p.w.format != Format::packed ? Panel<bf16>::elements(p.w.k) : 0);
    wide = memory.take<float>(is_narrow ? 0 : Panel<float>::elements(p.w.k));
  }
};

/// float16 rows times a panel of floats: widened, block of sums by block of sums.
void product_of_halves(const Kernels& kernels, const f16* a, std::int64_t a_stride, std::int64_t rows,
                       const float* panel, std::int64_t k, float* tile) {
  constexpr std::int64_t kSome = 8;
  alignas(64) float wide[kSome * kSumBlock];
  for (std::int64_t r = 0; r < rows; r += kSome) {
    const std::int64_t some = std::min(kSome, rows - r);
    for (std::int64_t first = 0; first < k; first += kSumBlock) {
      const std::int64_t block = std::min<std::int64_t>(kSumBlock, k - first);
      for (std::int64_t i = 0; i < some; ++i)
        kernels.widen(a + (r + i) * a_stride + first, block, wide + i * kSumBlock);
      kernels.product(wide, kSumBlock, int(some), panel + Panel<float>::row(first), int(block), tile + r * kPanel,
                      kPanel, first > 0);
    }
  }
}

/// Columns first .. first + n - 1 of a row of y.
void store_row(const Kernels& kernels, const Problem& p, std::int64_t row, std::int64_t first, std::int64_t n,
               const float* v) {
  for (std::int64_t run; n > 0; n -= run, first += run, v += run) {
    run = std::min(n, p.width - first % p.width);
    narrow(kernels, v, run, p.y, p.place(row, first));
  }
}

/// Rows begin .. end of matrix b times one of its panels.
void product(const Call& call, const Problem& p, const Scratch& s, std::int64_t b, std::int64_t begin, std::int64_t end,
             std::int64_t panel) {
  const Kernels& kernels = call.kernels();
  Weight narrow{.dtype = DType::bf16, .k = p.w.k, .n = kPanel};  // one panel
  if (p.w.dtype != DType::bf16) {
    pack_panel(kernels, p.w, b, panel, s.wide);
  } else if (p.w.format == Format::packed) {
    narrow.packed = p.w.matrix(b) + Panels<bf16>::panel(p.w.k, panel) * std::int64_t(sizeof(bf16));
  } else {
    pack_panel(kernels, p.w, b, panel, s.narrow);
    narrow.packed = reinterpret_cast<const std::byte*>(s.narrow);
  }
  const std::int64_t n = std::min<std::int64_t>(kPanel, p.w.n - panel * kPanel), stride = p.x.stride[1];
  alignas(64) float tile[kTileRows * kPanel];
  for (std::int64_t r = begin; r < end; r += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, end - r), at = b * p.x.stride[0] + r * stride;
    if (p.w.k == 0) std::fill_n(tile, rows * kPanel, 0.0f);
    else if (p.x.dtype == DType::bf16)
      product_tile(call, narrow, 0, 0, static_cast<const bf16*>(p.x.data) + at, stride, rows, tile);
    else if (p.x.dtype == DType::f16)
      product_of_halves(kernels, static_cast<const f16*>(p.x.data) + at, stride, rows, s.wide, p.w.k, tile);
    else
      kernels.product(static_cast<const float*>(p.x.data) + at, stride, int(rows), s.wide, int(p.w.k), tile, kPanel,
                      false);
    for (std::int64_t i = 0; i < rows; ++i)
      store_row(kernels, p, r + i, b * p.w.n + panel * kPanel, n, tile + i * kPanel);
  }
}

template <class Args, class Outs>
void run(const Args& a, const Outs& o, Context& context, const char* op, const char* weight) {
  const Problem p = transpose_batchmatmul_op::check(a, o);
  if (context.check_values()) {
    const Check check(op, a.level);
    check_finite(check, Tensors::inputs<Outs>(a));
    check_weight_values(check, p, weight);
  }
  Call call(context, op, [&](int threads) { return std::size_t(threads) * bytes_of<Scratch>(p); });
  const std::size_t each = bytes_of<Scratch>(p);
  const std::int64_t panels = panels_of(p.w.n), blocks = (p.rows() + kRows - 1) / kRows;
  const Work work = product_work(double(p.rows()), double(p.w.k) * double(p.w.n), false) * double(p.batch());
  call.parallel_for(p.batch() * blocks * panels, work, [&](std::int64_t task, int thread) {
    const std::int64_t panel = task % panels, block = task / panels % blocks, b = task / panels / blocks;
    Carver mine(call.memory() + std::size_t(thread) * each);
    product(call, p, Scratch(p, mine), b, block * kRows, std::min((block + 1) * kRows, p.rows()), panel);
  });
  call.finish();
}

}  // namespace

void transpose_batchmatmul(const TransposeBatchmatmulArgs& a, const TransposeBatchmatmulOuts& o, Context& context) {
  run(a, o, context, "transpose_batchmatmul", "weight");
}

void batch_matmul_transpose(const BatchMatmulTransposeArgs& a, const BatchMatmulTransposeOuts& o, Context& context) {
  run(a, o, context, "batch_matmul_transpose", "tensor_b");
}

}  // namespace dsakit
