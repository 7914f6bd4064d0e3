// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <string>

#include "core/out_of_memory.hpp"
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

using Progress = std::function<void(std::int64_t, std::int64_t)>;

/// Of tokens in the type that the caller has them in.
template <class Token>
Score score_tokens(const Model& model, std::span<const Token> all_tokens, std::int64_t context, std::string_view mode,
                   Context& threads, const Progress& progress) {
  const std::string what = sizeof(Token) == 1 ? "text" : "tokens", unit = sizeof(Token) == 1 ? " bytes" : " tokens";
  if (all_tokens.size() < 2)
    throw Error(Status::invalid_argument, "model", what, "", "has " + std::to_string(all_tokens.size()) + unit,
                "at least 2", "the first is not predicted");
  if (context < 1)
    throw Error(Status::invalid_argument, "model", "context", "", "is " + std::to_string(context), "at least 1");
  constexpr std::int64_t kRows = 256;  // logits held at once
  const std::int64_t all = std::int64_t(all_tokens.size()) - 1, vocab = model.vocab_size();
  for (std::size_t i = 0; i < all_tokens.size(); ++i)
    if (std::int64_t(all_tokens[i]) < 0 || std::int64_t(all_tokens[i]) >= vocab)
      throw Error(Status::invalid_argument, "model", what, "[" + std::to_string(i) + "]",
                  "is " + std::to_string(all_tokens[i]), "0.." + std::to_string(vocab - 1), "vocab_size");
  std::vector<float> logits(std::size_t(std::min(kRows, all) * vocab));
  std::vector<std::int32_t> tokens(kRows);
  Session session = model.start(mode);
  double sum = 0;
  Score score;
  score.predictions = all;
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t window = 0; window < all; window += context) {
    session.reset();
    const std::int64_t end = std::min(window + context, all);
    for (std::int64_t at = window; at < end; at += kRows) {
      const std::int64_t count = std::min(kRows, end - at);
      std::copy_n(all_tokens.begin() + at, count, tokens.begin());
      session.append(std::span(tokens).first(count), std::span(logits).first(count * vocab), threads);
      for (std::int64_t i = 0; i < count; ++i)
        sum += bits(std::span(logits).subspan(i * vocab, vocab), std::size_t(all_tokens[at + i + 1]));
      if (progress) progress(at + count, all);
    }
  }
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  score.tokens_per_second = double(all) / score.seconds;
  score.bits_per_token = sum / double(all);
  score.cache_bytes = session.cache_bytes();
  score.costs = session.costs();
  return score;
}

}  // namespace

Score Model::score(std::span<const std::uint8_t> text, std::int64_t context, std::string_view mode, Context& threads,
                   const Progress& progress) const try {
  if (vocab_size() < 256)
    throw Error(Status::invalid_argument, "model", "vocab_size", "", "is " + std::to_string(vocab_size()),
                "at least 256", "tokens are bytes here");
  Score score = score_tokens(*this, text, context, mode, threads, progress);
  score.bits_per_byte = score.bits_per_token;
  return score;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Score Model::score(std::span<const std::int32_t> tokens, std::int64_t context, std::string_view mode, Context& threads,
                   const Progress& progress) const try {
  return score_tokens(*this, tokens, context, mode, threads, progress);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
