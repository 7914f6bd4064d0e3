// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/door.hpp"
#include "ops/linear.hpp"
#include "ops/prolog/rows.hpp"
#include "ops/quant_matmul/problem.hpp"

namespace dsakit {
namespace {

using namespace quant_matmul_op;

constexpr std::int64_t kRows = 512;                      // of a task: so many meet a panel that had to be packed
constexpr std::int64_t kCodes = std::int64_t(16) << 20;  // bytes of biased codes at a time, about

std::int64_t depth(const Problem& p) { return Panel<std::int8_t>::depth(p.k()); }

/// Rows whose codes are biased before their products begin.
std::int64_t chunk_rows(const Problem& p) {
  const std::int64_t blocks = std::clamp<std::int64_t>(kCodes / std::max<std::int64_t>(kRows * depth(p), 1), 1, 16);
  return std::min(p.total, blocks * kRows);
}

/// Of the call: codes of a chunk, and what belongs to columns, spread out as float.
struct Shared {
  std::uint8_t* codes;
  float *scale, *offset;

  Shared(const Problem& p, Carver& memory)
      : codes(memory.take<std::uint8_t>(chunk_rows(p) * depth(p))),
        scale(memory.take<float>(p.scale ? p.n() : 0)),
        offset(memory.take<float>(p.offset ? p.n() : 0)) {}
};

/// Of a thread: a panel, unless the weight is packed.
struct Scratch {
  std::int8_t* panel;
  std::int32_t* sums;

