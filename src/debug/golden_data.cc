// SPDX-License-Identifier: Apache-2.0
#include "debug/golden_data.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "core/random.hpp"
#include "core/view.hpp"
#include "debug/addressing.hpp"
#include "debug/bind.hpp"
#include "debug/edit.hpp"
#include "debug/names.hpp"

namespace dsakit::debug {
namespace {

constexpr std::int64_t kChunk = 256;  // key positions that attention takes at a time

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

/// Of one tensor, whatever others the call has.
Random random_of(const Plan& plan, std::string_view name, int element) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ std::uint64_t(std::uint8_t(c))) * 0x100000001b3u;
  return Random(plan.seed() * 1000003 + hash + std::uint64_t(element + 1));
}

/// A shape as rows of its last axis.
struct Folded {
  std::int64_t rows, width;
  explicit Folded(const Integers& shape) : rows(1), width(shape.empty() ? 1 : shape.back()) {
    for (std::size_t a = 0; a + 1 < shape.size(); ++a) rows *= shape[a];
  }
};

class Filling {
 public:
  explicit Filling(const Plan& plan) : plan_(plan), op_(plan.op()), names_(plan.op()) {
    case_.call = "dsakit." + std::string(op_.name);
    case_.attributes = plan.attributes();
    sequences();
  }

  Case make() {
    for (const Plan::Planned& t : plan_.tensors()) {
      const Parameter& p = op_.parameters[std::size_t(t.parameter)];
      const std::string key = key_of(t);
      if (!t.alias.empty()) {
        case_.layouts[key].of = "in." + t.alias;
        continue;
      }
      Integers shape = t.shape;
      if (t.format == Format::NZ) {
        const std::int64_t c0 = 32 / size_of(t.dtype), k = shape[shape.size() - 2], n = shape.back();
        shape.resize(shape.size() - 2);
        shape.insert(shape.end(), {(n + c0 - 1) / c0, (k + 15) / 16, 16, c0});
        case_.layouts[key].format = "NZ", case_.layouts[key].shape = t.shape;
      }
      Stored& stored = case_.tensors[key] = Stored(io::file_dtype_of(t.dtype), shape);
      std::fill_n(stored.bytes->data(), stored.bytes->size(), std::byte{});
      fill(p, t, stored);
    }
    if (is_levels()) levels();
    if (plan_.data() == 14) poison();
    if (plan_.data() == 15) spread_pages();
    return std::move(case_);
  }

 private:
  std::string key_of(const Plan::Planned& t) const {
    const std::string name = "in." + std::string(op_.parameters[std::size_t(t.parameter)].field.name);
    return t.element < 0 ? name : name + "." + std::to_string(t.element);
  }
  bool is_levels() const { return plan_.data() >= 9 && plan_.data() <= 12; }

  // ---- lengths

  void sequences() {
    batch_ = plan_.axis("B", plan_.axis("b", 1));
    folded_query_ = plan_.has_axis("T1"), folded_key_ = plan_.has_axis("T2") && !plan_.tensor("block_table");
    const std::int64_t rows = plan_.axis("S1", plan_.axis("s1", 1));
    room_ = plan_.axis("Lk", plan_.axis("S2", 0));
    query_ = lengths(names_.lengths_query, folded_query_ ? plan_.axis("T1") : -1, rows, false);
    key_ = lengths(names_.lengths_key, folded_key_ ? plan_.axis("T2") : -1, room_, true);
  }

  /// Counts of each sequence. `all`: rows of all of them where they are folded, else -1; `room`: of one.
  Integers lengths(std::string_view name, std::int64_t all, std::int64_t room, bool key) const {
    const Plan::Planned* t = name.empty() ? nullptr : plan_.tensor(name);
    Integers counts;
    if (t && !t->values.empty()) {
      counts = t->values;
      if (counts.size() == 1) counts.assign(std::size_t(std::max<std::int64_t>(batch_, 1)), counts[0]);
      if (all >= 0)
        for (std::size_t b = counts.size(); b-- > 1;) counts[b] -= counts[b - 1];
      return counts;
    }
    for (std::int64_t b = 0, left = all; b < batch_; ++b) {
      std::int64_t n = room;
      if (all >= 0) n = b + 1 == batch_ ? left : all / batch_;
      else if (key && t) n = room - b * room / (2 * batch_);
      if (key && t && plan_.data() == 13) n = std::min(corner(b), all >= 0 ? left : room);
      counts.push_back(n), left -= n;
    }
    return counts;
  }

  /// V13: a length at which something begins or ends.
  std::int64_t corner(std::int64_t b) const {
    const std::int64_t page = plan_.axis("block_size", 16);
    const std::int64_t k = plan_.integer("sparse_count", plan_.axis("K", 7));
    const std::int64_t all[] = {0, 1, page - 1, page, page + 1, k - 1, k, k + 1, room_};
    return all[std::size_t(b + std::int64_t(plan_.seed()) - 1) % std::size(all)];
  }

