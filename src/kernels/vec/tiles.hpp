// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/vec/base.hpp"

// The vocabulary of tiles (AMX): eight registers of up to 16 rows of 64 bytes, which belong to a thread and have no
// shape and no content but between configure() and release(). Algorithms (kernels/tiles.hpp) are templates over it: the
// tests have another one, which does in software what the manual says of each instruction (kernels/test_tiles.hpp).
namespace dsakit {

constexpr int kTiles = 8, kTileSide = 16, kTileBytes = 64;  // of a row

/// What LDTILECFG reads: the palette, and the shape of each tile.
struct TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};  // of a row
  std::uint8_t rows[16] = {};

  DSAKIT_INLINE constexpr void set(int tile, int row_count, int row_bytes) {
    rows[tile] = std::uint8_t(row_count), bytes[tile] = std::uint16_t(row_bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

namespace {

#if defined(__x86_64__)
/// The instructions. Not the compilers' intrinsics: gcc 12's take a tile's number as text and do not say that memory is
/// read, so what was written there before may never be.
struct Tiles {
  DSAKIT_INLINE static void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  DSAKIT_INLINE static void release() { asm volatile("tilerelease"); }
  template <int T>
  DSAKIT_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  /// Rows `stride` bytes apart; with stride 0 the same one everywhere.
  template <int T>
  DSAKIT_INLINE static void load(const void* p, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(p), "r"(stride) : "memory");
  }
  template <int T>
  DSAKIT_INLINE static void store(void* p, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(p), "r"(stride) : "memory");
  }
  // c[m][n] += sum over k of a[m][k] * b[k][n]; a row of b has four bytes of every column: four codes, or two bf16.
  template <int C, int A, int B>
  DSAKIT_INLINE static void dot_u8_i8() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  DSAKIT_INLINE static void dot_i8_i8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  DSAKIT_INLINE static void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};
#endif

}  // namespace
}  // namespace dsakit