  Scratch(const Problem& p, Carver& memory)
      : panel(memory.take<std::int8_t>(p.x2.format == Format::packed ? 0 : Panel<std::int8_t>::elements(p.k()))),
        sums(memory.take<std::int32_t>(kPanel)) {}
};

struct PanelOfCodes {
  const std::int8_t* codes;
  const std::int32_t* sums;
};

PanelOfCodes panel_of(const Kernels& kernels, const Matrices& w, std::int64_t matrix, std::int64_t panel,
                      const Scratch& s) {
  if (w.format == Format::packed) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(w.matrix(matrix));
    return {codes + Panels<std::int8_t>::panel(w.k, panel),
            Panels<std::int8_t>::sums(codes, w.k, w.n) + panel * kPanel};
  }
  pack_panel(kernels, w, matrix, panel, s.panel, s.sums);
  return {s.panel, s.sums};
}

/// sums + bias; false if one leaves int32.
bool add_bias(const std::int32_t* sums, const std::int32_t* bias, int n, std::int32_t* out) {
  std::uint32_t over = 0;
  for (int j = 0; j < n; ++j) {
    const auto a = std::uint32_t(sums[j]), b = std::uint32_t(bias[j]), c = a + b;
    over |= (a ^ c) & (b ^ c);
    out[j] = std::int32_t(c);
  }
  return over >> 31 == 0;
}

/// What becomes of the sums of one row, from column `first` on.
void finish_row(const Kernels& kernels, const Problem& p, const Shared& s, std::int64_t row, std::int64_t first, int n,
                const std::int32_t* sums) {
  const Tensor& y = p.y.tensor;
  const std::int64_t at = p.y.offset(row) + first;
  if (y.dtype == DType::i32) {
    std::copy_n(sums, n, static_cast<std::int32_t*>(y.data) + at);
    return;
  }
  alignas(64) float v[kPanel];
  alignas(64) std::int32_t sum[kPanel];
  if (p.pertoken_scale) {
    kernels.dequantize(sums, n, p.pertoken(row), s.scale + first, v);
    if (p.bias)
      for (int j = 0; j < n; ++j) v[j] = v[j] + static_cast<const float*>(p.bias.data)[first + j];
  } else if (!p.bias) {
    kernels.dequantize(sums, n, 1.0f, s.scale + first, v);
  } else if (const auto* bias = static_cast<const std::int32_t*>(p.bias.data) + first; add_bias(sums, bias, n, sum)) {
    kernels.dequantize(sum, n, 1.0f, s.scale + first, v);
  } else {
    for (int j = 0; j < n; ++j) v[j] = float(std::int64_t(sums[j]) + bias[j]) * s.scale[first + j];
  }
  if (y.dtype != DType::i8) return narrow(kernels, v, n, y, at);
  if (p.offset)
    for (int j = 0; j < n; ++j) v[j] = v[j] + s.offset[first + j];
  kernels.quantize(v, n, 1.0f, static_cast<std::int8_t*>(y.data) + at);
}

/// Rows begin .. end of one matrix times one of its panels.
void product(const Kernels& kernels, const Problem& p, const Shared& s, const Scratch& scratch, std::int64_t chunk,
             std::int64_t begin, std::int64_t end, std::int64_t panel) {
  const PanelOfCodes w = panel_of(kernels, p.x2, begin / p.rows, panel, scratch);
  const int n = int(std::min<std::int64_t>(kPanel, p.n() - panel * kPanel));
  alignas(64) std::int32_t tile[kTileRows * kPanel];
  for (std::int64_t r = begin; r < end; r += kTileRows) {
    const std::int64_t some = std::min(kTileRows, end - r);
    kernels.product(s.codes + (r - chunk) * depth(p), depth(p), int(some), w.codes, w.sums, int(depth(p)), tile,
                    kPanel);
    for (std::int64_t i = 0; i < some; ++i) finish_row(kernels, p, s, r + i, panel * kPanel, n, tile + i * kPanel);
  }
}

void run(Call& call, const Problem& p) {
  if (p.total == 0 || p.n() == 0) return;
  Carver memory(call.memory());
  const Shared s(p, memory);
  for (std::int64_t j = 0; j < p.n(); ++j) {
    if (p.scale) s.scale[j] = float_at(p.scale, at_or_only(p.scale, j));
    if (p.offset) s.offset[j] = float_at(p.offset, at_or_only(p.offset, j));
  }
  const std::size_t each = bytes_of<Scratch>(p);
  std::byte* own = call.memory() + memory.bytes();
  const std::int64_t panels = panels_of(p.n()), chunks = chunk_rows(p), block = std::min(p.rows, kRows);
  for (std::int64_t first = 0; first < p.total; first += chunks) {
    const std::int64_t count = std::min(chunks, p.total - first);
    call.parallel_for(count, {.bytes = double(count * p.k())}, [&](std::int64_t r, int) {
      prolog::bias_codes(p.x1.row<const std::int8_t>(first + r), p.k(), s.codes + r * depth(p));
    });
    // Blocks of rows that meet one matrix, those of a matrix numbered from its first row on.
    const std::int64_t per_matrix = (p.rows + block - 1) / block;
    const auto block_of = [&](std::int64_t row) { return row / p.rows * per_matrix + row % p.rows / block; };
    const std::int64_t low = block_of(first), blocks = block_of(first + count - 1) + 1 - low;
    const Work work =
        product_work(double(count) / double(blocks), double(p.k()) * double(p.n()), true) * double(blocks);
    call.parallel_for(blocks * panels, work, [&](std::int64_t task, int thread) {
      const std::int64_t b = low + task / panels, matrix = b / per_matrix, row = b % per_matrix * block;
      const std::int64_t begin = matrix * p.rows + row, end = matrix * p.rows + std::min(row + block, p.rows);
      Carver mine(own + std::size_t(thread) * each);
      product(call.kernels(), p, s, Scratch(p, mine), first, std::max(begin, first), std::min(end, first + count),
              task % panels);
    });
  }
}

}  // namespace

void quant_matmul(const QuantMatmulArgs& a, const QuantMatmulOuts& o, Context& context) {
  const Problem problem = check(a, o);
  if (context.check_values()) check_finite(Check("quant_matmul", a.level), Tensors::inputs<QuantMatmulOuts>(a));
  Call call(context, "quant_matmul",
            [&](int threads) { return bytes_of<Shared>(problem) + std::size_t(threads) * bytes_of<Scratch>(problem); });
  run(call, problem);
  call.finish();
}

}  // namespace dsakit
