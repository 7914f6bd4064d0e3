// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "layer/expert.hpp"
#include "ops/linear.hpp"
#include "run/call.hpp"

// down(silu(gate(x)) * up(x)) of one MLP, or of many that take different rows each: experts.
namespace dsakit {

/// What rows are for the products: fp32, rounded to bf16, or int8 codes with a scale per row.
enum class Activations { f32, bf16, int8 };

/// Rows of one width as the products take them, and the scales of codes.
struct MlpOperand {
  Activations kind = Activations::f32;
  std::int64_t pitch = 0;  // elements from row to row
  float* f32 = nullptr;
  bf16* narrow = nullptr;
  std::uint8_t* codes = nullptr;  // biased
  float* scales = nullptr;

  MlpOperand() = default;
  MlpOperand(Activations kind, std::int64_t rows, std::int64_t width, Carver& carver);

  /// Row `row` becomes x.
  void set(const Kernels&, std::int64_t row, const float* x, std::int64_t width, std::int8_t* scratch) const;
  /// tile[some][64] = rows row .. times a panel of m.
  void times(const Call&, const MlpMatrix& m, std::int64_t panel, std::int64_t row, std::int64_t some,
             float* tile) const;
};

/// Memory for `rows` rows on their way.
struct MlpArrays {
  std::int64_t hidden, wide;
  MlpOperand input, inner;
  float* products;      // [rows, wide]: int8 alone
  std::int8_t* scratch;  // [threads][the larger width]

  MlpArrays(Activations kind, std::int64_t rows, std::int64_t hidden, std::int64_t wide, int threads, Carver& carver);
  std::int8_t* scratch_of(int thread) const { return scratch + thread * std::max(hidden, wide); }
};

/// An MLP and which of the rows of the input it takes.
struct MlpRows {
  MlpMatrices mlp;
  std::int64_t first = 0, rows = 0;

  std::int64_t wide() const { return mlp.gate.weight.n; }
  std::int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
};

/// Row i of the input = row token[i] of x [.., hidden]; without tokens row i.
void set_input(Call&, const float* x, const std::int32_t* token, std::int64_t rows, const MlpArrays&);

/// inner = silu(gate(input)) * up(input), each MLP for its rows: sums, silu and product in fp32. With `columns`, which are a
/// rank's [rows, own width], these are written instead, as they are.
void gate_and_up(Call&, std::span<const MlpRows>, const MlpArrays&, float* columns = nullptr);

/// Rows first .. first + rows - 1 of inner = those of products [.., wide].
void set_inner(Call&, const float* products, std::int64_t first, std::int64_t rows, const MlpArrays&);

/// add(job, row, column, columns, sums) for each row of down(inner) and each panel of its columns: for one panel the
/// jobs come in their order, on one thread.
template <class Add>
void down(Call& call, std::span<const MlpRows> jobs, const MlpArrays& arrays, Add add) {
  Work work;
  for (const MlpRows& job : jobs) work = work + product_work(job.rows, job.mlp.down.weight);
  const std::int64_t width = jobs.empty() ? 0 : jobs[0].mlp.down.weight.n;
  call.parallel_for(panels_of(width), work, [&](std::int64_t panel, int) {
    alignas(64) float tile[kTileRows * kPanel];
    const std::int64_t column = panel * kPanel, columns = std::min<std::int64_t>(kPanel, width - column);
    for (std::size_t j = 0; j < jobs.size(); ++j)
      for (std::int64_t row = jobs[j].first, end = row + jobs[j].rows; row < end; row += kTileRows) {
        const std::int64_t some = std::min(kTileRows, end - row);
        arrays.inner.times(call, jobs[j].mlp.down, panel, row, some, tile);
        for (std::int64_t r = 0; r < some; ++r) add(j, row + r, column, columns, tile + r * kPanel);
      }
  });
}

/// An MLP that is in memory for good.
class GatedMlp {
 public:
  GatedMlp() = default;
  /// "<prefix>gate_proj.weight" and so on.
  GatedMlp(const io::Checkpoint& checkpoint, const std::string& prefix, std::int64_t hidden, std::int64_t wide,
           const MlpOptions& options);

  explicit operator bool() const { return memory_ != nullptr; }
  const MlpLayout& layout() const { return layout_; }
  MlpMatrices matrices() const { return layout_.at(memory_.get()); }
  std::size_t bytes() const { return memory_ ? layout_.bytes() : 0; }

  /// Dense layers keep fp32 activations, unless the weights are int8.
  Activations activations() const {
    return layout_.format() == MlpFormat::int8 ? Activations::int8 : Activations::f32;
  }
  /// residual [rows, He] += mlp(x [rows, He]).
  void add_to(Call& call, const float* x, std::int64_t rows, const MlpArrays&, float* residual) const;

 private:
  MlpLayout layout_;
  std::shared_ptr<const std::byte> memory_;
};

/// Memory that is read once per step: on huge pages, where the system has them.
std::shared_ptr<std::byte> streamed_memory(std::size_t bytes, const char* what);

}  // namespace dsakit
