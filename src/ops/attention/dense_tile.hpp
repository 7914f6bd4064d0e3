// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>

#include "ops/attention/dense_chunk.hpp"

// One tile of query rows against one chunk of keys.
namespace dsakit::attention::dense {

inline constexpr int kAhead = 16;  // rows that are asked for before they are needed
inline constexpr int kFew = 24;    // rows of codes or bf16 that need no panels
inline constexpr int kPeaks = 4;   // keys of a row that are multiplied apart from codes

/// How the products are made.
enum class Way {
  pairs,  // bf16 dots; probabilities rounded to bf16, or split in two where few decide
  wide,   // fp32
  codes   // exact int8 dots: the query and the probabilities are split in codes, keys and values are codes
};

/// What does not change during a call.
struct Plan {
  Way way;
  DType type;                             // of key and value rows as the products get them
  bool quantised;                         // they are int8 or int4 in memory
  bool rope_pairs;                        // the rope dots are bf16 dots
  bool keyed_keys, keyed_values;          // codes with scales of their own per key
  int query_digits, weight_digits;        // codes
  int heads, head_blocks, queries, rows;  // of a tile; blocks of heads of a kv head
  int stored_element, element;            // bytes of an element of keys and values in memory (int4: of a word), then
  int rope_element;
  std::ptrdiff_t query_pitch, rope_pitch, value_pitch;

  /// `longest`: queries of a sequence.
  Plan(const Problem&, std::int64_t longest, bool same_products);
};

/// Softmax over part of the keys: maximum and sum of exponentials per row (sum 0: no key yet), the sum of value offsets
/// and the unnormalised sum of values.
struct Partial {
  float *most, *sum, *shift, *values;

  Partial() = default;
  Partial(Carver&, const Plan&);
  void clear(int rows) const { std::fill_n(sum, rows, 0.0f); }
  /// Takes in a row of a later part. Returns what to multiply the values by: these, and that part's.
  std::pair<float, float> rescale(int r, float later_most, float later_sum, float later_shift) const;
};

/// Scales and offsets of keys or values.
struct Numbers {
  float *scale, *offset;

  Numbers() = default;
  Numbers(Carver& memory, std::int64_t n) : scale(memory.take<float>(n)), offset(memory.take<float>(n)) {}
};

/// What belongs to a tile until it is finished.
struct Rows {
  Tile tile;
  bf16 *query_pairs, *rope_pairs;  // [rows][pitch]; which of them exist depends on the way
  float *query_wide, *rope_wide;
  std::uint8_t* query_codes;                              // [rows][digits][pitch]
  std::int32_t* few_query;                                // few rows, as the few_dots kernels want them
  float *row_unit, *row_sum, *row_constant, *row_factor;  // [rows]
  Numbers key, value;                                     // of channels
  Partial all;

  Rows() = default;
  Rows(Carver&, const Problem&, const Plan&);
};

/// One thread's memory.
struct Scratch {
  std::byte* panel;
  std::int32_t *column_sums, *products;  // [kPanel], [rows][digits][kPanel]
  float *part, *part_low;                // [rows][kPanel], products on their way
  float* scores;                         // [rows][kScorePitch], then the probabilities
  bf16 *high, *low;                      // the same in one or two bf16
  std::uint8_t* weight_codes;            // [rows][digits][kScorePitch]
  Numbers key, value;                    // of the keys of a chunk
  std::int8_t* code_row;
  std::byte *keys, *values, *rope;  // [kChunk][width] of rows that are not contiguous, or int4
  std::byte* zeros;                 // a value row

  Scratch(Carver&, const Problem&, const Plan&);
};

class Worker {
 public:
  Worker(const Problem& p, const Plan& plan, const Kernels& kernels, const Scratch& scratch)
      : p_(p), plan_(plan), k_(kernels), s_(scratch) {}

  /// Of a tile to a chunk; -1: none.
  struct Visit {
    const Rows* rows;
    std::int64_t chunk;
  };

  void load(const Tile&, Rows&);
  /// Adds a chunk to what `all` has of the tile's chunks before. `later` will be the next visit, if known: its keys are
  /// asked for in time.
  void attend(Visit, Visit later, const Partial& all);
  /// The same for a chunk that lies in `chunk` already: the same operations, the same bits.
  void merge(const Partial& all, const Partial& chunk, int row) const;
  /// Sums to output; spoils the sums.
  void finish(const Tile&, const Partial& all, int row) const;

 private:
  void load_row(int row, std::int64_t query, std::int64_t head);
  void split_query(float* row, int r) const;
  /// Rows are few enough to need no panels of keys, of the values of this chunk.
  bool few_query() const;
  bool few_weights() const;
  void arrange_query() const;
  void join(int row, int rows, int digits, int count, const float* unit, float* x, std::ptrdiff_t pitch) const;
  void find(Visit, Chunk&) const;
  void fetch_keys();
  void gather(const Cache&, int width, const Numbers* keyed, const Numbers& channels, std::byte* to,
              const std::byte** rows) const;
  void score(int first, int count) const;
  void combine(int first, int count, int row, int rows) const;
  float scale_and_hide(int row, const Seen&) const;
  void soften(const Partial& all);
  void weigh(int row, const Seen&, float sum);
  float take_peaks(int row, float* x, int count, float sum, float most);
  void add_peaks(int column, int columns) const;
  void multiply_values(int column, int columns);
  void multiply(int row, int rows, int low, int high, int few, int n_few) const;
  void add_low(int few, int n_few) const;
  void multiply_apart(int row, int column, int columns);
  void find_unseen_infinities();
  void ask_for(const std::byte* const* rows, int first, int columns) const;
  void transpose(DType, const std::byte* const* rows, int count, int dims) const;
  void interleave(const std::byte* const* rows, std::ptrdiff_t column, int columns) const;

  const Problem& p_;
  const Plan& plan_;
  const Kernels& k_;
  const Scratch& s_;
  const Rows* rows_ = nullptr;  // of the tile at hand
  Tile tile_{};
  Chunk chunk_[2], *now_ = chunk_, *next_ = chunk_ + 1;
  std::pair<float, float> weight_[kTileRows];  // of what was before, of this chunk
  float weight_unit_[kTileRows];
  struct Peak {
    int key;
    float weight;
  } peak_[kTileRows][kPeaks];
  int peaks_[kTileRows];
  int few_[kTileRows], n_few_ = 0;
  bool infinite_[kChunk], any_infinite_ = false;
};

/// Pointers of the type a kernel wants, moved by `columns`.
template <class T>
struct Typed {
  const T* row[kChunk];
  Typed(const std::byte* const* rows, int count, std::ptrdiff_t columns) {
    for (int j = 0; j < count; ++j) row[j] = reinterpret_cast<const T*>(rows[j]) + columns;
  }
};

template <class T>
T* address(const Grid& g, const Sequence& s, std::int64_t b, std::int64_t query, std::int64_t head) {
  return static_cast<T*>(g.data) + g.sequence * b + g.token * (s.first_query + query) + g.head * head;
}

}  // namespace dsakit::attention::dense