  std::int64_t first_of(const Integers& counts, std::int64_t b, bool folded, std::int64_t room) const {
    return folded ? std::accumulate(counts.begin(), counts.begin() + b, std::int64_t{0}) : b * room;
  }

  /// f(row of the query tensor, sequence, keys that it sees)
  template <class F>
  void each_query(F f) const {
    const bool causal = plan_.integer("sparse_mode", 3) >= 2;
    for (std::int64_t b = 0; b < batch_; ++b) {
      const std::int64_t first = first_of(query_, b, folded_query_, plan_.axis("S1", plan_.axis("s1", 1)));
      for (std::int64_t i = 0; i < query_[std::size_t(b)]; ++i) {
        const std::int64_t keys = key_[std::size_t(b)];
        f(first + i, b, causal ? std::max<std::int64_t>(keys - query_[std::size_t(b)] + i + 1, 0) : keys);
      }
    }
  }

  // ---- integers

  static void put(Stored& s, const Integers& values) {
    const auto n = std::min(values.size(), std::size_t(s.elements()));  // one length may be that of all sequences
    for (std::size_t i = 0; i < n; ++i) set_number(s, std::int64_t(i), double(values[i]));
  }

  Integers totals(Integers counts) const {
    std::partial_sum(counts.begin(), counts.end(), counts.begin());
    return counts;
  }

  void fill_lengths(std::string_view name, Stored& s) const {
    if (name == names_.lengths_query) return put(s, folded_query_ ? totals(query_) : query_);
    if (name == names_.lengths_key) return put(s, folded_key_ ? totals(key_) : key_);
    Integers counts(std::size_t(s.elements()));
    const std::int64_t n = s.elements();
    for (std::int64_t b = 0; b < n; ++b) {
      const std::int64_t room = plan_.axis("Lk", 0);
      if (name == "seq_offset") counts[std::size_t(b)] = std::min(b, room);
      else if (name == "seq_lens")  // behind any such offset
        counts[std::size_t(b)] = plan_.data() == 13 ? std::min(corner(b), std::max<std::int64_t>(room - b, 0))
                                                    : std::max<std::int64_t>(room - b - b * room / (2 * n), 0);
      else counts[std::size_t(b)] = b + 1 == n ? plan_.axis("T") - b * (plan_.axis("T") / n) : plan_.axis("T") / n;
    }
    const bool running = name == "actual_seq_len" || plan_.text("is_seq_lens_cumsum") == "true";
    put(s, running && name != "seq_offset" ? totals(counts) : counts);
  }

  /// The order of the pages of a pool.
  Integers pages_in_order(std::int64_t pages) const {
    Integers order(std::size_t(std::max<std::int64_t>(pages, 0)));
    std::iota(order.begin(), order.end(), 0);
    if (plan_.pages() == "reversed") std::reverse(order.begin(), order.end());
    Random r = random_of(plan_, "pages", 0);
    if (plan_.pages() == "mixed" || plan_.pages() == "shared")
      for (std::int64_t i = pages - 1; i > 0; --i) std::swap(order[std::size_t(i)], order[std::size_t(r.below(i + 1))]);
    return order;
  }

  std::int64_t page_size() const {
    return std::max<std::int64_t>(plan_.axis("block_size", plan_.integer("block_size", 1)), 1);
  }

  /// What lies behind the pages of a sequence names none, or (V15) anything.
  void fill_table(const Integers& shape, Stored& s) const {
    const std::int64_t pages = plan_.axis("block_num", 1), page = page_size();
    const Integers order = pages_in_order(pages);
    for (std::int64_t b = 0, i = 0; b < shape[0]; ++b)
      for (std::int64_t c = 0; c < shape[1]; ++c, ++i) {
        const std::int64_t at = plan_.pages() == "shared" ? c : b * shape[1] + c;
        const bool used = names_.lengths_key.empty() || c * page < key_[std::size_t(b)];
        const double tail = plan_.data() == 15 ? 2147483647.0 : -1.0;
        set_number(s, i, used && pages > 0 ? double(order[std::size_t(at % pages)]) : tail);
      }
  }

