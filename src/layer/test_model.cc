// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "dsakit/error.hpp"
#include "dsakit/model.hpp"

namespace dsakit {
namespace {

const std::string kFolder = DSAKIT_SOURCE_DIR "/models/tiny-dsa";

const Model& tiny() {
  static const Model model(kFolder);
  return model;
}

std::vector<std::uint8_t> heldout(std::size_t bytes) {
  std::ifstream file(kFolder + "/heldout.txt", std::ios::binary);
  std::vector<std::uint8_t> text{std::istreambuf_iterator<char>(file), {}};
  text.resize(bytes);
  return text;
}
std::vector<std::int32_t> tokens(std::size_t count) {
  const std::vector<std::uint8_t> text = heldout(count);
  return {text.begin(), text.end()};
}

// transformers 5.23 in float32 on the first 4 KiB of heldout.txt, and how far bf16 arithmetic may take us from there.
TEST(Model, ScoresTextAsTheReferenceDoes) {
  const std::vector<std::uint8_t> text = heldout(4096);
  const Score dense = tiny().score(text, 1024, "dense_bf16");
  const Score sparse = tiny().score(text, 1024, "sparse_bf16");
  const Score w8a8 = tiny().score(text, 1024, "sparse_w8a8");
  const Score packed = tiny().score(text, 1024, "sparse_w8a8_packed");
  EXPECT_NEAR(dense.bits_per_byte, 1.38777, 0.0005);
  EXPECT_NEAR(sparse.bits_per_byte, 1.38758, 0.0005);
  EXPECT_NEAR(w8a8.bits_per_byte, sparse.bits_per_byte, 0.004);  // the sample is short
  EXPECT_NEAR(packed.bits_per_byte, sparse.bits_per_byte, 0.004);
  EXPECT_LT(w8a8.bits_per_byte, dense.bits_per_byte + 0.02);
  EXPECT_EQ(dense.predictions, 4095);
  EXPECT_EQ(dense.costs.selected_share(), 1);
  // Of n visible positions min(n, 128) are attended; the last window has 1023.
  double selected = 0, visible = 0;
  for (int w = 0; w < 4; ++w)
    for (int n = 1; n <= 1024 - (w == 3); ++n) selected += std::min(n, 128), visible += n;
  EXPECT_DOUBLE_EQ(sparse.costs.selected_share(), selected / visible);
  EXPECT_LT(w8a8.cache_bytes, sparse.cache_bytes);
  EXPECT_EQ(packed.cache_bytes, w8a8.cache_bytes);
}

TEST(Model, SameLogitsHoweverATokenIsReached) {
  const std::vector<std::int32_t> text = tokens(420);  // index_topk is 128, a chunk 256
  for (const std::string_view mode : kModes) {
    const std::vector<float> whole = tiny().logits(text, mode);
    for (const std::int64_t page_size : {128, 48}) {
      Session session = tiny().start(mode, page_size);
      std::vector<float> pieces(whole.size());
      std::size_t at = 0;
      for (const std::size_t n : {100, 27, 1, 1, 1, 200, 7}) {
        session.append(std::span(text).subspan(at, n), std::span(pieces).subspan(at * 256, n * 256));
        at += n;
      }
      for (; at < text.size(); ++at) session.append({&text[at], 1}, std::span(pieces).subspan(at * 256, 256));
      EXPECT_EQ(pieces, whole) << mode << " " << page_size;
    }
    Session session = tiny().start(mode);
    std::vector<float> last(3 * 256);
    session.append(text, last);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), whole.end() - 3 * 256)) << mode;
  }
}

TEST(Model, ThreadsDoNotChangeLogits) {
  const std::vector<std::int32_t> text = tokens(300);
  for (const std::string_view mode : kModes) {
    Context one({.threads = 1}), three({.threads = 3});
    EXPECT_EQ(tiny().logits(text, mode, one), tiny().logits(text, mode, three)) << mode;
  }
}

TEST(Session, CopiesGoTheirOwnWayAndResetStartsAgain) {
  const std::vector<std::int32_t> text = tokens(200);
  for (const std::string_view mode : kModes) {
    Session session = tiny().start(mode);
    session.append(std::span(text).first(150));
    Session copy = session;
    std::vector<float> a(256), b(256), c(256);
    session.append(std::span(text).subspan(150, 50), a);
    copy.append(std::span(text).first(9));
    EXPECT_EQ(copy.length(), 159);
    copy.reset();
    copy.append(text, b);
    EXPECT_EQ(a, b) << mode;
    session.reset();
    EXPECT_EQ(session.length(), 0);
    session.append(std::span(text).first(1), b);
    copy.reset();
    copy.append(std::span(text).first(1), c);
    EXPECT_EQ(b, c) << mode;
  }
}

TEST(Session, ABatchStepsAsEachAlone) {
  const std::vector<std::int32_t> text = tokens(300);
  for (const std::string_view mode : kModes) {
    Session a = tiny().start(mode), b = tiny().start(mode, 16);
    a.append(std::span(text).first(140));
    b.append(std::span(text).first(9));
    Session c = a, d = tiny().start(mode);  // d begins here
    std::vector<Session> alone = {a, b, c, d};
    Session* const all[] = {&a, &b, &c, &d};
    for (std::int64_t i = 0; i < 3; ++i) {
      const std::span<const std::int32_t> next = std::span(text).subspan(200 + 4 * i, 4);
      std::vector<float> logits(4 * 256), wanted(4 * 256);
      step(all, next, logits);
      for (std::size_t s = 0; s < 4; ++s)
        alone[s].append(next.subspan(s, 1), std::span(wanted).subspan(s * 256, 256));
      EXPECT_EQ(logits, wanted) << mode;
    }
    EXPECT_EQ(d.length(), 3);
  }
}

