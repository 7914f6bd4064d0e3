// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "debug/addressing.hpp"
#include "debug/change.hpp"
#include "debug/names.hpp"
#include "debug/rule.hpp"

// Tables, rows and columns that lie otherwise than the call says.
namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using std::string;

Index last_axis(const Tensor& t) { return t.rank > 0 ? t.shape[t.rank - 1] : 1; }

/// Where column j of `width` lies if the halves of a row are pairs, and the other way round.
Index from_pairs(Index j, Index width) { return j < width / 2 ? 2 * j : 2 * (j - width / 2) + 1; }
Index from_halves(Index j, Index width) { return j / 2 + j % 2 * (width / 2); }
using Columns = Index (*)(Index j, Index width);

bool order_columns(Edit& e, std::string_view name, Columns columns) {
  if (!e.has(name) || last_axis(e.tensor(name)) % 2 != 0) return false;
  const Index width = last_axis(e.tensor(name));
  return e.gather(name, [=](Index i) { return i - i % width + columns(i % width, width); });
}

/// Rows move by one; the last ones come from the other end.
bool shift_rows(Edit& e, std::string_view name, Index by) {
  if (!e.has(name)) return false;
  const Tensor& t = e.tensor(name);
  Index n = t.elements(), rows = 1;  // entries of the first axis that has some
  for (int a = 0; a + 1 < t.rank && rows == 1; ++a) rows = t.shape[a];
  if (rows < 2) return false;
  const Index row = n / rows;
  return e.gather(name, [=](Index i) { return (i + by * row + n) % n; });
}

// ---- L1, L2: rotation

/// Widths of a prolog of latent attention.
struct Mla {
  Index heads, nope, latent, rope;
  Mla(const Arguments& a, const Names& n)
      : heads(a.tensor(n.uk).shape[0]),
        nope(a.tensor(n.uk).shape[1]),
        latent(a.tensor(n.uk).shape[2]),
        rope(last_axis(a.tensor(n.cos))) {}
};

/// Column j of the matrix (and its scale) becomes what column f(j) was.
template <class F>
bool weight_columns(Edit& e, std::string_view weight, std::string_view scale, F f) {
  if (!e.has(weight)) return false;
  const Index width = last_axis(e.tensor(weight));
  e.gather(weight, [=](Index i) { return i - i % width + f(i % width); });
  if (!scale.empty() && e.has(scale) && e.tensor(scale).elements() == width) e.gather(scale, f);
  return true;
}

bool rotate_otherwise(Edit& e, Columns columns, bool query, bool key) {
  const Names n(e.op());
  const Mla m(e.arguments(), n);
  bool changed = false;
  if (query)
    changed |= weight_columns(e, n.uq_qr, n.uq_qr_scale, [=](Index j) {
      const Index at = j % (m.nope + m.rope);
      return at < m.nope ? j : j - at + m.nope + columns(at - m.nope, m.rope);
    });
  if (key)
    changed |= weight_columns(e, n.dkv_kr, n.dkv_kr_scale,
                              [=](Index j) { return j < m.latent ? j : m.latent + columns(j - m.latent, m.rope); });
  return changed;
}

bool no_rotation(Edit& e, const Names& n) {
  return e.map(n.cos, [](Index, double) { return 1.0; }) && e.map(n.sin, [](Index, double) { return 0.0; });
}

/// Twice the angle.
bool twice_rotated(Edit& e, const Names& n) {
  if (!e.has(n.cos) || !e.has(n.sin) || e.tensor(n.cos).elements() != e.tensor(n.sin).elements()) return false;
  const Tensor cos = e.tensor(n.cos);
  const Tensor sin = e.tensor(n.sin);
  const auto at = [](const Tensor& t, Index i) { return number_at(t, offset_of(t, i)); };
  e.map(n.cos, [&](Index i, double c) { return c * c - at(sin, i) * at(sin, i); });
  return e.map(n.sin, [&](Index i, double s) { return 2 * s * at(cos, i); });
}

