// SPDX-License-Identifier: Apache-2.0
#include "debug/execute.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/out_of_memory.hpp"
#include "dsakit/version.hpp"

namespace dsakit::debug {
namespace {

constexpr unsigned char kFirstFill = 0xA5, kSecondFill = 0x5A;

/// The recorded output of a parameter, if it was memory of its own.
const Stored* recorded(const Case& c, std::size_t parameter) {
  for (const std::string& name : c.names("out"))
    if (const auto place = c.place("out", name); place && std::size_t(place->parameter) == parameter)
      if (const auto at = c.tensors.find("out." + name); at != c.tensors.end()) return &at->second;
  return nullptr;
}

class Executing {
 public:
  Executing(const Case& c, const Execution& how) : case_(c), how_(how), op_(c.op()) {}

  Outcome run(unsigned char fill) {
    Outcome outcome;
    try {
      outcome.bound = bind(case_, how_.strides);
      if (how_.edit) how_.edit(outcome.bound);
      Arguments& arguments = outcome.bound.arguments;
      infer(arguments);
      allocate(outcome, fill);
      const Tapped tapped(how_.taps);
      const auto start = std::chrono::steady_clock::now();
      const reference::Deviating deviating(how_.deviation.value_or(reference::Deviation{}));
      if (how_.reference || how_.deviation) run_reference(arguments);
      else debug::run(arguments, how_.context ? *how_.context : default_context());
      outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      collect(outcome);
    } catch (const Error& e) {
      // A file that is wrong is no answer of the operator.
      if (e.op == "case" || e.status == Status::interrupted || e.status == Status::internal) throw;
      outcome.refusal = e;
    }
    return outcome;
  }

 private:
  void allocate(Outcome& outcome, unsigned char fill) {
    for (std::size_t i = 0; i < op_.parameters.size(); ++i) {
      auto* t = std::get_if<Tensor>(&outcome.bound.arguments.values[i]);
      if (op_.parameters[i].field.role != Role::out || !t || !*t) continue;
      const bool aliased = t->data != nullptr;
      if (aliased && !recorded(case_, i)) continue;  // the argument itself, updated
      const Tensor wanted = *t;
      const Stored& memory = outcome.memory.emplace_back(
          io::file_dtype_of(wanted.dtype), Integers(wanted.shape.begin(), wanted.shape.begin() + wanted.rank));
      *t = memory.tensor();
      std::fill_n(memory.bytes->data(), memory.bytes->size(), static_cast<std::byte>(fill));
    }
  }

  void collect(Outcome& outcome) const {
    const Arguments& arguments = outcome.bound.arguments;
    for (std::size_t i = 0; i < op_.parameters.size(); ++i) {
      const Field& field = op_.parameters[i].field;
      const auto* t = std::get_if<Tensor>(&arguments.values[i]);
      if (!t || !*t) continue;
      const std::string name = field.name;
      if (field.role == Role::out && is_own(outcome, *t)) outcome.results["out." + name] = {*t, {}, {}};
      if (field.role == Role::out || !is_updated(op_, op_.parameters[i])) continue;
      if (field.role == Role::in && !is_aliased(arguments, name)) continue;
      const auto pool = outcome.bound.pools.find(name);
      outcome.results["after." + name] = {*t, pool == outcome.bound.pools.end() ? Integers() : pool->second, {}};
    }
  }

  static bool is_own(const Outcome& outcome, const Tensor& t) {
    return std::any_of(outcome.memory.begin(), outcome.memory.end(),
                       [&](const Stored& s) { return s.bytes->data() == t.data; });
  }
  static bool is_aliased(const Arguments& arguments, const std::string& name) {
    return arguments.tensor(name + "_out").data == arguments.tensor(name).data;
  }

  const Case& case_;
  const Execution& how_;
  const Operator& op_;
};

std::int64_t rows_of(const Tensor& t) {
  return t.rank < 2 ? 1 : t.elements() / std::max<std::int64_t>(t.shape[t.rank - 1], 1);
}

/// Rows of which every byte is still `fill`.
std::vector<RowRange> filled_rows(const Tensor& t, unsigned char fill) {
  std::vector<RowRange> ranges;
  const std::int64_t rows = rows_of(t), bytes = rows == 0 ? 0 : t.elements() * size_of(t.dtype) / rows;
  const auto* at = static_cast<const unsigned char*>(t.data);
  for (std::int64_t r = 0; r < rows && bytes > 0; ++r, at += bytes) {
    if (at[0] != fill || std::memcmp(at, at + 1, std::size_t(bytes - 1)) != 0) continue;
    if (!ranges.empty() && ranges.back().end == r) ++ranges.back().end;
    else ranges.push_back({r, r + 1});
  }
  return ranges;
}

}  // namespace

Outcome execute(const Case& c, const Execution& how) try {
  Executing executing(c, how);
  Outcome outcome = executing.run(kFirstFill);
  bool doubtful = false;
  for (const auto& [key, result] : outcome.results)
    doubtful |= key.starts_with("out.") && !filled_rows(result.tensor, kFirstFill).empty();
  if (!doubtful) return outcome;
  Outcome second = executing.run(kSecondFill);
  for (auto& [key, result] : outcome.results)
    if (key.starts_with("out.")) result.undefined = filled_rows(second.results[key].tensor, kSecondFill);
  return outcome;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::string recorded_on(const Context& context) {
  return std::string("dsakit ") + DSAKIT_VERSION + " " + context.isa() +
         (context.same_products() ? " same_products" : "");
}

}  // namespace dsakit::debug
