// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "debug/addressing.hpp"
#include "debug/change.hpp"
#include "debug/names.hpp"
#include "debug/orders.hpp"

// Slots, pages and rows of caches that are found or laid out otherwise than the call says.
namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using std::string;

constexpr Index kSigned32 = Index{1} << 31;

/// Caches that are there, each memory once.
std::vector<std::string_view> caches_once(const Edit& e, const PageUse& use) {
  std::vector<std::string_view> some;
  std::set<const void*> seen;
  for (const std::string_view cache : use.caches)
    if (e.has(cache) && seen.insert(e.tensor(cache).data).second) some.push_back(cache);
  return some;
}

/// The axis of a paged cache that counts the rows of a page.
int row_axis(const Tensor& t, Index rows) {
  for (const int axis : {t.rank == 4 && t.shape[2] == rows && t.shape[1] != rows ? 2 : 1, 2, 3})
    if (axis < t.rank && t.shape[axis] == rows) return axis;
  return 0;
}

/// Every position that the call looks at gets a row of its own, a copy of row from(sequence, position), counted over all
/// pages: sequences may read a page that they share differently.
template <class F>
bool read_elsewhere(Edit& e, F from) {
  const auto uses = pages_of(e.arguments());
  if (e.is_partly_stored() || uses.empty() || uses[0].used.empty()) return false;
  const PageUse& use = uses[0];
  if (use.used.size() > 4 * std::size_t(use.pages)) return false;  // shared by so many that copies are too large
  const Index rows = page_rows(e.arguments()), columns = last_axis(e.tensor(use.numbers));
  for (const std::string_view cache : caches_once(e, use)) {
    const Stored before(e.tensor(cache));
    const Tensor was = before.tensor();
    const bool apart = use.entries > 1;  // rows without an axis of pages
    const int axis = apart ? 0 : row_axis(was, rows);
    if (!apart && (axis == 0 || was.shape[0] != use.pages)) continue;
    auto shape = before.shape;
    shape[0] = Index(use.used.size()) * (apart ? rows : 1);
    Stored after(*before.type, shape);
    Index inner = 1, outer = 1;  // elements behind and before the axis of rows, in a page
    for (int i = axis + 1; i < was.rank; ++i) inner *= was.shape[i];
    for (int i = 1; i < axis; ++i) outer *= was.shape[i];
    const std::size_t bytes = std::size_t(inner * size_of(was.dtype));
    for (std::size_t k = 0; k < use.used.size(); ++k)
      for (Index r = 0; r < rows; ++r) {
        const Index at = use.used[k].at;
        const Index slot =
            (from(at / columns, at % columns * rows + r) % (use.pages * rows) + use.pages * rows) % (use.pages * rows);
        for (Index o = 0; o < outer; ++o)
          std::copy_n(before.bytes->data() + std::size_t(((slot / rows * outer + o) * rows + slot % rows)) * bytes,
                      bytes, after.bytes->data() + std::size_t((Index(k) * outer + o) * rows + r) * bytes);
      }
    e.set(cache, after);
  }
  const string table(use.numbers);
  Stored numbers(e.tensor(table));
  for (Index i = 0; i < numbers.elements(); ++i)
    if (integer_at(numbers.tensor(), i) >= 0) set_number(numbers, i, 0);
  for (std::size_t k = 0; k < use.used.size(); ++k) set_number(numbers, use.used[k].at, double(k));
  e.set(table, numbers);
  return true;
}

// ---- L6, L7: slots and pages

/// Pages of the first cache that has an axis of them.
Index page_count(const Edit& e) {
  for (const Parameter& p : e.op().parameters)
    if (p.field.kind == Kind::cache && e.has(p.field.name) && e.tensor(p.field.name).rank == 4)
      return e.tensor(p.field.name).shape[0];
  return 0;
}

