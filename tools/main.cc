// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include "commands.hpp"
#include "launch.hpp"
#include "manual.hpp"
#include "python_commands.hpp"
#include "dsakit/error.hpp"
#include "dsakit/version.hpp"
#include "io/describe.hpp"
#include "io/durable.hpp"
#include "core/nearest.hpp"
#include "core/text.hpp"

namespace {

/// Nothing half written is left, and who waits for this process learns of the signal: shells make 130 of SIGINT.
void ended_by(int number) {
  dsakit::io::remove_partial_files();
  static constexpr char kSaid[] = "dsakit: the command was interrupted, wanted to run to its end\n";
  std::ignore = ::write(STDERR_FILENO, kSaid, sizeof kSaid - 1);
  std::signal(number, SIG_DFL);
  std::raise(number);  // once this has returned
}

/// "" if `text` is an integer of lowest..highest, else what is wrong with it: CLI11's own ranges are those of double.
std::function<std::string(const std::string&)> integer(std::int64_t lowest, std::int64_t highest) {
  return [=](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= lowest && value <= highest) return "";
    return "is '" + dsakit::printable(text) + "', wanted an integer, " + std::to_string(lowest) + ".." +
           std::to_string(highest);
  };
}

std::string temperature(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == 0 && value >= 0 && std::isfinite(value)) return "";
  return "is '" + dsakit::printable(text) + "', wanted a finite number of at least 0";
}

std::string size(const std::string& text) {
  if (dsakit::tools::size_of_text(text) > 0) return "";
  return "is '" + dsakit::printable(text) + "', wanted a size: bytes, or KB .. TB, KiB .. TiB";
}

std::string rate(const std::string& text) {
  if (dsakit::tools::rate_of_text(text) > 0) return "";
  return "is '" + dsakit::printable(text) + "', wanted bits or bytes in a second, such as 100Gb or 12.5GB";
}

std::string duration(const std::string& text) {
  if (dsakit::tools::seconds_of_text(text) > 0) return "";
  return "is '" + dsakit::printable(text) + "', wanted a time, such as 5us or 0.1ms";
}

std::string not_empty(const std::string& text) { return text.empty() ? "is empty, wanted a checkpoint folder" : ""; }

std::string not_empty_file(const std::string& text) { return text.empty() ? "is empty, wanted a file" : ""; }

/// The exit code where the first word can only be a subcommand and is none.
int refuse_unknown(CLI::App& app, std::string_view first) {
  if (first.empty() || first[0] == '-') return 0;
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (std::find(commands.begin(), commands.end(), first) != commands.end()) return 0;
  const dsakit::Error e(dsakit::Status::invalid_argument, "dsakit", "subcommand", "",
                        "is '" + dsakit::printable(first) + "'", CLI::detail::join(commands, ", "),
                        "nearest: " + std::string(dsakit::nearest(first, commands)));
  return dsakit::tools::failed(e);
}

/// What the parser says of the command line, long words of it cut as in any other refusal.
std::string cut(std::string sentence, const std::vector<std::string_view>& words) {
  for (std::string_view word : words) {
    if (word.starts_with("--")) word.remove_prefix(std::min(word.find('=') + 1, word.size()));
    const std::string shown = dsakit::printable(word);
    if (shown == word) continue;
    for (std::size_t at = 0; (at = sentence.find(word, at)) != sentence.npos; at += shown.size())
      sentence.replace(at, word.size(), shown);
  }
  return sentence;
}

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

}  // namespace

