// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#include "ops/describe.hpp"

// A description as people read it.
namespace dsakit {

/// "quantize(input, scales, zero_points, dtype, axis=1, div_mode=True, *, level="portable") -> y", in lines of at most
/// `width` columns. As Python has it, without the results and reserved keywords that may be given by name.
std::string signature(const Operator&, std::size_t width);

/// For a terminal: signature, summary, formula, parameters, errors, source.
std::string to_text(const Operator&);

/// For a page: the signature and a table of the parameters.
std::string to_markdown(const Operator&);

/// The page with what stands between "<!-- operator NAME -->" and "<!-- end -->" made anew, for each such pair.
std::string with_tables(std::string_view page);

/// The operator of this name, or null.
const Operator* find_operator(std::string_view name);

}  // namespace dsakit
