// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>

#include "ops/attention/dense_chunk.hpp"
#include "run/taps.hpp"

// One tile of query rows against one chunk of keys.
namespace dsakit::attention::dense {

inline constexpr int kRowsAhead = 16;           // of queries and output, prefetched before they are needed
inline constexpr int kBlockRows = 32;           // of a tile that meet a chunk together: their scores stay in L1
inline constexpr int kMostHeld = 8;             // chunks whose panels stay for the tiles that come later
inline constexpr int kCacheLine = 64;           // bytes
inline constexpr std::uint8_t kCodeBias = 128;  // of codes in memory, as products want them

/// How products are made.
enum class Products {
  bf16,  // bf16 dots; probabilities rounded to bf16, but for keys that decide
  fp32,  // of bf16 too, where there are no such dots: then nothing is rounded
  int8  // exact int8 dots: the query and the probabilities are split in digits, keys and values are codes
};

inline Kept kept(DType t) { return t == DType::bf16 ? Kept::bf16 : t == DType::f16 ? Kept::f16 : Kept::f32; }

/// Scales and offsets of keys or values.
struct ScaleOffset {
  float *scale, *offset;

  ScaleOffset() = default;
  ScaleOffset(Carver& memory, std::int64_t n) : scale(memory.take<float>(n)), offset(memory.take<float>(n)) {}
};

struct Plan;

/// The rows of a tile as products want them; which arrays exist depends on the products.
struct Queries {
  Tile tile;
  bf16 *rows_bf16, *rope_bf16;  // [rows][pitch]
  float *rows_f32, *rope_f32;   // instead
  std::uint8_t* digits;                                   // [rows][digits][pitch]
  std::int32_t* gemv;                                     // few rows: GemvQuery
  float *row_unit, *row_sum, *row_constant, *row_factor;  // [rows]
  ScaleOffset key, value;                                 // of channels
  Partial all;

  Queries() = default;
  Queries(Carver&, const Plan&);
};

/// Panels of one size; those of int8 have the sums of their columns behind them.
struct PanelArray {
  std::byte* first = nullptr;
  std::ptrdiff_t bytes = 0;

  PanelArray() = default;
  PanelArray(Carver& memory, std::int64_t n, std::ptrdiff_t bytes)
      : first(memory.take<std::byte>(n * bytes)), bytes(bytes) {}
  std::byte* operator[](std::int64_t i) const { return first + i * bytes; }
};

/// Panels of a chunk, and whose keys they hold; count 0: nobody's.
struct ChunkPanels {
  struct Held {
    std::int64_t b, g, first;
    int count;
  };
  Held* held;
  PanelArray keys, rope, values;

  ChunkPanels() = default;
  ChunkPanels(Carver&, const Plan&);
};

/// One thread's memory; rows are those of a block.
struct Scratch {
  int held;                                          // chunks whose panels stay
  ChunkPanels panels[kMostHeld];
  std::byte* own_values;                             // a panel of values that one row alone must not see all of
  std::int32_t* dots;                                // [rows][digits][kPanel]
  float* part;                                       // [rows][part_pitch()], products on their way
  float* scores;                                     // [rows][kScorePitch], then the probabilities
  bf16* rounded;                                     // the same
  std::uint8_t* digits;                              // the same: [rows][digits][kScorePitch]
  ScaleOffset key, value;                            // of the keys of a chunk
  std::int8_t* code_row;
  std::byte *keys, *values, *rope;  // [kChunk][width] of rows that are not contiguous, or int4
  std::byte* zeros;                 // a value row

  Scratch(Carver&, const Plan&);
  void begin() const {
    for (int i = 0; i < held; ++i) panels[i].held->count = 0;
  }
};

class Worker {
 public:
  Worker(const Plan& plan, const Kernels& kernels, const Scratch& scratch);

  void load(const Tile&, Queries&);
  void attend(Visit<Queries>, Visit<Queries> next, const Partial& all);
  void merge(const Partial& all, const Partial& later, int row) const;
  void finish(const Tile&, const Partial& all, int row) const;

 private:
  /// Rows of a tile that meet a chunk together.
  struct Block {
    int first, end;
    int rows() const { return end - first; }
  };