void slots(const Arguments& a, Changes& all) {
  const string slots(Names(*a.op).slots);
  if (slots.empty()) return;
  const auto add = [&](const string& text, auto f) {
    all.push_back({"L6", slots + text, [=](Edit& e) {
                     const Index page = page_rows(e.arguments());
                     return !e.is_partly_stored() && page > 0 &&
                            e.map(slots, [=](Index, double x) { return double(f(Index(x), page)); });
                   }});
  };
  add(" is one slot late", [](Index s, Index) { return s < 0 ? s : s + 1; });
  add(" is one slot early", [](Index s, Index) { return s <= 0 ? s : s - 1; });
  all.push_back({"L6", slots + ": negative entries are stored in the last slot", [=](Edit& e) {
                   if (e.is_partly_stored() || !e.has(slots)) return false;
                   const Index rows = page_rows(e.arguments()) * page_count(e);
                   bool any = false;
                   const bool mapped = e.map(slots, [&](Index, double x) {
                     any |= x < 0;
                     return x < 0 ? double(rows - 1) : x;
                   });
                   return mapped && any && rows > 0;
                 }});
  for (const Index other : {16, 64, 128, 256})
    add(" counts pages of " + std::to_string(other),
        [=](Index s, Index page) { return s < 0 ? s : s / page * other + s % page; });
  add(" counts pages of half the size",
      [](Index s, Index page) { return s < 0 ? s : s / page * (page / 2) + s % page; });
  add(" counts pages of twice the size",
      [](Index s, Index page) { return s < 0 ? s : s / page * 2 * page + s % page; });
}

void pages(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  const string table(n.table);
  if (table.empty()) return;
  const auto add = [&](const string& text, auto f) {
    all.push_back({"L7", table + text, [=](Edit& e) {
                     if (e.is_partly_stored() || !e.has(table) || e.tensor(table).rank != 2) return false;
                     const Tensor t = e.tensor(table);
                     const Index rows = t.shape[0], columns = t.shape[1];
                     return e.map(table, [&](Index i, double was) {
                       // Places without a page stay without one.
                       const Index got = f(t, i / columns, i % columns, rows, columns);
                       return was < 0 ? was : double(got);
                     });
                   }});
  };
  add(" is ignored: pages lie one after another",
      [](const Tensor&, Index b, Index j, Index, Index columns) { return b * columns + j; });
  add(" is ignored: positions are slots", [](const Tensor&, Index, Index j, Index, Index) { return j; });
  add(" lies transposed",
      [](const Tensor& t, Index b, Index j, Index rows, Index) { return integer_at(t, j * rows + b); });
  add(" of the next sequence is read", [](const Tensor& t, Index b, Index j, Index rows, Index columns) {
    return integer_at(t, (b + 1) % rows * columns + j);
  });
  add(" is one page late", [](const Tensor& t, Index b, Index j, Index, Index columns) {
    return integer_at(t, b * columns + (j + 1) % columns);
  });
  if (is_attention(*a.op) && !n.list.empty())
    for (const int by : {1, -1})
      all.push_back({"L7", string(n.list) + (by > 0 ? " begins at 1" : " is one position early"), [=](Edit& e) {
                       return e.map(n.list, [=](Index, double x) { return x < 0 || x < by ? x : x - by; });
                     }});
  const auto keys = [&](const string& text, auto from) {
    all.push_back({"L7", text, [=](Edit& e) {
                     if (!e.has(table)) return false;
                     const Tensor t = e.tensor(table);
                     const Index columns = last_axis(t), page = page_rows(e.arguments());
                     const auto slot = [&](Index b, Index position, Index rows) {  // by a page of so many rows
                       const Index at = std::clamp<Index>(b * columns + position / rows, 0, t.elements() - 1);
                       return std::max<Index>(integer_at(t, at), 0) * rows + position % rows;
                     };
                     return page > 0 && read_elsewhere(e, [&](Index b, Index p) { return from(slot, b, p, page); });
                   }});
  };
  const auto pages_of_size = [&](const string& text, auto size) {
    keys("pages are read as if they had " + text,
         [=](const auto& slot, Index b, Index p, Index page) { return size(page) > 0 ? slot(b, p, size(page)) : 0; });
  };
  pages_of_size("half as many rows", [](Index page) { return page / 2; });
  pages_of_size("twice as many rows", [](Index page) { return 2 * page; });
  const Index page = page_rows(a);
  for (const Index rows : {16, 64, 128, 256})
    if (rows != page && rows != 2 * page && 2 * rows != page)
      pages_of_size(std::to_string(rows) + " rows", [=](Index) { return rows; });
  for (const int by : {1, -1})
    keys(by > 0 ? "keys are read one position late" : "keys are read one position early",
         [=](const auto& slot, Index b, Index p, Index rows) { return slot(b, std::max<Index>(p + by, 0), rows); });
  all.push_back({"L7", "addresses of keys are taken mod 2^31", [](Edit& e) { return wrap_addresses(e, kSigned32); }});
}

