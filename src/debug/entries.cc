// SPDX-License-Identifier: Apache-2.0
#include <new>
#include <optional>

#include "debug/watch.hpp"
#include "dsakit/dsakit.hpp"
#include "ops/direct.hpp"

// The operators of the public headers: every face comes through here, and whoever watches calls sees them here.
namespace dsakit {
namespace {

template <class Args, class Outs, class Run>
void watched_call(const char* name, const Args& args, const Outs& outs, Context& context, Run run) {
  std::optional<debug::Watch> watch;
  try {
    if (debug::is_watched()) watch.emplace(debug::arguments_of(*find_operator(name), args, outs), context);
  } catch (const std::bad_alloc&) {
    // No memory for looking on.
  }
  try {
    run(args, outs, context);
  } catch (const Error& e) {
    if (watch) watch->end(&e);
    throw;
  }
  if (watch) watch->end(nullptr);
}

}  // namespace

#define DSAKIT_OP(name, Type)                                                             \
  void name(const Type##Args& args, const Type##Outs& outs, Context& context) {           \
    if (debug::watched.load(std::memory_order_relaxed) == 0) [[likely]]                   \
      return direct::name(args, outs, context);                                           \
    watched_call(#name, args, outs, context, [](auto&... all) { direct::name(all...); }); \
  }
#include "ops/ops.inc"
#undef DSAKIT_OP

}  // namespace dsakit