void rotation(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  if (!n.sin.empty()) {
    const string both = string(n.sin) + " and " + string(n.cos);
    all.push_back({"L1", both + " are swapped", [=](Edit& e) { return e.swap(n.sin, n.cos); }});
    all.push_back({"L1", string(n.sin) + " is negated",
                   [=](Edit& e) { return e.map(n.sin, [](Index, double x) { return -x; }); }});
    const auto table = [&](const char* id, const char* text, auto f) {
      all.push_back({id, both + text, [=](Edit& e) { return f(e, n.sin) && f(e, n.cos); }});
    };
    table("L1", " have a column for each of a pair", [](Edit& e, auto t) { return order_columns(e, t, from_pairs); });
    table("L1", " have their columns in halves", [](Edit& e, auto t) { return order_columns(e, t, from_halves); });
    all.push_back({"L2", "RoPE is applied twice", [=](Edit& e) { return twice_rotated(e, n); }});
    table("L1", " are one row late", [](Edit& e, auto t) { return shift_rows(e, t, 1); });
    table("L1", " are one row early", [](Edit& e, auto t) { return shift_rows(e, t, -1); });
  }
  for (const char* name : {"rope_layout", "rope_layout_indexer", "mode", "rotary_mode"})
    for (const char* value : {"half", "interleaved", "interleaved_to_half", "interleave"})
      if (!parameter_of(*a.op, {name}).empty() && std::holds_alternative<string>(a.at(name)))
        all.push_back({"L2", string(name) + " is " + value, [=](Edit& e) { return e.set(name, string(value)); }});
  if (!n.uk.empty() && !n.sin.empty()) {
    struct Part {
      bool query, key;
      const char* text;
    };
    for (const Part part : {Part{true, true, "query and key"}, {true, false, "the query"}, {false, true, "the key"}}) {
      all.push_back({"L2", string("RoPE turns halves, not pairs, of ") + part.text,
                     [=](Edit& e) { return rotate_otherwise(e, from_halves, part.query, part.key); }});
      all.push_back({"L2", string("the rope columns of ") + part.text + " were brought into halves already",
                     [=](Edit& e) { return rotate_otherwise(e, from_pairs, part.query, part.key); }});
    }
    all.push_back({"L2", "RoPE is not applied",
                   [=](Edit& e) { return no_rotation(e, n) && rotate_otherwise(e, from_halves, true, true); }});
    all.push_back({"L2", "RoPE only brings pairs into halves", [=](Edit& e) { return no_rotation(e, n); }});
  } else if (!n.sin.empty()) {
    all.push_back({"L2", "RoPE is not applied", [=](Edit& e) { return no_rotation(e, n); }});
  }
  if (is_attention(*a.op) && !n.query_rope.empty()) {
    all.push_back({"L2", "rope columns of the query are pairs, of the key halves",
                   [=](Edit& e) { return order_columns(e, n.query_rope, from_pairs); }});
    all.push_back({"L2", "rope columns of the query are halves, of the key pairs",
                   [=](Edit& e) { return order_columns(e, n.query_rope, from_halves); }});
  }
}

// ---- L3: the target read otherwise

/// Element i of the target becomes what its element from(i) was.
template <class F>
bool reread(const Reread& r, F from) {
  const Stored before(r.pair.recorded);
  Stored after(*before.type, before.shape);
  const auto size = std::size_t(size_of(before.tensor().dtype));
  for (Index i = 0, n = before.elements(); i < n; ++i)
    std::memcpy(after.bytes->data() + std::size_t(i) * size, before.bytes->data() + std::size_t(from(i)) * size, size);
  r.memory.push_back(after);
  const DType dtype = r.pair.recorded.dtype;
  r.pair.recorded = after.tensor(), r.pair.recorded.dtype = dtype;
  return true;
}

template <class F>
bool reread_numbers(const Reread& r, F f) {
  Stored after(r.pair.recorded);
  for (Index i = 0, n = after.elements(); i < n; ++i) set_number(after, i, f(number_at(after.tensor(), i)));
  r.memory.push_back(after);
  r.pair.recorded = after.tensor();
  return true;
}

/// Rows of `heads` blocks of `width`, in each token.
struct Blocks {
  Index heads, width, tokens;
  explicit Blocks(const Tensor& t) : heads(0), width(last_axis(t)), tokens(0) {
    if (t.rank < 3) return;
    heads = t.shape[t.rank - 2];
    tokens = t.elements() / std::max<Index>(heads * width, 1);
  }
};

