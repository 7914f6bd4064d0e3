// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "dsakit/error.hpp"
#include "dsakit/tensor.hpp"

// How the tests of both indexers lay one and the same ragged batch into every layout.
namespace dsakit::indexer {

struct Batch {
  std::string layout_query = "TND", layout_key = "PA_BSND";
  std::vector<std::int32_t> queries, keys;  // of each sequence
  std::int64_t block_size = 16;
  std::uint64_t page_seed = 0;

  std::vector<std::int32_t> lengths_query, lengths_key, block_table;
  std::vector<std::int64_t> query_place, key_place;  // storage row of each token
  std::int64_t s1 = 0, s2 = 0, query_rows = 0, key_rows = 0, pages = 0, columns = 0;

  std::int64_t size() const { return std::int64_t(queries.size()); }
  bool folded() const { return layout_query == "TND"; }
  bool paged() const { return layout_key == "PA_BSND"; }

  /// Decides where everything lies; `padding` more rows than needed in each direction.
  void place(std::int64_t padding = 2) {
    const std::int64_t b = size();
    lengths_query = queries, lengths_key = keys;
    query_place.clear(), key_place.clear();
    std::int64_t total_q = 0, total_k = 0, pages_used = 0;
    for (std::int64_t i = 0; i < b; ++i) {
      s1 = std::max<std::int64_t>(s1, queries[i] + padding);
      s2 = std::max<std::int64_t>(s2, keys[i] + padding);
      columns = std::max<std::int64_t>(columns, (keys[i] + block_size - 1) / block_size + padding);
      pages_used += (keys[i] + block_size - 1) / block_size;
    }
    pages = pages_used + 3;
    std::vector<std::int32_t> free(pages);
    for (std::int64_t i = 0; i < pages; ++i) free[i] = std::int32_t(i);
    Random random(page_seed + 77);
    for (std::int64_t i = pages - 1; i > 0; --i) std::swap(free[i], free[random.below(i + 1)]);
    block_table.assign(b * columns, INT32_MIN);
    for (std::int64_t i = 0; i < b; ++i) {
      for (int j = 0; j < queries[i]; ++j) query_place.push_back(folded() ? total_q + j : i * s1 + j);
      for (std::int64_t page = 0; page * block_size < keys[i]; ++page) {
        block_table[i * columns + page] = free.back();
        free.pop_back();
      }
      for (int j = 0; j < keys[i]; ++j)
        key_place.push_back(paged()    ? block_table[i * columns + j / block_size] * block_size + j % block_size
                            : folded() ? total_k + j
                                       : i * s2 + j);
      total_q += queries[i], total_k += keys[i];
      if (folded()) lengths_query[i] = std::int32_t(total_q);
      if (folded() && !paged()) lengths_key[i] = std::int32_t(total_k);
    }
    query_rows = folded() ? total_q + padding : b * s1;
    key_rows = paged() ? pages * block_size : folded() ? total_k + padding : b * s2;
  }

  /// The same sequences, laid out otherwise.
  Batch relaid(std::string query, std::string key, std::int64_t block, std::uint64_t seed,
               std::int64_t padding = 2) const {
    Batch b;
    b.layout_query = std::move(query), b.layout_key = std::move(key), b.queries = queries, b.keys = keys;
    b.block_size = block, b.page_seed = seed;
    b.place(padding);
    return b;
  }
  /// Sequence i alone.
  Batch only(std::size_t i) const {
    Batch b;
    b.layout_query = layout_query, b.layout_key = layout_key, b.queries = {queries[i]}, b.keys = {keys[i]};
    b.block_size = block_size;
    b.place();
    return b;
  }
  /// Of `values`, given in the order of the tokens whose counts are `tokens`, those of sequence i.
  template <class T>
  static std::vector<T> part(const std::vector<T>& values, const std::vector<std::int32_t>& tokens, std::size_t i) {
    std::int64_t all = 0, before = 0;
    for (std::size_t b = 0; b < tokens.size(); ++b) all += tokens[b], before += b < i ? tokens[b] : 0;
    const std::int64_t width = all > 0 ? std::int64_t(values.size()) / all : 0;
    return {values.begin() + before * width, values.begin() + (before + tokens[i]) * width};
  }

