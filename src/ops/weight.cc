// SPDX-License-Identifier: Apache-2.0
#include "ops/weight.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/float16.hpp"
#include "core/out_of_memory.hpp"
#include "dsakit/packed_weight.hpp"
#include "kernels/e4m3.hpp"

namespace dsakit {
namespace {

std::int64_t packed_bytes(DType dtype, std::int64_t k, std::int64_t n) {
  return dtype == DType::i8 ? Panels<std::int8_t>::bytes(k, n) : Panels<bf16>::bytes(k, n);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::int64_t Weight::scratch_bytes() const {
  return packed && !scales ? 0 : packed_bytes(dtype, k, kPanel);
}

const bf16* Weight::panel_bf16(std::int64_t matrix, std::int64_t panel, std::byte* scratch) const {
  if (packed)
    return reinterpret_cast<const bf16*>(packed + matrix * batch_stride) + Panels<bf16>::panel(k, panel);
  MatrixSource s = source;
  s.data = static_cast<const std::byte*>(s.data) + matrix * batch_stride;
  bf16* out = reinterpret_cast<bf16*>(scratch);
  pack_panel_bf16(s, panel, out);
  return out;
}

Weight::PanelI8 Weight::panel_i8(std::int64_t panel, std::byte* scratch) const {
  if (packed) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(packed);
    return {codes + Panels<std::int8_t>::panel(k, panel), Panels<std::int8_t>::sums(codes, k, n) + panel * kPanel};
  }
  auto* codes = reinterpret_cast<std::int8_t*>(scratch);
  auto* sums = Panels<std::int8_t>::sums(codes, k, kPanel);
  pack_panel_i8(source, panel, codes, sums);
  return {codes, sums};
}

namespace {

/// The number of row p and a column: bf16(fp32(code * scale)).
float number_at(const ScaledPanel& panel, std::int64_t p, int column) {
  const int code = panel.codes[Panel<e4m3>::at(p, column)].bits;
  const float size = kE4m3Magnitudes.of[code & 127];
  return to_float(to_bf16((code & 128 ? -size : size) * panel.scales[p / kScaleRows]));
}

}  // namespace

float Weight::at(std::int64_t matrix, std::int64_t row, std::int64_t column) const {
  std::int64_t offset;
  const std::byte* base;
  if (scales) return number_at(scaled_panel(column / kPanel), row, int(column % kPanel));
  if (packed) {
    base = packed + matrix * batch_stride;
    offset = dtype == DType::i8 ? Panels<std::int8_t>::at(k, row, column) : Panels<bf16>::at(k, row, column);
  } else {
    base = static_cast<const std::byte*>(source.data) + matrix * batch_stride;
    offset = source.nz ? nz_offset(k, size_of(dtype), row, column) : row * source.row_stride + column;
  }
  return dtype == DType::i8 ? float(reinterpret_cast<const std::int8_t*>(base)[offset])
                            : to_float(reinterpret_cast<const bf16*>(base)[offset]);
}

namespace {

Weight scaled_weight(const Tensor& t) {
  Weight w{.dtype = t.dtype, .k = t.shape[0], .n = t.shape[1]};
  w.packed = static_cast<const std::byte*>(t.data);
  w.scales = Panels<e4m3>::scales(reinterpret_cast<const e4m3*>(w.packed), w.k, w.n);
  return w;
}

bool is_storage(const Tensor& t, std::int64_t batch) { return t.format == Format::ND && t.rank == 4 && batch == 0; }

}  // namespace

void check_weight_shape(const Check& check, const Tensor& t, const char* name, DType dtype, std::int64_t batch,
                        std::int64_t k, std::int64_t n, const char* why) {
  check.sizes(t, name);
  const std::int64_t c0 = dtype == DType::i8 ? 32 : 16;
  if (is_storage(t, batch))
    check.shape(t, name, {ceil_div(n, c0), ceil_div(k, 16), 16, c0}, "FRACTAL_NZ storage of [K, N]");
  else if (batch > 0) check.shape(t, name, {batch, k, n}, why);
  else check.shape(t, name, {k, n}, why);
}

void check_weight_format(const Check& check, const Tensor& t, const char* name) {
  check.chip(t.format != Format::ND || is_storage(t, 0), name, "is row-major", "FRACTAL_NZ");
}

Weight check_weight(const Check& check, const Tensor& t, const char* name, DType dtype, std::int64_t batch,
                    std::int64_t k, std::int64_t n, const char* why) {
  check.required(t, name);
  check_weight_shape(check, t, name, dtype, batch, k, n, why);
  check.dtype(t, name, {dtype});
  check.readable_weight(t, name);
  if (t.format == Format::scaled) return scaled_weight(t);
  Weight w{.dtype = dtype, .k = k, .n = n, .batch = batch > 0 ? batch : 1};
  const std::int64_t c0 = dtype == DType::i8 ? 32 : 16, size = size_of(dtype);
  if (is_storage(t, batch)) {
    Tensor plain = t;
    make_contiguous(plain);
    if (!same_storage(plain, t) && t.elements() != 0)
      check.fail(Status::invalid_stride, name, "", "is FRACTAL_NZ storage with gaps", "contiguous memory");
    w.source = {t.data, 0, true, k, n};
  } else if (t.format == Format::packed) {
    w.packed = static_cast<const std::byte*>(t.data);
    w.batch_stride = packed_bytes(dtype, k, n);
  } else if (t.format == Format::NZ) {
    w.source = {t.data, 0, true, k, n};
    w.batch_stride = ceil_div(n, c0) * ceil_div(k, 16) * 16 * c0 * size;
  } else {
    w.source = {t.data, t.stride[t.rank - 2], false, k, n};
    w.batch_stride = batch > 0 ? t.stride[0] * size : 0;
    if (batch == 0) check_weight_format(check, t, name);
  }
  return w;
}

/// Streamed once per call by the kernels: huge pages, where the system has them, save most of the TLB misses.
void PackedWeight::allocate(std::int64_t bytes) {
  constexpr std::size_t kHugePage = std::size_t(2) << 20;
  bytes_ = std::size_t(bytes);
  const std::size_t align = bytes_ >= kHugePage ? kHugePage : 64;
  const std::size_t reserved = (bytes_ + align - 1) / align * align;
  void* memory = reserved ? std::aligned_alloc(align, reserved) : nullptr;
  if (reserved && !memory)
    throw Error(Status::out_of_memory, "pack_weight", "weight", "", "needs " + std::to_string(bytes_) + " bytes packed",
                "memory the system can give");
  if (align == kHugePage) madvise(memory, reserved, MADV_HUGEPAGE);
  memory_ = std::shared_ptr<std::byte[]>(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); });
}

