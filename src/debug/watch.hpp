// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <exception>
#include <memory>

#include "debug/arguments.hpp"
#include "dsakit/context.hpp"
#include "dsakit/error.hpp"
#include "ops/describe_text.hpp"

// Who looks at calls from outside: at the outermost operator, whatever face it came through.
namespace dsakit::debug {

/// One call while it runs, as somebody looks at it. None of it throws: no call fails because it is watched.
class WatchedCall {
 public:
  virtual ~WatchedCall() = default;
  /// It has returned, or was refused or interrupted.
  virtual void end(const Error* refusal, double seconds) noexcept = 0;
};

class Watcher {
 public:
  virtual ~Watcher() = default;
  /// In front of a call; null: it is of no interest.
  virtual std::unique_ptr<WatchedCall> begin(const Arguments&, Context&) noexcept = 0;
};

/// More than 0 while somebody watches, or until the environment has been asked whether anybody does.
extern std::atomic<int> watched;
/// Whether somebody does; asks the environment once.
bool is_watched() noexcept;

void add_watcher(std::shared_ptr<Watcher>);
void remove_watcher(const Watcher*);

/// A call for those who watch it now.
class Watch {
 public:
  Watch(const Arguments&, Context&) noexcept;
  /// Who looked on last stops first.
  ~Watch();
  void end(const Error* refusal) noexcept;

 private:
  std::vector<std::pair<std::shared_ptr<Watcher>, std::unique_ptr<WatchedCall>>> calls_;
  double start_ = 0;
};

/// infer() in front of a call: what it refuses is a refusal of the call, to be seen too. `op`: of ops.inc.
template <class Args, class Outs>
void infer_of_call(const char* op, const Args& args, Outs& outs, Context& context) {
  try {
    infer(args, outs);
  } catch (const Error& e) {
    if (watched.load(std::memory_order_relaxed) != 0 && is_watched())
      Watch(arguments_of(*find_operator(op), args, outs), context).end(&e);
    throw;
  }
}

}  // namespace dsakit::debug
