// SPDX-License-Identifier: Apache-2.0
// Case files (debug/case.hpp): read, written again, and computed by the fast path and by the reference.
#include <numeric>

#include "debug/execute.hpp"
#include "fuzz.hpp"

namespace dsakit::fuzz {
namespace {

/// Whether computing it is a matter of milliseconds: shapes and numbers that are small.
bool is_tiny(const debug::Case& c) {
  const auto elements = [](const std::vector<std::int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), 1.0,
                           [](double n, std::int64_t length) { return n * double(length); });
  };
  constexpr double kMost = 1 << 16;
  for (const auto& [key, stored] : c.tensors)
    if (elements(stored.shape) > kMost) return false;
  for (const auto& [key, layout] : c.layouts)
    if ((layout.full && elements(*layout.full) > kMost) || (layout.shape && elements(*layout.shape) > kMost) ||
        (layout.stride && elements(*layout.stride) > kMost))
      return false;
  for (const auto& [name, value] : c.attributes)
    if (const auto* n = std::get_if<std::int64_t>(&value); n && *n > 4096 && *n < INT64_MAX / 4) return false;
  return true;
}

/// What a run of it says, and what it leaves, as bytes.
struct Answer {
  std::string sentence;
  std::map<std::string, std::string> results;

  bool operator==(const Answer&) const = default;
};

Answer run(const debug::Case& c, const debug::Execution& how) {
  Answer answer;
  const auto wrong = refusal([&] {
    const debug::Outcome outcome = debug::execute(c, how);
    if (outcome.refusal) require_sentence(answer.sentence = outcome.refusal->what());
    for (const auto& [key, result] : outcome.results) {
      const Tensor& t = result.tensor;
      answer.results[key].assign(static_cast<const char*>(t.data), std::size_t(t.elements() * size_of(t.dtype)));
    }
  });
  if (wrong) answer.sentence = wrong->what();
  return answer;
}

}  // namespace
}  // namespace dsakit::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsakit;
  using namespace dsakit::fuzz;
  static const Folder folder;
  static Context context({.threads = 1, .memory_limit = 64 << 20});
  const std::string path = folder.write("case.safetensors", safetensors_of({data, size}));
  refusal([&] {
    const debug::Case c = debug::read_case(path);
    debug::check_case(c);
    debug::write_case(c, folder / "again.safetensors");
    const std::string bytes = folder.read("again.safetensors");
    require(bytes.size() == debug::bytes_of(c), "a case is not as large as it says");
    debug::write_case(debug::read_case(folder / "again.safetensors"), folder / "third.safetensors");
    require(folder.read("third.safetensors") == bytes, "a case is not written as it was read");
    if (!is_tiny(c)) return;
    const Answer fast = run(c, {.context = &context}), reference = run(c, {.reference = true});
    require(fast.sentence == reference.sentence || fast.sentence.find("workspace") != std::string::npos,
            "the operator: " + fast.sentence + "\nits reference: " + reference.sentence);
    require(run(c, {.context = &context}) == fast, "the second run is another");
    run(c, {.strides = true, .context = &context});
  });
  return 0;
}
