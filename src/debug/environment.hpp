// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit::debug {

/// Begins what DSAKIT_CAPTURE and DSAKIT_VERBOSE ask for. What is wrong with them becomes a warning of the default
/// context.
void watch_as_environment_says();
void capture_as_environment_says();

}  // namespace dsakit::debug
