// SPDX-License-Identifier: Apache-2.0
#include "debug/addressing.hpp"

#include <algorithm>
#include <cstring>

#include "core/view.hpp"

namespace dsakit::debug {
namespace {

using Names = std::vector<std::string_view>;

std::int64_t integer(const Arguments& a, std::string_view name) {
  const auto* value = std::get_if<std::int64_t>(&a.at(name));
  return value ? *value : 0;
}

std::string_view text(const Arguments& a, std::string_view name) {
  const auto* value = std::get_if<std::string>(&a.at(name));
  return value ? std::string_view(*value) : std::string_view();
}

/// Those of `names` that are given and have as many pages as the first.
Names caches_of(const Arguments& a, const Names& names) {
  Names given;
  const Tensor& first = a.tensor(names.front());
  for (const std::string_view name : names)
    if (const Tensor& t = a.tensor(name); t && t.rank > 1 && first.rank > 1 && t.shape[0] == first.shape[0])
      given.push_back(name);
  return given;
}

PageUse use_of(const Arguments& a, const Names& caches, std::string_view numbers, std::int64_t per_page) {
  PageUse use{.caches = caches_of(a, caches), .numbers = numbers, .per_page = per_page, .used = {}};
  use.pages = a.tensor(caches.front()).shape[0];
  return use;
}

void look_at(PageUse& use, const Tensor& numbers, std::int64_t at) {
  const std::int64_t number = integer_at(numbers, at);
  if (number >= 0 && number / use.per_page < use.pages) use.used.push_back({number / use.per_page, at});
}

/// Keys of sequence b: `lengths` are counts, one for each or one for all; without them as many as there is room for.
std::int64_t length_of(const Tensor& lengths, std::int64_t b, std::int64_t room) {
  const std::int64_t n = lengths ? lengths.elements() : 0;
  if (n == 0 || (b >= n && n != 1)) return room;
  return std::clamp<std::int64_t>(integer_at(lengths, n == 1 ? 0 : b), 0, room);
}

/// All pages that the lengths cover.
void look_at_lengths(PageUse& use, const Tensor& table, const Tensor& lengths, std::int64_t page_rows) {
  if (table.rank != 2 || page_rows < 1) return;
  for (std::int64_t b = 0; b < table.shape[0]; ++b) {
    const std::int64_t rows = length_of(lengths, b, table.shape[1] * page_rows);
    for (std::int64_t column = 0; column * page_rows < rows; ++column) look_at(use, table, b * table.shape[1] + column);
  }
}

/// The pages of the positions that sparse_indices list.
void look_at_lists(PageUse& use, const Tensor& lists, const Tensor& totals, bool folded, std::int64_t block,
                   const Tensor& table, std::int64_t page_rows) {
  if (table.rank != 2 || page_rows < 1 || lists.rank < 2 || lists.elements() == 0) return;
  const std::int64_t batch = table.shape[0], columns = table.shape[1], count = lists.shape[lists.rank - 1];
  const std::int64_t rows = lists.elements() / count;
  std::vector<bool> seen(std::size_t(batch * columns));
  for (std::int64_t r = 0, b = 0; r < rows; ++r) {
    if (folded)
      while (b + 1 < batch && totals && b < totals.elements() && r >= integer_at(totals, b)) ++b;
    else b = r / std::max<std::int64_t>(rows / std::max<std::int64_t>(batch, 1), 1);
    if (b >= batch) break;
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t index = integer_at(lists, r * count + k);
      if (index < 0 || index > INT32_MAX) continue;
      for (std::int64_t column = index * block / page_rows;
           column <= (index * block + block - 1) / page_rows && column < columns; ++column)
        seen[std::size_t(b * columns + column)] = true;
    }
  }
  for (std::int64_t at = 0; at < batch * columns; ++at)
    if (seen[std::size_t(at)]) look_at(use, table, at);
}

void look_at_all(PageUse& use, const Tensor& numbers) {
  for (std::int64_t at = 0; at < numbers.elements(); ++at) look_at(use, numbers, at);
}

std::int64_t rows_of_page(const Tensor& cache, int axis) { return cache.rank > axis ? cache.shape[axis] : 0; }

std::vector<PageUse> of_indexer(const Arguments& a, bool quantised) {
  const Tensor &table = a.tensor("block_table"), &key = a.tensor("key");
  if (!table || !key) return {};
  PageUse use = use_of(a, quantised ? Names{"key", "key_dequant_scale"} : Names{"key"}, "block_table", 1);
  look_at_lengths(use, table, a.tensor("actual_seq_lengths_key"), rows_of_page(key, 1));
  return {use};
}

std::vector<PageUse> of_sparse_attention(const Arguments& a, const Names& caches) {
  const Tensor &table = a.tensor("block_table"), &key = a.tensor("key");
  if (!table || !key) return {};
  PageUse use = use_of(a, caches, "block_table", 1);
  look_at_lists(use, a.tensor("sparse_indices"), a.tensor("actual_seq_lengths_query"), text(a, "layout_query") == "TND",
                std::max<std::int64_t>(integer(a, "sparse_block_size"), 1), table, rows_of_page(key, 1));
  return {use};
}

/// Rows of two axes, in pages of block_size; or of four, as others have them.
std::vector<PageUse> of_pypto_attention(const Arguments& a) {
  const Tensor &table = a.tensor("block_table"), &key = a.tensor("key_nope_2d");
  const std::int64_t rows = integer(a, "block_size");
  if (!table || !key || rows < 1 || (key.rank != 2 && key.rank != 4)) return {};
  PageUse use = use_of(a, {"key_nope_2d", "key_rope_2d", "k_nope_scales"}, "block_table", 1);
  if (key.rank == 2) use.entries = rows, use.pages /= rows;
  look_at_lists(use, a.tensor("topk_indices"), {}, false, 1, table, rows);
  return {use};
}

/// Runs of slots: a run is a number, wherever it ends.
std::vector<PageUse> of_runs(const Arguments& a) {
  const Tensor &cache = a.tensor("key_cache_in"), &rows = a.tensor("key_in"), &first = a.tensor("group_key_cache_idx"),
               &length = a.tensor("group_len");
  if (!cache || !rows || !first || !length || cache.rank < 1) return {};
  const bool paged = cache.rank == rows.rank + 1;
  PageUse use{.caches = {"key_cache_in"}, .numbers = "group_key_cache_idx", .used = {}};
  use.per_page = paged ? std::max<std::int64_t>(cache.shape[1], 1) : 1, use.pages = cache.shape[0];
  for (std::int64_t g = 0; g < std::min(first.elements(), length.elements()); ++g) {
    const std::int64_t begin = integer_at(first, g), n = std::min(integer_at(length, g), use.pages * use.per_page);
    for (std::int64_t page = begin / use.per_page; n > 0 && page * use.per_page < begin + n; ++page)
      if (begin >= 0 && page < use.pages) use.used.push_back({page, g});
  }
  return {use};
}

/// Rows of axis 0, by the first number of each place.
std::vector<PageUse> of_places(const Arguments& a) {
  const Tensor &self = a.tensor("self"), &indices = a.tensor("indices");
  if (!self || !indices || self.rank < 1 || indices.rank < 1 || indices.shape[indices.rank - 1] < 1) return {};
  PageUse use{.caches = {"self"}, .numbers = "indices", .used = {}};
  use.pages = self.shape[0], use.step = indices.shape[indices.rank - 1];
  for (std::int64_t at = 0; at < indices.elements(); at += use.step) look_at(use, indices, at);
  return {use};
}

std::vector<PageUse> of_dense_attention(const Arguments& a) {
  const Tensor& table = a.tensor("block_table");
  if (!table || !a.tensor("key")) return {};
  Names caches{"key", "value", "key_rope"};
  if (integer(a, "key_quant_mode") >= 4) caches.insert(caches.end(), {"dequant_scale_key", "dequant_offset_key"});
  if (integer(a, "value_quant_mode") >= 4) caches.insert(caches.end(), {"dequant_scale_value", "dequant_offset_value"});
  PageUse use = use_of(a, caches, "block_table", 1);
  look_at_lengths(use, table, a.tensor("actual_seq_kvlen"), integer(a, "block_size"));
  return {use};
}

std::vector<PageUse> of_slots(const Arguments& a, const Names& caches, std::string_view slots, int axis = 1) {
  const Tensor &numbers = a.tensor(slots), &first = a.tensor(caches.front());
  if (!numbers || !first || rows_of_page(first, axis) < 1) return {};
  PageUse use = use_of(a, caches, slots, rows_of_page(first, axis));
  look_at_all(use, numbers);
  return {use};
}

std::vector<PageUse> of_mla_prolog_v3(const Arguments& a) {
  const std::string_view mode = text(a, "cache_mode");
  if (mode == "PA_BSND" || mode == "PA_NZ") return of_slots(a, {"kv_cache", "kr_cache"}, "cache_index");
  if (!mode.starts_with("PA_BLK") || !a.tensor("cache_index") || a.tensor("kv_cache").rank < 2) return {};
  PageUse use = use_of(a, {"kv_cache", "kr_cache"}, "cache_index", 1);
  look_at_all(use, a.tensor("cache_index"));
  return {use};
}

std::vector<PageUse> of_gather(const Arguments& a) {
  const Tensor &table = a.tensor("block_tables"), &cache = a.tensor("key_cache");
  if (!table || !cache) return {};
  PageUse use = use_of(a, {"key_cache", "value_cache"}, "block_tables", 1);
  const auto* totals = std::get_if<bool>(&a.at("is_seq_lens_cumsum"));
  if ((totals && *totals) || a.tensor("seq_offset")) look_at_all(use, table);
  else look_at_lengths(use, table, a.tensor("seq_lens"), rows_of_page(cache, 1));
  return {use};
}

}  // namespace

