// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dsakit {

struct Kernels;

/// Choices a caller may make; the defaults suit everybody else.
struct ContextOptions {
  int threads = 0;            // 0: DSAKIT_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use
  std::string isa{};          // "": DSAKIT_ISA, else the best this machine has. "generic", "avx2", ..: `dsakit info`
  bool same_products = false; // bf16 products by fp32 fma in a fixed order: same bits on every instruction set, slower
  bool check_values = false;  // also DSAKIT_CHECK=1: non-finite inputs and illegal scales become INVALID_VALUE
  std::size_t memory_limit = 0;  // bytes of workspace; 0: DSAKIT_MEM_LIMIT, else none
};

/// Threads, workspace and instruction set of the calls made with it. One context runs one call at a time
/// (others queue up); use one per thread to run in parallel. Once a call has run, a call of the same size
/// allocates nothing.
class Context {
 public:
  explicit Context(const ContextOptions& = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  void set_threads(int);      // clamped to 1..1024
  const char* isa() const;    // "generic", "avx2", ..
  bool same_products() const;
  void set_same_products(bool);  // of the calls to come
  bool check_values() const;
  std::size_t workspace_bytes() const;  // held right now

  /// Accepted arguments that deserve a word (the named tolerances that warn): each sentence once, oldest first.
  std::vector<std::string> warnings() const;
  void warn(std::string_view sentence);

  /// Asked now and then during a long call; true ends it with INTERRUPTED. Null: never asked.
  void set_interrupt(bool (*asked)(void*), void* data);

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// What ContextOptions::isa may name on this machine, the best one last.
std::vector<std::string_view> supported_isas();

/// The context of calls that name none: made on first use, shared by the process.
Context& default_context();

}  // namespace dsakit
