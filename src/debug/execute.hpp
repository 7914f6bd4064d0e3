// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "debug/bind.hpp"
#include "dsakit/context.hpp"
#include "dsakit/error.hpp"
#include "ops/deviation.hpp"
#include "run/taps.hpp"

namespace dsakit::debug {

/// Rows of a tensor: all axes but the last one folded; a tensor of no axis is one row.
struct RowRange {
  std::int64_t first, end;
  bool operator==(const RowRange&) const = default;
};

/// What a call left in one tensor.
struct Result {
  Tensor tensor;                    // in the memory of the outcome
  Integers pages;                   // of a pool: the numbers its entries had
  std::vector<RowRange> undefined;  // rows that the operator never writes
};

/// What came of a case: results by "out.<parameter>" and "after.<parameter>", or a refusal.
struct Outcome {
  std::optional<Error> refusal;
  ByName<Result> results;
  double seconds = 0;  // of the call alone
  Bound bound;
  std::deque<Stored> memory;
};

struct Execution {
  bool reference = false;
  bool strides = false;                             // tensors as their producer had them
  Context* context = nullptr;                       // null: the default one
  std::function<void(Bound&)> edit{};               // what is bound, before it is called
  Taps* taps = nullptr;                             // who looks at the steps
  std::optional<reference::Deviation> deviation{};  // of the reference, which then runs
};

/// Runs a case. Operators that leave rows unwritten run twice, over two fillings. Throws what is wrong with the case
/// (INVALID_FILE) or with the machine; what the operator refuses is a refusal.
Outcome execute(const Case&, const Execution& = {});

/// The metadata `versions` of what is recorded with this context: results have the same bits wherever it is the same.
std::string recorded_on(const Context&);

}  // namespace dsakit::debug
