// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/check.hpp"
#include "core/view.hpp"
#include "kernels/stream.hpp"
#include "run/call.hpp"

// Rows that move as they are, whatever their dtype: what the operators that scatter, gather and store share.
namespace dsakit {

inline std::byte* bytes_at(const Tensor& t, std::int64_t offset) {
  return static_cast<std::byte*>(t.data) + offset * size_of(t.dtype);
}

/// For the references.
inline void move_element(const Tensor& to, std::int64_t to_offset, const Tensor& from, std::int64_t from_offset) {
  for (int byte = 0; byte < size_of(to.dtype); ++byte)
    bytes_at(to, to_offset)[byte] = bytes_at(from, from_offset)[byte];
}

inline void copy_elements(const Tensor& to, const Tensor& from) {
  for (std::int64_t i = 0, n = from.elements(); i < n; ++i) move_element(to, offset_of(to, i), from, offset_of(from, i));
}

/// Integer `offset` of an int32 or int64 tensor.
inline std::int64_t integer_at(const Tensor& t, std::int64_t offset) {
  return t.dtype == DType::i32 ? static_cast<const std::int32_t*>(t.data)[offset]
                               : static_cast<const std::int64_t*>(t.data)[offset];
}

/// For tensors that are only moved.
inline void check_any_dtype(const Check& check, const Tensor& t, const char* name) {
  if (size_of(t.dtype) == 0)
    check.fail(Status::invalid_dtype, name, "", "has an unknown dtype", "one of 1, 2, 4 or 8 bytes");
}

/// Copies the trailing axes, of equal shape, of one tensor to those of another, each with its own strides.
class BlockCopy {
 public:
  BlockCopy() = default;
  /// Axes to_axis.. of `to` and from_axis.. of `from`.
  BlockCopy(const Tensor& to, int to_axis, const Tensor& from, int from_axis) {
    const std::int64_t size = size_of(to.dtype);
    bytes_ = run_ = size;
    for (int t = to.rank - 1, f = from.rank - 1; t >= to_axis && f >= from_axis; --t, --f) {
      const Axis axis{to.shape[t], to.stride[t] * size, from.stride[f] * size};
      bytes_ *= axis.count;
      if (axis.count == 1) continue;
      if (axes_ == 0 && axis.to_step == run_ && axis.from_step == run_) run_ *= axis.count;
      else axis_[axes_++] = axis;
    }
  }
  std::int64_t bytes() const { return bytes_; }
  /// Blocks i < n ascending; `streamed`: as stream_rows, where they are whole.
  void operator()(std::byte* const* to, const std::byte* const* from, int n, bool streamed) const {
    if (bytes_ == 0) return;
    if (axes_ == 0 && streamed) return stream_rows(to, from, n, std::size_t(run_));
    copy(to, from, n, 0, 0, axes_);
  }

 private:
  struct Axis {
    std::int64_t count, to_step, from_step;  // bytes
  };
  void copy(std::byte* const* to, const std::byte* const* from, int n, std::int64_t to_offset, std::int64_t from_offset,
            int axes) const {
    if (axes == 0) {
      for (int i = 0; i < n; ++i) std::memcpy(to[i] + to_offset, from[i] + from_offset, std::size_t(run_));
      return;
    }
    const Axis& axis = axis_[axes - 1];
    for (std::int64_t i = 0; i < axis.count; ++i)
      copy(to, from, n, to_offset + i * axis.to_step, from_offset + i * axis.from_step, axes - 1);
  }

  std::int64_t bytes_ = 0, run_ = 0;  // of all; of a contiguous run
  int axes_ = 0;                      // around the runs, the innermost first
  Axis axis_[8];
};

/// Moves blocks in the order in which it is told of them, some at a time: the memory of the next is asked for meanwhile.
template <class Block>
class Mover {
 public:
  /// `all`: the bytes that the whole call moves.
  Mover(const Block& block, std::int64_t all) : block_(block), streamed_(all >= kStreamed) {}
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  ~Mover() {
    flush();
    if (streamed_) stream_fence();
  }
  void operator()(std::byte* to, const std::byte* from) {
    to_[n_] = to, from_[n_] = from;
    if (++n_ == kBatch) flush();
  }

 private:
  static constexpr int kBatch = 128;
  void flush() { block_(to_, from_, n_, streamed_), n_ = 0; }

  const Block& block_;
  bool streamed_;
  int n_ = 0;
  std::byte* to_[kBatch];
  const std::byte* from_[kBatch];
};

/// All of `from` to `to`, of one shape and dtype.
inline void copy_all(Call& call, const Tensor& to, const Tensor& from) {
  int axis = 0;
  while (axis + 1 < to.rank && to.shape[axis] == 1) ++axis;
  const BlockCopy copy(to, axis + 1, from, axis + 1);
  const std::int64_t n = to.shape[axis],
                     each = std::max<std::int64_t>((1 << 18) / std::max<std::int64_t>(copy.bytes(), 1), 1);
  call.parallel_for((n + each - 1) / each, {.bytes = 2.0 * double(n) * double(copy.bytes())},
                    [&](std::int64_t task, int) {
                      Mover move(copy, n * copy.bytes());
                      for (std::int64_t i = task * each, end = std::min(i + each, n); i < end; ++i)
                        move(bytes_at(to, i * to.stride[axis]), bytes_at(from, i * from.stride[axis]));
                    });
}

/// `walk(write)` calls write(place, row) for `rows` rows of `row_bytes` in the order of the call, and what mover() gives,
/// a function of (place, row), moves each: the last of several rows for one place wins. On several threads every place
/// belongs to one task, with a mover of its own, and each task walks through all rows, which is cheap beside rows of
/// this size.
template <class Walk, class MakeMover>
void scatter(Call& call, std::int64_t rows, std::int64_t row_bytes, Walk walk, MakeMover mover) {
  constexpr std::int64_t kTasks = 16, kWorthWalking = 256, kRun = 64 << 10;  // of a task's places, in bytes
  const double bytes = 2.0 * double(rows) * double(row_bytes);
  if (call.threads() == 1 || row_bytes < kWorthWalking)
    return call.parallel_for(1, {.bytes = bytes}, [&](std::int64_t, int) {
      auto move = mover();
      walk(move);
    });
  const int shift = std::bit_width(std::uint64_t(std::max<std::int64_t>(kRun / row_bytes, 1))) - 1;
  call.parallel_for(kTasks, {.bytes = bytes}, [&](std::int64_t task, int) {
    auto move = mover();
    walk([&](std::int64_t place, std::int64_t row) {
      if ((place >> shift) % kTasks == task) move(place, row);
    });
  });
}

}  // namespace dsakit
