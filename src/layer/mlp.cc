// SPDX-License-Identifier: Apache-2.0
#include "layer/mlp.hpp"

#include <cmath>
#include <string>

#include "ops/linear.hpp"

namespace dsakit {

GatedMlp::GatedMlp(const io::Checkpoint& checkpoint, int layer) {
  const io::ModelConfig& c = checkpoint.config();
  const auto load = [&](const char* name, std::int64_t out, std::int64_t in) {
    const std::string full = "model.layers." + std::to_string(layer) + ".mlp." + name + ".weight";
    return transposed_matrix(checkpoint.load_matrix_bf16(full, out, in).data(), out, in);
  };
  gate_ = load("gate_proj", c.intermediate_size, c.hidden_size);
  up_ = load("up_proj", c.intermediate_size, c.hidden_size);
  down_ = load("down_proj", c.hidden_size, c.intermediate_size);
}

void GatedMlp::add_to(Call& call, const float* x, std::int64_t rows, float* hidden, float* residual) const {
  const std::int64_t in = gate_.view().k, wide = gate_.view().n;
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  call.parallel_for(gate_.view().panels() * row_tiles, product_work(rows, gate_.view()) * 2, [&](std::int64_t i, int) {
    alignas(64) float gate[kTileRows * kPanel], up[kTileRows * kPanel];
    const std::int64_t row = i % row_tiles * kTileRows, panel = i / row_tiles, some = std::min(kTileRows, rows - row);
    product_tile(call, gate_.view(), 0, panel, x + row * in, in, some, gate);
    product_tile(call, up_.view(), 0, panel, x + row * in, in, some, up);
    const std::int64_t columns = std::min<std::int64_t>(kPanel, wide - panel * kPanel);
    for (std::int64_t r = 0; r < some; ++r)
      for (std::int64_t j = 0; j < columns; ++j) {
        const float g = gate[r * kPanel + j];
        hidden[(row + r) * wide + panel * kPanel + j] = g / (1 + std::exp(-g)) * up[r * kPanel + j];
      }
  });
  for_each_tile(call, down_.view(), hidden, wide, 0, rows,
                [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t r = 0; r < some; ++r)
                    for (std::int64_t j = 0; j < columns; ++j)
                      residual[(row + r) * in + column + j] += tile[r * kPanel + j];
                });
}

}  // namespace dsakit
