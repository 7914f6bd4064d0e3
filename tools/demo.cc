// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "commands.hpp"
#include "core/random.hpp"
#include "demo_layer.hpp"
#include "dsakit/error.hpp"
#include "dsakit/model.hpp"

namespace dsakit::tools {
namespace {

/// A window of real text with one line planted in its first half and asked for at its end.
struct Question {
  std::vector<std::int32_t> prompt;
  std::string digits;
  std::int64_t digits_at;  // position of the first digit
};

/// `where`: how far into the text the window lies, 0..1.
Question plant(const std::string& text, std::int64_t length, double where, Random& random) {
  const char consonants[] = "bcdfghjklmnpqrstvwxz";
  std::string key = "<";
  for (int i = 0; i < 2; ++i) key += consonants[random.below(20)];
  for (int i = 0; i < 2; ++i) key += char('0' + random.below(10));
  key += "> = ";
  std::string digits;
  for (int i = 0; i < 5; ++i) digits += char('0' + random.below(10));

  const std::string line = key + digits + "\n", ask = "\n" + key;
  const std::int64_t real = length - std::int64_t(line.size() + ask.size());
  const std::int64_t from = std::int64_t(where * double(std::int64_t(text.size()) - real));
  std::int64_t cut = 1 + random.below(real / 2 - 100);
  while (text[std::size_t(from + cut - 1)] != '\n' && cut < real / 2) ++cut;  // the line stands between two others
  const std::string window = text.substr(std::size_t(from), std::size_t(cut)) + line +
                             text.substr(std::size_t(from + cut), std::size_t(real - cut)) + ask;
  Question q{.prompt = {}, .digits = digits, .digits_at = cut + std::int64_t(key.size())};
  for (unsigned char c : window) q.prompt.push_back(c);
  return q;
}

struct Retrieval {
  int right = 0, held = 0, asked = 0;
};

/// Greedy digits, and for how many of them some layer's selection held the digit to be copied.
void ask(const Model& model, const Question& q, std::string_view mode, Retrieval& result) {
  Session session = model.start(mode);
  std::vector<float> logits(std::size_t(model.vocab_size()));
  std::set<std::int32_t> attended;
  session.observe([&](int, std::int64_t first, const Tensor& selection) {
    const std::int64_t rows = selection.shape[0], k = selection.shape[1];
    const auto* row = static_cast<const std::int32_t*>(selection.data) + (rows - 1) * selection.stride[0];
    const std::int64_t visible = first + rows;
    attended.insert(row, row + std::min(k, visible));
  });
  std::vector<std::int32_t> next = q.prompt;
  for (std::size_t i = 0; i < q.digits.size(); ++i) {
    attended.clear();
    session.append(next, logits);
    const auto best = std::int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ++result.asked;
    result.right += best == q.digits[i];
    result.held += mode == "dense_bf16" || attended.contains(std::int32_t(q.digits_at + std::int64_t(i)));
    next = {best};
  }
}

void retrieval(const Model& model, const std::string& text, int questions) {
  fmt::print("\nRetrieval: a line like <kz42> = 83107 is planted in the first half of a window of real text and asked for at\n"
             "its end. Digits right, and digits whose position was among the {} attended ones of some layer:\n\n", model.index_topk());
  fmt::print("{:<20}", "mode");
  for (int length : {1024, 2048}) fmt::print("{:>16}{:>16}", fmt::format("{} bytes", length), "held");
  fmt::print("\n");
  for (std::string_view mode : model.modes()) {
    fmt::print("{:<20}", mode);
    for (int length : {1024, 2048}) {
      Random random(42);
      Retrieval r;
      {
        Progress progress(fmt::format("{} {}", mode, length));
        for (int i = 0; i < questions; ++i) ask(model, plant(text, length, double(i) / questions, random), mode, r), progress.at(double(i + 1) / questions);
      }
      fmt::print("{:>16}{:>16}", fmt::format("{} of {}", r.right, r.asked),
                 mode == "dense_bf16" ? "all" : fmt::format("{} of {}", r.held, r.asked));
      std::fflush(stdout);
    }
    fmt::print("\n");
  }
}

}  // namespace

int demo(const DemoOptions& options) {
  const std::string folder = small_model();
  const Model model(folder);
  fmt::print("dsakit demo: DeepSeek Sparse Attention on this machine ({}, {} threads)\n\n", default_context().isa(),
             default_context().threads());
  print_unused();
  fmt::print("A trained byte-level model (4.5 M parameters, 4 layers, index_topk {}) reads text it has never seen:\n", model.index_topk());
  run({.model = folder, .text = options.text, .context = 1024});

  std::ifstream in(folder + "/heldout.txt", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (text.size() < 4096) throw Error(Status::io_error, "demo", "heldout.txt", "", "cannot be read", "the model's text");
  retrieval(model, text, options.quick ? 3 : 20);

  return full_size_step(options.quick ? 8192 : 32768);
}

}  // namespace dsakit::tools
