// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/view.hpp"
#include "kernels/kernels.hpp"
#include "kernels/panel.hpp"
#include "ops/weight.hpp"
#include "run/call.hpp"

// Tokens go through a prolog in fixed tiles, a tile through three stages, a stage in independent tasks. A task of a
// product reads one weight panel once, for all tokens of the tile.
namespace dsakit::prolog {

inline constexpr int kTile = 128;  // tokens: bounds the workspace; from here on products are far from memory-bound

inline constexpr std::int64_t kPanelsAtOnce = 4;  // that hidden states of many tokens meet

/// Of a weight, by each task.
inline std::int64_t panels_at_once(const Weight& w, int rows, int threads) {
  constexpr int kFew = 32;  // whose hidden states stay in L2
  if (rows <= kFew || w.dtype != DType::bf16 || !w.packed || w.scales) return 1;
  return std::clamp<std::int64_t>(w.panels() / (2 * threads), 1, kPanelsAtOnce);
}
inline std::int64_t tasks_of_panels(const Weight& w, int rows, int threads) {
  const std::int64_t some = panels_at_once(w, rows, threads);
  return (w.panels() + some - 1) / some;
}

/// Heads of `width` columns that a task takes to have whole panels; panels that they share with others are multiplied
/// by each. At least one, also of a rank that has none.
inline std::int64_t heads_of_panels(std::int64_t width, std::int64_t heads) {
  constexpr std::int64_t kMost = 8;
  return std::max<std::int64_t>(std::min({kPanel / std::gcd(std::int64_t{kPanel}, width), kMost, heads}), 1);
}

enum class Stage { hidden_products, rows, heads };

/// bf16 rows for a product; widened where the context wants the same products on every machine, or the kernels would
/// widen them for each panel.
struct Operand {
  const bf16* narrow = nullptr;
  const float* wide = nullptr;  // instead
  std::ptrdiff_t stride = 0;

  Operand from(int row) const {
    return {narrow ? narrow + row * stride : nullptr, wide ? wide + row * stride : nullptr, stride};
  }

  /// c[i][j] = sum over depth of row i times the panel from its row `first` (even) on; c is [rows][64].
  void times(const Kernels& kernels, int rows, const bf16* panel, std::int64_t first, std::int64_t depth,
             float* c) const {
    panel += dsakit::Panel<bf16>::row(first);
    if (wide) kernels.product(wide, stride, rows, panel, int(depth), c, kPanel, false);
    else kernels.product(narrow, stride, rows, panel, int(depth), c, kPanel, false);
  }

  /// The same of neighbouring panels of a weight that is packed, c [panels][kTile][64]. A block of the rows, put together
  /// in `block` (of kBlockElements), meets all of them before the next: many rows are more than L2 holds, and each lies in
  /// a page of its own.
  void times(const Kernels& kernels, int rows, const Weight& weight, std::int64_t panel, std::int64_t panels,
             std::int64_t first, std::int64_t depth, std::byte* block, float* c) const;
  static constexpr std::int64_t kBlockPitch = kSumBlock + 32, kBlockElements = kTile * kBlockPitch;

  /// A panel of a weight, from its row `first` (even) on.
  struct Panel {
    const Weight& weight;
    std::int64_t matrix, panel;
    std::byte* scratch;  // of weight.scratch_bytes()
    std::int64_t first = 0;
  };
  void times(const Kernels& kernels, int rows, const Panel& p, std::int64_t depth, float* c) const {
    if (!p.weight.scales)
      return times(kernels, rows, p.weight.panel_bf16(p.matrix, p.panel, p.scratch), p.first, depth, c);
    const ScaledPanel codes = p.weight.scaled_panel(p.panel);
    if (p.first == 0) {
      if (wide) kernels.product(wide, stride, rows, codes, int(depth), c, kPanel, false);
      else kernels.product(narrow, stride, rows, codes, int(depth), c, kPanel, false);
      return;
    }
    bf16* numbers = reinterpret_cast<bf16*>(p.scratch);
    kernels.widen_scaled(codes, int(p.first + depth), numbers);
    times(kernels, rows, numbers, p.first, depth, c);
  }
};

/// The hidden states of the tile's tokens as operands: int8 as biased codes; bf16 as they are, unless they are not
/// evenly spaced, are to be widened, or their second half starts at an odd column (panels are cut in pairs).
class HiddenTile {
 public:
  /// `halves`: second() is wanted too. x without memory: nothing is.
  HiddenTile(const Rows& x, std::int64_t width, bool halves, const Call& call, Carver& memory);
  void begin(const Kernels& kernels, std::int64_t first, int count);

  const Operand& all() const { return all_; }
  /// Columns split() .. width-1, preceded by a zero if split() is odd: from panel row second_from() on.
  const Operand& second() const { return second_; }
  std::int64_t split() const { return width_ / 2; }
  std::int64_t second_from() const { return split() / Panel<bf16>::kGroup * Panel<bf16>::kGroup; }

  /// int8: codes + 128, as products of codes read them.
  const std::uint8_t* codes() const { return codes_; }
  std::int64_t codes_stride() const { return Panel<std::int8_t>::depth(width_); }

 private:
  std::int64_t wide_stride() const { return width_ + 32; }  // rows must not share cache sets

  Rows x_;
  std::int64_t width_;
  bool copies_, shifts_, widens_;
  bf16 *copy_ = nullptr, *shifted_ = nullptr;
  float *wide_ = nullptr, *shifted_wide_ = nullptr;
  std::uint8_t* codes_ = nullptr;
  Operand all_, second_;
};

/// Runs all tokens of a call through `parts`, each a class with begin(first, count), tasks(stage), work(stage) and
/// task(stage, i, thread); tasks of one stage of all parts run together.
template <class... Parts>
void run_tiles(Call& call, std::int64_t tokens, HiddenTile& hidden, Parts&... parts) {
  for (std::int64_t first = 0; first < tokens; first += kTile) {
    const int count = int(std::min<std::int64_t>(kTile, tokens - first));
    hidden.begin(call.kernels(), first, count);
    (parts.begin(first, count), ...);
    for (const Stage stage : {Stage::hidden_products, Stage::rows, Stage::heads}) {
      const std::int64_t tasks = (parts.tasks(stage) + ...);
      call.parallel_for(tasks, (parts.work(stage) + ...), [&](std::int64_t i, int thread) {
        auto mine = [&](auto& part) {
          const std::int64_t n = part.tasks(stage);
          if (i >= n) return i -= n, false;
          part.task(stage, i, thread);
          return true;
        };
        (mine(parts) || ...);
      });
    }
  }
}

/// The slot of each token: negative if it is not stored, or if a later token of the tile has the same one.
class TileSlots {
 public:
  TileSlots(const Rows& index, bool cache_has_rows, std::int64_t first, int count);
  TileSlots() = default;
  std::int64_t operator[](int row) const { return slot_[row]; }

 private:
  std::int64_t slot_[kTile];
};

/// Copies all rows of a cache to another.
void copy_rows(Call& call, const Tensor& from, const Tensor& to, std::int64_t width);

}  // namespace dsakit::prolog
