// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"
#include "kernels/kernels.hpp"
#include "layer/weights.hpp"
#include "ops/weight.hpp"

namespace dsakit {

/// How the three matrices of an MLP are kept: numbers, e4m3 codes that products widen to the same numbers, or int8 codes
/// that meet activations quantised per token.
enum class MlpFormat { bf16, fp8, int8 };

/// What Model's `mlp` and `weights` ask for.
struct MlpOptions {
  enum class Arithmetic { as_stored, bf16, int8 } arithmetic = Arithmetic::as_stored;
  bool widen_fp8 = false;  // kept as bf16: twice the bytes, the same results
  LayerShare share{};      // which columns of each matrix
};

/// A weight [k, n] of an MLP where it lies.
struct MlpMatrix {
  Weight weight;
  const float* scales = nullptr;  // int8: of its columns
};
struct MlpMatrices {
  MlpMatrix gate, up, down;
};

/// The matrices of an MLP, or a rank's columns of each, one behind the other in a block of memory, as the products read
/// them.
class MlpLayout {
 public:
  MlpLayout() = default;
  MlpLayout(std::int64_t hidden, std::int64_t wide, MlpFormat format, const LayerShare& share = {})
      : hidden_(hidden),
        wide_(wide),
        own_hidden_(share.columns(hidden).size()),
        own_wide_(share.columns(wide).size()),
        format_(format) {}

  std::int64_t hidden() const { return hidden_; }
  std::int64_t wide() const { return wide_; }
  MlpFormat format() const { return format_; }
  /// A multiple of the page size: blocks of a file are read into it directly.
  std::size_t bytes() const;
  MlpMatrices at(const std::byte* memory) const;

  static constexpr int kMatrices = 3;  // gate, up, down
  std::int64_t k(int matrix) const { return matrix < 2 ? hidden_ : wide_; }
  std::int64_t n(int matrix) const { return matrix < 2 ? own_wide_ : own_hidden_; }
  std::size_t offset(int matrix) const;

 private:
  std::size_t matrix_bytes(int matrix) const;
  MlpMatrix matrix(int i, const std::byte* memory) const;

  std::int64_t hidden_ = 0, wide_ = 0, own_hidden_ = 0, own_wide_ = 0;
  MlpFormat format_ = MlpFormat::bf16;
};

/// Bytes of a block that a rank has a share of: where they are in all of it, and in the rank's own.
struct BlockPiece {
  std::size_t from, to, bytes;
};
std::vector<BlockPiece> pieces_of(const MlpLayout& all, const LayerShare&);

/// The matrices of an MLP in a checkpoint.
struct StoredMlp {
  io::StoredMatrix matrix[MlpLayout::kMatrices];

  std::uint64_t bytes() const { return matrix[0].bytes() + matrix[1].bytes() + matrix[2].bytes(); }
  /// A rank's columns of each.
  StoredMlp part(const LayerShare& share) const;
};

/// "<prefix>gate_proj.weight" and so on.
StoredMlp find_mlp(const io::Checkpoint&, const std::string& prefix, std::int64_t hidden, std::int64_t wide);
/// Routed expert `expert` of a layer, whether it has tensors of its own or a part of those of all experts.
StoredMlp find_expert(const io::Checkpoint&, std::int64_t layer, std::int64_t expert);

/// How it is kept: as all three matrices are stored, if that can be and nothing else is asked for.
MlpFormat format_of(const StoredMlp&, const MlpOptions&);

/// Rows of a stored matrix on their way to its panels: reads may come in any order, each of a multiple of kPanel rows
/// but for the last.
class MatrixPacker {
 public:
  /// Reads the scales, if it has any. `to`: where the matrix begins.
  MatrixPacker(const io::StoredMatrix& from, MlpFormat format, std::byte* to);

  /// `bytes`: rows first .. first + rows - 1 as they are stored. Throws what reading the matrix would throw.
  void pack(const std::byte* bytes, std::int64_t first, std::int64_t rows, const Kernels& kernels) const;
  std::size_t row_bytes() const { return std::size_t(from_.cols * size_of(from_.dtype())); }

 private:
  void pack_panel(const std::byte* bytes, std::int64_t first, int rows, const Kernels& kernels) const;
  void read_numbers(const std::byte* bytes, std::int64_t first, int rows, bf16* numbers) const;

  io::StoredMatrix from_;
  MlpFormat format_;
  std::byte* to_;
  io::AlignedArray<float> scales_;
};

/// INVALID_FILE, if a block that was packed holds an e4m3 code that is no number.
void refuse_nan(const MlpLayout&, const std::byte* block, const io::Place& place, std::int64_t expert);

/// Reads all of an MLP into memory of layout.bytes().
void load_mlp(const StoredMlp&, const MlpLayout&, std::byte* memory, const Kernels&);

}  // namespace dsakit
