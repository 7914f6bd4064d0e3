// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "debug/addressing.hpp"
#include "debug/change.hpp"
#include "debug/names.hpp"
#include "debug/orders.hpp"
#include "debug/rule.hpp"

// Tables, rows and columns that lie otherwise than the call says.
namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using std::string;

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
  Index n = t.elements(), rows = t.rank == 1 ? n : 1;  // entries of the first axis that has some
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

/// Columns of the rows of an index prolog in another order until they have been rotated: the rows of the Hadamard
/// matrix bring them back. Column c becomes what column from(c) was.
template <class F>
bool index_columns(Edit& e, bool query, bool key, F from) {
  bool changed = false;
  const auto reorder = [&](const char* matrix) {
    if (!e.has(matrix)) return false;
    const Index dim = last_axis(e.tensor(matrix));
    return e.gather(matrix, [=](Index i) { return from(i / dim, dim) * dim + i % dim; });
  };
  if (query && reorder("hadamard_q")) {
    const Index dim = last_axis(e.tensor("hadamard_q"));
    const auto of_head = [=](Index i) { return i - i % dim + from(i % dim, dim); };
    changed = e.gather("w_qb", of_head) && e.gather("w_qb_scale", of_head);
  }
  if (key && reorder("hadamard_k")) {
    const Index dim = last_axis(e.tensor("hadamard_k"));
    for (const char* name : {"wk", "ln_gamma_k", "ln_beta_k"})
      changed |= e.gather(name, [=](Index i) { return i - i % dim + from(i % dim, dim); });
  }
  return changed;
}