PackedWeight::PackedWeight(const Tensor& codes, const Tensor& scales, std::int64_t first_row) try {
  const Check check("pack_weight", Level::portable);
  check.required(codes, "codes");
  check.required(scales, "scales");
  check.dtype(codes, "codes", {DType::f8_e4m3});
  check.dtype(scales, "scales", {DType::f32});
  check.rank(codes, "codes", 2, "[N, K]");
  check.readable(codes, "codes");
  check.readable(scales, "scales");
  const std::int64_t n = codes.shape[0], k = codes.shape[1];
  if (first_row < 0 || first_row >= kScaleRows || first_row % kPanel != 0)
    check.fail(Status::invalid_argument, "first_row", "", "is " + std::to_string(first_row), "0 or 64");
  check.shape(scales, "scales", {ceil_div(first_row + n, kScaleRows), ceil_div(k, kScaleRows)}, "blocks of 128 x 128");
  allocate(Panels<e4m3>::bytes(k, n));
  auto* panels = reinterpret_cast<e4m3*>(memory_.get());
  float* of_panels = Panels<e4m3>::scales(panels, k, n);
  const std::int64_t blocks = Panels<e4m3>::scales_of_panel(k);
  const Kernels& kernels = *supported_kernels().back();
  for (std::int64_t p = 0; p < panels_of(n); ++p) {
    const e4m3* column[kPanel];
    const int columns = int(std::min<std::int64_t>(kPanel, n - p * kPanel));
    for (int j = 0; j < columns; ++j)
      column[j] = static_cast<const e4m3*>(codes.data) + (p * kPanel + j) * codes.stride[0];
    kernels.transpose(column, columns, int(k), panels + Panels<e4m3>::panel(k, p));
    const std::int64_t block = (first_row + p * kPanel) / kScaleRows;
    std::copy_n(static_cast<const float*>(scales.data) + block * scales.stride[0], blocks, of_panels + p * blocks);
  }
  tensor_ = shaped(DType::bf16, {k, n});
  tensor_.data = memory_.get();
  tensor_.format = Format::scaled;
  tensor_.read_only = true;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

PackedWeight::PackedWeight(const Tensor& t) try {
  const Check check("pack_weight", Level::portable);
  check.required(t, "weight");
  check.dtype(t, "weight", {DType::bf16, DType::i8});
  if (t.rank != 2 && t.rank != 3)
    check.fail(Status::invalid_shape, "weight", "", "has rank " + std::to_string(t.rank),
               "2 ([K, N]) or 3 ([B, K, N])");
  const bool stack = t.rank == 3;
  if (t.format == Format::packed || t.format == Format::scaled)
    check.fail(Status::invalid_argument, "weight", "", "is packed already", "ND or NZ");
  if (stack && t.dtype == DType::i8)
    check.fail(Status::invalid_shape, "weight", "", "is a stack of int8 matrices", "[K, N]", "stacks are bfloat16");
  const std::int64_t k = t.shape[t.rank - 2], n = t.shape[t.rank - 1], batch = stack ? t.shape[0] : 0;
  const Weight w = check_weight(check, t, "weight", t.dtype, batch, k, n, "");
  const std::int64_t one = packed_bytes(t.dtype, k, n);
  allocate(one * w.batch);
  for (std::int64_t b = 0; b < w.batch; ++b) {
    std::byte* out = memory_.get() + b * one;
    MatrixSource source = w.source;
    source.data = static_cast<const std::byte*>(source.data) + b * w.batch_stride;
    for (std::int64_t p = 0; p < w.panels(); ++p) {
      if (t.dtype == DType::bf16) {
        pack_panel_bf16(source, p, reinterpret_cast<bf16*>(out) + Panels<bf16>::panel(k, p));
      } else {
        auto* codes = reinterpret_cast<std::int8_t*>(out);
        pack_panel_i8(source, p, codes + Panels<std::int8_t>::panel(k, p),
                      Panels<std::int8_t>::sums(codes, k, n) + p * kPanel);
      }
    }
  }
  tensor_ = t;
  tensor_.data = memory_.get();
  tensor_.format = Format::packed;
  tensor_.read_only = true;
  make_contiguous(tensor_);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