  /// For who looks on: the number of a row among those of all sequences, and its scores of this chunk.
  std::int64_t tap_row(const Tile&, int row) const;
  void show_scores(int row, const Visible&, float scale) const;

  void attend_block(Block, const Partial& all);
  bool begins() const;
  template <bool ToWrite>
  [[gnu::always_inline]] void prefetch_row(const Grid&, DType, int width, const Tile&, int row) const;

  /// So few rows are a GEMV: no panels of keys, of the values of this chunk.
  bool is_gemv(int rows) const;
  bool gemv_scores() const;
  bool gemv_values() const;

  // dense_query.cc
  void load_row(int row, std::int64_t query, std::int64_t head) const;
  void split_query(float* q, int row) const;
  void arrange_gemv_query() const;

  // dense_keys.cc
  void locate(Visit<Queries>, Chunk&) const;
  void fetch_keys();
  void gather(const Cache&, int width, const ScaleOffset* keyed, const ScaleOffset& channels, std::byte* to,
              const std::byte** rows) const;
  void find_hidden_infinities();
  void make_panels();
  bool is_held(const ChunkPanels::Held&) const;
  void transpose(DType, DType panels, const std::byte* const* rows, int count, int dims, std::byte* panel) const;
  void interleave(const std::byte* const* rows, std::ptrdiff_t column, int columns, std::byte* panel) const;

  // dense_scores.cc
  /// Left operand of a product: bf16, or (null) fp32.
  struct Left {
    const bf16* pairs;
    const float* wide;
    std::ptrdiff_t pitch;
  };
  void multiply_panel(const Left&, int rows, DType panels, const std::byte* panel, int from, int depth,
                      int columns, float* c, std::ptrdiff_t pitch, bool add) const;
  void multiply_codes(const std::uint8_t* a, std::ptrdiff_t pitch, int rows, const std::byte* panel, int width,
                      int depth) const;
  void score(int first, int count) const;
  void score_codes(int first, int count, int row, int rows) const;
  void score_floats(int first, int count, int row, int rows) const;
  void dequantize_scores(int first, int count, int row, int rows) const;
  void join_digits(int rows, int digits, int count, const float* unit, float* x, std::ptrdiff_t pitch) const;

  // dense_softmax.cc
  void softmax(const Partial& all);
  float scale_and_mask(int row, const Visible&) const;
  float scale_by_value(float* x, const Visible&) const;
  void keep_rests(int row, const SoftmaxRow&);
  void split_probabilities(int row, float sum);
  float take_outliers(int row, float* x, int count, float sum, float max);

  // dense_values.cc
  void multiply_values(int column, int columns);
  void gemv(int column, int columns) const;
  void multiply(int row, int rows, const std::byte* panel, int low, int high) const;
  void multiply_visible(int column, int columns) const;
  void multiply_alone(int row, int column, int columns) const;
  void blend(int column, int columns, const Partial& all) const;
  template <class T>
  void blend(int row, int outliers, float factor, int column, int columns, float keep, float* y) const;

  const Problem& p_;
  const Plan& plan_;
  const Kernels& k_;
  const Scratch& s_;
  float* scores(int row) const { return s_.scores + (row - block_.first) * kScorePitch; }
  bf16* rounded(int row) const { return s_.rounded + (row - block_.first) * kScorePitch; }
  /// f(row, what it sees of the chunk) for the rows of the block.
  template <class F>
  void each_row(F f) const {
    int query = block_.first / tile_.heads, head = block_.first % tile_.heads;
    for (int r = block_.first; r < block_.end; ++r) {
      f(r, now_->visible[query]);
      if (++head == tile_.heads) head = 0, ++query;
    }
  }
  std::ptrdiff_t part_pitch() const { return gemv_values() ? kGemvColumns : kPanel; }
  float* part(int row) const { return s_.part + (row - block_.first) * part_pitch(); }

