// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "ops/fused_infer_attention_score_v2/door.hpp"

// What only Atlas A2/A3 cannot do: asked by `strict` alone.
namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using std::to_string;

auto width_is(const Door& d) {
  return [&d] { return "has width " + to_string(d.s.width) + " beside values of " + to_string(d.s.out_width); };
}
auto text(const char* words) {
  return [words] { return std::string(words); };
}

}  // namespace

void Door::chip_sizes() const {
  if (!c.strict()) return;
  if (!s.rope)
    limit(s.heads / s.kv_heads <= 64, "num_query_heads", is(s.heads), "at most 64 for each key head");  // S-8
  if (s.rope) chip_rope();
  else chip_widths();
  chip_counts();
  chip_elements();
}

/// S-16..S-18
void Door::chip_rope() const {
  const Axes in = s.layout->in;
  const bool bsh_or_bsnd = in == Axes::BSH || in == Axes::BSND;
  limit(
      s.rope_width == 64, "query_rope", [&] { return "has width " + to_string(s.rope_width); }, "64");
  limit(s.width == 128 || s.width == 512, "query", width_is(*this), "128 or 512 beside a rope part");
  limit(s.out_width == s.width, "value", width_is(*this), "the width of query beside a rope part");
  const auto layout_is = [&] { return "is '" + std::string(s.layout->name) + "'"; };
  if (absorbed()) {
    limit(s.kv_heads == 1, "num_key_value_heads", is(s.kv_heads), "1 in absorbed form");
    limit(s.heads == 32 || s.heads == 64 || s.heads == 128, "num_query_heads", is(s.heads),
          "32, 64 or 128 in absorbed form");
    limit(s.paged, "block_table", text("is missing"), "a table in absorbed form");
    limit(s.page_rows == 128 || (s.page_rows == 16 && !nz()), "block_size", is(s.page_rows),
          "128, or 16 with pages of rank 3 and 4");
    limit(bsh_or_bsnd || in == Axes::BNSD || in == Axes::TND, "input_layout", layout_is,
          "BSH, BSND, BNSD, TND or one of them with _NBSD or _NTD in absorbed form");
    limit(s.layout->name != "BNSD_BSND", "input_layout", layout_is, "BNSD or BNSD_NBSD in absorbed form");
    limit(!nz() || in != Axes::BNSD, "input_layout", layout_is, "BSH, BSND or TND with pages of rank 5");
    limit(!a.return_softmax_lse, "return_softmax_lse", text("is true"), "false in absorbed form");
  } else {
    limit(!s.paged, "block_table", text("is given"), "absent in split form");
    limit(s.layout->name == "TND" || s.layout->name == "NTD_TND", "input_layout", layout_is,
          "TND or NTD_TND in split form");
  }
}

/// S-19
void Door::chip_widths() const {
  if (s.folded) {
    const std::int64_t d = s.width, dv = s.out_width;
    limit((d == 128 && dv == 128) || (d == 192 && (dv == 128 || dv == 192)), "query", width_is(*this),
          "128 and 128, 192 and 128, or 192 and 192");
    if (d == 192) {
      limit(!s.paged, "block_table", text("is given"), "absent with heads of width 192");
      limit(
          s.layout->name == "TND" || (s.layout->name == "NTD_TND" && dv == 128), "input_layout",
          [&] { return "is '" + std::string(s.layout->name) + "'"; },
          "TND, or NTD_TND with values of width 128, with heads of width 192");
    }
  }
  if (!s.folded)
    limit(s.width == s.out_width || s.width == 0, "value", width_is(*this),
          "the width of query unless the layout is token-folded");
}