  /// Places in a cache for new tokens, each another one; with V13 and V14 the last token is not stored.
  void fill_slots(Stored& s) const {
    const std::int64_t n = s.elements(), pages = plan_.axis("block_num", 1), page = page_size();
    const Integers order = pages_in_order(pages);
    const std::string mode = plan_.text("cache_mode");
    const bool blocks = mode.starts_with("PA_BLK"), own = plan_.has_axis("L") && mode == "Norm";
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t slot = pages * page == 0 ? -1 : (i + 3) % (pages * page);
      if (own) slot = (i % plan_.axis("S") + 3) % std::max<std::int64_t>(plan_.axis("L"), 1);
      else if (blocks) slot = order[std::size_t(i % pages)] * (has(op_.name, "rmsnorm") ? page : 1);
      else if (slot >= 0) slot = order[std::size_t(slot / page)] * page + slot % page;
      const bool skipped = (plan_.data() == 13 || plan_.data() == 14) && n > 1 && i + 1 == n;
      set_number(s, i, skipped ? -1 : double(slot));
    }
  }

  /// Positions that each row sees, each once, the newest among them, then -1.
  void fill_lists(const Integers& shape, Stored& s) const {
    const std::int64_t room = shape.back();
    for (std::int64_t i = 0, n = s.elements(); i < n; ++i) set_number(s, i, -1);
    const std::int64_t block = plan_.integer("sparse_block_size", 1);
    each_query([&](std::int64_t row, std::int64_t, std::int64_t visible) {
      const std::int64_t blocks = (visible + block - 1) / block;
      const std::int64_t listed = std::int64_t(std::ceil(plan_.fill() * double(std::min(room, blocks))));
      const std::int64_t step = listed > 0 ? std::max<std::int64_t>(blocks / listed, 1) : 1;
      Integers list;
      for (std::int64_t i = 0; i < listed; ++i) list.push_back(blocks - 1 - i * step);
      Random r = random_of(plan_, "list", int(row));
      for (std::int64_t i = listed - 1; i > 0; --i) std::swap(list[std::size_t(i)], list[std::size_t(r.below(i + 1))]);
      if ((row + 1) * room <= s.elements())
        for (std::int64_t i = 0; i < listed; ++i) set_number(s, row * room + i, double(list[std::size_t(i)]));
    });
  }

  /// Runs of two rows, as far as pages allow.
  void fill_groups(std::string_view name, Stored& s) const {
    const std::int64_t groups = s.elements(), tokens = plan_.axis("T"), page = page_size();
    std::int64_t row = 0;
    for (std::int64_t g = 0; g < groups && row < tokens; ++g) {
      const std::int64_t length = row + 1 < tokens && row % page + 1 < page ? 2 : 1;
      set_number(s, g, double(name == "group_len" ? length : row));
      row += length;
    }
  }

  void fill_index(const Parameter& p, const Plan::Planned& t, Stored& s) const {
    const std::string_view name = p.field.name;
    if (p.field.role == Role::inout) return;  // written, whatever was there
    if (name == names_.list) return fill_lists(t.shape, s);
    if (name.starts_with("group_") && name != "group_index") return fill_groups(name, s);
    if (name == "group_index") {
      for (std::int64_t g = 0, n = s.elements(); g < n; ++g)
        set_number(s, g, double(g + 1 == n ? plan_.axis("T") : (g + 1) * (plan_.axis("T") / n)));
      return;
    }
    if (op_.name.starts_with("scatter_nd")) {
      const Integers& self = plan_.tensor("self")->shape;
      const std::int64_t depth = t.shape.back(), places = depth > 0 ? s.elements() / depth : 0;
      const Integers order = pages_in_order(self[0]);
      Random r = random_of(plan_, name, 0);
      for (std::int64_t i = 0; i < places; ++i)
        for (std::int64_t a = 0; a < depth; ++a) {
          const std::int64_t n = self[std::size_t(a)];
          set_number(s, i * depth + a, double(a > 0 ? r.below(n) : n == 0 ? 0 : order[std::size_t(i % n)]));
        }
      return;
    }
    fill_slots(s);
  }

  // ---- numbers

  void fill(const Parameter& p, const Plan::Planned& t, Stored& s) const {
    const std::string_view name = p.field.name;
    if (!t.values.empty() && p.field.kind != Kind::lengths) return put(s, t.values);
    if (!t.values.empty() && name != names_.lengths_query && name != names_.lengths_key) return put(s, t.values);
    switch (p.field.kind) {
      case Kind::lengths:
        return fill_lengths(name, s);
      case Kind::table:
        return fill_table(t.shape, s);
      case Kind::index:
        return fill_index(p, t, s);
      case Kind::mask:
        return fill_mask(t.shape, s);
      default:
        break;
    }
    Random r = random_of(plan_, name, t.element);
    if (name == names_.cos || name == names_.sin) return fill_rotation(name == names_.cos, t.shape, s, r);
    if (name.starts_with("hadamard")) return fill_hadamard(t.shape, s, r);
    if (is_packed(name)) return fill_packed(s, r);
    if (p.field.kind == Kind::scale || (p.field.kind == Kind::cache && has(name, "scale"))) return fill_scale(p, s, r);
    if (has(name, "zero_point") || has(name, "offset")) {
      for (std::int64_t i = 0, n = s.elements(); i < n; ++i) set_number(s, i, double(r.below(7) - 3));
      return;
    }
    if (has(name, "clip_alpha")) return set_number(s, 0, 0.9);
    fill_values(p, t.shape, s, r);
  }

  /// Nonzero hides: what is above the diagonal of the documented 2048 x 2048, else about a quarter.
  void fill_mask(const Integers& shape, Stored& s) const {
    const Folded m(shape);
    Random r = random_of(plan_, "mask", 0);
    const bool triangle = plan_.integer("sparse_mode", 0) >= 2;
    for (std::int64_t i = 0, n = s.elements(); i < n; ++i)
      set_number(s, i, triangle ? i % m.width > i / m.width : r.below(4) == 0);
  }

  /// Rotations of tokens far apart; V17: random numbers for every other token; V2: quarter turns.
  void fill_rotation(bool cosine, const Integers& shape, Stored& s, Random& r) const {
    const Folded m(shape);
    const bool pairs = plan_.text("rotary_mode") == "interleave";
    for (std::int64_t i = 0; i < s.elements(); ++i) {
      const std::int64_t token = i / m.width, j = i % m.width;
      const std::int64_t turn = pairs ? j / 2 : j % std::max<std::int64_t>(m.width / 2, 1);
      const double angle = double(37 * token + 11) * std::pow(100.0, -2.0 * double(turn) / double(m.width));
      double value = cosine ? std::cos(angle) : std::sin(angle);
      if (plan_.data() == 2) {
        const std::int64_t quarters = (token + turn + (cosine ? 1 : 0)) % 4;
        value = quarters == 1 ? 1 : quarters == 3 ? -1 : 0;
      }
      if (plan_.data() == 17 && token % 2 == 1) value = r.uniform(-1, 1);
      set_number(s, i, value);
    }
  }

  /// Divided by the root of its size; V18 by the seed also a random matrix.
  void fill_hadamard(const Integers& shape, Stored& s, Random& r) const {
    const std::int64_t n = shape.back();
    const bool random = (plan_.data() == 18 && plan_.seed() % 2 == 0) || !std::has_single_bit(std::uint64_t(n));
    for (std::int64_t i = 0; i < s.elements(); ++i) {
      const int sign = std::popcount(std::uint64_t(i / n) & std::uint64_t(i % n)) % 2 ? -1 : 1;
      set_number(s, i, (random ? double(r.uniform(-1, 1)) : sign) / std::sqrt(double(n)));
    }
  }

  bool is_packed(std::string_view name) const {
    return (op_.name == "kv_quant_sparse_flash_attention" && name == "key") ||
           (op_.name == "unpack_kv_rows" && name == "rows") ||
           (name == "kv_cache" && plan_.integer("kv_cache_quant_mode", 0) == 3);
  }

  /// f(first byte of a row)
  template <class F>
  void each_packed_row(Stored& s, F f) const {
    const std::int64_t width = s.shape.back();
    for (std::int64_t row = 0; width > 0 && row < s.elements() / width; ++row) f(s.bytes->data() + row * width, row);
  }
  struct Packed {
    std::int64_t latent, rope, tiles;
  };
  Packed packed(const Stored& s) const {
    const std::int64_t rope = plan_.integer("rope_head_dim", plan_.axis("Dr", 0)), tile = plan_.integer("tile_size", 1);
    const std::int64_t latent = (s.shape.back() - 2 * rope) * tile / (tile + 4);
    return {latent, rope, latent / std::max<std::int64_t>(tile, 1)};
  }

  /// Codes, rope columns in 16 bits, a scale for each tile.
  void fill_packed(Stored& s, Random& r) const {
    const Packed p = packed(s);
    each_packed_row(s, [&](std::byte* at, std::int64_t row) {
      for (std::int64_t i = 0; i < p.latent; ++i) at[i] = std::byte(std::uint8_t(code(row, i, p.latent, r)));
      for (std::int64_t i = 0; i < p.rope; ++i) {
        const double x = number(row, i, p.rope, DType::bf16, true, r);
        const bf16 rope = to_bf16(float(x));
        const f16 half = to_f16(float(x));
        if (plan_.text("rope_dtype") == "float16") std::memcpy(at + p.latent + 2 * i, &half, 2);
        else std::memcpy(at + p.latent + 2 * i, &rope, 2);
      }
      for (std::int64_t i = 0; i < p.tiles; ++i) {
        const float scale = plan_.data() == 2 ? 0x1p-7f : r.uniform(0.004f, 0.012f);
        std::memcpy(at + p.latent + 2 * p.rope + 4 * i, &scale, 4);
      }
    });
  }

  /// What a code is worth is small, a factor is about 1; V16: negative, zero, far apart, the ends of float16.
  void fill_scale(const Parameter& p, Stored& s, Random& r) const {
    const bool worth = has(p.field.meaning, "worth") || p.field.kind == Kind::cache;
    const bool to_codes = has(p.field.name, "quant_scale_c") || has(p.field.name, "k_rope_scale") ||
                          has(p.field.name, "c_kv_scale") || has(p.field.name, "quant_scale_out");
    const float low = to_codes ? 16.0f : worth ? 0.004f : 0.5f, high = to_codes ? 48.0f : worth ? 0.016f : 2.0f;
    const bool one = p.field.name == std::string_view("quant_scale_ckv") && has(op_.name, "v2");  // equal ones
    const float first = r.uniform(low, high);
    for (std::int64_t i = 0, n = s.elements(); i < n; ++i) {
      double x = one ? first : r.uniform(low, high);
      if (plan_.data() == 2) x = std::exp2(std::floor(std::log2(x)));
      if (plan_.data() == 16) {
        const double kinds[] = {-x, 0, x * 0x1p-10, x * 0x1p10, 65504, 0x1p-24};
        x = kinds[std::size_t(r.below(6))];
      }
      set_number(s, i, x);
    }
  }

  void fill_values(const Parameter& p, const Integers& shape, Stored& s, Random& r) const {
    const Folded m(shape);
    const DType type = s.tensor().dtype;
    const bool floats = is_float(type), codes = type == DType::i8 || type == DType::u8;
    const bool gamma = floats && has(p.field.name, "gamma"), plain = p.field.kind == Kind::data && shape.size() > 1;
    // Products of weights stay about as large as what is multiplied, by a power of two.
    const double factor = p.field.kind == Kind::weight && floats && shape.size() > 1
                              ? std::exp2(-std::floor(std::log2(double(shape[shape.size() - 2]) + 1) / 2))
                              : 1;
    for (std::int64_t i = 0, n = s.elements(); i < n; ++i) {
      const std::int64_t row = i / m.width, column = i % m.width;
      double x = 0;
      if (floats) x = number(row, column, m.width, type, plain, r) * factor;
      else if (codes) x = code(row, column, m.width, r);
      else if (type == DType::boolean) x = double(r.below(2));
      else x = double(std::int32_t(r.next()));  // int32: eight int4; int64: of scatter_nd_update
      if (gamma)
        x = plan_.data() == 4 && column % 4 == 0 ? 0
            : plan_.data() == 2                  ? std::exp2(r.below(3) - 1.0)
                                                 : double(r.uniform(0.5f, 1.5f));
      if (p.field.name == std::string_view("lse") && plan_.data() == 14 && i % 3 == 0) x = -INFINITY;
      if (type == DType::u8 && x < 0) x += 256;
      set_number(s, i, x);
    }
  }

  /// V1..V8 of a float. `plain`: of a tensor whose rows may be as extreme as they like.
  double number(std::int64_t row, std::int64_t column, std::int64_t width, DType type, bool plain, Random& r) const {
    const double x = plan_.seed() % 2 == 1 ? r.uniform(-1, 1) : r.normal();
    const bool small = type == DType::f16;
    switch (plain || plan_.data() == 2 || plan_.data() == 7 ? plan_.data() : 1) {
      case 2:
        return double(r.below(9) - 4) * 0.25;
      case 3:
        return column == row * 7 % width ? x * 0x1p15 / (small ? 6 : 1) : column == width / 2 ? x * 64 : x;
      case 4:
        if (row % 4 == 0 || (row % 4 == 1 && column / 128 % 2 == 0)) return 0;
        return row % 4 == 2 ? (column == row % width ? 1 : 0) : x;
      case 5: {
        static constexpr double kWide[] = {1e-38, 1e-30, 1e30, 1e38}, kHalf[] = {6e-8, 6e-6, 1e4, 6e4};
        return (small ? kHalf : kWide)[row % 4] * std::clamp(x, -1.0, 1.0);
      }
      case 6:  // 127 makes the scale of a row 1
        if (column == row * 7 % width) return 127;
        if (type == DType::f32 && row % 2 == 1)
          return 1 + double(2 * r.below(128) + 1) * (row % 4 == 1 ? 0x1p-8 : 0x1p-11);
        return double(r.below(121) - 60) + 0.5;
      case 7:
        return row % 2 == 0 ? 1 : column % 2 == 0 ? 1 : -1;
      case 8:
        if (row % 3 == 0)
          return column % 2 == 0 ? 1 + double(column / 2 % 8) * 0.125 : -1 - double(column / 2 % 8) * 0.125;
        if (row % 3 == 1) return (column / 16 % 2 == 0 ? 1 : -1) * std::abs(x);
        return 2 * double(column) / double(width) - 1;
      default:
        return x;
    }
  }

  /// The same of an int8 code; -128 only where V7 asks for it.
  int code(std::int64_t row, std::int64_t column, std::int64_t width, Random& r) const {
    const int x = int(r.below(255)) - 127;
    switch (plan_.data()) {
      case 2:
        return int(r.below(9)) - 4;
      case 4:
        if (row % 4 == 0 || (row % 4 == 1 && column / 128 % 2 == 0)) return 0;
        return row % 4 == 2 ? (column == row % width ? 127 : 0) : x;
      case 7:
        return row % 3 == 0 ? int(r.below(256)) - 128 : row % 3 == 1 ? 127 : column % 2 == 0 ? 127 : -128;
      case 8:
        return column % 2 == 0 ? int(1 + column / 2 % 127) : -int(1 + column / 2 % 127);
      default:
        return x;
    }
  }

  // ---- V9..V12: what a key scores is its level times the factor of the row

  Stored* stored(std::string_view name) {
    const auto at = name.empty() ? case_.tensors.end() : case_.tensors.find("in." + std::string(name));
    return at == case_.tensors.end() ? nullptr : &at->second;
  }

  double level(std::int64_t b, std::int64_t j, std::int64_t keys) const {
    switch (plan_.data()) {
      case 9:
        return j == keys / 3 || (b % 2 == 1 && j == 2 * keys / 3);
      case 10: {
        const std::int64_t chunk = std::min(kChunk, std::max<std::int64_t>(keys / 3, 1)),
                           chunks = (keys + chunk - 1) / chunk;
        const std::int64_t high = b % 3 == 0 ? 0 : b % 3 == 1 ? chunks - 1 : chunks / 2;
        return j / chunk == high ? 0 : -100;
      }
      case 11:
        return double(j % 4);
      default:
        if (b % 3 == 2) return j / page_size() == keys / page_size() / 2 ? 100 : double(j % 8);
        return 1 + double(b % 3 == 0 ? j : std::min(j, keys - 1 - j)) * 126 / double(std::max<std::int64_t>(keys, 2));
    }
  }
  double factor(std::int64_t row) const {
    static constexpr double kPeaks[] = {30, 100, 0, 1e4}, kPlateaus[] = {-1, 0, 1, -0.0};
    if (plan_.data() == 9) return kPeaks[row % 4];
    if (plan_.data() == 11) return kPlateaus[row % 4];
    return plan_.data() == 12 && row % 2 == 1 ? -1 : 1;
  }

  void levels() {
    Stored &query = *stored(names_.query), &key = *stored(names_.key);
    for (const std::string_view zero :
         {std::string_view("query_rope"), std::string_view("key_rope"), std::string_view("key_rope_2d")})
      if (Stored* s = stored(zero)) std::fill_n(s->bytes->data(), s->bytes->size(), std::byte{});
    for (const std::string_view one :
         {"key_dequant_scale", "query_dequant_scale", "k_nope_scales", "dequant_scale_key", "dequant_scale_query"})
      if (Stored* s = stored(one))
        for (std::int64_t i = 0, n = s->elements(); i < n; ++i) set_number(*s, i, 1);
    const bool rows = is_packed(names_.key);
    const std::int64_t latent = rows ? packed(key).latent : plan_.axis("D", plan_.axis("Dv", 1));
    const std::int64_t query_width = query.shape.back() % latent == 0 ? latent : query.shape.back();
    Random r = random_of(plan_, "signs", 0);
    std::vector<double> sign(static_cast<std::size_t>(latent));
    for (double& x : sign) x = r.below(2) == 0 ? 1 : -1;

    const std::int64_t key_row = key_rows_width(key);
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t j = 0; j < key_[std::size_t(b)]; ++j) {
        const std::int64_t at = place(b, j);
        const double worth = level(b, j, key_[std::size_t(b)]);
        if (at < 0) continue;
        if (rows) {
          std::byte* row = key.bytes->data() + at * key_row;
          const Packed p = packed(key);
          std::memset(row, 0, std::size_t(key_row));
          const float scale = float(std::abs(worth));
          for (std::int64_t i = 0; i < latent; ++i)
            row[i] = std::byte(std::uint8_t(int(worth < 0 ? -sign[std::size_t(i)] : sign[std::size_t(i)])));
          for (std::int64_t i = 0; i < p.tiles; ++i) std::memcpy(row + latent + 2 * p.rope + 4 * i, &scale, 4);
        } else {
          for (std::int64_t i = 0; i < key_row; ++i)
            set_number(key, at * key_row + i, worth * sign[std::size_t(i % latent)]);
        }
      }

    Stored* weights = stored("weights");
    const std::string scale_name(names_.softmax_scale);
    const auto given = case_.attributes.find(scale_name);
    const double softmax =
        given != case_.attributes.end() && std::get_if<double>(&given->second) ? std::get<double>(given->second) : 1;
    const std::int64_t query_rows = folded_query_ ? plan_.axis("T1") : batch_ * plan_.axis("S1", plan_.axis("s1", 1));
    const std::int64_t width = query_rows > 0 ? query.elements() / query_rows : 0;
    for (std::int64_t i = 0; i < query.elements(); ++i) {
      const std::int64_t column = i % query_width;
      const double p = column < latent ? sign[std::size_t(column)] : 0;
      const double f = weights ? 1 : factor(i / width) / (softmax * double(latent));
      set_number(query, i, p * f);
    }
    if (!weights) return;
    const std::int64_t heads = plan_.axis("N1", 1);
    for (std::int64_t i = 0; i < weights->elements(); ++i)
      set_number(*weights, i, factor(i / heads) / double(latent * heads));
  }

  std::int64_t key_rows_width(const Stored& key) const {
    std::int64_t rows = folded_key_ ? plan_.axis("T2") : batch_ * plan_.axis("S2", 0);
    if (plan_.tensor("block_table")) rows = plan_.axis("block_num") * page_size();
    return rows > 0 ? key.elements() / rows : 0;
  }

  /// The row of a key position among those of the tensor; -1: none.
  std::int64_t place(std::int64_t b, std::int64_t j) {
    const Stored* table = stored("block_table");
    if (!table) return first_of(key_, b, folded_key_, plan_.axis("S2", 0)) + j;
    const std::int64_t columns = table->shape[1], page = page_size();
    if (j / page >= columns) return -1;
    const std::int64_t number = integer_at(table->tensor(), b * columns + j / page);
    return number < 0 ? -1 : number * page + j % page;
  }

  // ---- V14, V15

  /// Rows of the keys that the call looks at.
  std::set<std::int64_t> rows_in_use() {
    std::set<std::int64_t> rows;
    const Stored* list = names_.list.empty() || is_indexer(op_) ? nullptr : stored(names_.list);
    if (!list) {
      for (std::int64_t b = 0; b < batch_; ++b)
        for (std::int64_t j = 0; j < key_[std::size_t(b)]; ++j) rows.insert(place(b, j));
      return rows;
    }
    const std::int64_t room = list->shape.back(), block = plan_.integer("sparse_block_size", 1);
    each_query([&](std::int64_t row, std::int64_t b, std::int64_t) {
      for (std::int64_t i = row * room; i < (row + 1) * room; ++i)
        for (std::int64_t j = 0, n = integer_at(list->tensor(), i); n >= 0 && j < block; ++j)
          if (n * block + j < key_[std::size_t(b)]) rows.insert(place(b, n * block + j));
    });
    return rows;
  }

  /// NaN and infinity where nobody may look: behind the keys, at positions that no list names, in pages that no table
  /// names, in rows to be written.
  void poison() {
    for (const Plan::Planned& t : plan_.tensors()) {
      const Parameter& p = op_.parameters[std::size_t(t.parameter)];
      Stored* s = stored(p.field.name);
      if (!s || p.field.kind != Kind::cache || !t.alias.empty()) continue;
      std::set<std::int64_t> seen;
      std::int64_t rows = 0;
      const bool updated = is_updated(op_, p);
      if (!updated && plan_.tensor(names_.lengths_key.empty() ? "" : names_.lengths_key)) {
        rows = folded_key_ ? plan_.axis("T2") : batch_ * plan_.axis("S2", 0);
        if (plan_.tensor("block_table")) rows = plan_.axis("block_num") * page_size();
        seen = rows_in_use();
      } else if (updated) {
        rows = Folded(s->shape).rows;
      }
      const std::int64_t width = rows > 0 ? s->elements() / rows : 0;
      const bool packed_rows = is_packed(p.field.name);
      for (std::int64_t row = 0; row < rows; ++row) {
        if (seen.contains(row)) continue;
        for (std::int64_t i = 0; i < width; ++i)
          if (packed_rows) s->bytes->data()[row * width + i] = std::byte(0xFF);
          else if (is_float(t.dtype)) set_number(*s, row * width + i, row % 2 ? NAN : INFINITY);
      }
    }
  }

  /// Pages so far apart that the last begins behind 2^32 elements: only those that are looked at are stored.
  void spread_pages() {
    Arguments a = default_arguments(op_);
    for (const auto& [name, value] : case_.attributes)
      std::visit([&, &to = a.at(name)](const auto& v) { to = v; }, value);
    for (const Plan::Planned& t : plan_.tensors())
      if (t.element < 0)
        if (const Stored* s = stored(t.alias.empty() ? op_.parameters[std::size_t(t.parameter)].field.name : t.alias))
          a.values[std::size_t(t.parameter)] = s->tensor();
    for (const PageUse& use : pages_of(a)) {
      Stored& numbers = *stored(use.numbers);
      const std::int64_t elements =
          std::max<std::int64_t>(a.tensor(use.caches[0]).elements() / std::max<std::int64_t>(use.pages, 1), 1);
      std::int64_t apart = (std::int64_t{1} << 33) / (elements * std::max<std::int64_t>(use.pages, 1)) + 1;
      if (numbers.tensor().dtype == DType::i32)  // a number must fit
        apart = std::min(apart, 0x7fffffff / std::max<std::int64_t>(use.pages * use.per_page, 1));
      // Runs of slots go on in the next page: their pages stay together, as the last ones.
      const bool runs = use.numbers == "group_key_cache_idx";
      const auto place = [&](std::int64_t page) { return runs ? page + use.pages * (apart - 1) : page * apart; };
      for (std::int64_t i = 0; i < numbers.elements(); i += use.step) {
        const std::int64_t n = integer_at(numbers.tensor(), i), page = n / use.per_page;
        if (n >= 0 && page < use.pages) set_number(numbers, i, double(place(page) * use.per_page + n % use.per_page));
      }
      const Integers needed = use.entries_of(use.needed());
      Stored pages(io::file_dtype_of(DType::i64), {std::int64_t(needed.size())});
      for (std::size_t i = 0; i < needed.size(); ++i)
        set_number(pages, std::int64_t(i), double(place(needed[i] / use.entries) * use.entries + needed[i] % use.entries));
      for (const std::string_view cache : use.caches) {
        Stored* whole = stored(cache);
        if (!whole) continue;  // a view of another
        Integers shape = whole->shape;
        shape[0] = std::int64_t(needed.size());
        Stored part(*whole->type, shape);
        const std::size_t bytes = whole->bytes->size() / std::size_t(std::max<std::int64_t>(use.pages * use.entries, 1));
        for (std::size_t i = 0; i < needed.size(); ++i)
          std::memcpy(part.bytes->data() + i * bytes, whole->bytes->data() + std::size_t(needed[i]) * bytes, bytes);
        const std::string name(cache);
        Layout& layout = case_.layouts["in." + name];
        layout.pages = "pages." + name, layout.full = whole->shape;
        layout.full->front() = use.pages * apart * use.entries;
        case_.tensors[layout.pages] = pages;
        *whole = part;
      }
    }
  }

  const Plan& plan_;
  const Operator& op_;
  Names names_;
  Case case_;
  std::int64_t batch_ = 1, room_ = 0;
  bool folded_query_ = false, folded_key_ = false;
  Integers query_, key_;  // rows and keys of each sequence
};

}  // namespace

