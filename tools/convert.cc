// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/convert.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>

#include "commands.hpp"
#include "core/text.hpp"
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
  throw Error(Status::invalid_argument, "convert", "format", "", "is " + printable(name), "bf16, w8a8 or packed");
}

/// What `asked` says of `option`, one of those that the format has, of which the first is meant by "".
std::string choice(const char* option, const std::string& asked, const std::string& format,
                   std::initializer_list<const char*> choices) {
  if (asked.empty()) return *choices.begin();
  if (std::ranges::find(choices, asked) != choices.end()) return asked;
  throw Error(Status::invalid_argument, "convert", option, "", "is " + printable(asked),
              fmt::format("{} with format {}", fmt::join(choices, " or "), format),
              "int8 MLPs are in w8a8, what is stored is in packed");
}

}  // namespace

int convert(const ConvertCommand& command) {
  if (command.statics != "refuse" && command.statics != "dequantise")
    throw Error(Status::invalid_argument, "convert", "static", "", "is " + printable(command.statics),
                "refuse or dequantise");
  const TargetFormat format = format_of(command.format);
  const bool packed = format == TargetFormat::packed, w8a8 = format == TargetFormat::w8a8;
  const char* only = packed ? "as_stored" : "bf16";
  choice("weights", command.weights, command.format, {only});
  const std::string mlp = w8a8 ? choice("mlp", command.mlp, command.format, {"int8", "bf16"})
                               : choice("mlp", command.mlp, command.format, {only});
  ConvertReport report;
  {
    BytesLine line;
    report = dsakit::convert({.checkpoint = command.checkpoint,
                              .out = command.out,
                              .format = format,
                              .layers = command.layers,
                              .attention_only = command.attention_only,
                              .int8_mlp = mlp == "int8",
                              .dequantise_static = command.statics == "dequantise",
                              .shard_bytes = size_of_text(command.shard_size)},
                             [&](std::uint64_t done, std::uint64_t all) { line.at(done, all); });
  }
  for (const std::string& note : report.notes) fmt::print(stderr, "{}\n", note);
  fmt::print("{}: {} shards, {} bytes\n", command.out, report.shards, report.bytes);
  return 0;
}

}  // namespace dsakit::tools