bool heads_before_tokens(const Reread& r) {
  const Blocks b(r.pair.recorded);
  return b.heads > 1 && b.tokens > 1 && reread(r, [=](Index i) {
           const Index token = i / (b.heads * b.width), head = i / b.width % b.heads;
           return (head * b.tokens + token) * b.width + i % b.width;
         });
}

bool width_before_heads(const Reread& r) {
  const Blocks b(r.pair.recorded);
  return b.heads > 1 && b.width > 1 && reread(r, [=](Index i) {
           const Index token = i / (b.heads * b.width), head = i / b.width % b.heads;
           return (token * b.width + i % b.width) * b.heads + head;
         });
}

bool columns_of_result(const Reread& r, Columns columns) {
  const Index width = last_axis(r.pair.recorded);
  return width % 2 == 0 && reread(r, [=](Index i) { return i - i % width + columns(i % width, width); });
}

void results(const Arguments& a, Changes& all) {
  for (const Parameter& p : a.op->parameters) {
    const string name = p.field.name;
    const bool is_cache = p.field.kind == Kind::cache, is_result = p.result >= 0 || is_cache;
    if (!is_result || is_indexer(*a.op)) continue;
    const auto add = [&](const char* text, auto read) {
      all.push_back({"L3", name + text, {}, [=](const Reread& r) { return r.pair.parameter == name && read(r); }});
    };
    if (is_prolog(*a.op) && (name.find("rope") != string::npos || name.starts_with("kr_cache"))) {
      add(" is recorded as pairs", [](const Reread& r) { return columns_of_result(r, from_pairs); });
      add(" is recorded as halves", [](const Reread& r) { return columns_of_result(r, from_halves); });
    }
    if (is_cache) continue;
    add(" is recorded as heads x tokens", heads_before_tokens);
    add(" is recorded as width x heads", width_before_heads);
  }
  if (is_indexer(*a.op)) {
    for (const int by : {1, -1})
      all.push_back(
          {"L3", by > 0 ? "recorded positions begin at 1" : "recorded positions begin at -1", {}, [=](const Reread& r) {
             if (r.pair.parameter != "sparse_indices") return false;
             const bool padded = by > 0;  // -1 ends a list that begins at 1
             return reread_numbers(r, [=](double x) { return padded && x < 0 ? x : x - by; });
           }});
  }
}

// ---- L4, L5: weights

void weights(const Arguments& a, Changes& all) {
  const auto matrices = inputs_of(a, [](const Parameter& p, const Tensor& t) {
    return p.field.kind == Kind::weight && t.rank >= 2 && t.format == Format::ND;
  });
  for (const string& w : matrices) {
    const Tensor& t = a.tensor(w);
    const Index k = t.shape[t.rank - 2], n = t.shape[t.rank - 1];
    all.push_back({"L4", w + (t.rank == 2 ? " lies as [N, K]" : " lies as [N, K] in each head"), [=](Edit& e) {
                     return e.gather(w, [=](Index i) { return i - i % (k * n) + i % n * k + i % (k * n) / n; });
                   }});
    for (const Index c0 : {16, 32}) {
      if (t.rank != 2 || k % 16 != 0 || n % c0 != 0 || n == c0) continue;
      const string of = w + " ";
      const auto in_nz = [=](Index i) {  // where the element of row-major position i lies
        const Index row = i / n, column = i % n;
        return ((column / c0 * (k / 16) + row / 16) * 16 + row % 16) * c0 + column % c0;
      };
      const auto of_nz = [=](Index i) {
        const Index column = i / (k * c0) * c0 + i % c0, row = i % (k * c0) / c0;
        return row * n + column;
      };
      const string blocks = " (c0 " + std::to_string(c0) + ")";
      all.push_back({"L4", of + "is FRACTAL_NZ, read as ND" + blocks, [=](Edit& e) { return e.gather(w, in_nz); }});
      all.push_back({"L4", of + "is ND, read as FRACTAL_NZ" + blocks, [=](Edit& e) { return e.gather(w, of_nz); }});
    }
  }
  const Names n(*a.op);
  if (n.uk.empty() || n.cos.empty()) return;
  const auto columns = [&](const char* text, auto from) {
    all.push_back({"L5", string(n.uq_qr) + text, [=](Edit& e) {
                     const Mla m(e.arguments(), n);
                     return weight_columns(e, n.uq_qr, n.uq_qr_scale, [=](Index j) {
                       return from(m, j / (m.nope + m.rope), j % (m.nope + m.rope));
                     });
                   }});
  };
  columns(" has all plain columns before all rope columns", [](const Mla& m, Index h, Index c) {
    return c < m.nope ? h * m.nope + c : m.heads * m.nope + h * m.rope + c - m.nope;
  });
  columns(" has the rope columns of each head first", [](const Mla& m, Index h, Index c) {
    return h * (m.nope + m.rope) + (c < m.nope ? m.rope + c : c - m.nope);
  });
  columns(" has its heads fastest", [](const Mla& m, Index h, Index c) { return c * m.heads + h; });
  all.push_back({"L5", string(n.dkv_kr) + " has its rope columns first", [=](Edit& e) {
                   const Mla m(e.arguments(), n);
                   return weight_columns(e, n.dkv_kr, n.dkv_kr_scale,
                                         [=](Index j) { return j < m.latent ? m.rope + j : j - m.latent; });
                 }});
}

