// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/dsakit.hpp"

/// The operators themselves. Those of the public headers are these, with somebody looking on if he was asked to
/// (debug/entries.cc).
namespace dsakit::direct {

#define DSAKIT_OP(name, Type) void name(const Type##Args&, const Type##Outs&, Context&);
#include "ops/ops.inc"
#undef DSAKIT_OP

}  // namespace dsakit::direct