TEST(Session, CropTakesTheLastTokensBack) {
  const std::vector<std::int32_t> text = tokens(200);
  for (const std::string_view mode : kModes) {
    Session session = tiny().start(mode, 16);
    std::vector<float> a(256), b(256);
    session.append(text, a);
    session.append(std::span(text).first(60));
    session.crop(61);
    EXPECT_EQ(session.length(), 199);
    session.append(std::span(text).last(1), b);
    EXPECT_EQ(a, b) << mode;
  }
}

TEST(Session, ObserverSeesEverySelection) {
  Session session = tiny().start("sparse_w8a8");
  std::int64_t rows = 0;
  session.observe([&](int layer, std::int64_t first, const Tensor& selection) {
    ASSERT_LT(layer, 4);
    ASSERT_EQ(selection.shape[1], 128);
    for (std::int64_t i = 0; i < selection.shape[0]; ++i, ++rows) {
      const auto* list = static_cast<const std::int32_t*>(selection.data) + i * 128;
      std::vector<std::int32_t> sorted(list, list + std::min<std::int64_t>(first + i + 1, 128));
      std::sort(sorted.begin(), sorted.end());
      ASSERT_GE(sorted.front(), 0);
      ASSERT_LE(sorted.back(), first + i);
      ASSERT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
    }
  });
  session.append(tokens(300));
  EXPECT_EQ(rows, 4 * 300);
}

TEST(Model, GeneratesGreedilyOrBySeed) {
  const std::vector<std::int32_t> prompt = tokens(64);
  const std::vector<std::int32_t> greedy = tiny().generate(prompt, 20, "sparse_w8a8");
  std::vector<std::int32_t> text = prompt;
  for (const std::int32_t t : greedy) {
    const std::vector<float> logits = tiny().logits(text, "sparse_w8a8");
    EXPECT_EQ(t, std::max_element(logits.end() - 256, logits.end()) - (logits.end() - 256));
    text.push_back(t);
  }
  const auto drawn = [&](std::uint64_t seed) { return tiny().generate(prompt, 40, "dense_bf16", 1.0, seed); };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
  EXPECT_EQ(tiny().generate(prompt, 20, "sparse_w8a8", 1e-4, 5), greedy);  // so cold that only the best is left
}

TEST(Model, RefusesByName) {
  const auto refusal = [](auto&& call) {
    try {
      call();
    } catch (const Error& e) {
      return std::string(name_of(e.status)) + " " + e.parameter + e.position;
    }
    return std::string("accepted");
  };
  Session session = tiny().start("dense_bf16");
  std::vector<float> logits(100);
  const std::int32_t bad[] = {3, 256};
  EXPECT_EQ(refusal([&] { session.append(bad); }), "INVALID_ARGUMENT tokens[1]");
  EXPECT_EQ(refusal([&] { session.append({bad, 1}, logits); }), "INVALID_SHAPE logits");
  EXPECT_EQ(session.length(), 0);
  EXPECT_EQ(refusal([&] { session.crop(1); }), "INVALID_ARGUMENT count");
  EXPECT_EQ(refusal([&] { session.crop(-1); }), "INVALID_ARGUMENT count");
  Session other = Model(kFolder).start("dense_bf16"), sparse = tiny().start("sparse_bf16"), second = session;
  std::vector<float> two(2 * 256, 7);
  const auto stepping = [&](std::vector<Session*> sessions, std::vector<std::int32_t> next) {
    return refusal([&] { step(sessions, next, two); });
  };
  EXPECT_EQ(stepping({&session, &other}, {1, 2}), "INVALID_ARGUMENT sessions[1]");
  EXPECT_EQ(stepping({&session, &sparse}, {1, 2}), "INVALID_ARGUMENT sessions[1]");
  EXPECT_EQ(stepping({&session, &session}, {1, 2}), "ALIASED sessions[1]");
  EXPECT_EQ(stepping({&session, &second}, {1, 256}), "INVALID_ARGUMENT tokens[1]");
  EXPECT_EQ(stepping({&session, &second}, {1}), "INVALID_SHAPE tokens");
  EXPECT_EQ(stepping({&session}, {1}), "INVALID_SHAPE logits");
  EXPECT_EQ(session.length() + second.length(), 0);
  EXPECT_EQ(two, std::vector<float>(2 * 256, 7));
  EXPECT_EQ(refusal([&] { tiny().start("w8a8"); }), "INVALID_ARGUMENT mode");
  EXPECT_EQ(refusal([&] { tiny().start("dense_bf16", -1); }), "INVALID_ARGUMENT page_size");
  EXPECT_EQ(refusal([&] { tiny().generate({}, 3, "dense_bf16"); }), "INVALID_ARGUMENT prompt");
  EXPECT_EQ(refusal([&] { tiny().generate({bad, 1}, 3, "dense_bf16", -1); }), "INVALID_ARGUMENT temperature");
  EXPECT_EQ(refusal([&] { tiny().score(std::span<const std::uint8_t>(), 1024, "dense_bf16"); }), "INVALID_ARGUMENT text");
  EXPECT_EQ(refusal([&] { tiny().score(heldout(9), 0, "dense_bf16"); }), "INVALID_ARGUMENT context");
  EXPECT_EQ(refusal([&] { tiny().attention(4); }), "INVALID_ARGUMENT layer");
}

}  // namespace
}  // namespace dsakit