std::string refusal_of_data(const Plan& plan) {
  const Operator& op = plan.op();
  const auto unless = [&](const char* why, auto has_it) -> std::string {
    const bool any = std::any_of(plan.tensors().begin(), plan.tensors().end(), [&](const Plan::Planned& t) {
      return has_it(op.parameters[std::size_t(t.parameter)].field, t);
    });
    return any ? "" : why;
  };
  const std::string layout = plan.text("input_layout");
  const bool heads_first = layout.starts_with("BN") || layout.starts_with("N");
  switch (plan.data()) {
    case 7:
      return unless("it has no numbers", [](auto&, auto& t) { return is_float(t.dtype) || t.dtype == DType::i8; });
    case 9:
    case 10:
    case 11:
    case 12: {
      if (!is_indexer(op) && !is_attention(op)) return "it has no scores";
      if (heads_first) return "input_layout keeps the tokens of a head together";
      const Plan::Planned* key = plan.tensor("key");
      return key && (key->dtype == DType::i32 || key->shape.size() > 4) ? "keys are int4 or FRACTAL_NZ" : "";
    }
    case 13:
      return unless("it has no lengths and no slots",
                    [](auto& f, auto&) { return f.kind == Kind::lengths || f.kind == Kind::index; });
    case 14:
      if (heads_first) return "input_layout keeps the tokens of a head together";
      return unless("it has no cache",
                    [](auto& f, auto&) { return f.kind == Kind::cache || f.name == std::string_view("lse"); });
    case 15:
      return unless("it has no pages", [](auto& f, auto&) { return f.kind == Kind::table || f.kind == Kind::index; });
    case 16:
      return unless("it has no scales", [](auto& f, auto&) { return has(f.name, "scale"); });
    case 17:
      return unless("it has no rotation", [&](auto& f, auto&) { return f.name == Names(op).cos; });
    case 18:
      return unless("it has no Hadamard matrix",
                    [](auto& f, auto&) { return std::string_view(f.name).starts_with("hadamard"); });
    default:
      return "";
  }
}

Case filled(const Plan& plan) { return Filling(plan).make(); }

}  // namespace dsakit::debug