/// S-20
void Door::chip_counts() const {
  limit(s.width <= 512, "query", width_is(*this), "at most 512");
  limit(s.heads <= 256, "num_query_heads", is(s.heads), "at most 256");
  limit(s.kv_heads <= 256, "num_key_value_heads", is(s.kv_heads), "at most 256");
  const std::int64_t most_rows = s.folded ? 1 << 20 : 20971520;
  limit(
      s.folded || s.batch <= 65536, "query", [&] { return "has batch " + to_string(s.batch); }, "at most 65536");
  limit(
      s.s1 <= most_rows, "query", [&] { return "has rows: " + to_string(s.s1); },
      s.folded ? "at most 1048576" : "at most 20971520");
  limit(
      s.paged || s.s2 <= most_rows, "key", [&] { return "has rows: " + to_string(s.s2); },
      s.folded ? "at most 1048576" : "at most 20971520");
  limit(
      s.folded || s.paged || s.s1 != 1 || s.s2 <= 262144, "key", [&] { return "has rows: " + to_string(s.s2); },
      "at most 262144 for a single token");
  if (s.folded)
    for (const auto& [t, name] :
         {std::pair{&a.actual_seq_qlen, "actual_seq_qlen"}, {&a.actual_seq_kvlen, "actual_seq_kvlen"}})
      if (*t)
        limit(
            t->elements() <= 4096, name, [t = t] { return "has " + to_string(t->elements()) + " entries"; },
            "at most 4096");
}

/// S-21..S-23, S-66, S-68
void Door::chip_elements() const {
  const int unit = s.int4 ? 64 : a.key.dtype == DType::i8 ? 32 : 16;
  const char* wanted = s.int4 ? "a multiple of 64" : a.key.dtype == DType::i8 ? "a multiple of 32" : "a multiple of 16";
  limit(s.width % unit == 0, Status::invalid_shape, "query", width_is(*this), wanted);
  limit(s.out_width % unit == 0, Status::invalid_shape, "value", width_is(*this), wanted);

  limit(s.layout->name != "BNSD_BSND" || s.s1 != 1, "input_layout", text("is 'BNSD_BSND' with one row of queries"),
        "BNSD or BSND");
  if (to_nbsd())
    limit(
        s.s1 <= 16 && (s.s1 != 1 || s.rope), "input_layout",
        [&] { return "transposes to NBSD, query has rows: " + to_string(s.s1); }, "2..16, or 1 beside a rope part");
  limit(!a.return_softmax_lse || (!to_nbsd() && s.layout->name != "TND_NTD"), "return_softmax_lse", text("is true"),
        "false with *_NBSD and TND_NTD");

  limit(!s.folded || a.query.dtype != DType::f16 || s.width == 512, Status::invalid_dtype, "query",
        text("has dtype float16"), "bfloat16 in token-folded layouts");
  limit(a.query.dtype != DType::f32, Status::invalid_dtype, "query", text("has dtype float32"),
        "float16, bfloat16 or int8");
}

void Door::chip_lengths() const {
  if (!c.strict()) return;
  if (s.folded && s.mode == 3)  // S-28
    for (std::int64_t b = 0; b < s.batch; ++b) {
      const std::int64_t l1 = s.query_rows.count(b), l2 = s.key_rows.count(b);
      if (l1 > l2)
        c.fail(Status::invalid_seqlen, "actual_seq_kvlen", subscript({b}), "makes " + to_string(l2) + " keys",
               "at least " + to_string(l1) + ", the rows of the sequence", "[strict: Atlas A2/A3]");
    }
  if (!s.rope && !(s.folded && s.width == 192)) return;
  // S-18: the modes of section "Shapes in use"
  if (absorbed()) {
    limit(
        s.longest_query <= 16, "query", [&] { return "has rows: " + to_string(s.longest_query); },
        "at most 16 of a sequence in absorbed form");
    const bool single = s.longest_query <= 1;
    const bool dense = s.mode == 0 && !a.atten_mask, causal = s.mode == 3;
    limit(single ? dense || (causal && s.folded) : causal, "sparse_mode", is(s.mode),
          single ? "0 without atten_mask for single tokens in absorbed form" : "3 in absorbed form");
  } else {
    limit((s.mode == 0 && !a.atten_mask) || s.mode == 3, "sparse_mode", is(s.mode),
          "3, or 0 without atten_mask, with these widths");
  }
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