  /// Storage of `total` rows: those of the tokens, given in their order, at their places; `filler` everywhere else.
  template <class T>
  static std::vector<T> spread(const std::vector<T>& rows, std::int64_t width, const std::vector<std::int64_t>& places,
                               std::int64_t total, T filler) {
    std::vector<T> out(static_cast<std::size_t>(total * width), filler);
    for (std::size_t i = 0; i < places.size(); ++i)
      std::copy_n(rows.begin() + std::int64_t(i) * width, width, out.begin() + places[i] * width);
    return out;
  }

  template <class T>
  Tensor query_tensor(T* data, std::int64_t heads, std::int64_t dims) const {
    return folded() ? tensor(data, {query_rows, heads, dims}) : tensor(data, {size(), s1, heads, dims});
  }
  template <class T>
  Tensor row_tensor(T* data, std::int64_t width) const {
    return folded() ? tensor(data, {query_rows, width}) : tensor(data, {size(), s1, width});
  }
  template <class T>
  Tensor list_tensor(T* data, std::int64_t count) const {
    return query_tensor(data, 1, count);
  }
  template <class T>
  Tensor key_tensor(T* data, std::int64_t dims) const {
    if (paged()) return tensor(data, {pages, block_size, 1, dims});
    return folded() ? tensor(data, {key_rows, 1, dims}) : tensor(data, {size(), s2, 1, dims});
  }
  template <class T>
  Tensor scale_tensor(T* data) const {
    if (paged()) return tensor(data, {pages, block_size, 1});
    return folded() ? tensor(data, {key_rows, 1}) : tensor(data, {size(), s2, 1});
  }
  Tensor table_tensor() { return paged() ? tensor(block_table.data(), {size(), columns}) : Tensor{}; }

  /// The lists of the real query rows, in the order of the tokens.
  template <class T>
  std::vector<T> gather(const std::vector<T>& lists, std::int64_t count) const {
    std::vector<T> out;
    for (std::int64_t row : query_place)
      out.insert(out.end(), lists.begin() + row * count, lists.begin() + (row + 1) * count);
    return out;
  }
};

inline Batch random_batch(Random& r, std::int64_t longest) {
  static const char* layouts[4][2] = {{"BSND", "BSND"}, {"TND", "TND"}, {"BSND", "PA_BSND"}, {"TND", "PA_BSND"}};
  static const std::int64_t blocks[] = {1, 5, 16, 32};
  const auto& layout = layouts[r.below(4)];
  Batch b;
  b.layout_query = layout[0], b.layout_key = layout[1];
  const std::int64_t n = 1 + r.below(4);
  for (std::int64_t i = 0; i < n; ++i) {
    b.queries.push_back(std::int32_t(r.below(4) == 0 ? 0 : 1 + r.below(19)));
    b.keys.push_back(std::int32_t(r.below(4) == 0 ? r.below(4) : r.below(longest)));
  }
  b.block_size = blocks[r.below(4)];
  b.page_seed = r.next();
  b.place();
  return b;
}

/// A copy of `data` whose last byte is the last one that may be touched, or (`front`) whose first is the first one.
class AtPageEnd {
 public:
  AtPageEnd(const void* data, std::size_t bytes, bool front = false) {
    const auto page = std::size_t(sysconf(_SC_PAGESIZE));
    const std::size_t inside = (bytes + page - 1) / page * page;
    size_ = inside + page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(front ? base_ : base_ + inside, page, PROT_NONE);
    data_ = front ? base_ + page : base_ + inside - bytes;
    if (bytes > 0) std::memcpy(data_, data, bytes);
  }
  ~AtPageEnd() { munmap(base_, size_); }
  AtPageEnd(const AtPageEnd&) = delete;
  AtPageEnd& operator=(const AtPageEnd&) = delete;

  Tensor moved(Tensor t) const {
    t.data = data_;
    return t;
  }

 private:
  char *base_, *data_;
  std::size_t size_;
};

}  // namespace dsakit::indexer