// ---- L8: packed rows

/// Bytes of a packed row: codes, rope, scales.
struct Packed {
  Index codes, rope, scales;
  Packed(Index row, Index rope, Index tile)
      : codes((row - rope) * tile / (tile + 4)), rope(rope), scales(row - rope - codes) {}
  Index row() const { return codes + rope + scales; }

  /// Where byte b of the row lies in one with another order.
  Index scales_before_rope(Index b) const { return b < codes ? b : b < codes + rope ? b + scales : b - rope; }
  Index rope_first(Index b) const { return b < codes ? b + rope : b < codes + rope ? b - codes : b; }
  Index scales_reversed(Index b) const {
    const Index first = codes + rope, tile = (b - first) / 4, tiles = scales / 4;
    return b < first ? b : first + (tiles - 1 - tile) * 4 + (b - first) % 4;
  }
};

struct PackedOrder {
  const char *id, *text;
  Index (Packed::*from)(Index) const;
};
constexpr PackedOrder kPackedOrders[] = {
    {"L8", " have the scales before the rope part", &Packed::scales_before_rope},
    {"L8", " have the rope part first", &Packed::rope_first},
    {"L10", " have their scales reversed", &Packed::scales_reversed},
};

/// The rows that a prolog has stored, and no others of the cache.
bool stored_otherwise(const Restated& r, const Packed& p, Index (Packed::*from)(Index) const) {
  for (Pair& pair : r.pairs) {
    if (!pair.parameter.starts_with("kv_cache") || !pair.rows.empty() || !pair.mismatch.empty()) continue;
    const Tensor& slots = r.call.tensor("cache_index");
    const Stored before(pair.recorded);
    Stored after(pair.recorded);
    if (last_axis(pair.recorded) != p.row() || !slots) return false;
    for (Index i = 0; i < slots.elements(); ++i) {
      const Index at = integer_at(slots, i) * p.row();
      for (Index b = 0; at >= 0 && at < before.elements() && b < p.row(); ++b)
        (*after.bytes)[std::size_t(at + b)] = (*before.bytes)[std::size_t(at + (p.*from)(b))];
    }
    r.memory.push_back(after);
    pair.recorded = after.tensor();
    return true;
  }
  return false;
}

void packed_rows(const Arguments& a, Changes& all) {
  if (a.op->name == "kv_quant_sparse_flash_attention")
    for (const PackedOrder& order : kPackedOrders)
      all.push_back({order.id, string("rows of key") + order.text, [=](Edit& e) {
                       const Packed p(last_axis(e.tensor("key")),
                                      2 * std::get<Index>(e.arguments().at("rope_head_dim")),
                                      std::get<Index>(e.arguments().at("tile_size")));
                       return e.gather("key", [=](Index i) { return i - i % p.row() + (p.*order.from)(i % p.row()); });
                     }});
  if (parameter_of(*a.op, {"ckvkr_repo_mode"}).empty() || std::get<Index>(a.at("ckvkr_repo_mode")) != 1) return;
  const Packed p(last_axis(a.tensor("kv_cache")), 2 * last_axis(a.tensor(Names(*a.op).cos)),
                 std::get<Index>(a.at("tile_size")));
  for (const PackedOrder& order : kPackedOrders)
    all.push_back({.id = order.id,
                   .text = string("recorded rows of kv_cache") + order.text,
                   .restate = [=](const Restated& r) { return stored_otherwise(r, p, order.from); }});
}