// ---- L6, L7: slots and pages

/// An axis of the first paged cache, 0 without one: pages, rows of a page.
Index paged_axis(const Edit& e, int axis) {
  for (const Parameter& p : e.op().parameters)
    if (p.field.kind == Kind::cache && e.has(p.field.name) && e.tensor(p.field.name).rank == 4)
      return e.tensor(p.field.name).shape[axis];
  return 0;
}
Index page_count(const Edit& e) { return paged_axis(e, 0); }
Index page_size(const Edit& e) { return paged_axis(e, 1); }

void slots(const Arguments& a, Changes& all) {
  const string slots(Names(*a.op).slots);
  if (slots.empty()) return;
  const auto add = [&](const string& text, auto f) {
    all.push_back({"L6", slots + text, [=](Edit& e) {
                     const Index page = page_size(e);
                     return !e.is_partly_stored() && page > 0 &&
                            e.map(slots, [=](Index, double x) { return double(f(Index(x), page)); });
                   }});
  };
  add(" is one slot late", [](Index s, Index) { return s < 0 ? s : s + 1; });
  add(" is one slot early", [](Index s, Index) { return s <= 0 ? s : s - 1; });
  all.push_back({"L6", slots + ": negative entries are stored in the last slot", [=](Edit& e) {
                   if (e.is_partly_stored() || !e.has(slots)) return false;
                   const Index rows = page_size(e) * page_count(e);
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
}

// ---- L8: packed rows

/// Bytes of a packed row: codes, rope, scales.
struct Packed {
  Index codes, rope, scales;
  explicit Packed(const Edit& e) {
    rope = 2 * std::get<Index>(e.arguments().at("rope_head_dim"));
    const Index tile = std::get<Index>(e.arguments().at("tile_size")), row = last_axis(e.tensor("key"));
    codes = (row - rope) * tile / (tile + 4), scales = row - rope - codes;
  }
  Index row() const { return codes + rope + scales; }
};

void packed_rows(const Arguments& a, Changes& all) {
  if (a.op->name != "kv_quant_sparse_flash_attention") return;
  const auto add = [&](const char* text, auto from) {
    all.push_back({"L8", text, [=](Edit& e) {
                     const Packed p(e);
                     return e.gather("key", [=](Index i) { return i - i % p.row() + from(p, i % p.row()); });
                   }});
  };
  add("rows of key have the scales before the rope part", [](const Packed& p, Index b) {
    return b < p.codes ? b : b < p.codes + p.rope ? b + p.scales : b - p.rope;
  });
  add("rows of key have the rope part first", [](const Packed& p, Index b) {
    return b < p.codes ? b + p.rope : b < p.codes + p.rope ? b - p.codes : b;
  });
  add("rows of key have their scales reversed", [](const Packed& p, Index b) {
    const Index first = p.codes + p.rope, tile = (b - first) / 4, tiles = p.scales / 4;
    return b < first ? b : first + (tiles - 1 - tile) * 4 + (b - first) % 4;
  });
}

// ---- L9: element types

bool reinterpret(Edit& e, const string& name) {
  const Stored before(e.tensor(name));
  Stored after(*before.type, before.shape);
  const bool is_bf16 = before.tensor().dtype == DType::bf16;
  const auto* bits = reinterpret_cast<const std::uint16_t*>(before.bytes->data());
  for (Index i = 0, n = before.elements(); i < n; ++i)
    set_number(after, i, is_bf16 ? to_float(f16{bits[i]}) : to_float(bf16{bits[i]}));
  e.set(name, after);
  return true;
}

void types(const Arguments& a, Changes& all) {
  for (const string& name : inputs_of(a, [](const Parameter&, const Tensor& t) {
         return (t.dtype == DType::f16 || t.dtype == DType::bf16) && t.format == Format::ND;
       })) {
    const bool is_bf16 = a.tensor(name).dtype == DType::bf16;
    all.push_back({"L9", name + (is_bf16 ? " has the bits of float16" : " has the bits of bfloat16"),
                   [=](Edit& e) { return e.has(name) && reinterpret(e, name); }});
  }
  for (const string& name : inputs_of(a, [](const Parameter&p, const Tensor&t) {
         return t.dtype == DType::i8 && t.format == Format::ND &&
                (p.field.kind == Kind::data || p.field.kind == Kind::weight);
       }))
    all.push_back({"L9", name + " has codes of uint8 around 128",
                   [=](Edit& e) { return e.map(name, [](Index, double x) { return x < 0 ? x + 128 : x - 128; }); }});
}

// ---- L10: scales

void scales(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  for (const string& s : scales_of(a)) {
    const Tensor& t = a.tensor(s);
    const bool paged = !n.table.empty() && a.tensor(n.table) && s.find("key") != string::npos && t.rank >= 2;
    Index rows = t.rank > 0 ? t.shape[0] : 1, columns = t.elements() / std::max<Index>(rows, 1);
    if (!paged && rows > 1 && columns > 1)
      all.push_back({"L10", s + " lies as its other axis first",
                     [=](Edit& e) { return e.gather(s, [=](Index i) { return i % columns * rows + i / columns; }); }});
    if (rows > 1 && !paged)
      all.push_back({"L10", s + " is one row late", [=](Edit& e) { return shift_rows(e, s, 1); }});
    if (!paged) continue;
    const auto by_position = [&](const char* text, bool own) {
      all.push_back({"L10", s + text, [=](Edit& e) {
                       if (e.is_partly_stored() || !e.has(n.table)) return false;
                       const Tensor table = e.tensor(n.table);
                       const Index size = columns;  // entries of a page
                       std::vector<Index> from(std::size_t(rows * size));
                       for (Index i = 0; i < rows * size; ++i) from[std::size_t(i)] = i;
                       for (Index i = 0; i < table.elements(); ++i) {
                         const Index page = integer_at(table, i), at = own ? i : i % table.shape[1];
                         for (Index r = 0; page >= 0 && page < rows && at < rows && r < size; ++r)
                           from[std::size_t(page * size + r)] = at * size + r;
                       }
                       return e.gather(s, [&](Index i) { return from[std::size_t(i)]; });
                     }});
    };
    by_position(" is read by position, not by block_table", false);
    if (a.tensor(n.table).rank == 2 && a.tensor(n.table).shape[0] > 1)
      by_position(" is read by position and sequence, not by block_table", true);
    all.push_back({"L10", s + " is one entry late", [=](Edit& e) {
                     const Index all_entries = rows * columns;
                     return e.gather(s, [=](Index i) { return (i + 1) % all_entries; });
                   }});
  }
}

}  // namespace

void add_layout_changes(const Arguments& a, Changes& all) {
  rotation(a, all);
  results(a, all);
  weights(a, all);
  slots(a, all);
  pages(a, all);
  packed_rows(a, all);
  types(a, all);
  scales(a, all);
}

}  // namespace dsakit::debug
