// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "core/check.hpp"
#include "dsakit/fused_infer_attention_score_v2.hpp"
#include "ops/door.hpp"
#include "ops/fused_infer_attention_score_v2/sizes.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {

/// The questions of docs/operators/fused_infer_attention_score_v2.md, "Errors", in the order of its table. Each member
/// asks a few rows and leaves in `s` what the next ones need. Nothing is allocated while nothing is wrong.
struct Door {
  using Args = FusedInferAttentionScoreV2Args;
  using Outs = FusedInferAttentionScoreV2Outs;

  const Check c;
  const Args& a;
  Sizes s;

  explicit Door(const Args& args) : c("fused_infer_attention_score_v2", args.level), a(args) {}

  void shapes();                    // check_shapes.cc: layout, ranks, heads, widths, dtypes: all that infer needs
  void chip_sizes() const;          // check_limits.cc: limits of the chip that need no lengths
  void lengths();                   // check_lengths.cc: lengths, the page table's shape
  void chip_lengths() const;        // check_limits.cc
  void masks();                     // check_masks.cc: modes, atten_mask, pse_shift
  void pages() const;               // check_lengths.cc: the page table's entries
  void scales() const;              // check_scales.cc: dequantisation, int8 output
  void rest() const;                // check.cc: remaining attributes, sink, memory
  void results(const Outs&) const;  // check.cc

  // ---- check_shapes.cc
  void layout_and_ranks();
  void heads();
  void keys_and_values() const;
  void widths();
  void dtypes();
  void rope();
  // ---- check_limits.cc
  void chip_rope() const;
  void chip_widths() const;
  void chip_counts() const;
  void chip_elements() const;
  // ---- check.cc
  void sink() const;
  // ---- check_scales.cc
  void dequantisation() const;
  void dequantisation_on_chip() const;
  void fully_quantised() const;
  void quantised_output() const;

  [[noreturn]] void wrong_shape(const Tensor& t, const char* name, std::string wanted, std::string why = {}) const {
    c.fail(Status::invalid_shape, name, "", "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}),
           std::move(wanted), std::move(why));
  }
  /// A limit of the chip with a status of its own; the texts are made only when it is broken.
  template <class Got>
  void limit(bool holds, Status status, const char* name, Got got, const char* wanted) const {
    if (c.strict() && !holds) c.fail(status, name, "", got(), wanted, "[strict: Atlas A2/A3]");
  }
  template <class Got>
  void limit(bool holds, const char* name, Got got, const char* wanted) const {
    limit(holds, Status::unsupported, name, got, wanted);
  }
  /// "is 5"
  static auto is(std::int64_t value) {
    return [value] { return "is " + std::to_string(value); };
  }

  /// Why a last axis of `got` columns is too short: strict counts whole pages.
  const char* columns_wanted(std::int64_t got) const {
    return s.paged && got >= s.longest_key ? "[strict: Atlas A2/A3]" : "key positions in use";
  }

  bool stencil_shaped() const {
    const Tensor& t = a.atten_mask;
    if (t.rank < 2 || t.rank > 4) return false;
    for (int axis = 0; axis < t.rank; ++axis)
      if (t.shape[axis] != (axis < t.rank - 2 ? 1 : 2048)) return false;
    return true;
  }
  bool absorbed() const { return s.rope && s.width == 512; }
  bool nz() const { return s.paged && a.key.rank == 5; }
  bool to_nbsd() const { return s.layout->out == Axes::NBSD; }
  std::int64_t used_pages(std::int64_t b) const {
    const std::int64_t n = s.key_rows.count(b);
    return n / s.page_rows + (n % s.page_rows != 0);
  }
};

}  // namespace dsakit::fused_infer_attention_score_v2_op
