// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "debug/golden.hpp"
#include "debug/watch.hpp"

// DSAKIT_VERBOSE: a line for each call. docs/debugging.md
namespace dsakit::debug {

/// The columns behind "dsakit,1,exec,"; none of them holds a comma.
inline constexpr std::array<std::string_view, 11> kVerboseFields{"seq",     "call", "tensors", "work", "modes", "isa",
                                                                 "threads", "us",   "gbps",    "gops", "status"};

/// "dsakit,1,fields,seq,call,.."
std::string verbose_header();

/// The columns of a line of a call, in the order of kVerboseFields; nothing for any other text.
std::optional<std::vector<std::string>> parse_verbose(std::string_view line);

/// The call of such columns as `golden` takes it: its sizes, modes, lengths and pages; numbers are others.
struct CallOfLine {
  std::string op;
  Settings settings;
};
CallOfLine call_of(const std::vector<std::string>& columns);

/// What shapes do not say: lengths with repeats ("131072+98304*3"), pages identity, mixed or shared, how full lists
/// are, slots that are skipped.
std::string work_of(const Arguments&);

/// Writes to stderr ("1"; "2": the loops and choices of each call in front of its line) or at the end of a file, a line
/// with one write. IO_ERROR for a file that cannot be opened.
std::shared_ptr<Watcher> verbose_watcher(const std::string& target);

}  // namespace dsakit::debug
