// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "debug/change.hpp"
#include "debug/names.hpp"
#include "debug/rule.hpp"

// Scales, smoothing and rotations before codes that are used otherwise than the call says.
namespace dsakit::debug {
namespace {

using Index = std::int64_t;
using std::string;

void each_scale(const Arguments& a, Changes& all) {
  for (const string& s : scales_of(a)) {
    const string id = s.starts_with("smooth") ? "Q2" : "Q1";
    const auto add = [&](const char* text, auto f) {
      all.push_back({id, s + text, [=](Edit& e) { return e.map(s, [=](Index, double x) { return f(x); }); }});
    };
    add(" is dropped", [](double) { return 1.0; });
    add(" is used as its inverse", [](double x) { return x == 0 ? 0 : 1 / x; });
    const Tensor& t = a.tensor(s);
    const Index width = t.rank > 0 ? t.shape[t.rank - 1] : 1;
    if (width > 1)
      all.push_back({id, "the first entry of each row of " + s + " is used for all",
                     [=](Edit& e) { return e.gather(s, [=](Index i) { return i - i % width; }); }});
    add(" is of 128 steps, not 127", [](double x) { return x * 128 / 127; });
    add(" is of 127 steps, not 128", [](double x) { return x * 127 / 128; });
  }
  for (const string& s : inputs_of(a, [](const Parameter&p, const Tensor&t) {
         return string(p.field.name).find("offset") != string::npos && is_float(t.dtype);
       }))
    all.push_back(
        {"Q1", s + " has the other sign", [=](Edit& e) { return e.map(s, [](Index, double x) { return -x; }); }});
}

/// The fp32 scales behind the codes and the rope part of packed rows.
void packed_scales(const Arguments& a, Changes& all) {
  if (a.op->name != "kv_quant_sparse_flash_attention") return;
  const auto add = [&](const char* text, auto f) {
    all.push_back({"Q1", text, [=](Edit& e) {
                     const Tensor key = e.tensor("key");
                     const Index row = key.shape[key.rank - 1],
                                 rope = 2 * std::get<Index>(e.arguments().at("rope_head_dim"));
                     const Index tile = std::get<Index>(e.arguments().at("tile_size")),
                                 tiles = (row - rope) / (tile + 4);
                     Stored after(key);
                     for (Index r = 0; r < after.elements() / row; ++r) {
                       std::byte* at = after.bytes->data() + (r + 1) * row - 4 * tiles;
                       std::vector<float> scales(static_cast<std::size_t>(tiles));
                       std::memcpy(scales.data(), at, std::size_t(4 * tiles));
                       const float first = scales[0];
                       for (float& s : scales) s = f(s, first);
                       std::memcpy(at, scales.data(), std::size_t(4 * tiles));
                     }
                     e.set("key", after);
                     return true;
                   }});
  };
  add("the scales of the rows of key are dropped", [](float, float) { return 1.0f; });
  add("the scales of the rows of key are used as their inverse", [](float s, float) { return s == 0 ? 0 : 1 / s; });
  add("the first scale of each row of key is used for all tiles", [](float, float first) { return first; });
}

void factors(const Arguments& a, Changes& all) {
  for (const char* name : {"kc_scale", "qc_qr_scale"})
    if (!parameter_of(*a.op, {name}).empty())
      all.push_back({"Q2", string(name) + " is 1", [=](Edit& e) { return e.set(name, 1.0); }});
  if (!parameter_of(*a.op, {"k_nope_clip_alpha"}).empty())
    all.push_back({"Q2", "k_nope_clip_alpha is 1",
                   [](Edit& e) { return e.map("k_nope_clip_alpha", [](Index, double) { return 1.0; }); }});
}

// ---- Q3: the Hadamard rotation of index rows

bool identity(Edit& e, std::string_view matrix) {
  const Index n = e.has(matrix) ? e.tensor(matrix).shape[0] : 0;
  return n > 0 && e.map(matrix, [=](Index i, double) { return i / n == i % n ? 1.0 : 0.0; });
}

bool twice(Edit& e, std::string_view matrix) {
  if (!e.has(matrix)) return false;
  const Tensor h = e.tensor(matrix);
  const Index n = h.shape[0];
  return e.map(matrix, [&](Index i, double) {
    double sum = 0;
    for (Index k = 0; k < n; ++k) sum += number_at(h, i / n * n + k) * number_at(h, k * n + i % n);
    return sum;
  });
}

bool without_root(Edit& e, std::string_view matrix) {
  if (!e.has(matrix)) return false;
  const double root = std::sqrt(double(e.tensor(matrix).shape[0]));
  return e.map(matrix, [=](Index, double x) { return x * root; });
}

void hadamard(const Arguments& a, Changes& all) {
  if (parameter_of(*a.op, {"hadamard_q"}).empty()) return;
  struct Part {
    bool query, key;
    const char* text;
  };
  for (const Part part :
       {Part{true, false, "the index query"}, {false, true, "the index key"}, {true, true, "index query and key"}}) {
    const auto add = [&](const string& text, auto f) {
      all.push_back({"Q3", text, [=](Edit& e) {
                       const bool q = part.query && f(e, "hadamard_q"), k = part.key && f(e, "hadamard_k");
                       return q || k;
                     }});
    };
    add(string("Hadamard is missing on ") + part.text, identity);
    add(string("Hadamard is applied twice on ") + part.text, twice);
    add(string("Hadamard is without 1/sqrt(Di) on ") + part.text, without_root);
  }
}

}  // namespace

void add_quantisation_changes(const Arguments& a, Changes& all) {
  each_scale(a, all);
  packed_scales(a, all);
  factors(a, all);
  hadamard(a, all);
}

}  // namespace dsakit::debug
