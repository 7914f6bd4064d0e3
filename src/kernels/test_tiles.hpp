// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/vec/tiles.hpp"

// The tile instructions in software, as the Intel SDM has them (volume 2; volume 1, "Programming with Intel AMX"), so
// that tests run what was written for them on any machine.
namespace dsakit {

class TileMachine {
 public:
  struct Tile {
    int rows = 0, bytes = 0;
    alignas(64) std::array<std::array<std::byte, kTileBytes>, kTileSide> row{};
  };

  /// What would be an exception (#UD, #GP) on the machine. Such an instruction does nothing here.
  int faults = 0;
  bool configured = false;
  std::array<Tile, kTiles> tile;

  /// LDTILECFG, TILERELEASE: every tile is 0 afterwards.
  void configure(const TileShapes& shapes);
  void release();
  // What lies outside of its shape is 0 in any tile that was written.
  void zero(int t);
  void load(int t, const void* p, std::ptrdiff_t stride);
  void store(int t, void* p, std::ptrdiff_t stride);
  /// TDPBUSD and its like: 32-bit sums of products of bytes that are signed or not; nothing saturates.
  void dot_codes(int c, int a, int b, bool signed_a, bool signed_b);
  /// TDPBF16PS: all lower elements of the pairs in one chain of fp32 fma from 0, all upper ones in another, k
  /// ascending; then c + (lower + upper). Rounded to nearest even, subnormal inputs and results are 0. (The guide of
  /// intrinsics has one chain from c on, lower before upper: nothing of ours may depend on it.)
  void dot_bf16(int c, int a, int b);

 private:
  bool usable(int t);
  bool fit(int c, int a, int b);
};

/// The one of this thread.
TileMachine& tile_machine();

/// The vocabulary of vec/tiles.hpp over it.
struct TileModel {
  static void configure(const TileShapes& shapes) { tile_machine().configure(shapes); }
  static void release() { tile_machine().release(); }
  template <int T>
  static void zero() {
    tile_machine().zero(T);
  }
  template <int T>
  static void load(const void* p, std::ptrdiff_t stride) {
    tile_machine().load(T, p, stride);
  }
  template <int T>
  static void store(void* p, std::ptrdiff_t stride) {
    tile_machine().store(T, p, stride);
  }
  template <int C, int A, int B>
  static void dot_u8_i8() {
    tile_machine().dot_codes(C, A, B, false, true);
  }
  template <int C, int A, int B>
  static void dot_i8_i8() {
    tile_machine().dot_codes(C, A, B, true, true);
  }
  template <int C, int A, int B>
  static void dot_bf16() {
    tile_machine().dot_bf16(C, A, B);
  }
};

/// Rungs that only tests know: `amx_model`, the kernels of tiles over the generic rung and the software; and
/// `amx_trapped`, the very object of the rung amx, whose tile instructions the software executes where the processor
/// refuses them.
std::vector<Rung> tile_rungs();

}  // namespace dsakit
