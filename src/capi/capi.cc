// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "capi/context.hpp"
#include "capi/describe.hpp"
#include "capi/error.hpp"
#include "capi/operators.hpp"
#include "dsakit/dsakit.h"
#include "dsakit/packed_weight.hpp"
#include "dsakit/version.hpp"

using namespace dsakit;
using capi::guarded;

namespace {

dsakit_context& of(dsakit_context* context) {
  if (context) return *context;
  static auto* process = new dsakit_context{Context()};  // outlives every thread that may still call
  return *process;
}

[[noreturn]] void refuse(const char* call, const char* parameter, std::string got, const char* wanted) {
  throw Error(Status::invalid_argument, call, parameter, "", std::move(got), wanted);
}

void wanted(const void* pointer, const char* call, const char* parameter) {
  if (!pointer) refuse(call, parameter, "is a null pointer", "a pointer");
}

/// What the caller's version of the options knows, zeros for the rest.
ContextOptions options_of(const dsakit_context_options* given) {
  dsakit_context_options known{};
  if (given) {
    if (given->size == 0 || given->size > 4096)
      refuse("context", "size", "is " + std::to_string(given->size), "sizeof(dsakit_context_options)");
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (std::size_t i = sizeof known; i < given->size; ++i)
      if (bytes[i] != 0)
        refuse("context", "options", "asks for what a later version has", "zeros behind what this one knows");
    std::memcpy(&known, given, std::min(sizeof known, given->size));
  }
  if (known.threads < 0) refuse("context", "threads", "is negative", "0 or more");
  return {.threads = known.threads,
          .isa = known.isa ? known.isa : "",
          .same_products = known.same_products,
          .check_values = known.check_values,
          .memory_limit = known.memory_limit};
}

}  // namespace

extern "C" {

const char* dsakit_version(void) noexcept { return DSAKIT_VERSION; }

dsakit_status dsakit_context_create(const dsakit_context_options* options, dsakit_context** context) noexcept {
  return guarded([&] {
    wanted(context, "context", "context");
    *context = new dsakit_context{Context(options_of(options))};
  });
}

void dsakit_context_destroy(dsakit_context* context) noexcept { delete context; }

dsakit_status dsakit_context_isa(dsakit_context* context, const char** isa) noexcept {
  return guarded([&] {
    wanted(isa, "context", "isa");
    *isa = of(context).context.isa();
  });
}

dsakit_status dsakit_context_threads(dsakit_context* context, int32_t* threads) noexcept {
  return guarded([&] {
    wanted(threads, "context", "threads");
    *threads = of(context).context.threads();
  });
}

dsakit_status dsakit_context_warning(dsakit_context* context, size_t index, const char** sentence) noexcept {
  return guarded([&] {
    wanted(sentence, "context", "sentence");
    dsakit_context& c = of(context);
    const std::lock_guard lock(c.warning);
    const std::vector<std::string> now = c.context.warnings();
    while (c.warnings.size() < now.size()) c.warnings.push_back(now[c.warnings.size()]);
    *sentence = index < c.warnings.size() ? c.warnings[index].c_str() : nullptr;
  });
}

dsakit_status dsakit_context_set_interrupt(dsakit_context* context, bool (*asked)(void*), void* data) noexcept {
  return guarded([&] { of(context).context.set_interrupt(asked, data); });
}

dsakit_status dsakit_run(dsakit_context* context, const char* name, const dsakit_argument* arguments,
                         size_t count) noexcept {
  return guarded([&] {
    wanted(name, "run", "name");
    static constexpr std::string_view kReference = "reference.";
    std::string_view op = name;
    const bool reference = op.starts_with(kReference);
    if (reference) op.remove_prefix(kReference.size());
    const capi::Entry& entry = capi::find_entry("run", op);
    capi::Arguments given(entry.signature, arguments, count);
    if (reference) entry.reference(given);
    else entry.run(given, of(context).context);
  });
}

dsakit_status dsakit_infer(const char* name, const dsakit_argument* arguments, size_t count, dsakit_shape* results,
                           size_t capacity) noexcept {
  return guarded([&] {
    wanted(name, "infer", "name");
    if (capacity != 0) wanted(results, "infer", "results");
    const capi::Entry& entry = capi::find_entry("infer", name);
    capi::Arguments given(entry.signature, arguments, count);
    entry.infer(given, entry.signature, {results, capacity});
  });
}

dsakit_status dsakit_pack_weight(const dsakit_tensor* weight, uint32_t flags, dsakit_packed_weight** packed) noexcept {
  return guarded([&] {
    wanted(weight, "pack_weight", "weight");
    wanted(packed, "pack_weight", "packed");
    const Check check("pack_weight", Level::portable);
    *packed = new dsakit_packed_weight{PackedWeight(capi::tensor_of(check, "weight", weight, flags))};
  });
}

void dsakit_packed_weight_destroy(dsakit_packed_weight* packed) noexcept { delete packed; }

size_t dsakit_operator_count(void) noexcept {
#define DSAKIT_OP(name, Type) +1
  return 0
#include "ops/ops.inc"
      ;
#undef DSAKIT_OP
}

const dsakit_operator* dsakit_operator_at(size_t index) noexcept {
  const dsakit_operator* found = nullptr;
  guarded([&] {
    if (index < capi::described().size()) found = capi::described()[index];
  });
  return found;
}

}  // extern "C"
