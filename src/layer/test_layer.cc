// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "layer/compare.hpp"
#include "layer/exact_layer.hpp"
#include "layer/layer.hpp"
#include "layer/test_source.hpp"

namespace dsakit {
namespace {

io::ModelConfig deepseek_like() {
  io::ModelConfig c{};
  c.hidden_size = 64;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 3;
  c.q_lora_rank = 48;
  c.kv_lora_rank = 128;
  c.qk_nope_head_dim = 24;
  c.qk_rope_head_dim = 16;
  c.v_head_dim = 20;
  c.index_n_heads = 4;
  c.index_head_dim = 32;
  c.index_topk = 12;
  c.rms_norm_eps = 1e-6;
  c.rope = {.theta = 10000,
            .yarn = true,
            .factor = 4,
            .mscale = 1,
            .mscale_all_dim = 1,
            .original_max_position_embeddings = 64};
  c.rope_interleave = true;
  c.full_indexer = {true, true};
  return c;
}
io::ModelConfig glm_like() {
  io::ModelConfig c = deepseek_like();
  c.rope = {.theta = 1e6};
  c.rms_norm_eps = 1e-5;
  c.index_n_heads = 2;
  c.kv_lora_rank = 72;
  c.indexer_rope_interleave = true;
  c.full_indexer = {true, false};
  return c;
}

struct Result {
  std::vector<float> out;
  std::vector<std::int32_t> selection;  // of sparse modes
  bool operator==(const Result&) const = default;
};

/// Feeds `hidden` in pieces of the given sizes, the last one repeated.
Result feed(const AttentionLayer& layer, LayerCache& cache, std::span<const bf16> hidden,
            std::vector<std::int64_t> pieces, Context& context = default_context()) {
  const std::int64_t width = layer.hidden_size(), rows = std::int64_t(hidden.size()) / width, k = layer.index_topk();
  const bool sparse = cache.mode() != "dense_bf16";
  Result r{std::vector<float>(rows * width), std::vector<std::int32_t>(sparse ? rows * k : 0, -7)};
  std::size_t piece = 0;
  for (std::int64_t at = 0; at < rows;) {
    const std::int64_t n = std::min(pieces[std::min(piece++, pieces.size() - 1)], rows - at);
    layer.forward(tensor(hidden.data() + at * width, {n, width}), tensor(r.out.data() + at * width, {n, width}), cache,
                  sparse ? tensor(r.selection.data() + at * k, {n, k}) : Tensor{}, context);
    at += n;
  }
  return r;
}

class Layers : public testing::TestWithParam<std::tuple<bool, std::string_view>> {
 protected:
  const io::ModelConfig config = std::get<0>(GetParam()) ? glm_like() : deepseek_like();
  const std::string_view mode = std::get<1>(GetParam());
  const bool sparse = mode != "dense_bf16";
  const AttentionLayer layer = make_layer(config, 0, synthetic_source(11));
  static constexpr std::int64_t kTokens = 300;  // more than a chunk of 256, far more than index_topk
  Random random{3};
  const std::vector<bf16> hidden = random_bf16(random, kTokens* config.hidden_size, -1.7f, 1.7f);
};

/// rms of `out` - `exact`, as a share of the rms of `exact`.
double relative_error(std::span<const float> out, std::span<const double> exact) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double e = out[i] - exact[i];
    error += e * e, size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

TEST_P(Layers, AgreesWithTheFormula) {
  constexpr std::int64_t kRows = 90;
  const auto source = synthetic_source(11);
  const std::span<const bf16> some = std::span(hidden).first(kRows * config.hidden_size);
  const ExactLayer exact(config, true, *source, some);
  LayerCache cache = layer.make_cache(mode);
  const Result r = feed(layer, cache, some, {kRows});
  double best = 0, found = 0;
  const std::vector<std::int32_t> wanted = exact.selection();
  for (std::int64_t t = 0; t < kRows && sparse; ++t) {
    const std::int64_t k = std::min(config.index_topk, t + 1);
    const auto list = std::span(r.selection).subspan(t * config.index_topk, k);
    for (std::int64_t i = 0; i < k; ++i)
      best += 1, found += std::count(list.begin(), list.end(), wanted[t * config.index_topk + i]);
  }
  const double limit = mode.starts_with("sparse_w8a8") ? 0.03 : 0.01;
  EXPECT_LT(relative_error(r.out, exact.attend(r.selection)), limit);
  EXPECT_GE(found, best * (mode.starts_with("sparse_w8a8") ? 0.93 : 0.97));  // both 0 in dense mode

  io::ModelConfig other = config;  // the other order of rotated pairs
  other.rope_interleave = !other.rope_interleave;
  EXPECT_GT(relative_error(r.out, ExactLayer(other, true, *source, some).attend(r.selection)), 5 * limit);
}

/// The other source's indexer as one reads it who takes pairs beside each other for pairs of halves.
class MisreadIndexer final : public WeightSource {
 public:
  MisreadIndexer(std::unique_ptr<WeightSource> source, const io::ModelConfig& config)
      : source_(std::move(source)), di_(config.index_head_dim), dr_(config.qk_rope_head_dim) {}
  bool has(const std::string& name) const override { return source_->has(name); }
  io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    return reordered(name, source_->matrix(name, rows, columns), columns);
  }
  io::AlignedArray<bf16> vector_bf16(const std::string& name, std::int64_t size) const override {
    return source_->vector_bf16(name, size);
  }
  io::AlignedArray<float> vector_f32(const std::string& name, std::int64_t size) const override {
    return reordered(name, source_->vector_f32(name, size), 1);
  }

