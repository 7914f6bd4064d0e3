// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "debug/attribute.hpp"
#include "io/aligned_array.hpp"
#include "io/safetensors.hpp"
#include "ops/describe.hpp"

// A case: one call of one operator as a file. docs/debugging.md
namespace dsakit::debug {

/// The bytes of one tensor, dense and row-major. Copies share them.
struct Stored {
  const io::FileDType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::shared_ptr<io::AlignedArray<std::byte>> bytes;

  Stored() = default;
  Stored(const io::FileDType& type, std::vector<std::int64_t> shape);  // of undefined contents
  explicit Stored(const Tensor& copied);                               // any strides
  std::int64_t elements() const;
  /// Without a DType of its own: DType::other.
  Tensor tensor() const;
};

/// How a tensor lies, where row-major says not enough.
struct Layout {
  std::string format{};                               // "NZ": the bytes are FRACTAL_NZ of `shape`; "ND"
  Attribute npu_format{};                             // on the device: a name or a number
  std::string of{};                                   // a view of this tensor, in elements
  std::optional<std::vector<std::int64_t>> shape{};   // of a view, or the logical one of NZ
  std::optional<std::vector<std::int64_t>> stride{};  // of a view, or of the producer
  std::optional<std::int64_t> offset{};
  std::string pages{};                              // tensor of page numbers: only these entries of axis 0 are stored
  std::optional<std::vector<std::int64_t>> full{};  // shape with all of them
  std::string file{};                               // lies in this file beside
  std::string dtype{};                              // what raw bytes are

  bool operator==(const Layout&) const = default;
};

template <class T>
using ByName = std::map<std::string, T, std::less<>>;

/// Where a name or a position of a case leads.
struct Place {
  int parameter = -1;  // of op.parameters, or of op.results() for out and ref by position
  int element = -1;    // of a list
};

struct Case {
  std::string name = "case";  // of the file, in refusals
  std::string folder = ".";   // where siblings lie
  std::string call;           // spelling
  ByName<Attribute> attributes;
  ByName<Stored> tensors;  // "in.query"
  ByName<Layout> layouts;
  std::map<std::string, std::string> metadata;  // what else the file says, as text

  const Operator& op() const;
  /// A sentence if the call was refused.
  std::optional<std::string> refusal() const;
  void set_refusal(std::string_view sentence);
  /// Names (with views) of a group: "in" -> {"query", ..}.
  std::vector<std::string> names(std::string_view group) const;
  /// What `name` of `group` means to the spelling that is called.
  std::optional<Place> place(std::string_view group, std::string_view name) const;
  bool has(std::string_view key) const { return tensors.contains(key) || layouts.contains(key); }
};

/// The parameter that `name` ("query", "0", "lse.1") of `group` means to the operator, or nothing.
std::optional<Place> place_of(const Operator& op, std::string_view group, std::string_view name);

/// Reads and believes a file: everything but what the contents of tables ask for. Refuses as INVALID_FILE with NO_CASE,
/// CASE_VERSION, CASE_CALL, CASE_JSON, CASE_VALUE, CASE_NAME, CASE_TWICE, CASE_MISSING, CASE_LAYOUT, CASE_FILE.
Case read_case(const std::string& path);

/// Where a number is due, the strings that stand for those that JSON lacks are these numbers.
Attribute number_where_due(const Case&, std::string_view attribute, const Attribute& value);

/// The same questions of a case in memory.
void check_case(const Case&);

/// Whole or not at all; the same case always has the same bytes.
void write_case(const Case&, const std::string& path);
/// Of the file that write_case makes.
std::uint64_t bytes_of(const Case&);

/// `case: NAME: WHAT GOT, wanted WANTED (WHY) [REASON]`
[[noreturn]] void refuse_case(const Case&, const std::string& what, const std::string& got, const std::string& wanted,
                              const char* reason, const std::string& why = {});

}  // namespace dsakit::debug
