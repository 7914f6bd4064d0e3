// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Recording the calls of operators as case files. docs/debugging.md
namespace dsakit {

struct CaptureOptions {
  std::string path;                        // folder; made if it is not there
  std::vector<std::string> operators{};    // only these; empty: all
  std::int64_t every = 1;                  // of each operator the first call and every n-th after it
  std::uint64_t max_bytes = 4ull << 30;    // of all files
  std::string keep = "last";               // beyond max_bytes: "last": the oldest files go; "first": recording ends
  std::string caches = "touched";          // pages that a call looks at; "whole"; "none"
  std::string weights = "once";            // a file for each, beside the cases; "each": in every case
  std::vector<std::string> taps{};         // steps inside of the operators, such as "3.query_norm", or "all"
};

/// While it lives, every call of an operator in this process, by whatever face, becomes a file of the folder:
/// NUMBER-OPERATOR-rRANK-PID.safetensors with arguments, results and updated tensors, refused calls too. Results have
/// the same bits, and no call fails because of it: what cannot be written ends the recording, with a warning of the
/// context. Throws INVALID_ARGUMENT for an option, IO_ERROR for a folder that cannot be made.
class Capture {
 public:
  explicit Capture(const CaptureOptions&);
  /// Ends it.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// No more calls; writes summary.json: what was seen, written and skipped, and why.
  void end();
  std::int64_t seen() const;
  std::int64_t written() const;

  class Recorder;

 private:
  std::shared_ptr<Recorder> recorder_;
};

/// Labels of the calls to come, in all threads; what is not given stays. `dummy`: of a warm-up, not recorded.
struct Mark {
  std::optional<std::int64_t> step{}, layer{};
  std::optional<bool> dummy{};
};
void mark(const Mark&);

}  // namespace dsakit