int main(int argc, char** argv) {
  using namespace dsakit::tools;
  CLI::App app{"DeepSeek Sparse Attention on ordinary machines: run it, check it, understand it."};
  app.set_version_flag("--version", "dsakit " DSAKIT_VERSION);
  app.require_subcommand(1);
  app.footer("Exit status: 0 done, or all agrees; 1 any other verdict; 2 usage, refused; 3 a file; 4 memory; 5 another rank;\n"
             "6 a bug of dsakit; 130 interrupted.\n"
             "Environment: DSAKIT_NUM_THREADS (else OMP_NUM_THREADS, else all cores), DSAKIT_ISA, DSAKIT_MEM_LIMIT (bytes),\n"
             "DSAKIT_CHECK=1 (numbers are looked at too), DSAKIT_CAPTURE=DIR, DSAKIT_VERBOSE=1 or FILE.");

  RunOptions run_options;
  auto* run_command = app.add_subcommand("run", "Score a text with a model, in each mode, or continue it");
  run_command->add_option("MODEL", run_options.model, "Checkpoint folder (default: the small model that comes along)")
      ->check(not_empty, "", "");
  run_command->add_option("--text", run_options.text, "Text file, - for standard input (default: the model's heldout.txt)");
  run_command->add_option("--tokens", run_options.tokens, "Token ids instead: .npy, or input_ids of a safetensors file, as python -m dsakit.text\nmakes them; with --text too, bits per byte of it");
  run_command->add_option("--context", run_options.context, "Window in tokens")
      ->check(integer(1, kMaxTokens), "", "")
      ->capture_default_str();
  run_command->add_option("--mode", run_options.modes, "dense_bf16, sparse_bf16, sparse_w8a8 or sparse_w8a8_packed;\nseveral, or all by default")
      ->delimiter(',');
  run_command->add_option("--generate", run_options.generate, "Continue the text by N tokens instead")
      ->check(integer(1, kMaxTokens), "", "");
  run_command->add_option("--temperature", run_options.temperature, "0: greedy")->check(temperature, "", "");
  run_command->add_option("--seed", run_options.seed, "Of the sampling");
  run_command->add_option("--mlp", run_options.mlp, "Arithmetic of MLPs and experts: as_stored, bf16 or int8")->capture_default_str();
  run_command->add_option("--weights", run_options.weights, "8-bit floats in memory: as_stored, or bf16 with the same bits in every result")
      ->capture_default_str();
  run_command->add_option("--static", run_options.statics, "dequantise: read weights made for static activations")
      ->capture_default_str();
  run_command->add_option("--expert-memory", run_options.expert_memory, "SIZE for experts, the rest is read when it is wanted\n(default: what the machine has left)")
      ->check(size, "", "");
  run_command->add_option("--pass", run_options.pass, "Tokens of a prompt for which each expert is read once")
      ->check(integer(1, kMaxTokens), "", "")
      ->capture_default_str();
  run_command->add_option("--parallel", run_options.parallel, "Under mpirun: kv=C,heads=H,query=Q, how the processes share the model\n(default: the best of dsakit plan --ranks)");
  run_command->add_option("--exchange", run_options.exchange, "rows, or partials: what of attention travels where kv is above 1")->capture_default_str();
  run_command->add_option("--index", run_options.index, "all, kv or copy: which processes have the index keys of a position")->capture_default_str();
  run_command->add_option("--merge", run_options.merge, "auto, one or two: exchanges in which selections are merged")->capture_default_str();
  run_command->add_option("--prolog", run_options.prolog, "split, or copy: every process computes the first products")->capture_default_str();
  run_command->add_option("--interleave", run_options.interleave, "Positions in a row that one process has")
      ->check(integer(1, std::int64_t{1} << 20), "", "")
      ->capture_default_str();
  run_command->add_option("--trace", run_options.trace, "A JSON line for each exchange, to FILE.0, FILE.1, .. of the ranks");
  run_command->add_option("--timeout", run_options.timeout, "Seconds that an exchange may take")->capture_default_str();
  run_command->add_flag("--json", run_options.json, "Machine-readable");
  run_command->footer("Examples:\n  dsakit run --text book.txt\n  dsakit run DeepSeek-V3.2 --mode sparse_w8a8 --text prompt.txt --generate 100");

  PlanOptions plan_options;
  auto* plan_command = app.add_subcommand("plan", "What a checkpoint has, what of it fits into memory, what to fetch of it");
  plan_command->add_option("CHECKPOINT", plan_options.path, "Checkpoint folder, whose weights need not be there, or a config.json")
      ->required()
      ->check(not_empty, "", "");
  plan_command->add_option("--layers", plan_options.layers, "Only these, such as 0-3,7: shards and byte ranges");
  plan_command->add_flag("--attention-only", plan_options.attention_only, "Only what attention takes: shards and byte ranges");
  plan_command->add_option("--memory", plan_options.memory, "SIZE to plan for, such as 64GB (default: this machine's)")
      ->check(size, "", "");
  plan_command->add_flag("--json", plan_options.json, "Machine-readable");
  auto* ranks_option = plan_command->add_option("--ranks", plan_options.ranks, "What a step takes on every grid of so many processes, and what each holds;\nSIZE of --memory is then that of one of them")
      ->check(integer(1, 1024), "", "")
      ->excludes("--layers");
  auto of_ranks = [&](const char* name, auto& value, const char* text) {
    return plan_command->add_option(name, value, text)->needs(ranks_option)->capture_default_str();
  };
  of_ranks("--net", plan_options.net, "Of the network, bits or bytes in a second")->check(rate, "", "");
  of_ranks("--latency", plan_options.latency, "Of a message")->check(duration, "", "");
  plan_command->add_option("--context", plan_options.context, "Positions that a row sees (default: 32768, or what the model can)")
      ->needs(ranks_option)
      ->check(integer(1, kMaxTokens), "", "");
  of_ranks("--rows", plan_options.rows, "Of a step: 1 in decoding, those of a chunk in prefill")->check(integer(1, 1 << 20), "", "");
  plan_command->add_option("--machine", plan_options.machine, "Limits of the machine of one process: what `dsakit bench limits --json` prints\n(default: 200 GB/s, int8 4 TOP/s, bf16 2 TFLOP/s)")
      ->needs(ranks_option)
      ->check(not_empty_file, "", "");
  plan_command->add_option("--mode", plan_options.mode, "One of run's (default: sparse_w8a8, without an indexer dense_bf16)")->needs(ranks_option);
  of_ranks("--exchange", plan_options.words.exchange, "rows or partials: what of attention travels where latent rows are shared");
  of_ranks("--index", plan_options.words.index, "all, kv or copy: who shares index rows");
  of_ranks("--merge", plan_options.words.merge, "auto, one or two steps in merging candidates");
  of_ranks("--prolog", plan_options.words.prolog, "split or copy: the first products of a layer");
  plan_command->footer("Examples:\n  dsakit plan DeepSeek-V3.2 --memory 64GB\n"
                       "  dsakit plan config.json --ranks 8 --context 131072");

  ConvertCommand convert_options;
  auto* convert_command = app.add_subcommand("convert", "Write a checkpoint, or a part of one, in another format");
  convert_command->add_option("CHECKPOINT", convert_options.checkpoint, "Checkpoint folder; shards may be in pieces NAME.parts/BEGIN-END")
      ->required()
      ->check(not_empty, "", "");
  convert_command->add_option("OUT", convert_options.out, "Folder to write; where one was begun, the same command goes on")
      ->required()
      ->check(not_empty, "", "");
  convert_command->add_option("--format", convert_options.format, "bf16: the numbers themselves; w8a8: int8, as msModelSlim writes it;\npacked: as stored, experts ready to be read one by one")
      ->required();
  convert_command->add_option("--layers", convert_options.layers, "Only these, such as 0-3,7");
  convert_command->add_flag("--attention-only", convert_options.attention_only, "Only what attention takes");
  convert_command->add_option("--mlp", convert_options.mlp, "Of w8a8: int8, or bf16 to leave MLPs and experts unquantised.\nOther formats have one way: bf16 is bf16, packed is as_stored");
  convert_command->add_option("--weights", convert_options.weights, "8-bit floats: bf16 in the formats bf16 and w8a8, as_stored in packed");
  convert_command->add_option("--static", convert_options.statics, "dequantise: read weights made for static activations")
      ->capture_default_str();
  convert_command->add_option("--shard-size", convert_options.shard_size, "SIZE that no file is above, unless one tensor is")
      ->check(size, "", "")
      ->capture_default_str();
  convert_command->footer("Examples:\n  dsakit convert DeepSeek-V3.2 DeepSeek-V3.2-w8a8 --format w8a8");

  LayerOptions layer_options;
  auto* layer_command = app.add_subcommand("layer", "One attention layer of a checkpoint: each mode beside float64");
  layer_command->add_option("CHECKPOINT", layer_options.checkpoint, "Checkpoint folder; only what attention takes needs to be there")
      ->required()
      ->check(not_empty, "", "");
  layer_command->add_option("N", layer_options.layer, "Number of the layer")->required()->check(integer(0, INT32_MAX), "", "");
  layer_command->add_option("--hidden", layer_options.hidden, "The residual [T, hidden_size] that enters the layer: float32 .npy,\nor hidden of a safetensors file");
  layer_command->add_option("--tokens", layer_options.tokens, "Token ids, as run takes them, through the layers below");
  layer_command->add_option("--synthetic", layer_options.synthetic, "T rows of normal numbers times input_layernorm")
      ->check(integer(1, kMaxTokens), "", "");
  layer_command->add_option("--mode", layer_options.modes, "dense_bf16, sparse_bf16, sparse_w8a8 or sparse_w8a8_packed;\nseveral, or all by default")
      ->delimiter(',');
  layer_command->add_option("--seed", layer_options.seed, "Of the synthetic rows");
  layer_command->add_option("--weights", layer_options.weights, "8-bit floats in memory: as_stored, or bf16 with the same bits in every result")
      ->capture_default_str();
  layer_command->add_option("--static", layer_options.statics, "dequantise: read weights made for static activations")
      ->capture_default_str();
  layer_command->add_option("--mlp", layer_options.mlp, "With --tokens, of the layers below: as_stored, bf16 or int8");
  layer_command->add_option("--expert-memory", layer_options.expert_memory, "With --tokens: SIZE for experts, the rest is read when it is wanted\n(default: what the machine has left)")
      ->check(size, "", "");
  layer_command->add_option("--pass", layer_options.pass, "With --tokens: tokens for which each expert is read once (default: 4096)")
      ->check(integer(1, kMaxTokens), "", "");
  layer_command->add_flag("--json", layer_options.json, "Machine-readable");
  layer_command->footer("Examples:\n  dsakit layer DeepSeek-V3.2 3 --synthetic 64");

  DemoOptions demo_options;
  auto* demo_command = app.add_subcommand("demo", "The tour: held-out text, retrieval, one full-size decode step");
  demo_command->add_flag("--quick", demo_options.quick, "Everything smaller, about a minute of one core");
  demo_command->add_option("--text", demo_options.text, "Another text to score");
  demo_command->footer("Examples:\n  dsakit demo --quick");

#ifdef DSAKIT_BENCH
  BenchOptions bench_options;
  auto* bench_command = app.add_subcommand("bench", "Time the operators against this machine's limits");
  bench_command->add_option("OPERATOR", bench_options.operators, "Only these (default: all); limits: of this machine and of\neach rung; contexts: a decode step over longer and longer\ncontexts; kernels [PART..]: each kernel of each rung, of\nthose whose name and rung have the PARTs");
  bench_command->add_option("--threads", bench_options.threads, "Only this many (default: one, then all)")
      ->check(integer(1, 1024), "", "");
  bench_command->add_option("--size", bench_options.size, "Only sizes with this in them: t=1024");
  bench_command->add_flag("--quick", bench_options.quick, "Small sizes only");
  bench_command->add_flag("--json", bench_options.json, "Machine-readable");
  bench_command->footer("Examples:\n  dsakit bench quant_lightning_indexer\n  dsakit bench kernels product avx2");
#endif

  bool dist_json = false;
  auto* dist_command = app.add_subcommand("dist-bench", "Time the exchanges between ranks: mpirun -n 4 dsakit dist-bench");
  dist_command->add_flag("--json", dist_json, "Machine-readable");
  dist_command->footer("Examples:\n  mpirun -n 4 dsakit dist-bench");

  std::string inspected;
  auto* inspect_command = app.add_subcommand("inspect", "Check a safetensors file or a checkpoint folder and list it");
  inspect_command->add_option("FILE", inspected)->required();
  inspect_command->footer("Examples:\n  dsakit inspect model.safetensors");

  bool info_json = false;
  auto* info_command = app.add_subcommand("info", "Version, instruction sets, threads, NUMA nodes, huge pages");
  info_command->add_flag("--json", info_json, "Machine-readable");
  info_command->footer("Examples:\n  dsakit info");

  DescribeOptions describe_options;
  auto* describe_command = app.add_subcommand("describe", "What an operator computes and what its parameters are");
  describe_command->add_option("OPERATOR", describe_options.operators, "Only these, in full (default: a line for each)");
  describe_command->add_flag("--markdown", describe_options.markdown, "As the table of its page");
  describe_command->add_flag("--json", describe_options.json, "Machine-readable");
  describe_command->add_option("--pages", describe_options.pages, "Make the tables in the pages of this folder anew");
  describe_command->footer("Examples:\n  dsakit describe quant_lightning_indexer");

  ReplayOptions replay_options;
  auto* replay_command = app.add_subcommand("replay", "Compute recorded calls again: equal bits, or the rule");
  replay_command->add_option("FILE", replay_options.paths, "Case files, or folders of them; a line of DSAKIT_VERBOSE, or a file of them:\neach call is timed with other numbers of those sizes")->required();
  replay_command->add_option("--isa", replay_options.isa, "An instruction set, or all that this machine has");
  replay_command->add_option("--threads", replay_options.threads, "Numbers of threads, such as 1,2")
      ->delimiter(',')
      ->check(integer(1, 1024), "", "");
  replay_command->add_flag("--reference", replay_options.reference, "With the reference in place of the fast path");
  replay_command->add_flag("--strides", replay_options.strides, "Tensors with the strides of their producer");
  replay_command->add_flag("--json", replay_options.json, "Machine-readable");
  replay_command->add_flag("--quiet", replay_options.quiet, "The verdict alone");
  replay_command->footer("Examples:\n  dsakit replay dump/000017-quant_lightning_indexer-r0-4711.safetensors\n"
                         "  dsakit replay dump --isa all --threads 1,2\n  dsakit replay calls.csv");

  CheckOptions check_options;
  auto* check_command = app.add_subcommand("check", "Judge recorded results by a rule");
  check_command->add_option("FILE", check_options.paths, "Case files, or folders of them")->required();
  check_command->add_option("--rule", check_options.rule, "dsakit, ascend-community, msprobe, pypto, cann-sfa, ..: a wrong name\nsays which is nearest")
      ->capture_default_str();
  check_command->add_option("--against", check_options.against, "ref: golden results of the case; reference or fast: computed now\n(default: ref where the case has one, else reference)")
      ->check(CLI::IsMember({"ref", "reference", "fast"}));
  check_command->add_flag("--json", check_options.json, "Machine-readable");
  check_command->add_flag("--quiet", check_options.quiet, "The verdict alone");
  check_command->footer("Examples:\n  dsakit check dump --rule dsakit\n  dsakit check sfa.safetensors --rule cann-sfa --against ref");

  DiffOptions diff_options;
  auto* diff_command = app.add_subcommand("diff", "Where two recordings part, or where one parts from its own inputs");
  diff_command->add_option("A", diff_options.path, "A case file, or a folder of them")->required();
  diff_command->add_option("B", diff_options.other, "Another: calls pair by operator, layer, step and occurrence");
  diff_command->add_flag("--json", diff_options.json, "Machine-readable");
  diff_command->add_flag("--quiet", diff_options.quiet, "The verdict alone");
  diff_command->footer("Examples:\n  dsakit diff dump\n  dsakit diff w8a8 bf16");

  GoldenOptions golden_options;
  auto* golden_command = app.add_subcommand("golden", "Make a call up and record what the reference computes");
  golden_command->add_option("OPERATOR", golden_options.op, "Of `dsakit describe`")->required();
  golden_command->add_option("--set", golden_options.settings, "NAME=VALUE of an axis, an attribute, a tensor, data (V1..V19), fill, pages, seed or taps;\nNAME=A,B: a file for each")->allow_extra_args(false);
  golden_command->add_option("-o", golden_options.out, "The file to write; of several calls a folder")->required();
  golden_command->add_flag("--json", golden_options.json, "Machine-readable");
  golden_command->add_flag("--quiet", golden_options.quiet, "Without the names of the files");
  golden_command->footer("Examples:\n  dsakit golden rms_norm --set T=8 --set data=V6 -o norm.safetensors\n"
                         "  dsakit golden sparse_flash_attention --set layout_kv=PA_BSND --set pages=identity,mixed -o sfa");

  VerboseOptions verbose_options;
  auto* verbose_command = app.add_subcommand("verbose", "Sum up what DSAKIT_VERBOSE wrote");
  verbose_command->add_option("LOG", verbose_options.log, "A file of its lines; others are passed over")->required();
  verbose_command->add_flag("--json", verbose_options.json, "Machine-readable");
  verbose_command->footer("Examples:\n  DSAKIT_VERBOSE=calls.csv python serve.py\n  dsakit verbose calls.csv");

  ExplainCommand explain_options;
  auto* explain_command = app.add_subcommand("explain", "Why a recorded call has its result: common mistakes, computed and compared");
  explain_command->add_option("FILE", explain_options.paths, "Case files, or folders of them")->required();
  explain_command->add_option("--row", explain_options.row, "Judge this row (token) alone, in place of the worst and some between")
      ->check(integer(0, kMaxTokens), "", "");
  explain_command->add_option("--try", explain_options.classes, "Changes to try, also where the call agrees: L layout, Q quantisation,\nA arguments, N numerics, all or none (default: all where it departs)")
      ->delimiter(',')
      ->check(CLI::IsMember({"L", "Q", "A", "N", "all", "none"}));
  explain_command->add_option("--tries", explain_options.tries, "Runs at most")
      ->check(integer(0, 1 << 20), "", "")
      ->capture_default_str();
  explain_command->add_option("--limits", explain_options.limits, "What codes may lose: least SQNR of a row in dB, dB below the median,\nleast recall of a selection (default: 20,10,0.95)")
      ->delimiter(',')
      ->expected(1, 3);
  explain_command->add_option("--ref", explain_options.ref, "Another recording of the call, whose results are wanted (group ref)");
  explain_command->add_flag("--pairs", explain_options.pairs, "Where no change is named: pairs of the nearest ten");
  explain_command->add_flag("--json", explain_options.json, "Machine-readable");
  explain_command->add_flag("--quiet", explain_options.quiet, "The verdict alone");
  explain_command->footer("Exit status: 0 agrees, 1 any other verdict, 2 usage, 3 file, 4 memory, 6 a bug of dsakit.\n"
                          "Examples:\n  dsakit explain npu/000017-quant_lightning_indexer-r0-4711.safetensors\n"
                          "  dsakit explain dump --try L,Q --json");

  const PythonCommands python(app);

  std::string shell;
  auto* completion_command = app.add_subcommand("completion", "What a shell completes this command by");
  completion_command->add_option("SHELL", shell, "Which one")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion_command->footer("Examples:\n  source <(dsakit completion bash)\n"
                             "  dsakit completion fish > ~/.config/fish/completions/dsakit.fish");
  auto* manual_command = app.add_subcommand("manual", "All of this as a page of man");
  manual_command->footer("Examples:\n  dsakit manual > dsakit.1; man ./dsakit.1");

  if (const int status = refuse_unknown(app, argc > 1 ? argv[1] : ""); status != 0) return status;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    say(cut("dsakit: " + std::string(e.what()), {argv + 1, argv + argc}));
    return 2;
  }

  std::signal(SIGXFSZ, SIG_IGN);  // a file larger than allowed is an error of the write, named as such
  for (const int number : {SIGINT, SIGTERM})
    if (std::signal(number, ended_by) == SIG_IGN) std::signal(number, SIG_IGN);
  const auto command = [&] {
    if (*run_command) return run(run_options);
    if (*plan_command) return plan(plan_options);
    if (*convert_command) return convert(convert_options);
    if (*layer_command) return layer(layer_options);
    if (*demo_command) return demo(demo_options);
#ifdef DSAKIT_BENCH
    if (*bench_command) return bench(bench_options);
#endif
    if (*golden_command) return golden(golden_options);
    if (*verbose_command) return verbose(verbose_options);
    if (*diff_command) return diff(diff_options);
    if (*check_command) return check(check_options);
    if (*replay_command) return replay(replay_options);
    if (*dist_command) return dist_bench(dist_json);
    if (*explain_command) return explain(explain_options);
    if (*completion_command) return manual(app, shell);
    if (*manual_command) return manual(app, "man");
    python.refuse();
    if (*info_command) return info(info_json);
    if (*describe_command) return describe(describe_options);
    std::fputs(dsakit::io::describe(inspected).c_str(), stdout);
    return 0;
  };
  try {
    const int status = command();
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::system_error(errno, std::generic_category());
    return status;
  } catch (const dsakit::Error& e) {
    return failed(e);
  } catch (const std::filesystem::filesystem_error& e) {
    return failed({dsakit::Status::io_error, "dsakit", dsakit::printable(e.path1().string()), "",
                   "cannot be used: " + e.code().message(), "a file or a folder that can"});
  } catch (const std::system_error& e) {  // of fmt, too
    const dsakit::Error cannot(dsakit::Status::io_error, "dsakit", "output", "",
                               "cannot be written: " + e.code().message(), "room for all of it");
    std::fclose(stdout);  // what is left of it has nowhere to go
    return failed(cannot);
  } catch (const std::bad_alloc&) {
    say("dsakit: out of memory");
    return 4;
  }
}
