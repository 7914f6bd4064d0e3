// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/tile.hpp"

#include <cstring>

#include "ops/prolog/door.hpp"
#include "ops/prolog/rows.hpp"

namespace dsakit::prolog {

void Operand::times(const Kernels& kernels, int rows, const Weight& weight, std::int64_t panel, std::int64_t panels,
                    std::int64_t first, std::int64_t depth, std::byte* block, float* c) const {
  const auto at = [&](std::int64_t p, std::int64_t row) {
    return weight.panel_bf16(0, panel + p, nullptr) + dsakit::Panel<bf16>::row(first + row);
  };
  const auto blocks_of = [&]<class T>(const T* from) {
    T* const some = reinterpret_cast<T*>(block);
    for (std::int64_t row = 0, n; row < depth; row += n) {
      n = std::min<std::int64_t>(kSumBlock, depth - row);
      for (int r = 0; r < rows; ++r)
        std::memcpy(some + r * kBlockPitch, from + r * stride + row, std::size_t(n) * sizeof(T));
      for (std::int64_t p = 0; p < panels; ++p) {
        const bf16* const next = p + 1 < panels ? at(p + 1, row) : row + n < depth ? at(0, row + n) : nullptr;
        const Ahead ahead{next, next ? kPanel * std::ptrdiff_t(sizeof(bf16)) : 0};
        kernels.product(some, kBlockPitch, rows, at(p, row), int(n), c + p * (kTile * kPanel), kPanel, row > 0, ahead);
      }
    }
  };
  wide ? blocks_of(wide) : blocks_of(narrow);
}

HiddenTile::HiddenTile(const Rows& x, std::int64_t width, bool halves, const Call& call, Carver& memory)
    : x_(x),
      width_(width),
      copies_(x.uniform_stride < 0),
      shifts_(halves && second_from() != split()),
      widens_(call.same_products() || call.kernels().widens_rows) {
  if (!x.tensor.data) return;
  const std::int64_t rest = width - second_from();
  if (x.tensor.dtype == DType::i8) {
    codes_ = memory.take<std::uint8_t>(kTile * codes_stride());
    return;
  }
  if (copies_) copy_ = memory.take<bf16>(kTile * width);
  if (shifts_) shifted_ = memory.take<bf16>(kTile * rest);
  if (widens_) wide_ = memory.take<float>(kTile * wide_stride());
  if (widens_ && shifts_) shifted_wide_ = memory.take<float>(kTile * rest);
}

void HiddenTile::begin(const Kernels& kernels, std::int64_t first, int count) {
  if (!x_.tensor.data) return;
  const std::int64_t rest = width_ - second_from();
  if (x_.tensor.dtype == DType::i8) {
    for (int r = 0; r < count; ++r)
      bias_codes(x_.row<const std::int8_t>(first + r), width_, codes_ + r * codes_stride());
    return;
  }
  if (copies_)
    for (int r = 0; r < count; ++r)
      std::memcpy(copy_ + r * width_, x_.row<const bf16>(first + r), std::size_t(width_) * sizeof(bf16));
  all_ = copies_ ? Operand{copy_, nullptr, width_} : Operand{x_.row<const bf16>(first), nullptr, x_.uniform_stride};
  second_ = {all_.narrow + second_from(), nullptr, all_.stride};
  if (shifts_) {
    for (int r = 0; r < count; ++r) {
      std::memcpy(shifted_ + r * rest, second_.narrow + r * second_.stride, std::size_t(rest) * sizeof(bf16));
      shifted_[r * rest] = {0};
    }
    second_ = {shifted_, nullptr, rest};
  }
  if (!widens_) return;
  for (int r = 0; r < count; ++r) kernels.widen(all_.narrow + r * all_.stride, width_, wide_ + r * wide_stride());
  all_ = {nullptr, wide_, wide_stride()};
  if (shifts_) {
    kernels.widen(shifted_, count * rest, shifted_wide_);
    second_ = {nullptr, shifted_wide_, rest};
  } else {
    second_ = {nullptr, wide_ + second_from(), wide_stride()};
  }
}

TileSlots::TileSlots(const Rows& index, bool cache_has_rows, std::int64_t first, int count) {
  for (int r = 0; r < count; ++r) {
    slot_[r] = cache_has_rows ? *index.row<const std::int64_t>(first + r) : -1;
    for (int before = 0; before < r && slot_[r] >= 0; ++before)
      if (slot_[before] == slot_[r]) slot_[before] = -1;
  }
}

void copy_rows(Call& call, const Tensor& from, const Tensor& to, std::int64_t width) {
  constexpr std::int64_t kRows = 256;
  const Rows source = flat_rows(from, width), target = flat_rows(to, width);
  const std::int64_t bytes = width * size_of(from.dtype);
  call.parallel_for((source.count + kRows - 1) / kRows, {.bytes = 2.0 * double(source.count * bytes)}, [&](std::int64_t i, int) {
    for (std::int64_t r = i * kRows, end = std::min(r + kRows, source.count); r < end; ++r)
      std::memcpy(row_bytes(target, r), row_bytes(source, r), std::size_t(bytes));
  });
}

}  // namespace dsakit::prolog
