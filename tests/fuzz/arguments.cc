// SPDX-License-Identifier: Apache-2.0
// Command lines of `dsakit`, with a NUL behind each argument: tools/main.cc with subcommands that only look at
// what they are given. Done without a word on stderr, or refused with one line there and none on stdout.
#include <iostream>
#include <sstream>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "fuzz.hpp"

int dsakit_main(int argc, char** argv);  // of tools/main.cc

namespace dsakit::fuzz {
namespace {

/// stdout and stderr while it lives, of C and of C++.
class Caught {
 public:
  Caught() : out_(stdout), err_(stderr), cout_(std::cout.rdbuf()), cerr_(std::cerr.rdbuf()) {
    stdout = ::open_memstream(&out_text_, &out_size_);
    stderr = ::open_memstream(&err_text_, &err_size_);
    std::cout.rdbuf(streamed_out_.rdbuf());
    std::cerr.rdbuf(streamed_err_.rdbuf());
  }
  ~Caught() { end(), std::free(out_text_), std::free(err_text_); }
  Caught(const Caught&) = delete;
  Caught& operator=(const Caught&) = delete;

  /// From here on they are what they were.
  void end() {
    if (stdout == out_) return;
    std::fclose(std::exchange(stdout, out_));
    std::fclose(std::exchange(stderr, err_));
    std::cout.rdbuf(cout_);
    std::cerr.rdbuf(cerr_);
  }
  std::string out() const { return std::string(out_text_, out_size_) + streamed_out_.str(); }
  std::string err() const { return std::string(err_text_, err_size_) + streamed_err_.str(); }

 private:
  std::FILE *out_, *err_;
  std::streambuf *cout_, *cerr_;
  char *out_text_ = nullptr, *err_text_ = nullptr;
  std::size_t out_size_ = 0, err_size_ = 0;
  std::ostringstream streamed_out_, streamed_err_;
};

}  // namespace
}  // namespace dsakit::fuzz

// What main.cc promises its subcommands about what it hands them.
namespace dsakit::tools {
using fuzz::require;

int run(const RunOptions& o) {
  require(o.context >= 1 && o.generate >= 0 && o.pass >= 1 && o.interleave >= 1, "run: a count");
  require(o.temperature >= 0 && o.temperature < 1e308 * 10, "run: temperature");
  require(o.expert_memory.empty() || size_of_text(o.expert_memory) > 0, "run: a size");
  return 0;
}
int plan(PlanOptions o) {
  require(!o.path.empty() && o.ranks >= 0 && o.ranks <= 1024 && o.context >= 0 && o.rows >= 1, "plan: a count");
  require(rate_of_text(o.net) > 0 && seconds_of_text(o.latency) > 0, "plan: a network");
  return 0;
}
int convert(const ConvertCommand& o) {
  require(!o.checkpoint.empty() && !o.out.empty() && size_of_text(o.shard_size) > 0, "convert: folders, a size");
  return 0;
}
int layer(const LayerOptions& o) {
  require(!o.checkpoint.empty() && o.layer >= 0 && o.layer <= INT32_MAX && o.synthetic >= 0, "layer: a number");
  return 0;
}
int demo(const DemoOptions&) { return 0; }
int bench(const BenchOptions& o) {
  require(o.threads >= 0 && o.threads <= 1024, "bench: threads");
  return 0;
}
int dist_bench(bool) { return 0; }
int info(bool) { return 0; }
int describe(const DescribeOptions&) { return 0; }
int replay(const ReplayOptions& o) {
  require(!o.paths.empty(), "replay: no file");
  for (const int threads : o.threads) require(threads >= 1 && threads <= 1024, "replay: threads");
  return 0;
}
int check(const CheckOptions& o) {
  require(!o.paths.empty(), "check: no file");
  return 0;
}
int diff(const DiffOptions&) { return 0; }
int golden(const GoldenOptions&) { return 0; }
int verbose(const VerboseOptions&) { return 0; }
int explain(const ExplainCommand& o) {
  require(o.tries >= 0 && o.row >= -1 && o.limits.size() <= 3, "explain: a count");
  return 0;
}

}  // namespace dsakit::tools

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit::fuzz;
  Input in(data, size);
  std::vector<std::string> words{"dsakit"};
  while (!in.empty() && words.size() < 32) words.emplace_back(in.until('\0'));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Caught caught;
  const int status = dsakit_main(int(words.size()), argv.data());
  caught.end();
  const std::string err = caught.err();
  require(status == 0 || status == 2 || status == 3, "exit status " + std::to_string(status));
  if (status == 0) require(err.empty(), "done, but on stderr is: " + err);
  else
    require(caught.out().empty() && std::count(err.begin(), err.end(), '\n') == 1 && err.ends_with('\n'),
            "refused, but on stdout and stderr is: " + caught.out() + err);
  return 0;
}
