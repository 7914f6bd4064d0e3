// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <string>

#include "dsakit/error.hpp"
#include "dsakit/model.hpp"

namespace dsakit {
namespace {

/// -log2 softmax(logits)[target]
double bits(std::span<const float> logits, std::size_t target) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  return (most + std::log(sum) - logits[target]) / std::numbers::ln2;
}

}  // namespace

Score Model::score(std::span<const std::uint8_t> text, std::int64_t context, std::string_view mode, Context& threads,
                   const std::function<void(std::int64_t, std::int64_t)>& progress) const {
  if (text.size() < 2)
    throw Error(Status::invalid_argument, "model", "text", "", "has " + std::to_string(text.size()) + " bytes",
                "at least 2", "the first is not predicted");
  if (context < 1)
    throw Error(Status::invalid_argument, "model", "context", "", "is " + std::to_string(context), "at least 1");
  if (vocab_size() < 256)
    throw Error(Status::invalid_argument, "model", "vocab_size", "", "is " + std::to_string(vocab_size()),
                "at least 256", "tokens are bytes here");
  constexpr std::int64_t kRows = 256;  // logits held at once
  const std::int64_t all = std::int64_t(text.size()) - 1, vocab = vocab_size();
  std::vector<float> logits(std::size_t(kRows * vocab));
  std::vector<std::int32_t> tokens(kRows);
  Session session = start(mode);
  double sum = 0;
  Score score;
  score.predictions = all;
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t window = 0; window < all; window += context) {
    session.reset();
    const std::int64_t end = std::min(window + context, all);
    for (std::int64_t at = window; at < end; at += kRows) {
      const std::int64_t count = std::min(kRows, end - at);
      std::copy_n(text.begin() + at, count, tokens.begin());
      session.append(std::span(tokens).first(count), std::span(logits).first(count * vocab), threads);
      for (std::int64_t i = 0; i < count; ++i)
        sum += bits(std::span(logits).subspan(i * vocab, vocab), text[at + i + 1]);
      if (progress) progress(at + count, all);
    }
  }
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  score.tokens_per_second = double(all) / score.seconds;
  score.bits_per_byte = sum / double(all);
  score.cache_bytes = session.cache_bytes();
  score.costs = session.costs();
  return score;
}

}  // namespace dsakit
