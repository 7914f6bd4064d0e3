// SPDX-License-Identifier: Apache-2.0
#include "dsakit/context.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/environment.hpp"
#include "core/out_of_memory.hpp"
#include "core/text.hpp"
#include "dsakit/error.hpp"
#include "run/call.hpp"
#include "run/cores.hpp"

namespace dsakit {
namespace {

int threads_from(int wish) {
  if (wish > 0) return std::min(wish, 1024);
  long long n = number_from_environment("DSAKIT_NUM_THREADS");
  if (n == 0) n = number_from_environment("OMP_NUM_THREADS");
  return n == 0 ? usable_cores() : int(std::min<long long>(n, usable_cores()));
}

const Kernels* kernels_from(std::string isa) {
  if (isa.empty())
    if (const char* wish = std::getenv("DSAKIT_ISA")) isa = wish;
  if (isa.empty()) return supported_kernels().back();
  if (const Kernels* k = find_kernels(isa)) return k;
  std::string here;
  for (const std::string_view name : supported_isas()) here += (here.empty() ? "" : ", ") + std::string(name);
  throw Error(Status::unsupported, "context", "DSAKIT_ISA", "", "is " + printable(isa), "one of " + here,
              "what this machine can run");
}

void free_memory(std::byte* p) { ::operator delete[](p, std::align_val_t{64}); }

}  // namespace

Context::Context(const ContextOptions& options) try : state_(std::make_unique<State>()) {
  (void)forks();  // counted from here on
  state_->options = options;
  state_->kernels = kernels_from(options.isa);
  state_->rates = &rates_of(*state_->kernels);
  state_->threads = threads_from(options.threads);
  if (const char* check = std::getenv("DSAKIT_CHECK")) state_->options.check_values |= std::string(check) == "1";
  if (options.memory_limit == 0) state_->options.memory_limit = std::size_t(number_from_environment("DSAKIT_MEM_LIMIT"));
  state_->memory = {nullptr, free_memory};
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Context::~Context() = default;

int Context::threads() const { return state_->threads; }
void Context::set_threads(int n) {
  std::lock_guard lock(state_->calls);
  state_->threads = std::clamp(n, 1, 1024);
}
const char* Context::isa() const { return state_->kernels->isa; }
bool Context::same_products() const { return state_->options.same_products; }
void Context::set_same_products(bool same) {
  std::lock_guard lock(state_->calls);
  state_->options.same_products = same;
}
bool Context::check_values() const { return state_->options.check_values; }
std::size_t Context::workspace_bytes() const { return state_->memory_bytes; }

constexpr std::size_t kMostWarnings = 256;  // sentences hold sizes: a process that never ends shall not collect them

std::vector<std::string> Context::warnings() const try {
  std::lock_guard lock(state_->warning);
  return state_->warnings;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
void Context::warn(std::string_view sentence) try {
  std::lock_guard lock(state_->warning);
  auto& all = state_->warnings;
  if (all.size() < kMostWarnings && std::find(all.begin(), all.end(), sentence) == all.end())
    all.emplace_back(sentence);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void Context::set_interrupt(bool (*asked)(void*), void* data) {
  std::lock_guard lock(state_->calls);
  state_->asked = asked;
  state_->asked_data = data;
}

std::vector<std::string_view> supported_isas() try {
  std::vector<std::string_view> names;
  for (const Kernels* k : supported_kernels()) names.push_back(k->isa);
  return names;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Context& default_context() {
  static Context context;
  return context;
}

}  // namespace dsakit
