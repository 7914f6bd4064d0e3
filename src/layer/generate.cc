// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "core/out_of_memory.hpp"
#include "core/random.hpp"
#include "dsakit/error.hpp"
#include "dsakit/model.hpp"

namespace dsakit {
namespace {

/// The largest, ties to the lowest place; or a draw from softmax(logits / temperature) by inverting its cumulative sum.
std::int32_t pick(std::span<const float> logits, double temperature, Random& random, std::vector<double>& odds) {
  const std::size_t best = std::size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (temperature == 0) return std::int32_t(best);
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    sum += odds[i] = std::exp((double(logits[i]) - logits[best]) / temperature);
  double left = sum * (double(random.next() >> 11) * 0x1p-53);
  for (std::size_t i = 0; i < odds.size(); ++i)
    if ((left -= odds[i]) < 0) return std::int32_t(i);
  return std::int32_t(best);
}

}  // namespace

std::vector<std::int32_t> Model::generate(std::span<const std::int32_t> prompt, std::int64_t count,
                                          std::string_view mode, double temperature, std::uint64_t seed,
                                          Context& context, const std::function<void(std::int32_t)>& each) const try {
  if (prompt.empty()) throw Error(Status::invalid_argument, "model", "prompt", "", "is empty", "at least one token");
  if (count < 0)
    throw Error(Status::invalid_argument, "model", "count", "", "is " + std::to_string(count), "at least 0");
  if (!(temperature >= 0 && std::isfinite(temperature)))
    throw Error(Status::invalid_argument, "model", "temperature", "", "is " + std::to_string(temperature),
                "a finite number of at least 0");
  Session session = start(mode);
  std::vector<float> logits(static_cast<std::size_t>(vocab_size()));
  std::vector<double> odds(logits.size());
  Random random(seed);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    session.append(i == 0 ? prompt : std::span(&tokens.back(), 1), logits, context);
    tokens.push_back(pick(logits, temperature, random, odds));
    if (each) each(tokens.back());
  }
  return tokens;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
