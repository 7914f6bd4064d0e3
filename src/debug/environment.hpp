// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit::debug {

/// Begins what DSAKIT_CAPTURE asks for. What is wrong with it becomes a warning of the default context.
void watch_as_environment_says();

}  // namespace dsakit::debug