void index_rotation(const Arguments& a, const Names& n, Changes& all) {
  if (parameter_of(*a.op, {"hadamard_q"}).empty()) return;
  struct Part {
    bool query, key;
    const char* text;
  };
  for (const Part part :
       {Part{true, true, "index query and key"}, {true, false, "the index query"}, {false, true, "the index key"}}) {
    const auto add = [&](const string& text, auto from) {
      all.push_back({"L2", text + part.text, [=](Edit& e) {
                       const Index rope = e.has(n.cos) ? last_axis(e.tensor(n.cos)) : 0;
                       return rope > 0 && index_columns(e, part.query, part.key,
                                                        [=](Index c, Index dim) { return from(c, dim, rope); });
                     }});
    };
    add("RoPE turns the last columns, not the first, of ",
        [](Index c, Index dim, Index rope) { return (c + dim - rope) % dim; });
    // How the call has it, `rope_layout` says; the other order of either row alone.
    if (part.query && part.key) continue;
    add("RoPE turns pairs, not halves, of ",
        [](Index c, Index, Index rope) { return c < rope ? from_pairs(c, rope) : c; });
    add("RoPE turns halves, not pairs, of ",
        [](Index c, Index, Index rope) { return c < rope ? from_halves(c, rope) : c; });
  }
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
  index_rotation(a, n, all);
  if (a.op->name == "interleave_rope") {
    all.push_back(
        {"L2", "RoPE turns halves, not pairs, of x", [](Edit& e) { return order_columns(e, "x", from_halves); }});
    all.push_back({"L2", "the columns of x were brought into halves already",
                   [](Edit& e) { return order_columns(e, "x", from_pairs); }});
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

/// A tensor of the pair becomes `after`.
bool put(Tensor& to, const Reread& r, const Stored& after) {
  r.memory.push_back(after);
  to = after.tensor();
  return true;
}

template <class F>
bool reread_numbers(const Reread& r, F f) {
  Stored after(r.pair.recorded);
  for (Index i = 0, n = after.elements(); i < n; ++i) set_number(after, i, f(number_at(after.tensor(), i)));
  return put(r.pair.recorded, r, after);
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

/// Two results of the call, each where the other should be; their shapes may differ.
bool in_each_others_place(const Restated& r, const string& one, const string& other) {
  Pair *a = nullptr, *b = nullptr;
  for (Pair& p : r.pairs) {
    if (p.parameter == one) a = &p;
    if (p.parameter == other) b = &p;
  }
  const auto fits = [](const Tensor& x, const Tensor& y) {
    return x.dtype == y.dtype && x.rank == y.rank && x.elements() > 0 &&
           std::equal(x.shape.begin(), x.shape.begin() + x.rank, y.shape.begin());
  };
  if (!a || !b || !a->rows.empty() || !b->rows.empty()) return false;
  if (!fits(a->recorded, b->computed) || !fits(b->recorded, a->computed)) return false;
  std::swap(a->recorded, b->recorded);
  std::swap(a->undefined, b->undefined);
  a->mismatch.clear(), b->mismatch.clear();
  return true;
}

void swapped_results(const Arguments& a, Changes& all) {
  std::vector<const Parameter*> some;
  for (const Parameter& p : a.op->parameters)
    if (p.result >= 0 || (p.field.kind == Kind::cache && p.field.is_written())) some.push_back(&p);
  for (std::size_t i = 0; i < some.size(); ++i)
    for (std::size_t j = i + 1; j < some.size(); ++j) {
      const string one = some[i]->field.name, other = some[j]->field.name;
      const bool caches = some[i]->field.kind == Kind::cache && some[j]->field.kind == Kind::cache;
      all.push_back({.id = caches ? "L8" : "L3",
                     .text = one + " and " + other + " are recorded in each other's place",
                     .restate = [=](const Restated& r) { return in_each_others_place(r, one, other); }});
    }
}

/// The right keys of a row, in another order than that of their scores.
bool order_alone(const Reread& r) {
  if (r.pair.parameter != "sparse_indices" || last_axis(r.pair.recorded) == 0) return false;
  const Index width = last_axis(r.pair.recorded);
  Stored after(r.pair.recorded);
  const auto entry = [](const Tensor& t, Index i) { return number_at(t, offset_of(t, i)); };
  bool changed = false;
  for (Index row = 0; row < after.elements() / width; ++row) {
    std::vector<double> a, b;
    for (Index i = row * width; i < (row + 1) * width; ++i)
      a.push_back(entry(r.pair.recorded, i)), b.push_back(entry(r.pair.computed, i));
    const std::vector<double> computed = b;
    changed |= a != b;
    std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
    if (a == b)
      for (Index i = 0; i < width; ++i) set_number(after, row * width + i, computed[std::size_t(i)]);
  }
  return changed && put(r.pair.recorded, r, after);
}

/// As if only the best `kept` keys had been selected.
bool cut_list(const Reread& r, Index kept) {
  const Index width = last_axis(r.pair.computed);
  if (r.pair.parameter != "sparse_indices" || kept >= width) return false;
  Stored after(r.pair.computed);
  for (Index i = 0; i < after.elements(); ++i)
    if (i % width >= kept) set_number(after, i, -1);
  return put(r.pair.computed, r, after);
}

Stored high_nibble_first(const Tensor& words) {
  const Stored after(words);
  std::byte* at = after.bytes->data();
  for (std::size_t i = 0; i < after.bytes->size(); ++i) at[i] = at[i] << 4 | at[i] >> 4;
  return after;
}

void results(const Arguments& a, Changes& all) {
  swapped_results(a, all);
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
    if (p.field.kind == Kind::scale)
      all.push_back({"Q1", name + " is recorded as its inverse", {}, [=](const Reread& r) {
                       if (r.pair.parameter != name || !r.pair.rows.empty() || r.pair.recorded.elements() == 0)
                         return false;
                       const Tensor computed = r.pair.computed;
                       Stored after(r.pair.recorded);
                       for (Index i = 0, n = after.elements(); i < n; ++i) {
                         const double x = number_at(after.tensor(), i), y = number_at(computed, offset_of(computed, i));
                         // As near as the inverse of a rounded number can be.
                         set_number(after, i, x == 0 ? 0 : std::abs(1 / x - y) <= 0x1p-22 * std::abs(y) ? y : 1 / x);
                       }
                       return put(r.pair.recorded, r, after);
                     }});
    if (is_quantiser(*a.op) && name == "y")
      all.push_back({"L9", "the int4 codes of y have the high nibble first", {}, [=](const Reread& r) {
                       if (r.pair.parameter != "y" || r.pair.recorded.dtype != DType::i32) return false;
                       return put(r.pair.recorded, r, high_nibble_first(r.pair.recorded));
                     }});
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
    all.push_back({"L3", "recorded positions are in another order", {}, order_alone});
    const auto* count = std::get_if<Index>(&a.at("sparse_count"));
    for (const Index kept : list_cuts(count ? *count : 0))
      all.push_back({"A2", "only the best " + std::to_string(kept) + " keys are selected", {}, [=](const Reread& r) {
                       return cut_list(r, kept);
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
      const Fractal nz{k, n, c0};
      const string blocks = " (c0 " + std::to_string(c0) + ")";
      all.push_back({"L4", of + "is FRACTAL_NZ, read as ND" + blocks,
                     [=](Edit& e) { return e.gather(w, [=](Index i) { return nz.at(i); }); }});
      all.push_back({"L4", of + "is ND, read as FRACTAL_NZ" + blocks,
                     [=](Edit& e) { return e.gather(w, [=](Index i) { return nz.of(i); }); }});
    }
  }
  const Names n(*a.op);
  if (n.uk.empty() || n.cos.empty()) return;
  // Of the columns of a matrix with their scales, or of the scales alone.
  const auto columns = [&](std::string_view matrix, std::string_view scale, const char* text, auto from) {
    const auto at = [=](const Edit& e) { return [m = Mla(e.arguments(), n), from](Index j) { return from(m, j); }; };
    all.push_back({"L5", string(matrix) + text, [=](Edit& e) { return weight_columns(e, matrix, scale, at(e)); }});
    if (!scale.empty() && a.tensor(scale))
      all.push_back({"L10", string(scale) + text, [=](Edit& e) {
                       if (!e.has(matrix)) return false;
                       const bool of_columns =
                           e.has(scale) && e.tensor(scale).elements() == last_axis(e.tensor(matrix));
                       return of_columns && e.gather(scale, at(e));
                     }});
  };
  const auto heads = [](auto f) {
    return [=](const Mla& m, Index j) { return f(m, j / (m.nope + m.rope), j % (m.nope + m.rope)); };
  };
  columns(n.uq_qr, n.uq_qr_scale, " has all plain columns before all rope columns",
          heads([](const Mla& m, Index h, Index c) {
            return c < m.nope ? h * m.nope + c : m.heads * m.nope + h * m.rope + c - m.nope;
          }));
  columns(n.uq_qr, n.uq_qr_scale, " has the rope columns of each head first", heads([](const Mla& m, Index h, Index c) {
            return h * (m.nope + m.rope) + (c < m.nope ? m.rope + c : c - m.nope);
          }));
  columns(n.uq_qr, n.uq_qr_scale, " has its heads fastest",
          heads([](const Mla& m, Index h, Index c) { return c * m.heads + h; }));
  columns(n.dkv_kr, n.dkv_kr_scale, " has its rope columns first",
          [](const Mla& m, Index j) { return j < m.latent ? m.rope + j : j - m.latent; });
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
  const bool packed = a.op->name == "kv_quant_sparse_flash_attention";
  for (const string& name : inputs_of(a, [=](const Parameter& p, const Tensor& t) {
         return t.dtype == DType::i32 && (p.field.kind == Kind::weight || p.field.kind == Kind::cache);
       }))
    all.push_back({"L9", "the int4 codes of " + name + " have the high nibble first", [=](Edit& e) {
                     if (e.has(name)) e.set(name, high_nibble_first(e.tensor(name)));
                     return e.has(name);
                   }});
  for (const string& name : inputs_of(a, [=](const Parameter& p, const Tensor& t) {
         return t.dtype == DType::i8 && t.format == Format::ND &&
                (p.field.kind == Kind::data || p.field.kind == Kind::weight ||
                 (p.field.kind == Kind::cache && !packed));
       }))
    all.push_back({"L9", name + " has codes of uint8 around 128",
                   [=](Edit& e) { return e.map(name, [](Index, double x) { return x < 0 ? x + 128 : x - 128; }); }});
}

// ---- L10: scales

/// Whether a scale of keys or values lies in pages as they do.
bool is_by_page(const Arguments& a, const string& scale) {
  const bool key = scale.find("key") != string::npos, value = scale.find("value") != string::npos;
  if (a.op->name != "fused_infer_attention_score_v2") return key;
  return (key || value) && std::get<Index>(a.at(key ? "key_quant_mode" : "value_quant_mode")) >= 4;
}

void scales(const Arguments& a, Changes& all) {
  const Names n(*a.op);
  for (const string& s : scales_of(a)) {
    const Tensor& t = a.tensor(s);
    const bool apart = s == "k_nope_scales";  // rows of tiles, of a cache without an axis of pages
    const bool paged = !n.table.empty() && a.tensor(n.table) && t.rank >= 2 && (apart || is_by_page(a, s));
    const Index rows = t.rank > 0 ? t.shape[0] : 1, columns = t.elements() / std::max<Index>(rows, 1);
    if (!paged && rows > 1 && columns > 1)
      all.push_back({"L10", s + " lies as its other axis first",
                     [=](Edit& e) { return e.gather(s, [=](Index i) { return i % columns * rows + i / columns; }); }});
    if (rows > 1 && !paged)
      all.push_back({"L10", s + " is one row late", [=](Edit& e) { return shift_rows(e, s, 1); }});
    if (!paged) continue;
    const Index tiles = apart ? columns : 1;
    if (tiles > 1)
      all.push_back({"L10", "the tiles of " + s + " are reversed", [=](Edit& e) {
                       return e.gather(s, [=](Index i) { return i - i % tiles + tiles - 1 - i % tiles; });
                     }});
    const auto by_position = [&](const char* text, bool own) {
      all.push_back({"L10", s + text, [=](Edit& e) {
                       if (e.is_partly_stored() || !e.has(n.table)) return false;
                       const Tensor table = e.tensor(n.table);
                       const Index size = apart ? page_rows(e.arguments()) * tiles : columns;  // entries of a page
                       const Index entries = rows * columns, pages = size > 0 ? entries / size : 0;
                       std::vector<Index> from(static_cast<std::size_t>(entries));
                       for (Index i = 0; i < entries; ++i) from[std::size_t(i)] = i;
                       for (Index i = 0; i < table.elements(); ++i) {
                         const Index page = integer_at(table, i), at = own ? i : i % table.shape[1];
                         for (Index r = 0; page >= 0 && page < pages && at < pages && r < size; ++r)
                           from[std::size_t(page * size + r)] = at * size + r;
                       }
                       return e.gather(s, [&](Index i) { return from[std::size_t(i)]; });
                     }});
    };
    by_position(" is read by position, not by block_table", false);
    if (a.tensor(n.table).rank == 2 && a.tensor(n.table).shape[0] > 1)
      by_position(" is read by position and sequence, not by block_table", true);
    all.push_back({"L10", s + " is one entry late", [=](Edit& e) {
                     const Index entries = rows * columns;
                     return e.gather(s, [=](Index i) { return (i + tiles) % entries; });
                   }});
  }
}

}  // namespace

void add_layout_changes(const Arguments& a, Changes& all) {
  rotation(a, all);
  results(a, all);
  weights(a, all);
  add_cache_changes(a, all);
  types(a, all);
  scales(a, all);
}

}  // namespace dsakit::debug
