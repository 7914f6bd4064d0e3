// SPDX-License-Identifier: Apache-2.0
#include "layer/expert.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/float16.hpp"
#include "layer/weights.hpp"

namespace dsakit {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;

constexpr std::size_t rounded_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

std::size_t MlpLayout::matrix_bytes(int i) const {
  switch (format_) {
    case MlpFormat::bf16:
      return std::size_t(Panels<bf16>::bytes(k(i), n(i)));
    case MlpFormat::fp8:
      return std::size_t(Panels<e4m3>::bytes(k(i), n(i)));
    case MlpFormat::int8:
      return std::size_t(Panels<std::int8_t>::bytes(k(i), n(i))) + rounded_up(std::size_t(n(i)) * 4, kLine);
  }
  return 0;
}

std::size_t MlpLayout::offset(int matrix) const {
  std::size_t at = 0;
  for (int i = 0; i < matrix; ++i) at += matrix_bytes(i);
  return at;
}

std::size_t MlpLayout::bytes() const { return std::max(rounded_up(offset(kMatrices), kPage), kPage); }

MlpMatrix MlpLayout::matrix(int i, const std::byte* memory) const {
  const std::byte* at = memory + offset(i);
  MlpMatrix m{.weight = {.dtype = DType::bf16, .k = k(i), .n = n(i), .packed = at}};
  if (format_ == MlpFormat::fp8) m.weight.scales = Panels<e4m3>::scales(reinterpret_cast<const e4m3*>(at), k(i), n(i));
  if (format_ == MlpFormat::int8) {
    m.weight.dtype = DType::i8;
    m.scales = reinterpret_cast<const float*>(at + Panels<std::int8_t>::bytes(k(i), n(i)));
  }
  return m;
}

std::vector<BlockPiece> pieces_of(const MlpLayout& all, const LayerShare& share) {
  const MlpLayout own(all.hidden(), all.wide(), all.format(), share);
  if (share.ranks == 1) return {{0, 0, all.bytes()}};
  std::vector<BlockPiece> pieces;
  for (int i = 0; i < MlpLayout::kMatrices; ++i) {
    const std::int64_t k = all.k(i), n = own.n(i), first = share.columns(all.n(i)).begin;
    if (n == 0) continue;
    // Panels are behind one another, and so are the numbers that go with them.
    const auto piece = [&](std::int64_t from, std::int64_t to, std::int64_t bytes) {
      pieces.push_back({all.offset(i) + std::size_t(from), own.offset(i) + std::size_t(to), std::size_t(bytes)});
    };
    const auto panels = [&]<class T>(T) {
      using P = Panels<T>;
      constexpr std::int64_t size = sizeof(T);
      const std::int64_t from = P::elements(k, all.n(i)) * size, to = P::elements(k, n) * size;
      piece(P::panel(k, first / kPanel) * size, 0, to);
      if constexpr (P::kSums) piece(from + first * 4, to, P::columns(n) * 4);
      if constexpr (P::kScales) piece(from + P::scales(k, first) * 4, to, P::scales(k, n) * 4);
      if constexpr (P::kSums) piece(P::bytes(k, all.n(i)) + first * 4, P::bytes(k, n), n * 4);  // scales of the columns
    };
    if (all.format() == MlpFormat::bf16) panels(bf16{});
    if (all.format() == MlpFormat::fp8) panels(e4m3{});
    if (all.format() == MlpFormat::int8) panels(std::int8_t{});
  }
  return pieces;
}

MlpMatrices MlpLayout::at(const std::byte* memory) const {
  return {matrix(0, memory), matrix(1, memory), matrix(2, memory)};
}

StoredMlp find_mlp(const io::Checkpoint& checkpoint, const std::string& prefix, std::int64_t hidden,
                   std::int64_t wide) {
  return {{checkpoint.matrix(prefix + "gate_proj.weight", wide, hidden),
           checkpoint.matrix(prefix + "up_proj.weight", wide, hidden),
           checkpoint.matrix(prefix + "down_proj.weight", hidden, wide)}};
}

StoredMlp find_expert(const io::Checkpoint& checkpoint, std::int64_t layer, std::int64_t expert) {
  const io::ModelConfig& c = checkpoint.config();
  const std::int64_t count = c.moe.n_routed_experts, hidden = c.hidden_size, wide = c.moe.moe_intermediate_size;
  const std::string experts = "model.layers." + std::to_string(layer) + ".mlp.experts.";
  const std::string gate_up = experts + "gate_up_proj", down = experts + "down_proj";
  if (!checkpoint.has(gate_up) && !checkpoint.has(down))
    return find_mlp(checkpoint, experts + std::to_string(expert) + ".", hidden, wide);
  return {{checkpoint.matrix_of_stack(gate_up, count, 2 * wide, expert, 0, wide, hidden),
           checkpoint.matrix_of_stack(gate_up, count, 2 * wide, expert, wide, wide, hidden),
           checkpoint.matrix_of_stack(down, count, hidden, expert, 0, hidden, wide)}};
}

StoredMlp StoredMlp::part(const LayerShare& share) const {
  StoredMlp some = *this;
  for (io::StoredMatrix& m : some.matrix) {
    const Slice columns = share.columns(m.rows);
    m = m.part(columns.begin, columns.size());
  }
  return some;
}

MlpFormat format_of(const StoredMlp& mlp, const MlpOptions& options) {
  using enum MlpOptions::Arithmetic;
  const auto all = [&](io::WeightFormat format) {
    return std::all_of(std::begin(mlp.matrix), std::end(mlp.matrix),
                       [&](const io::StoredMatrix& m) { return m.format == format; });
  };
  if (options.arithmetic == int8) return MlpFormat::int8;
  if (all(io::WeightFormat::fp8_blocks)) return options.widen_fp8 ? MlpFormat::bf16 : MlpFormat::fp8;
  if (all(io::WeightFormat::int8) && options.arithmetic == as_stored) return MlpFormat::int8;
  return MlpFormat::bf16;
}

MatrixPacker::MatrixPacker(const io::StoredMatrix& from, MlpFormat format, std::byte* to)
    : from_(from), format_(format), to_(to), scales_(io::scales_of(from)) {
  if (format_ != MlpFormat::fp8) return;
  const std::int64_t k = from_.cols, n = from_.rows, blocks = Panels<e4m3>::scales_of_panel(k);
  float* scales = Panels<e4m3>::scales(reinterpret_cast<e4m3*>(to_), k, n);
  for (std::int64_t p = 0; p < panels_of(n); ++p)
    std::copy_n(scales_.data() + io::scale_row(from_, p * kPanel) * blocks, blocks, scales + p * blocks);
}

void MatrixPacker::pack(const std::byte* bytes, std::int64_t first, std::int64_t rows, const Kernels& kernels) const {
  if (from_.format == io::WeightFormat::fp8_blocks)
    io::refuse_nan(reinterpret_cast<const std::uint8_t*>(bytes), from_.first + first, rows, from_.cols, from_.weight);
  if (from_.format == io::WeightFormat::int8 || from_.format == io::WeightFormat::int8_static)
    io::refuse_hidden_terms(from_, reinterpret_cast<const std::int8_t*>(bytes), first, rows);
  for (std::int64_t r = 0; r < rows; r += kPanel)
    pack_panel(bytes + std::size_t(r) * row_bytes(), first + r, int(std::min<std::int64_t>(kPanel, rows - r)), kernels);
}

/// Rows as the bf16 numbers they stand for.
void MatrixPacker::read_numbers(const std::byte* bytes, std::int64_t first, int rows, bf16* numbers) const {
  const std::int64_t cols = from_.cols;
  for (int r = 0; r < rows; ++r)
    io::read_row(from_, scales_, bytes + std::size_t(r) * row_bytes(), first + r, numbers + r * cols);
}

/// Up to 64 rows of the stored matrix are the columns of a panel.
void MatrixPacker::pack_panel(const std::byte* bytes, std::int64_t first, int rows, const Kernels& kernels) const {
  const std::int64_t k = from_.cols, n = from_.rows, panel = first / kPanel;
  if (format_ == MlpFormat::fp8) {
    const e4m3* row[kPanel];
    for (int r = 0; r < rows; ++r) row[r] = reinterpret_cast<const e4m3*>(bytes) + r * k;
    return kernels.transpose(row, rows, int(k), reinterpret_cast<e4m3*>(to_) + Panels<e4m3>::panel(k, panel));
  }
  std::vector<bf16> numbers;
  const bool codes_as_stored = format_ == MlpFormat::int8 && from_.format == io::WeightFormat::int8;
  if (!codes_as_stored) {
    numbers.resize(std::size_t(rows * k));
    read_numbers(bytes, first, rows, numbers.data());
  }
  if (format_ == MlpFormat::bf16) {
    const bf16* row[kPanel];
    for (int r = 0; r < rows; ++r) row[r] = numbers.data() + r * k;
    return kernels.transpose(row, rows, int(k), reinterpret_cast<bf16*>(to_) + Panels<bf16>::panel(k, panel));
  }
  auto* panels = reinterpret_cast<std::int8_t*>(to_);
  float* scales = reinterpret_cast<float*>(to_ + Panels<std::int8_t>::bytes(k, n)) + first;
  std::vector<std::int8_t> codes;
  const std::int8_t* from = reinterpret_cast<const std::int8_t*>(bytes);
  if (codes_as_stored) {
    std::copy_n(scales_.data() + first, rows, scales);
  } else {
    codes.resize(numbers.size());
    quantise_rows(numbers.data(), rows, k, codes.data(), scales);
    from = codes.data();
  }
  const std::int8_t* row[kPanel];
  for (int r = 0; r < rows; ++r) row[r] = from + r * k;
  kernels.transpose(row, rows, int(k), panels + Panels<std::int8_t>::panel(k, panel),
                    Panels<std::int8_t>::sums(panels, k, n) + panel * kPanel);
}

void refuse_nan(const MlpLayout& layout, const std::byte* block, const io::Place& place, std::int64_t expert) {
  if (layout.format() != MlpFormat::fp8) return;
  for (int i = 0; i < MlpLayout::kMatrices; ++i) {
    const auto* codes = reinterpret_cast<const std::uint8_t*>(block + layout.offset(i));
    if (io::holds_nan(codes, std::size_t(Panels<e4m3>::elements(layout.k(i), layout.n(i)))))
      throw Error(Status::invalid_file, "load", place.shown(), "[" + std::to_string(expert) + "]", "holds a NaN",
                  "numbers", "", "NAN");
  }
}

void load_mlp(const StoredMlp& mlp, const MlpLayout& layout, std::byte* memory, const Kernels& kernels) {
  constexpr std::size_t kPiece = std::size_t(4) << 20;  // bytes read at a time, about
  for (int i = 0; i < MlpLayout::kMatrices; ++i) {
    const io::StoredMatrix& m = mlp.matrix[i];
    const MatrixPacker packer(m, layout.format(), memory + layout.offset(i));
    const std::int64_t most =
        std::max<std::int64_t>(std::int64_t(kPiece / packer.row_bytes()) / kPanel, 1) * kPanel;
    io::AlignedArray<std::byte> piece(std::size_t(std::min(most, m.rows)) * packer.row_bytes());
    for (std::int64_t first = 0; first < m.rows; first += most) {
      const std::int64_t rows = std::min(most, m.rows - first);
      m.weight.file->read(*m.weight.tensor, m.offset + std::uint64_t(first) * packer.row_bytes(), piece.data(),
                          std::size_t(rows) * packer.row_bytes());
      packer.pack(piece.data(), first, rows, kernels);
    }
  }
}

}  // namespace dsakit
