// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit {

/// What a parameter is to its operator.
enum class Role {
  in,         // tensor, required
  in_opt,     // tensor, may be absent
  inout,      // tensor updated in place, required
  inout_opt,  // tensor updated in place, may be absent
  out,        // tensor, made by the caller from infer()
  attribute,  // number, flag or string
};

// Every operator header declares
//     template <class V> void for_each_field(<Op>Args&, <Op>Outs&, V&& v);
// which calls  v(name, value, role)  for each parameter, in the documented order of the call, and
//     constexpr int positional(const <Op>Args&);
// the number of leading parameters that may be given by position. Python signatures, the CLI and messages
// come from this list. The results of a call are the members of its Outs, in their order.

}  // namespace dsakit
