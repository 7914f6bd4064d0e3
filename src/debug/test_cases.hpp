// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "debug/case.hpp"
#include "dsakit/dsakit.hpp"

// Small cases for the tests.
namespace dsakit::debug {

template <class T>
Stored stored(std::vector<std::int64_t> shape, const std::vector<T>& values) {
  Stored s(io::file_dtype_of(dtype_of<T>), std::move(shape));
  std::copy(values.begin(), values.end(), reinterpret_cast<T*>(s.bytes->data()));
  return s;
}

/// The files of a recording, in order.
inline std::vector<std::string> cases_in(const std::string& folder) {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".safetensors") && !name.starts_with("weight-") && name[0] != '.') all.push_back(entry.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// quant_lightning_indexer over pages: two sequences of 40 and 23 keys in pages of 16, of 9 pages; `table` as given.
struct PagedIndexer {
  static constexpr std::int64_t heads = 4, dims = 32, page = 16, pages = 9;
  std::vector<std::int8_t> query, key;
  std::vector<f16> weights, query_scale, key_scale;
  std::vector<std::int32_t> table{7, 2, 5, 0, 3, -1}, lengths_query{2, 4}, lengths_key{40, 23};

  PagedIndexer() {
    Random r(5);
    query = random_i8(r, 4 * heads * dims), key = random_i8(r, pages * page * dims);
    weights = random_f16(r, 4 * heads), query_scale = random_f16(r, 4 * heads, 0.1f, 1);
    key_scale = random_f16(r, pages * page, 0.1f, 1);
  }

  QuantLightningIndexerArgs args() {
    return {.query = tensor(query.data(), {4, heads, dims}),
            .key = tensor(key.data(), {pages, page, 1, dims}),
            .weights = tensor(weights.data(), {4, heads}),
            .query_dequant_scale = tensor(query_scale.data(), {4, heads}),
            .key_dequant_scale = tensor(key_scale.data(), {pages, page, 1}),
            .actual_seq_lengths_query = tensor(lengths_query.data(), {2}),
            .actual_seq_lengths_key = tensor(lengths_key.data(), {2}),
            .block_table = tensor(table.data(), {2, 3}),
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = 8};
  }

  std::vector<std::int32_t> selected() {
    std::vector<std::int32_t> out(4 * 8);
    quant_lightning_indexer(args(), {.sparse_indices = tensor(out.data(), {4, 1, 8})});
    return out;
  }

  Case as_case() {
    Case c;
    c.call = "torch_npu.npu_quant_lightning_indexer";
    c.attributes = {{"layout_query", "TND"}, {"layout_key", "PA_BSND"}, {"sparse_count", std::int64_t{8}}};
    const QuantLightningIndexerArgs a = args();
    c.tensors["in.query"] = Stored(a.query);
    c.tensors["in.1"] = Stored(a.key);
    c.tensors["in.weights"] = Stored(a.weights);
    c.tensors["in.query_dequant_scale"] = Stored(a.query_dequant_scale);
    c.tensors["in.key_dequant_scale"] = Stored(a.key_dequant_scale);
    c.tensors["in.actual_seq_lengths_query"] = Stored(a.actual_seq_lengths_query);
    c.tensors["in.actual_seq_lengths_key"] = Stored(a.actual_seq_lengths_key);
    c.tensors["in.block_table"] = Stored(a.block_table);
    c.tensors["out.0"] = stored<std::int32_t>({4, 1, 8}, selected());
    c.metadata["producer"] = "test";
    return c;
  }

  /// The same with the pages `kept` of key alone.
  Case partly_stored(std::vector<std::int64_t> kept) {
    Case c = as_case();
    std::vector<std::int8_t> rows;
    for (const std::int64_t p : kept)
      rows.insert(rows.end(), key.begin() + p * page * dims, key.begin() + (p + 1) * page * dims);
    const auto n = std::int64_t(kept.size());
    c.tensors["in.1"] = stored<std::int8_t>({n, page, 1, dims}, rows);
    c.tensors["pages.1"] = stored<std::int64_t>({n}, kept);
    c.layouts["in.1"].pages = "pages.1";
    c.layouts["in.1"].full = std::vector<std::int64_t>{pages, page, 1, dims};
    return c;
  }
};

}  // namespace dsakit::debug
