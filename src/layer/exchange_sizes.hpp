// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "io/config.hpp"
#include "layer/mode.hpp"
#include "parallel/exchanges.hpp"

namespace dsakit {

/// What the exchanges of a model in a mode are as large as.
ExchangeSizes exchange_sizes(const io::ModelConfig&, Mode);

}  // namespace dsakit
