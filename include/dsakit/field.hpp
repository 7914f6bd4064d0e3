// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace dsakit {

/// What a parameter is to its operator.
enum class Role {
  in,         // tensor, required
  in_opt,     // tensor, may be absent
  inout,      // tensor updated in place, required
  inout_opt,  // tensor updated in place, may be absent
  out,        // tensor, made by the caller from infer()
  attribute,  // number, flag or string
  reserved,   // documented, never given, without a member: must stay None
  hint,       // documented, of no effect by contract, without a member: anything may be given
  tolerated,  // not documented but passed by callers, without a member: None is accepted in portable
};

/// What a parameter is by itself: nothing is guessed from names.
enum class Kind {
  // tensors
  data,      // values that are computed with
  weight,    // may also be FRACTAL_NZ or packed
  cache,     // rows of tokens; strict leaves the stride of its first axis free where rows are paged
  scale,     // of quantisation: finite and not negative
  index,     // slots, positions or pages of a cache
  table,     // pages of each sequence
  lengths,   // of sequences: integers of any width, a list too
  mask,      // nonzero hides
  reserved,  // documented, always absent
  // attributes
  number,  // a size, a count, a factor
  flag,
  mode,    // one of a few numbers or words
  layout,  // the order of axes, as the word of the documents
  axes,    // the order of axes, as integers
  dtype,   // the name of an element type
  level,
};

/// One parameter: all that is known of it besides its value and its default, which are those of the member.
struct Field {
  const char* name;
  Role role;
  Kind kind;
  std::string_view dtypes;  // of a tensor: "bfloat16, float16"; of an attribute: int, float, bool, str or dtype
  std::string_view shape;   // of a tensor: "[B, S1, N1, D]"; of an attribute: the values it may have, "" for any
  std::string_view meaning;
  bool without_default = false;  // the documented call has to name it, if only to pass None

  constexpr bool has_member() const { return role <= Role::attribute; }
  constexpr bool is_required() const { return role == Role::in || role == Role::inout; }
  constexpr bool is_written() const { return role == Role::inout || role == Role::inout_opt || role == Role::out; }
};
inline constexpr bool kWithoutDefault = true;

/// What stands in for the member of a parameter that has none.
struct Absent {};
inline constexpr Absent kAbsent;

/// Whose documents an operator follows. torch_npu's are also known as npu_<name>; vllm_ascend's are those of the
/// library beside that engine, torch.ops._C_ascend.
enum class Family { torch_npu, pypto, vllm_ascend, dsakit };

/// What every operator asks about last, behind its own errors.
inline constexpr std::string_view kCommonErrors =
    "INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or shared like this\n"
    "INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale that makes no sense";

/// What is known of an operator besides its parameters. Texts are plain; lines end in '\n' but for the last.
struct Description {
  std::string_view summary;  // one sentence without a full stop
  std::string_view formula;
  std::string_view errors;   // lines "STATUS: when" of its own, about in the order in which they are asked
  std::string_view source;   // the documented call that is followed
  std::string_view page;     // of docs/operators/
  Family family;
  int positional;            // the number of leading parameters that may be given by position
};

// Every operator header declares
//     template <class V> void for_each_field(<Op>Args&, <Op>Outs&, V&& v);
// which calls  v(Field, member)  for each parameter, in the documented order of the call (kAbsent for a parameter
// without a member), and
//     constexpr Description describe(const <Op>Args&);
// Doors, printers, Python's functions, `dsakit describe` and the tables of docs/operators are made from these two. The
// results of a call are the members of its Outs, in their order.

/// The last parameter of every operator.
inline constexpr Field kLevelField{"level", Role::attribute, Kind::level, "str", "portable, strict",
                                   "strict also refuses what Atlas A2/A3 refuses"};

}  // namespace dsakit
