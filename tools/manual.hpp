// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace CLI {
class App;
}

namespace dsakit::tools {

/// Prints what the description of the command says in another form: bash, zsh or fish completion, or the page man(1).
int manual(const CLI::App&, std::string_view form);

}  // namespace dsakit::tools