 private:
  template <class T>
  io::AlignedArray<T> reordered(const std::string& name, io::AlignedArray<T> from, std::int64_t columns) const {
    if (!name.starts_with("indexer.") || name.starts_with("indexer.weights_proj")) return from;
    io::AlignedArray<T> to(from.size());
    for (std::int64_t row = 0; row < std::int64_t(from.size()) / columns; ++row) {
      const std::int64_t i = row % di_, half = dr_ / 2, other = i < half ? 2 * i : i < dr_ ? 2 * (i - half) + 1 : i;
      std::copy_n(from.data() + (row - i + other) * columns, columns, to.data() + row * columns);
    }
    return to;
  }

  std::unique_ptr<WeightSource> source_;
  std::int64_t di_, dr_;
};

TEST(ComparedModes, ShowAnIndexerWhosePairsAreMisread) {
  const io::ModelConfig config = deepseek_like();
  Random random(8);
  const std::vector<bf16> hidden = random_bf16(random, 200 * config.hidden_size, -1.7f, 1.7f);
  const Mode modes[] = {Mode::sparse_bf16, Mode::sparse_w8a8, Mode::sparse_w8a8_packed};
  const auto figures = [&](bool misread) {
    std::size_t sources = 0;  // one for each mode; the last one, for float64, is right
    const auto source = [&] {
      auto right = synthetic_source(11);
      return misread && sources++ < std::size(modes) ? std::make_unique<MisreadIndexer>(std::move(right), config)
                                                     : std::move(right);
    };
    return compare_modes({.config = config, .layer = 0, .source = source, .hidden = hidden, .selection = {}}, modes);
  };
  const std::vector<ModeFigures> right = figures(false), wrong = figures(true);
  for (std::size_t i = 0; i < std::size(modes); ++i) {
    EXPECT_GT(right[i].recall->mean, 0.97) << name_of(modes[i]);
    EXPECT_LT(wrong[i].recall->mean, 0.7) << name_of(modes[i]);
    EXPECT_GT(wrong[i].exact.rms, 4 * right[i].exact.rms) << name_of(modes[i]);
  }
}

TEST_P(Layers, SameBitsHoweverATokenIsReached) {
  LayerCache cache = layer.make_cache(mode);
  const Result whole = feed(layer, cache, hidden, {kTokens});
  EXPECT_EQ(cache.length(), kTokens);
  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>{1}, {5, 1, 1, 100, 7}, {12, 1, 64}, {11, 2, 287}}) {
    LayerCache other = layer.make_cache(mode);
    EXPECT_TRUE(feed(layer, other, hidden, pieces) == whole) << pieces[0];
  }
}