// ---- L8: blocks of columns, caches swapped

/// Pages whose rows lie in columns of 32 bytes.
void blocks(const Arguments& a, Changes& all) {
  if (is_prolog(*a.op) && !parameter_of(*a.op, {"cache_mode"}).empty()) {
    const string mode = std::get<string>(a.at("cache_mode"));
    const bool nz = mode.ends_with("NZ");
    if (nz || mode.ends_with("BSND"))
      all.push_back({"L8",
                     nz ? "pages are stored as ND, not as FRACTAL_NZ" : "pages are stored as FRACTAL_NZ, not as ND",
                     [=](Edit& e) {
                       return e.set("cache_mode", mode.substr(0, mode.size() - (nz ? 2 : 4)) + (nz ? "BSND" : "NZ"));
                     }});
    return;
  }
  const Names n(*a.op);
  if (!is_attention(*a.op) || n.table.empty() || !a.tensor(n.table)) return;
  const auto add = [&](const char* text, bool back) {
    all.push_back({"L8", text, [=](Edit& e) {
                     const auto uses = pages_of(e.arguments());
                     if (uses.empty()) return false;
                     bool changed = false;
                     for (const std::string_view cache : caches_once(e, uses[0])) {
                       const Tensor t = e.tensor(cache);
                       const Index rows = page_rows(e.arguments()), c0 = 32 / size_of(t.dtype);
                       const bool is_nz = t.rank == 5;
                       const Index columns = is_nz ? t.shape[2] * t.shape[4] : last_axis(t);
                       if (is_nz != back || rows < 1 || columns % c0 != 0 || columns == c0) continue;
                       // The heads of [pages, rows, heads * columns] are columns, too.
                       const Fractal nz{rows, columns, c0};
                       const Index block = rows * columns;
                       changed |= e.gather(cache, [=](Index i) {
                         return i - i % block + (back ? nz.of(i % block) : nz.at(i % block));
                       });
                     }
                     return changed;
                   }});
  };
  add("pages are FRACTAL_NZ, read as ND", false);
  add("pages are ND, read as FRACTAL_NZ", true);
}

void swapped_caches(const Arguments& a, Changes& all) {
  const auto swap = [&](const char* one, const char* other) {
    if (!parameter_of(*a.op, {one}).empty() && !parameter_of(*a.op, {other}).empty())
      all.push_back(
          {"L8", string(one) + " and " + other + " are swapped", [=](Edit& e) { return e.swap(one, other); }});
  };
  swap("kv_cache", "kr_cache");
  if (!is_attention(*a.op)) return;
  swap("key", "key_rope"), swap("key", "value"), swap("key_nope_2d", "key_rope_2d");
}

}  // namespace

bool wrap_addresses(Edit& e, std::int64_t modulus) {
  const Names n(e.op());
  if (e.is_partly_stored() || !e.has(n.table)) return false;
  const auto uses = pages_of(e.arguments());
  if (uses.empty()) return false;
  bool changed = false;
  for (const std::string_view cache : caches_once(e, uses[0]))
    if (const Index elements = e.tensor(cache).elements(); elements > modulus)
      changed |= e.gather(cache, [=](Index i) { return i % modulus; });
  return changed;
}

void add_cache_changes(const Arguments& a, Changes& all) {
  slots(a, all);
  pages(a, all);
  packed_rows(a, all);
  blocks(a, all);
  swapped_caches(a, all);
}

}  // namespace dsakit::debug
