// SPDX-License-Identifier: Apache-2.0
// Token ids and hidden states from files (io/tokens.hpp), .npy or safetensors: refused, or numbers in their range.
#include <cmath>

#include "fuzz.hpp"
#include "io/tokens.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  using namespace dsakit::fuzz;
  static const Folder folder;
  const std::string path = folder.write("x", safetensors_of({data, size}));
  constexpr std::int64_t kVocabulary = 1000, kWidth = 4;
  const auto tokens = [&] {
    for (const std::int32_t id : io::read_tokens(path, kVocabulary))
      require(id >= 0 && id < kVocabulary, "an id out of the vocabulary");
  };
  const auto hidden = [&] {
    const std::vector<float> rows = io::read_hidden(path, kWidth);
    require(!rows.empty() && rows.size() % kWidth == 0, "hidden states that are no rows");
    for (const float x : rows) require(std::isfinite(x), "a hidden state that is no number");
  };
  require(answer(tokens) == answer(tokens) && answer(hidden) == answer(hidden), "the second answer is another");
  return 0;
}