TEST_P(Layers, SameBitsForThreadsPagesAndPageOrder) {
  LayerCache cache = layer.make_cache(mode);
  const Result whole = feed(layer, cache, hidden, {kTokens});
  for (const int threads : {1, 2, 3}) {
    Context context({.threads = threads});
    LayerCache other = layer.make_cache(mode);
    EXPECT_TRUE(feed(layer, other, hidden, {kTokens}, context) == whole) << threads;
  }
  for (const std::int64_t page_size : {1, 16, 100, 1024}) {
    LayerCache other = layer.make_cache(mode, page_size);
    EXPECT_TRUE(feed(layer, other, hidden, {30, 1}) == whole) << page_size;
  }
  LayerCache shuffled = layer.make_cache(mode, 16);
  shuffled.state().reserve(kTokens);
  std::reverse(shuffled.state().table.begin(), shuffled.state().table.end());
  EXPECT_TRUE(feed(layer, shuffled, hidden, {77}) == whole);
}

TEST_P(Layers, CopiesAreIndependentAndResetForgets) {
  const std::int64_t width = config.hidden_size, half = 150;
  const std::span<const bf16> first = std::span(hidden).first(half * width),
                              second = std::span(hidden).subspan(half * width);
  LayerCache cache = layer.make_cache(mode);
  const Result fresh = feed(layer, cache, first, {half});
  const LayerCache kept = cache;
  const Result wanted = feed(layer, cache, second, {half});
  LayerCache copy = kept;
  feed(layer, copy, first, {3});  // goes another way, and must not disturb the original
  LayerCache again = kept;
  EXPECT_EQ(kept.length(), half);
  EXPECT_TRUE(feed(layer, again, second, {half}) == wanted);
  again.reset();
  EXPECT_EQ(again.length(), 0);
  EXPECT_TRUE(feed(layer, again, first, {half}) == fresh);
  EXPECT_GT(again.bytes(), 0u);
}

