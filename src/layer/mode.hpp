// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#include "core/text.hpp"
#include "dsakit/error.hpp"
#include "dsakit/model.hpp"
#include "io/config.hpp"

namespace dsakit {

enum class Mode { dense_bf16, sparse_bf16, sparse_w8a8, sparse_w8a8_packed };  // indices of kModes

constexpr bool is_sparse(Mode m) { return m != Mode::dense_bf16; }
constexpr bool is_quantised(Mode m) { return m >= Mode::sparse_w8a8; }
/// All three projections of the prolog in int8, one row of bytes per token in the cache.
constexpr bool is_packed(Mode m) { return m == Mode::sparse_w8a8_packed; }
constexpr std::string_view name_of(Mode m) { return kModes[int(m)]; }

/// The mode of this name, if a model of this kind can run in it.
inline Mode mode_of(std::string_view name, const io::ModelConfig& config) {
  for (const Mode m : {Mode::dense_bf16, Mode::sparse_bf16, Mode::sparse_w8a8, Mode::sparse_w8a8_packed}) {
    if (name != name_of(m)) continue;
    if (is_sparse(m) && config.index_topk == 0)
      throw Error(Status::unsupported, "model", "mode", "", "is " + std::string(name), "dense_bf16",
                  "config.json has no index_topk");
    return m;
  }
  throw Error(Status::invalid_argument, "model", "mode", "", "is " + printable(name),
              "dense_bf16, sparse_bf16, sparse_w8a8 or sparse_w8a8_packed");
}

}  // namespace dsakit