Integers PageUse::entries_of(const Integers& some_pages) const {
  Integers all;
  for (const std::int64_t page : some_pages)
    for (std::int64_t i = 0; i < entries; ++i) all.push_back(page * entries + i);
  return all;
}

Integers PageUse::needed() const {
  Integers all;
  for (const Entry& e : used) all.push_back(e.page);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::int64_t page_rows(const Arguments& a) {
  for (const Parameter& p : a.op->parameters)
    if (p.field.name == std::string_view("block_size") && integer(a, p.field.name) > 0) return integer(a, p.field.name);
  for (std::size_t i = 0; i < a.op->parameters.size(); ++i)
    if (const auto* t = std::get_if<Tensor>(&a.values[i]); a.op->parameters[i].field.kind == Kind::cache && t && *t)
      if (t->rank == 4 && t->elements() > 0) return t->shape[1];
  return 0;
}

std::int64_t integer_at(const Tensor& t, std::int64_t linear) {
  const auto* at = static_cast<const std::byte*>(t.data) + offset_of(t, linear) * size_of(t.dtype);
  const auto read = [&]<class T>(T value) -> std::int64_t {
    std::memcpy(&value, at, sizeof value);
    return value > T(0) && std::uint64_t(value) > std::uint64_t(INT64_MAX) ? INT64_MAX : std::int64_t(value);
  };
  switch (t.dtype) {
    case DType::u8:
      return read(std::uint8_t());
    case DType::i8:
      return read(std::int8_t());
    case DType::u16:
      return read(std::uint16_t());
    case DType::i16:
      return read(std::int16_t());
    case DType::u32:
      return read(std::uint32_t());
    case DType::i32:
      return read(std::int32_t());
    case DType::u64:
      return read(std::uint64_t());
    case DType::i64:
      return read(std::int64_t());
    default:
      return -1;
  }
}

std::vector<PageUse> pages_of(const Arguments& a) {
  const std::string_view op = a.op->name;
  if (op == "lightning_indexer") return of_indexer(a, false);
  if (op == "quant_lightning_indexer") return of_indexer(a, true);
  if (op == "sparse_flash_attention") return of_sparse_attention(a, {"key", "value", "key_rope"});
  if (op == "kv_quant_sparse_flash_attention") return of_sparse_attention(a, {"key", "value"});
  if (op == "sparse_flash_attention_quant") return of_pypto_attention(a);
  if (op == "store_kv_block") return of_runs(a);
  if (op == "scatter_nd_update_") return of_places(a);
  if (op == "fused_infer_attention_score_v2") return of_dense_attention(a);
  if (op == "gather_pa_kv_cache" || op == "gather_pa_kv_cache_functional") return of_gather(a);
  if (op == "mla_prolog_v3") return of_mla_prolog_v3(a);
  if (op == "mla_prolog_v2") return of_slots(a, {"kv_cache", "kr_cache"}, "cache_index");
  if (op == "mla_prolog_quant") return of_slots(a, {"kv_cache", "kr_cache", "k_scale_cache"}, "cache_index");
  if (op == "lightning_indexer_prolog_quant") return of_slots(a, {"k_cache", "k_scale_cache"}, "k_cache_index");
  if (op == "mla_indexer_prolog_quant")
    return of_slots(a, {"kv_cache", "kr_cache", "k_scale_cache", "ip_k_cache", "ip_k_scale_cache"}, "cache_index");
  if ((op == "kv_rmsnorm_rope_cache" || op == "kv_rmsnorm_rope_cache_v2") && text(a, "cache_mode").starts_with("PA") &&
      !text(a, "cache_mode").starts_with("PA_BLK"))
    return of_slots(a, {"k_cache", "ckv_cache"}, "index");
  if (op == "scatter_pa_kv_cache")
    return of_slots(a, {"key_cache", "value_cache"}, "slot_mapping", text(a, "cache_mode") == "PA_NZ" ? 2 : 1);
  return {};
}

}  // namespace dsakit::debug
