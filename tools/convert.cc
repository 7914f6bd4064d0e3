// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/convert.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "commands.hpp"
#include "dsakit/error.hpp"

namespace dsakit::tools {
namespace {

/// One line that is rewritten, about once in a second, if stderr is a terminal.
class BytesLine {
 public:
  ~BytesLine() {
    if (terminal_) fmt::print(stderr, "\r\033[K");
  }
  void at(std::uint64_t done, std::uint64_t all) {
    using seconds = std::chrono::duration<double>;
    const auto now = std::chrono::steady_clock::now();
    if (!begun_) first_ = done, begun_ = true;
    if (!terminal_ || now - shown_ < std::chrono::seconds(1)) return;
    shown_ = now;
    const double rate = double(done - first_) / seconds(now - start_).count();
    fmt::print(stderr, "\r\033[Kconverting  {:.1f} of {:.1f} GB  {:.0f} MB/s", double(done) / 1e9, double(all) / 1e9,
               rate / 1e6);
    if (rate > 0) fmt::print(stderr, "  {} left", duration_text(double(all - done) / rate));
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO);
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};
  std::uint64_t first_ = 0;  // what an earlier call had done
  bool begun_ = false;
};

TargetFormat format_of(const std::string& name) {
  if (name == "bf16") return TargetFormat::bf16;
  if (name == "w8a8") return TargetFormat::w8a8;
  if (name == "packed") return TargetFormat::packed;
  throw Error(Status::invalid_argument, "convert", "format", "", "is " + name.substr(0, 120), "bf16, w8a8 or packed");
}

}  // namespace

int convert(const ConvertCommand& command) {
  if (command.statics != "refuse" && command.statics != "dequantise")
    throw Error(Status::invalid_argument, "convert", "static", "", "is " + command.statics.substr(0, 120),
                "refuse or dequantise");
  ::signal(SIGXFSZ, SIG_IGN);  // a file larger than allowed is an error of the write, named as such
  ConvertReport report;
  {
    BytesLine line;
    report = dsakit::convert({command.checkpoint, command.out, format_of(command.format), command.layers,
                              command.attention_only, command.statics == "dequantise",
                              size_of_text(command.shard_size)},
                             [&](std::uint64_t done, std::uint64_t all) { line.at(done, all); });
  }
  for (const std::string& note : report.notes) fmt::print(stderr, "{}\n", note);
  fmt::print("{}: {} shards, {} bytes\n", command.out, report.shards, report.bytes);
  return 0;
}

}  // namespace dsakit::tools
