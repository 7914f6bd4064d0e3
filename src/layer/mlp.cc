// SPDX-License-Identifier: Apache-2.0
#include "layer/mlp.hpp"

#include <sys/mman.h>

#include <cmath>
#include <cstdlib>

#include "ops/prolog/rows.hpp"

namespace dsakit {
namespace {

/// inner [some][64] of gate and up.
void silu_times(const float* gate, const float* up, std::int64_t n, float* inner) {
  for (std::int64_t j = 0; j < n; ++j) inner[j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
}

/// Codes and scale of a row as dynamic_quant makes them; a row so small that 127/a overflows is 0, and so is its scale.
float code_row(const Kernels& kernels, const float* x, std::int64_t n, std::int8_t* codes) {
  const float largest = kernels.max_abs(x, n), multiplier = 127.0f / largest;
  if (!std::isfinite(multiplier)) {
    std::fill_n(codes, n, std::int8_t{0});
    return 0;
  }
  kernels.quantize(x, n, multiplier, codes);
  return largest / 127.0f;
}

}  // namespace

MlpOperand::MlpOperand(Activations kind, std::int64_t rows, std::int64_t width, Carver& carver)
    : kind(kind), pitch(kind == Activations::int8 ? Panel<std::int8_t>::depth(width) : width) {
  switch (kind) {
    case Activations::f32:
      f32 = carver.take<float>(rows * pitch);
      break;
    case Activations::bf16:
      narrow = carver.take<bf16>(rows * pitch);
      break;
    case Activations::int8:
      codes = carver.take<std::uint8_t>(rows * pitch);
      scales = carver.take<float>(rows);
  }
}

void MlpOperand::set(const Kernels& kernels, std::int64_t row, const float* x, std::int64_t width,
                     std::int8_t* scratch) const {
  switch (kind) {
    case Activations::f32:
      std::copy_n(x, width, f32 + row * pitch);
      break;
    case Activations::bf16:
      kernels.round(x, width, narrow + row * pitch);
      break;
    case Activations::int8:
      scales[row] = code_row(kernels, x, width, scratch);
      prolog::bias_codes(scratch, width, codes + row * pitch);
  }
}

void MlpOperand::times(const Call& call, const MlpMatrix& m, std::int64_t panel, std::int64_t row, std::int64_t some,
                       float* tile) const {
  switch (kind) {
    case Activations::f32:
      return product_tile(call, m.weight, 0, panel, f32 + row * pitch, pitch, some, tile);
    case Activations::bf16:
      return product_tile(call, m.weight, 0, panel, narrow + row * pitch, pitch, some, tile);
    case Activations::int8:
      break;
  }
  alignas(64) std::int32_t sums[kTileRows * kPanel];
  const Weight::PanelI8 weight = m.weight.panel_i8(panel, nullptr);
  call.kernels().product(codes + row * pitch, pitch, int(some), weight.codes, weight.column_sums, int(pitch), sums,
                         kPanel);
  const std::int64_t columns = std::min<std::int64_t>(kPanel, m.weight.n - panel * kPanel);
  for (std::int64_t r = 0; r < some; ++r)
    for (std::int64_t j = 0; j < columns; ++j)
      tile[r * kPanel + j] = float(sums[r * kPanel + j]) * (scales[row + r] * m.scales[panel * kPanel + j]);
}

MlpArrays::MlpArrays(Activations kind, std::int64_t rows, std::int64_t hidden, std::int64_t wide, int threads,
                     Carver& carver)
    : hidden(hidden),
      wide(wide),
      input(kind, rows, hidden, carver),
      inner(kind, rows, wide, carver),
      products(kind == Activations::int8 ? carver.take<float>(rows * wide) : nullptr),
      scratch(carver.take<std::int8_t>(threads * std::max(hidden, wide))) {}

void set_input(Call& call, const float* x, const std::int32_t* token, std::int64_t rows, const MlpArrays& arrays) {
  const std::int64_t n = arrays.hidden;
  call.parallel_for(rows, {.elements = double(rows * n)}, [&](std::int64_t i, int thread) {
    arrays.input.set(call.kernels(), i, x + (token ? token[i] : i) * n, n, arrays.scratch_of(thread));
  });
}

void gate_and_up(Call& call, std::span<const MlpRows> jobs, const MlpArrays& arrays, float* sums) {
  const MlpOperand& inner = arrays.inner;
  Work work;
  std::int64_t tasks = 0, end = 0;
  for (const MlpRows& job : jobs) {
    work = work + product_work(job.rows, job.mlp.gate.weight) * 2;
    tasks += job.tiles() * panels_of(job.wide());
    end = std::max(end, job.first + job.rows);
  }
  call.parallel_for(tasks, work, [&](std::int64_t task, int) {
    const MlpRows* job = jobs.data();
    for (; task >= job->tiles() * panels_of(job->wide()); ++job) task -= job->tiles() * panels_of(job->wide());
    alignas(64) float gate[kTileRows * kPanel], up[kTileRows * kPanel];
    const std::int64_t panel = task / job->tiles(), done = task % job->tiles() * kTileRows, row = job->first + done;
    const std::int64_t some = std::min(kTileRows, job->rows - done), column = panel * kPanel;
    const std::int64_t columns = std::min<std::int64_t>(kPanel, job->wide() - column);
    arrays.input.times(call, job->mlp.gate, panel, row, some, gate);
    arrays.input.times(call, job->mlp.up, panel, row, some, up);
    for (std::int64_t r = 0; r < some; ++r) {
      float* const g = gate + r * kPanel;
      silu_times(g, up + r * kPanel, columns, g);
      if (sums) std::copy_n(g, columns, sums + (row + r) * job->wide() + column);
      else if (inner.kind == Activations::bf16)
        call.kernels().round(g, columns, inner.narrow + (row + r) * inner.pitch + column);
      else
        std::copy_n(g, columns,
                    inner.kind == Activations::f32 ? inner.f32 + (row + r) * inner.pitch + column
                                                   : arrays.products + (row + r) * arrays.wide + column);
    }
  });
  if (inner.kind != Activations::int8 || sums) return;
  for (const MlpRows& job : jobs) set_inner(call, arrays.products, job.first, job.rows, arrays);
}

void set_inner(Call& call, const float* products, std::int64_t first, std::int64_t rows, const MlpArrays& arrays) {
  call.parallel_for(rows, {.elements = double(rows * arrays.wide)}, [&](std::int64_t r, int thread) {
    const std::int64_t row = first + r;
    arrays.inner.set(call.kernels(), row, products + row * arrays.wide, arrays.wide, arrays.scratch_of(thread));
  });
}

std::shared_ptr<std::byte> streamed_memory(std::size_t bytes, const char* what) {
  constexpr std::size_t kHugePage = std::size_t(2) << 20;
  const std::size_t align = bytes >= kHugePage ? kHugePage : 4096;
  const std::size_t reserved = std::max<std::size_t>((bytes + align - 1) / align * align, align);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(align, reserved));
  if (!memory)
    throw Error(Status::out_of_memory, "load", what, "", "need " + std::to_string(bytes) + " bytes",
                "memory the system can give");
  if (align == kHugePage) ::madvise(memory, reserved, MADV_HUGEPAGE);
  return {memory, [](std::byte* p) { std::free(p); }};
}

GatedMlp::GatedMlp(const io::Checkpoint& checkpoint, const std::string& prefix, std::int64_t hidden,
                   std::int64_t wide, const MlpOptions& options) {
  const StoredMlp stored = find_mlp(checkpoint, prefix, hidden, wide);
  layout_ = MlpLayout(hidden, wide, format_of(stored, options), options.share);
  const std::shared_ptr<std::byte> memory = streamed_memory(layout_.bytes(), "the matrices of an MLP");
  load_mlp(stored.part(options.share), layout_, memory.get(), *supported_kernels().back());
  memory_ = memory;
}

void GatedMlp::add_to(Call& call, const float* x, std::int64_t rows, const MlpArrays& arrays, float* residual) const {
  const MlpRows job{matrices(), 0, rows};
  set_input(call, x, nullptr, rows, arrays);
  gate_and_up(call, {&job, 1}, arrays);
  down(call, {&job, 1}, arrays, [&](auto, std::int64_t row, std::int64_t column, std::int64_t columns, const float* sums) {
    float* to = residual + row * arrays.hidden + column;
    for (std::int64_t j = 0; j < columns; ++j) to[j] += sums[j];
  });
}

}  // namespace dsakit