TEST_P(Layers, ABatchHasTheBitsOfItsSequences) {
  const std::int64_t width = config.hidden_size, k = config.index_topk;
  const std::int64_t lengths[] = {7, 0, 230, 40};  // more than a chunk; then one token here and there
  const std::int64_t later[] = {1, 1, 103, 1};
  std::vector<LayerCache> caches, alone;
  for (int i = 0; i < 4; ++i) {
    caches.push_back(i == 3 ? caches[2] : layer.make_cache(mode, 16));  // the last two have one pool
    alone.push_back(layer.make_cache(mode));
  }
  std::int64_t at = 0;
  for (const auto& counts : {std::span(lengths), std::span(later)}) {
    std::vector<NewTokens> batch;
    Result wanted;
    const std::int64_t begin = at;
    for (int i = 0; i < 4; at += counts[i], ++i) {
      batch.push_back({&caches[i], counts[i]});
      const Result r = feed(layer, alone[i], std::span(hidden).subspan(at * width, counts[i] * width), {counts[i]});
      wanted.out.insert(wanted.out.end(), r.out.begin(), r.out.end());
      wanted.selection.insert(wanted.selection.end(), r.selection.begin(), r.selection.end());
    }
    const std::int64_t rows = at - begin;
    Result r{std::vector<float>(rows * width), std::vector<std::int32_t>(sparse ? rows * k : 0, -7)};
    layer.forward(tensor(hidden.data() + begin * width, {rows, width}), tensor(r.out.data(), {rows, width}), batch,
                  sparse ? tensor(r.selection.data(), {rows, k}) : Tensor{});
    EXPECT_TRUE(r == wanted) << begin;
    at = 97;
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(caches[i].length(), lengths[i] + later[i]);
}

TEST_P(Layers, TurnsByTheAnglesOfTheCaller) {
  const std::int64_t width = config.hidden_size, dr = config.qk_rope_head_dim, rows = 40, behind = 5;
  std::vector<bf16> cos((behind + rows) * dr), sin(cos);
  layer.state().rope->copy(0, behind + rows, cos.data(), sin.data());
  const auto out = [&](std::int64_t first) {
    LayerCache cache = layer.make_cache(mode);
    std::vector<float> out(rows * width);
    const NewTokens all{&cache, rows};
    const Rotation rotation{tensor(cos.data() + first * dr, {rows, dr}), tensor(sin.data() + first * dr, {rows, dr})};
    layer.forward(tensor(hidden.data(), {rows, width}), tensor(out.data(), {rows, width}), std::span(&all, 1), {},
                  first < 0 ? Rotation{} : rotation);
    return out;
  };
  EXPECT_EQ(out(0), out(-1));
  EXPECT_NE(out(behind), out(-1));  // the same differences of angles, other roundings
}

TEST_P(Layers, CopiesShareFullPagesUntilTheyPart) {
  const std::int64_t width = config.hidden_size, page = 16;
  const auto rows = [&](std::int64_t first, std::int64_t count) {
    return std::span(hidden).subspan(first * width, count * width);
  };
  LayerCache cache = layer.make_cache(mode, page);
  feed(layer, cache, rows(0, 40), {40});
  PagePool& pool = *cache.state().pool;
  const auto used = [&] { return pool.pages() - std::int64_t(pool.unused.size()); };
  EXPECT_EQ(used(), 3);
  {
    LayerCache copy = cache, third = copy;
    EXPECT_EQ(used(), 3);
    const Result other = feed(layer, copy, rows(100, 30), {30});  // takes a last page of its own, and two more
    EXPECT_EQ(used(), 3 + 3);
    EXPECT_EQ(copy.state().table[1], cache.state().table[1]);
    EXPECT_NE(copy.state().table[2], cache.state().table[2]);
    third.crop(10);  // 30 are left: 14 rows of a page that is shared
    EXPECT_EQ(third.length(), 30);
    const Result again = feed(layer, third, rows(30, 10), {3, 7});
    LayerCache whole = layer.make_cache(mode);
    feed(layer, whole, rows(0, 30), {30});
    EXPECT_TRUE(feed(layer, whole, rows(30, 10), {10}) == again);
    EXPECT_TRUE(feed(layer, whole, rows(100, 30), {30}) == other);
    EXPECT_EQ(used(), 3 + 3 + 2);
    EXPECT_THROW(third.crop(41), Error);
    EXPECT_EQ(third.length(), 40);
  }
  EXPECT_EQ(used(), 3);
  cache.reset();
  EXPECT_EQ(used(), 0);
  EXPECT_GT(cache.bytes(), 0u);
}

TEST_P(Layers, RoundsOnceToBf16OnRequest) {
  LayerCache a = layer.make_cache(mode), b = layer.make_cache(mode);
  const Result wide = feed(layer, a, hidden, {kTokens});
  std::vector<bf16> narrow(wide.out.size());
  layer.forward(tensor(hidden.data(), {kTokens, config.hidden_size}),
                tensor(narrow.data(), {kTokens, config.hidden_size}), b);
  for (std::size_t i = 0; i < narrow.size(); ++i) ASSERT_EQ(narrow[i].bits, to_bf16(wide.out[i]).bits);
}

INSTANTIATE_TEST_SUITE_P(All, Layers, testing::Combine(testing::Bool(), testing::ValuesIn(kModes)), [](const auto& i) {
  return std::string(std::get<0>(i.param) ? "glm_" : "deepseek_") + std::string(std::get<1>(i.param));
});

TEST(Layer, AnotherIndexerRopeLayoutSelectsOtherPositions) {
  io::ModelConfig c = deepseek_like();
  Random random(3);
  const std::vector<bf16> hidden = random_bf16(random, 100 * c.hidden_size);
  const auto selection = [&] {
    const AttentionLayer layer = make_layer(c, 0, synthetic_source(11));
    LayerCache cache = layer.make_cache("sparse_w8a8");
    return feed(layer, cache, hidden, {100}).selection;
  };
  const std::vector<std::int32_t> half = selection();
  c.indexer_rope_interleave = true;
  EXPECT_NE(selection(), half);
}

TEST(Layer, WithoutIndexerUsesTheGivenSelection) {
  const io::ModelConfig c = glm_like();
  const AttentionLayer full = make_layer(c, 0, synthetic_source(11)), shared = make_layer(c, 1, synthetic_source(11));
  EXPECT_FALSE(shared.has_indexer());
  Random random(3);
  const std::vector<bf16> hidden = random_bf16(random, 60 * c.hidden_size);
  const Tensor x = tensor(hidden.data(), {60, c.hidden_size});
  std::vector<float> out(60 * c.hidden_size), again(out.size());
  for (const std::string_view mode : {"sparse_bf16", "sparse_w8a8", "sparse_w8a8_packed"}) {
    LayerCache a = full.make_cache(mode), b = shared.make_cache(mode);
    EXPECT_LT(b.state().index_key.width, a.state().index_key.width);
    std::vector<std::int32_t> selection(60 * c.index_topk, -1);
    const Tensor s = tensor(selection.data(), {60, c.index_topk});
    full.forward(x, tensor(out.data(), {60, c.hidden_size}), a, s);
    shared.forward(x, tensor(again.data(), {60, c.hidden_size}), b, s);
    EXPECT_EQ(out, again) << mode;  // the same weights and the same selection
    EXPECT_THROW(shared.forward(x, tensor(again.data(), {60, c.hidden_size}), b), Error);
    selection[20 * c.index_topk] = 4000;
    EXPECT_THROW(shared.forward(x, tensor(again.data(), {60, c.hidden_size}), b, s), Error);
    EXPECT_EQ(b.length(), 60);
  }
}

TEST(Layer, RefusesByName) {
  const io::ModelConfig c = deepseek_like();
  const AttentionLayer layer = make_layer(c, 0, synthetic_source(1));
  std::vector<bf16> hidden(4 * 64);
  std::vector<float> out(4 * 64, 5);
  LayerCache cache = layer.make_cache("dense_bf16");
  const auto refusal = [&](Tensor h, Tensor o, Tensor s = {}) {
    try {
      layer.forward(h, o, cache, s);
    } catch (const Error& e) {
      EXPECT_EQ(cache.length(), 0);
      return std::string(name_of(e.status)) + " " + e.parameter;
    }
    return std::string("accepted");
  };
  const Tensor h = tensor(hidden.data(), {4, 64}), o = tensor(out.data(), {4, 64});
  std::int32_t list[4 * 12] = {};
  EXPECT_EQ(refusal(tensor(hidden.data(), {4, 63}), o), "INVALID_SHAPE hidden");
  EXPECT_EQ(refusal(tensor(out.data(), {4, 64}), o), "INVALID_DTYPE hidden");
  EXPECT_EQ(refusal(h, tensor(out.data(), {3, 64})), "INVALID_SHAPE out");
  EXPECT_EQ(refusal(h, tensor(std::as_const(out).data(), {4, 64})), "INVALID_DEVICE out");
  EXPECT_EQ(refusal(h, h), "ALIASED out");
  EXPECT_EQ(refusal(h, o, tensor(list, {4, 12})), "INVALID_ARGUMENT selection");
  EXPECT_EQ(out, std::vector<float>(4 * 64, 5));
  EXPECT_THROW(layer.make_cache("dense"), Error);
  EXPECT_THROW(layer.make_cache("dense_bf16", 0), Error);
  const auto batch = [&](std::vector<NewTokens> sequences, const Rotation& rotation = {}) {
    try {
      layer.forward(h, o, sequences, {}, rotation);
    } catch (const Error& e) {
      return std::string(name_of(e.status)) + " " + e.parameter + e.position;
    }
    return std::string("accepted");
  };
  LayerCache second = cache, sparse = layer.make_cache("sparse_bf16");
  bf16 angles[4 * 16];
  EXPECT_EQ(batch({}), "INVALID_ARGUMENT sequences");
  EXPECT_EQ(batch({{&cache, 2}, {&cache, 2}}), "ALIASED cache[1]");
  EXPECT_EQ(batch({{&cache, 2}, {&sparse, 2}}), "INVALID_ARGUMENT cache[1]");
  EXPECT_EQ(batch({{&cache, 2}, {&second, 3}}), "INVALID_ARGUMENT count[1]");
  EXPECT_EQ(batch({{&cache, 2}, {&second, 1}}), "INVALID_ARGUMENT count");
  EXPECT_EQ(batch({{&cache, 4}}, {.cos = tensor(angles, {4, 16})}), "INVALID_ARGUMENT sin");
  EXPECT_EQ(batch({{&cache, 4}}, {.cos = tensor(angles, {4, 16}), .sin = tensor(angles, {4, 8})}), "INVALID_SHAPE sin");
  EXPECT_EQ(cache.length() + second.length(), 0);
  cache = make_layer(glm_like(), 0, synthetic_source(1)).make_cache("dense_bf16");
  EXPECT_EQ(refusal(h, o), "INVALID_ARGUMENT cache");
}

}  // namespace
}  // namespace dsakit
