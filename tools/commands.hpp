// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/grid.hpp"

// The subcommands of `dsakit`, each in its own file. They print to stdout and throw dsakit::Error.
namespace dsakit::tools {

struct RunOptions {
  std::string model{}, text{};       // "": the small model that comes with dsakit; its heldout.txt
  std::string tokens{};              // a file of token ids in place of a text
  std::vector<std::string> modes{};  // empty: all
  std::int64_t context = 1024;
  std::int64_t generate = 0;
  double temperature = 0;
  std::uint64_t seed = 0;
  bool json = false;
  std::string mlp = "as_stored", weights = "as_stored", statics = "refuse";  // of ModelOptions
  std::string expert_memory{};  // "": what the machine has left
  std::int64_t pass = 4096;
  // Where a launcher has started several: of Parallel, and the group's timeout. parallel "": the best grid.
  std::string parallel{}, exchange = "rows", index = "all", merge = "auto", prolog = "split";
  std::int64_t interleave = 1;
  double timeout = 20;
  std::string trace{};  // "": none; each rank adds its number
};
int run(const RunOptions&);

struct PlanOptions {
  std::string path{};    // a checkpoint folder or a config.json
  std::string layers{};  // "0-3,7"; "": all
  bool attention_only = false;
  std::string memory{};  // "": what this machine has
  bool json = false;
  // Of several processes
  int ranks = 0;                                     // 0: not asked for
  std::string net = "100Gb", latency = "5us";        // rate_of_text, seconds_of_text
  std::int64_t context = 0, rows = 1;                // 0: 32768, or what the model can
  std::string machine{};                             // a file of `dsakit bench limits --json`; "": MachineSpeed
  std::string mode{};                                // "": sparse_w8a8, without an indexer dense_bf16
  ParallelWords words{};
};
int plan(PlanOptions);

struct ConvertCommand {
  std::string checkpoint{}, out{}, format{};
  std::string layers{};  // "0-3,7"; "": all
  bool attention_only = false;
  std::string mlp{}, weights{};    // "": as the format has them
  std::string statics = "refuse";  // or dequantise: what to do with weights for static activations
  std::string shard_size = "5GB";
};
int convert(const ConvertCommand&);

struct LayerOptions {
  std::string checkpoint{};
  std::int64_t layer = 0;
  std::string hidden{}, tokens{};    // files; one of the two or
  std::int64_t synthetic = 0;        // rows
  std::vector<std::string> modes{};  // empty: all
  std::uint64_t seed = 0;            // of the synthetic rows
  std::string weights = "as_stored", statics = "refuse";  // of ModelOptions
  // Of the layers below, which tokens alone go through: as in RunOptions, and "" or 0 if not given.
  std::string mlp{}, expert_memory{};
  std::int64_t pass = 0;
  bool json = false;
};
int layer(const LayerOptions&);

/// "64GB", "1.5 TiB", "1000": bytes, KB .. TB, KiB .. TiB; 0 for anything else, and for what is not above 0.
std::uint64_t size_of_text(const std::string& text);
/// "100Gb", "12.5GB/s": bits or bytes in a second, as bytes; "5us", "0.1 ms": seconds. 0 for anything else.
double rate_of_text(const std::string& text);
double seconds_of_text(const std::string& text);

struct BenchOptions {
  std::vector<std::string> operators{};  // empty: all
  int threads = 0;                     // 0: one thread, then all
  std::string size{};                  // only sizes with this in them
  bool quick = false;
  bool json = false;
};
int bench(const BenchOptions&);

/// Between the ranks that mpirun started.
int dist_bench(bool json);

struct DemoOptions {
  bool quick = false;  // a tenth of the text, fewer needles, one layer at 8K positions
  std::string text{};  // "": the model's heldout.txt
};
int demo(const DemoOptions&);

int info(bool json);

/// One line for each way in which this machine could be faster: a better rung than the one asked for, and instructions
/// that no rung uses.
void print_unused();

struct DescribeOptions {
  std::vector<std::string> operators{};  // empty: all, a line each
  bool markdown = false, json = false;
  std::string pages{};  // a folder of pages whose tables are made anew
};
int describe(const DescribeOptions&);

struct ReplayOptions {
  std::vector<std::string> paths{};  // case files and folders of them; lines of DSAKIT_VERBOSE and files of them
  std::string isa{};                 // "all": every rung of this machine
  std::vector<int> threads{};        // empty: as any other call
  bool reference = false, strides = false, json = false, quiet = false;
};
int replay(const ReplayOptions&);

struct CheckOptions {
  std::vector<std::string> paths{};  // as of replay
  std::string rule = "dsakit";
  std::string against{};  // ref, reference or fast; "": ref where the case has one
  bool json = false, quiet = false;
};
int check(const CheckOptions&);

struct DiffOptions {
  std::string path{}, other{};  // case files or folders; other "": path alone
  bool json = false, quiet = false;
};
int diff(const DiffOptions&);

struct GoldenOptions {
  std::string op{};
  std::vector<std::string> settings{};  // NAME=VALUE, or NAME=A,B: a file for each
  std::string out{};                    // a file; of several calls a folder
  bool json = false, quiet = false;
};
int golden(const GoldenOptions&);

struct VerboseOptions {
  std::string log{};  // what DSAKIT_VERBOSE wrote
  bool json = false;
};
int verbose(const VerboseOptions&);
struct ExplainCommand {
  std::vector<std::string> paths{};       // case files and folders of them
  std::vector<std::string> classes{};     // of changes: L, Q, A, N, all, none; empty: all, where the call departs
  std::vector<double> limits{};           // SQNR in dB, dB below the median, recall; empty: those of the page
  std::string ref{};                      // a case whose results are wanted
  std::int64_t tries = 200, row = -1;     // -1: the worst rows and some between
  bool pairs = false, json = false, quiet = false;
};
int explain(const ExplainCommand&);

/// The folder of the small trained model, beside the program or above it.
std::string small_model();

/// "1 min 20 s"
std::string duration_text(double seconds);

/// One line that is rewritten while long work goes on; silent when stderr is not a terminal.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  void at(double share);  // 0..1

 private:
  std::string what_;
  bool terminal_;
  int shown_ = -1;
};

}  // namespace dsakit::tools
