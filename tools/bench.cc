// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "core/text.hpp"
#include "dsakit/context.hpp"
#include "dsakit/error.hpp"
#include "kernels/roof.hpp"
#include "core/nearest.hpp"

namespace dsakit::tools {
namespace {

/// Median of at least five runs and about a third of a second, after one to warm up.
double median_seconds(const std::function<void(Context&)>& call, Context& context) {
  using clock = std::chrono::steady_clock;
  auto once = [&] {
    const auto start = clock::now();
    call(context);
    return std::chrono::duration<double>(clock::now() - start).count();
  };
  once();
  std::vector<double> times;
  for (double total = 0; times.size() < 5 || (total < 0.35 && times.size() < 200); total += times.back())
    times.push_back(once());
  std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
  return times[times.size() / 2];
}

std::vector<BenchCase> all_cases() {
  std::vector<BenchCase> cases;
#define DSAKIT_OP(name, Type) bench_##name(cases);
#include "ops/ops.inc"
#undef DSAKIT_OP
  bench_layer(cases);
  bench_c_call(cases);
  return cases;
}

/// What this machine can do, in units per second, whatever rung is asked for.
struct Roof {
  double read_bytes, i8_ops, bf16_flops;
};

Roof measure_roof(int threads) {
  return {1e9 * measure_read(threads), 1e9 * measure_best_peak(Dot::i8, threads),
          1e9 * measure_best_peak(Dot::bf16, threads)};
}

Roof best_of(const Roof& a, const Roof& b) {
  return {std::max(a.read_bytes, b.read_bytes), std::max(a.i8_ops, b.i8_ops), std::max(a.bf16_flops, b.bf16_flops)};
}

std::vector<int> thread_counts(const BenchOptions& options) {
  if (options.threads > 0) return {options.threads};
  const int all = default_context().threads();
  return all > 1 ? std::vector{1, all} : std::vector{1};
}

/// `dsakit bench limits`: of the machine, what floors are made of; of each rung, the peak of its own dots.
int bench_limits(const BenchOptions& options) {
  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  if (!options.json)
    fmt::print("{:<10}{:<14}{:>14}{:>14}{:>16}\n", "threads", "rung", "memory GB/s", "int8 GOP/s", "bf16 GFLOP/s");
  for (const int threads : thread_counts(options)) {
    const double read = measure_read(threads);
    nlohmann::ordered_json rungs;
    Roof best{};
    for (const Kernels* k : supported_kernels()) {
      const Roof own = {1e9 * read, 1e9 * measure_peak(*k, Dot::i8, threads),
                        1e9 * measure_peak(*k, Dot::bf16, threads)};
      best = best_of(best, own);
      rungs[k->isa] = {{"i8_ops_per_second", own.i8_ops}, {"bf16_flops_per_second", own.bf16_flops}};
      if (!options.json)
        fmt::print("{:<10}{:<14}{:>14.1f}{:>14.0f}{:>16.0f}\n", threads, k->isa, read, own.i8_ops / 1e9,
                   own.bf16_flops / 1e9);
    }
    report.push_back({{"threads", threads}, {"bytes_per_second", best.read_bytes},
                      {"i8_ops_per_second", best.i8_ops}, {"bf16_flops_per_second", best.bf16_flops}, {"rungs", rungs}});
  }
  if (options.json) fmt::print("{}\n", report.dump(2));
  return 0;
}

/// `dsakit bench kernels [PART..]`: no floors; one thread.
int bench_each_kernel(const BenchOptions& options) {
  const std::vector<std::string> wanted(options.operators.begin() + 1, options.operators.end());
  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  if (!options.json)
    fmt::print("one thread; G/s: operations of products, elements of the rest\n\n{:<20}{:<12}{:<20}{:>12}{:>10}\n", "kernel",
               "rung", "size", "time", "G/s");
  bench_kernels(wanted, [&](const KernelTime& t) {
    if (options.json)
      report.push_back({{"kernel", t.kernel}, {"isa", t.isa}, {"size", t.size}, {"seconds", t.seconds},
                        {"per_second", t.per_second}});
    else
      fmt::print("{:<20}{:<12}{:<20}{:>9.1f} ns{:>10.1f}\n", t.kernel, t.isa, t.size, t.seconds * 1e9, t.per_second / 1e9);
    std::fflush(stdout);
  });
  if (options.json) fmt::print("{}\n", report.dump(2));
  return 0;
}

}  // namespace

int bench(const BenchOptions& options) {
  if (!options.operators.empty() && options.operators[0] == "kernels") return bench_each_kernel(options);
  if (options.operators == std::vector<std::string>{"limits"}) return bench_limits(options);
  const bool contexts = options.operators == std::vector<std::string>{"contexts"};
  std::vector<BenchCase> cases = all_cases();
  std::erase_if(cases, [=](const BenchCase& c) { return c.of_contexts != contexts; });
  std::vector<std::string_view> names = {"kernels", "limits", "contexts"};  // then the operators
  for (const BenchCase& c : cases) names.push_back(c.op);
  for (const std::string& wish : options.operators)
    if (!contexts && std::ranges::find(names.begin() + 3, names.end(), wish) == names.end())
      throw Error(Status::invalid_argument, "bench", "OPERATOR", "", "is " + printable(wish),
                  "the name of an operator, contexts alone, limits alone, or kernels first",
                  "nearest: " + std::string(nearest(wish, names)));

  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  for (const int threads : thread_counts(options)) {
    Context context({.threads = threads});
    std::vector<std::pair<const BenchCase*, double>> timed;
    Roof roof = measure_roof(threads);
    {
      Progress progress(fmt::format("{} thread{}", threads, threads > 1 ? "s" : ""));
      for (const BenchCase& c : cases) {
        progress.at(double(&c - cases.data()) / double(cases.size()));
        const bool small =
            contexts ? c.bytes < 1e7 : c.size.starts_with("t=1") || c.size.find("8192 t=1") != std::string::npos;
        if (c.size.find(options.size) == std::string::npos) continue;
        if (options.quick && !small) continue;
        if (!contexts && !options.operators.empty() &&
            std::ranges::find(options.operators, c.op) == options.operators.end())
          continue;
        timed.emplace_back(&c, median_seconds(c.prepare(), context));
      }
    }
    roof = best_of(roof, measure_roof(threads));  // a neighbour may have been busy before, or after
    if (!options.json) {
      fmt::print("{} thread{}, {}: memory {:.1f} GB/s, int8 {:.0f} GOP/s, bf16 {:.0f} GFLOP/s (the best of this machine, measured in this run)\n\n",
                 threads, threads > 1 ? "s" : "", context.isa(), roof.read_bytes / 1e9, roof.i8_ops / 1e9,
                 roof.bf16_flops / 1e9);
      fmt::print("{:<38}{:<24}{:>12}{:>9}{:>9}{:>12}{:>9}\n", "operator", "size", "time", "GB/s", "GOP/s", "floor", "share");
    }
    for (const auto& [c, seconds] : timed) {
      const double read = c->bytes / roof.read_bytes, compute = c->i8_ops / roof.i8_ops + c->bf16_flops / roof.bf16_flops;
      const double floor = std::max(read, compute);
      const char* const why = floor < 1.1 * seconds ? "" : read > compute ? "  (from cache)" : "  (limit measured while busy)";
      const double ops = c->i8_ops + c->bf16_flops;
      if (options.json)
        report.push_back({{"operator", c->op}, {"size", c->size}, {"threads", threads}, {"isa", context.isa()},
                          {"seconds", seconds}, {"bytes", c->bytes}, {"i8_ops", c->i8_ops},
                          {"bf16_flops", c->bf16_flops}, {"bytes_per_second", c->bytes / seconds},
                          {"ops_per_second", ops / seconds}, {"floor_seconds", floor}, {"share_of_floor", floor / seconds}});
      else
        fmt::print("{:<38}{:<24}{:>9.1f} us{:>9.1f}{:>9.0f}{:>9.1f} us{:>7.0f} %{}\n", c->op, c->size, seconds * 1e6,
                   c->bytes / seconds / 1e9, ops / seconds / 1e9, floor * 1e6, 100 * floor / seconds, why);
    }
    if (!options.json) fmt::print("\n");
    std::fflush(stdout);
  }
  if (options.json) fmt::print("{}\n", report.dump(2));
  return 0;
}

}  // namespace dsakit::tools