  const Queries* q_ = nullptr;  // of the tile at hand
  Tile tile_{};
  Block block_{};
  /// Where products with values go, from the first row of the block on: `part`, or straight to where they stay.
  struct Sums {
    float* first;
    std::ptrdiff_t pitch;
    float* row(int r) const { return first + r * pitch; }
  } sums_{};
  const ChunkPanels* panels_ = nullptr;  // of the chunk at hand
  Chunk chunk_[2], *now_ = chunk_, *next_ = chunk_ + 1;
  std::pair<float, float> rescale_[kTileRows];  // what was before, this chunk
  float probability_unit_[kTileRows];           // of the digits
  /// A key that meets its value in fp32, with what the rounded probability lacks or, from codes, all of it.
  struct Outlier {
    int key;
    float probability;
  } outlier_[kBlockRows][kManyKeys];
  int outliers_[kBlockRows];
  bool infinite_[kChunk], any_infinite_ = false;
};

/// What does not change during a call.
struct Plan {
  using Tile = dense::Tile;
  using Queries = dense::Queries;
  using Scratch = dense::Scratch;
  using Worker = dense::Worker;

  const Problem& p;
  Products products;
  DType type;                            // of key and value rows as the products get them
  DType panels, rope_panels;             // what panels of them are of: int8, bf16 or fp32
  bool quantised;                        // they are int8 or int4 in memory
  bool rope_bf16;                        // the rope dots are bf16 dots
  bool keyed_keys, keyed_values;         // codes with scales of their own per key
  int query_digits, probability_digits;  // codes
  int heads, head_blocks, queries;       // of a tile; blocks of heads of a kv head
  int stored_element, element;           // bytes of an element of keys and values in memory (int4: of a word), then
  int rope_element;
  int gemv_words;  // of a GemvQuery row
  int held = 1;    // chunks whose panels stay
  std::ptrdiff_t query_pitch, rope_pitch;

  Taps* taps = dsakit::taps;

  // For the schedule; the tiles of sequence b begin at first_tile[b].
  const std::int64_t* first_tile = nullptr;
  std::int64_t tiles = 0;
  int rows, columns, group;
  std::ptrdiff_t value_pitch;

  /// `longest`: queries of a sequence.
  Plan(const Problem&, const Kernels&, std::int64_t longest, int threads, bool same_products);

  /// Tiles of sequence b per block of heads.
  std::int64_t steps(std::int64_t b) const { return (p.sequence[b].queries + queries - 1) / queries; }
  Tile tile(std::int64_t i) const;
  ChunkRange chunks(const Tile& t) const { return chunks_of(p, t); }
  /// Few rows: of kv heads whose keys share lines of memory. Many: of the same kv head, for panels.
  bool side_by_side(const Tile& a, const Tile& b) const {
    return a.b == b.b && (rows <= kGemvRows ? p.key.head < p.key.row && a.first == b.first : a.g == b.g);
  }
};

inline Worker::Worker(const Plan& plan, const Kernels& kernels, const Scratch& scratch)
    : p_(plan.p), plan_(plan), k_(kernels), s_(scratch) {}

/// Pointers of the type a kernel wants, moved by `columns`.
template <class T>
struct Typed {
  const T* row[kChunk];
  Typed(const std::byte* const* rows, int count, std::ptrdiff_t columns) {
    for (int j = 0; j < count; ++j) row[j] = reinterpret_cast<const T*>(rows[j]) + columns;
  }
};

/// Of a row, in elements.
inline std::ptrdiff_t offset(const Grid& g, const Sequence& s, std::int64_t b, std::int64_t query, std::int64_t head) {
  return g.sequence * b + g.token * (s.first_query + query) + g.head * head;
}
/// Asks for a row of a tile, if it has that one: they lie apart, where the hardware does not look for the next. Inlined:
/// gcc 12 takes a call of what only prefetches for one without effect, and drops it.
template <bool ToWrite>
[[gnu::always_inline]] inline void Worker::prefetch_row(const Grid& g, DType type, int width, const Tile& tile, int r) const {
  if (r >= tile.rows()) return;
  const auto element = std::ptrdiff_t(size_of(type));
  const char* row = static_cast<const char*>(g.data) +
                    element * offset(g, p_.sequence[tile.b], tile.b, tile.first + r / tile.heads,
                                     tile.query_head(p_, r % tile.heads));
  for (std::ptrdiff_t i = 0; i < width * element; i += kCacheLine) __builtin_prefetch(row + i, ToWrite, ToWrite ? 3 : 2);
}

template <class T>
T* address(const Grid& g, const Sequence& s, std::int64_t b, std::int64_t query, std::int64_t head) {
  return static_cast<T*>(g.data) + offset(g, s, b, query, head);
}

}  // namespace dsakit::attention::dense
