// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "io/test_folder.hpp"
#include "io/test_model.hpp"
#include "layer/costs.hpp"
#include "layer/moe.hpp"
#include "layer/parallel.hpp"

namespace dsakit {
namespace {

using io::expect_refusal;
using io::TestFolder;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Chosen {
  std::vector<std::int32_t> expert;
  std::vector<float> weight;
};

Chosen choose(const io::MoeConfig& m, const std::vector<float>& logits, std::vector<float> bias = {}) {
  bias.resize(logits.size());
  std::vector<std::byte> memory(bytes_of<ChoiceScratch>(m) + 64);
  Carver carver(memory.data());
  Chosen c{std::vector<std::int32_t>(std::size_t(m.num_experts_per_tok)),
           std::vector<float>(std::size_t(m.num_experts_per_tok))};
  choose_experts(m, logits.data(), bias.data(), ChoiceScratch(m, carver), c.expert.data(), c.weight.data());
  return c;
}

using List = std::vector<std::int32_t>;

// Worked out by hand, and what transformers' router gives.
TEST(Router, MicroExample) {
  io::MoeConfig m{.n_routed_experts = 8, .num_experts_per_tok = 4, .moe_intermediate_size = 1, .n_group = 4,
                  .topk_group = 2, .routed_scaling_factor = 2.5};
  const std::vector<float> logits{2, -1, .5f, .5f, -2, 1, 3, -3}, bias{0, -.5f, .25f, .25f, 0, -.3f, -.5f, 0};
  Chosen c = choose(m, logits, bias);
  EXPECT_EQ(c.expert, (List{0, 1, 2, 3}));
  const float weight[] = {.9195440f, .2807724f, .6498418f, .6498418f};
  float y = 0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(c.weight[i], weight[i], 1e-7);
    y += c.weight[i] * float(c.expert[i] + 1);
  }
  EXPECT_NEAR(y + 10, 16.02998, 1e-5);

  m.norm_topk_prob = false, m.routed_scaling_factor = 1;
  c = choose(m, logits, bias);
  EXPECT_NEAR(c.weight[0], .8807970, 1e-7);
  EXPECT_NEAR(c.weight[1], .2689414, 1e-7);
}

TEST(Router, TiesGoByNumberAndNaNIsLast) {
  io::MoeConfig m{.n_routed_experts = 8, .num_experts_per_tok = 3, .moe_intermediate_size = 1, .n_group = 4,
                  .topk_group = 2};
  const std::vector<float> equal(8);
  EXPECT_EQ(choose(m, equal).expert, (List{0, 1, 2}));
  EXPECT_EQ(choose(m, {0, 0, 0, 0, 1, 1, 1, 1}).expert, (List{4, 5, 6})) << "ties between groups";
  EXPECT_EQ(choose(m, {kNaN, 0, 0, 0, 0, 0, 0, 0}).expert, (List{2, 3, 4})) << "a group with NaN is last";
  EXPECT_EQ(choose(m, {0, 0, 9, -9, 0, 0, -9, 9}).expert, (List{0, 1, 2})) << "groups by their best two";
  m.n_group = m.topk_group = 1;
  EXPECT_EQ(choose(m, {0, 1, 0, 0, 1, 0, 0, 0}).expert, (List{0, 1, 4})) << "at the last place";
  EXPECT_EQ(choose(m, {kNaN, kNaN, -3, kNaN, kNaN, -4, kNaN, -5}).expert, (List{2, 5, 7}));
  EXPECT_EQ(choose(m, {kNaN, kNaN, -3, kNaN, kNaN, -4, kNaN, kNaN}).expert, (List{0, 2, 5}));
  m.num_experts_per_tok = 8;
  EXPECT_EQ(choose(m, {5, 4, 3, 2, 1, 0, -1, -2}).expert, (List{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(choose(m, {-400, 400, 0, 0, 0, 0, 0, 0}).weight[0], 0) << "no overflow, no NaN";
  // With -inf for the groups that are out, an expert whose bias makes it negative still comes before them.
  m = {.n_routed_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 1, .n_group = 2, .topk_group = 1};
  EXPECT_EQ(choose(m, {3, -3, 0, 0}, {0, -.4f, -.2f, -.2f}).expert, (List{0, 1}));
}

/// A checkpoint with one layer: its mixture alone, and the numbers in it.
class Mixture : public testing::Test {
 protected:
  static constexpr std::int64_t kHidden = 160, kWide = 136, kExperts = 8, kShared = 2;

  struct Matrix {
    std::int64_t rows, cols;
    std::vector<float> numbers;  // as a reader owes them
    std::vector<std::int8_t> codes;  // of int8
    std::vector<float> scales;
  };
  enum class Form { bf16, fp8, int8 };

  static std::vector<bf16> narrowed(const std::vector<float>& x) {
    std::vector<bf16> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = to_bf16(x[i]);
    return y;
  }
  template <class T>
  const Tensor keep(std::vector<T> values, std::initializer_list<std::int64_t> shape, DType dtype = dtype_of<T>) {
    auto kept = std::make_shared<std::vector<T>>(std::move(values));
    kept_.push_back(kept);
    Tensor t = shaped(dtype, shape);
    t.data = kept->data();
    return t;
  }

  void add(const std::string& name, std::int64_t rows, std::int64_t cols, Form form) {
    Random random(std::hash<std::string>()(name) | 1);
    Matrix m{rows, cols, std::vector<float>(std::size_t(rows * cols)), {}, {}};
    const float limit = std::sqrt(3.0f / float(cols));
    if (form == Form::bf16) {
      for (float& x : m.numbers) x = to_float(to_bf16(random.uniform(-limit, limit)));
      tensors_.emplace_back(name, keep(narrowed(m.numbers), {rows, cols}));
    } else if (form == Form::fp8) {
      const std::int64_t blocks = io::scale_blocks(cols);
      std::vector<float> scales(std::size_t(io::scale_blocks(rows) * blocks));
      for (float& s : scales) s = limit * random.uniform(0.001f, 0.004f);
      std::vector<std::uint8_t> codes(m.numbers.size());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        do codes[i] = std::uint8_t(random.next() >> 20);
        while ((codes[i] & 127) == 127);
        const std::size_t row = i / std::size_t(cols), col = i % std::size_t(cols);
        m.numbers[i] =
            to_float(to_bf16(io::e4m3_values()[codes[i]] * scales[row / 128 * std::size_t(blocks) + col / 128]));
      }
      tensors_.emplace_back(name, keep(std::move(codes), {rows, cols}, DType::f8_e4m3));
      tensors_.emplace_back(name + "_scale_inv", keep(std::move(scales), {io::scale_blocks(rows), blocks}));
    } else {
      m.codes.resize(m.numbers.size());
      m.scales.resize(std::size_t(rows));
      for (float& s : m.scales) s = limit / 127 * random.uniform(0.5f, 1);
      for (auto& c : m.codes) c = std::int8_t(int(random.next() >> 40 & 255) - 128);
      for (std::size_t i = 0; i < m.codes.size(); ++i)
        m.numbers[i] = to_float(to_bf16(float(m.codes[i]) * m.scales[i / std::size_t(cols)]));
      tensors_.emplace_back(name, keep(m.codes, {rows, cols}));
      tensors_.emplace_back(name + "_scale", keep(m.scales, {rows, 1}));
    }
    matrices_[name] = std::move(m);
  }

  void make(Form form, std::int64_t shared = kShared) {
    const std::string mlp = "model.layers.0.mlp.";
    const auto add_mlp = [&](const std::string& prefix, std::int64_t wide) {
      add(prefix + "gate_proj.weight", wide, kHidden, form);
      add(prefix + "up_proj.weight", wide, kHidden, form);
      add(prefix + "down_proj.weight", kHidden, wide, form);
    };
    for (int e = 0; e < kExperts; ++e) add_mlp(mlp + "experts." + std::to_string(e) + ".", kWide);
    if (shared > 0) add_mlp(mlp + "shared_experts.", kWide * shared);
    add(mlp + "gate.weight", kExperts, kHidden, Form::bf16);
    Random random(3);
    bias_ = random_f32(random, kExperts, -0.2f, 0.2f);
    tensors_.emplace_back(mlp + "gate.e_score_correction_bias", keep(bias_, {kExperts}));
    io::Members config{{"hidden_size", "160"}, {"num_hidden_layers", "1"}, {"n_routed_experts", "8"},
                       {"num_experts_per_tok", "3"}, {"moe_intermediate_size", "136"}, {"n_group", "4"},
                       {"topk_group", "2"}, {"first_k_dense_replace", "0"}, {"routed_scaling_factor", "2.5"},
                       {"norm_topk_prob", "true"}, {"n_shared_experts", std::to_string(shared)}};
    if (form == Form::int8)
      config["quantization_config"] = R"({"quant_method":"compressed-tensors","format":"int-quantized",
        "config_groups":{"group_0":{"weights":{"num_bits":8,"strategy":"channel"},
                                    "input_activations":{"num_bits":8,"strategy":"token","dynamic":true}}}})";
    folder_.write("config.json", io::config_text(config));
    io::write_safetensors(folder_ / "model.safetensors", tensors_);
  }

  std::vector<float> input(std::int64_t rows) const {
    Random random(11);
    return random_f32(random, rows * kHidden, -2, 2);
  }

  /// What is added to the residual.
  static std::vector<float> run(const Moe& moe, const std::vector<float>& x, Context& context = default_context()) {
    const std::int64_t rows = std::int64_t(x.size()) / kHidden;
    Carver measure;
    MoeArrays(moe, rows, context.threads(), measure);
    io::AlignedArray<std::byte> memory(measure.bytes());
    Carver carver(memory.data());
    const MoeArrays arrays(moe, rows, context.threads(), carver);
    std::vector<float> residual(x.size());
    moe.add_to(context, nullptr, x.data(), rows, arrays, residual.data());
    return residual;
  }
  Moe resident(const MlpOptions& options = {}) const {
    return Moe(checkpoint(), 0, 0, load_experts({io_experts(options)}, {}), options);
  }
  Moe cached(std::int64_t slots, const MlpOptions& options = {}) const {
    StoredExperts stored = io_experts(options);
    const std::uint64_t memory = stored.layout.bytes() * std::uint64_t(slots);
    return Moe(checkpoint(), 0, 0, cache_experts({std::move(stored)}, memory, 3), options);
  }
  StoredExperts io_experts(const MlpOptions& options) const { return find_experts(checkpoint(), 0, options); }
  const io::Checkpoint& checkpoint() const {
    if (!checkpoint_) checkpoint_ = std::make_unique<io::Checkpoint>(folder_.path());
    return *checkpoint_;
  }

  // ---- the judge, in double from the numbers

  std::vector<double> times(const std::string& name, const std::vector<double>& x) const {
    const Matrix& m = matrices_.at(name);
    std::vector<double> y(static_cast<std::size_t>(m.rows));
    for (std::int64_t r = 0; r < m.rows; ++r)
      for (std::int64_t c = 0; c < m.cols; ++c) y[r] += double(m.numbers[r * m.cols + c]) * x[c];
    return y;
  }
  std::vector<double> mlp(const std::string& prefix, const float* x) const {
    std::vector<double> xb(kHidden);
    for (int i = 0; i < kHidden; ++i) xb[i] = to_float(to_bf16(x[i]));
    std::vector<double> gate = times(prefix + "gate_proj.weight", xb), up = times(prefix + "up_proj.weight", xb);
    for (std::size_t i = 0; i < gate.size(); ++i)
      gate[i] = to_float(to_bf16(float(gate[i] / (1 + std::exp(-gate[i])) * up[i])));
    return times(prefix + "down_proj.weight", gate);
  }
  static std::vector<std::int8_t> coded(const std::vector<float>& x, float& scale) {
    float a = 0;
    for (const float v : x) a = std::max(a, std::abs(v));
    std::vector<std::int8_t> codes(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) codes[i] = std::int8_t(std::nearbyint(x[i] * (127.0f / a)));
    scale = a / 127.0f;
    return codes;
  }
  std::vector<float> times_codes(const std::string& name, const std::vector<float>& x) const {
    const Matrix& m = matrices_.at(name);
    float scale;
    const std::vector<std::int8_t> codes = coded(x, scale);
    std::vector<float> y(static_cast<std::size_t>(m.rows));
    for (std::int64_t r = 0; r < m.rows; ++r) {
      std::int32_t sum = 0;
      for (std::int64_t c = 0; c < m.cols; ++c) sum += int(m.codes[r * m.cols + c]) * codes[c];
      y[r] = float(sum) * (scale * m.scales[r]);
    }
    return y;
  }
  std::vector<double> mlp_int8(const std::string& prefix, const float* x) const {
    const std::vector<float> row(x, x + kHidden);
    std::vector<float> gate = times_codes(prefix + "gate_proj.weight", row);
    const std::vector<float> up = times_codes(prefix + "up_proj.weight", row);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const std::vector<float> y = times_codes(prefix + "down_proj.weight", gate);
    return {y.begin(), y.end()};
  }
  std::vector<double> expected(const std::vector<float>& x, Form form, std::int64_t shared = kShared) const {
    const std::string prefix = "model.layers.0.mlp.";
    const io::MoeConfig& m = checkpoint().config().moe;
    std::vector<double> y(x.size());
    for (std::size_t t = 0; t < x.size() / kHidden; ++t) {
      const float* row = x.data() + t * kHidden;
      const std::vector<double> logits = times(prefix + "gate.weight", {row, row + kHidden});
      const Chosen c = choose(m, {logits.begin(), logits.end()}, bias_);
      const auto add = [&](const std::string& which, double weight) {
        const std::vector<double> f =
            form == Form::int8 ? mlp_int8(prefix + which + ".", row) : mlp(prefix + which + ".", row);
        for (int i = 0; i < kHidden; ++i) y[t * kHidden + std::size_t(i)] += weight * f[std::size_t(i)];
      };
      for (std::size_t i = 0; i < c.expert.size(); ++i) add("experts." + std::to_string(c.expert[i]), c.weight[i]);
      if (shared > 0) add("shared_experts", 1);
    }
    return y;
  }
  static double distance(const std::vector<float>& a, const std::vector<double>& b) {
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
    return std::sqrt(sum / size);
  }

  TestFolder folder_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
  std::map<std::string, Matrix> matrices_;
  std::vector<float> bias_;
  mutable std::unique_ptr<io::Checkpoint> checkpoint_;
};

TEST_F(Mixture, FollowsTheFormula) {
  make(Form::bf16);
  const std::vector<float> x = input(70);
  EXPECT_LT(distance(run(resident(), x), expected(x, Form::bf16)), 1e-3) << "what bf16 products may round";
  ContextOptions options;
  options.same_products = true;
  Context same(options);
  EXPECT_LT(distance(run(resident(), x, same), expected(x, Form::bf16)), 3e-4);
}

TEST_F(Mixture, OfCodesWithScalesFollowsTheFormula) {
  make(Form::fp8);
  const std::vector<float> x = input(9);
  EXPECT_EQ(resident().shared().layout().format(), MlpFormat::fp8);
  EXPECT_LT(distance(run(resident(), x), expected(x, Form::fp8)), 1e-3);
  EXPECT_EQ(run(resident(), x), run(resident({.widen_fp8 = true}), x));
}

TEST_F(Mixture, OfInt8FollowsTheFormula) {
  make(Form::int8);
  const std::vector<float> x = input(9);
  EXPECT_EQ(resident().activations(), Activations::int8);
  EXPECT_LT(distance(run(resident(), x), expected(x, Form::int8)), 2e-3) << "a code may fall to the other side";
  EXPECT_LT(distance(run(resident({.arithmetic = MlpOptions::Arithmetic::bf16}), x), expected(x, Form::bf16)), 1e-3);
}

TEST_F(Mixture, WithoutSharedExperts) {
  make(Form::bf16, 0);
  const std::vector<float> x = input(3);
  EXPECT_LT(distance(run(resident(), x), expected(x, Form::bf16, 0)), 1e-3);
}

/// The mixture of ranks that have some columns of every matrix: what rank 0 gets, if all get the same.
std::vector<float> run_shared(const io::Checkpoint& checkpoint, int ranks, std::int64_t slots, const MlpOptions& options,
                              const std::vector<float>& x, std::int64_t hidden) {
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks), std::vector<float>(x.size()));
  threads_as_ranks(ranks, [&](Group& group) {
    Context context({.threads = 1});
    const auto peers = make_peers(borrowed(group), {.parallel = "heads=" + std::to_string(ranks)});
    MlpOptions mine = options;
    mine.share = peers->share();
    StoredExperts stored = find_experts(checkpoint, 0, mine);
    const std::uint64_t memory = stored.layout.bytes() * std::uint64_t(slots);
    peers->all_experts_held = slots == 8, peers->least_slots = slots;
    std::vector<StoredExperts> layers;
    layers.push_back(std::move(stored));
    const Moe moe(checkpoint, 0, 0, slots == 8 ? load_experts(std::move(layers), {}) : cache_experts(std::move(layers), memory, 3), mine);
    const std::int64_t rows = std::int64_t(x.size()) / hidden;
    io::AlignedArray<std::byte> bytes(bytes_of<SharedMoeArrays>(moe, *peers, rows, 1));
    Carver carver(bytes.data());
    const SharedMoeArrays arrays(moe, *peers, rows, 1, carver);
    peers->talk.begin({}, [] {});
    moe.add_to(*peers, context, nullptr, x.data(), rows, arrays, all[std::size_t(group.rank())].data());
    peers->talk.end();
  }, 60);
  for (const auto& residual : all) EXPECT_EQ(residual, all[0]);
  return all[0];
}

TEST_F(Mixture, HasTheSameBitsWhereRanksShareItsColumns) {
  for (const Form form : {Form::bf16, Form::fp8, Form::int8})
    for (const std::int64_t shared : {std::int64_t(0), kShared}) {
      tensors_.clear(), matrices_.clear(), checkpoint_.reset();
      make(form, shared);
      const std::vector<float> x = input(21);
      const std::vector<float> alone = run(resident(), x);
      for (const int ranks : {1, 2, 3, 8})  // hidden and expert width have 3 panels of 64
        for (const std::int64_t slots : {8, 5})
          EXPECT_EQ(run_shared(checkpoint(), ranks, slots, {}, x, kHidden), alone) << ranks << " " << slots;
    }
}

TEST_F(Mixture, BitsDoNotDependOnCompanyThreadsOrPlace) {
  for (const Form form : {Form::fp8, Form::int8}) {
    tensors_.clear(), matrices_.clear(), checkpoint_.reset();
    make(form);
    const std::vector<float> x = input(37);
    const std::vector<float> all = run(resident(), x);
    for (const int threads : {1, 2, 3}) {
      ContextOptions options;
      options.threads = threads;
      Context context(options);
      for (const std::int64_t slots : {4, 6, 8}) EXPECT_EQ(run(cached(slots), x, context), all) << slots;
    }
    const Moe moe = cached(4);
    for (std::size_t t = 0; t < 37; ++t) {
      const std::vector<float> row(x.begin() + std::ptrdiff_t(t * kHidden), x.begin() + std::ptrdiff_t((t + 1) * kHidden));
      EXPECT_TRUE(std::equal(row.begin(), row.end(), row.begin()));
      const std::vector<float> alone = run(moe, row);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + std::ptrdiff_t(t * kHidden))) << t;
    }
  }
}

TEST_F(Mixture, ReadsWhatIsNotHeldAndNothingElse) {
  make(Form::fp8);
  StoredExperts stored = io_experts({});
  const std::uint64_t each = stored.layout.bytes();
  const std::shared_ptr<Experts> experts = cache_experts({std::move(stored)}, 4 * each, 3);
  EXPECT_EQ(experts->slots(), 4);
  EXPECT_EQ(experts->bytes(), 4 * each);
  const auto take = [&](List wanted) {
    Experts::Window window(*experts, 0, wanted);
    std::set<std::size_t> places;
    for (std::size_t i = 0; i < wanted.size(); ++i) places.insert(window.next());
    EXPECT_EQ(places.size(), wanted.size());
    EXPECT_FALSE(window.has_next());
  };
  take({0, 1, 2});
  EXPECT_EQ(experts->counts().read, 3);
  take({0, 2});
  EXPECT_EQ(experts->counts().read, 3);
  EXPECT_EQ(experts->counts().asked, 5);
  take({5, 6});  // one into the free slot, one for 1, which nobody has wanted for longest
  EXPECT_EQ(experts->counts().read, 5);
  take({0, 2, 5, 6});
  EXPECT_EQ(experts->counts().read, 5);
  take({1});
  EXPECT_EQ(experts->counts().read, 6);
  EXPECT_EQ(experts->counts().bytes, 6u * 3u * std::uint64_t(kWide * kHidden));
}

TEST_F(Mixture, TooLittleMemoryIsSaidFirst) {
  make(Form::fp8);
  expect_refusal(Status::out_of_memory, {"expert memory is 1000 bytes, wanted at least", "4 experts of"},
                 [&] { cache_experts({io_experts({})}, 1000, 3); });
}

TEST_F(Mixture, AFileThatChangesIsNamedAndTheNextTryStartsAnew) {
  make(Form::fp8);
  const std::vector<float> x = input(5);
  std::optional<Moe> moe(cached(4));
  // A NaN code in an expert that some token wants.
  const std::string path = folder_ / "model.safetensors";
  const std::string bytes = io::bytes_of(path);
  const io::SafetensorsFile file(path);
  std::string broken = bytes;
  for (int e = 0; e < kExperts; ++e)
    broken[file.position(*file.find("model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.weight")) + 161] = 0x7f;
  const auto put = [&](const std::string& text) {  // the same file, the same size
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    out.write(text.data(), std::streamsize(text.size()));
  };
  put(broken);
  expect_refusal(Status::io_error, {"model.safetensors: model.layers.0.mlp.experts.", "was changed while it was in use"},
                 [&] { run(*moe, x); });
  moe.reset();  // its readers may still be at work on the checkpoint
  checkpoint_.reset();
  const Moe later = cached(4);
  expect_refusal(Status::invalid_file, {".up_proj.weight[1][1] is NaN"}, [&] { run(later, x); });
  expect_refusal(Status::invalid_file, {".up_proj.weight[1][1] is NaN"}, [&] { run(later, x); });
}

/// The same experts as blocks that are as they lie in memory.
class Packed : public Mixture {
 protected:
  void pack(Form form = Form::fp8) {
    make(form);
    const StoredExperts from = io_experts({});
    blocks_.resize(from.layout.bytes() * kExperts);
    for (int e = 0; e < kExperts; ++e)
      load_expert(from, e, blocks_.data() + std::size_t(e) * from.layout.bytes(), *supported_kernels().back());
    write(kPackedLayout, name_of(from.layout.format()));
  }
  void write(const char* layout, const char* format) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    Tensor packed = shaped(DType::u8, {kExperts, std::int64_t(blocks_.size()) / kExperts});
    packed.data = blocks_.data();
    tensors.emplace_back(packed_experts_name(0), packed);
    for (const auto& [name, t] : tensors_)
      if (name.find("experts.") == name.npos || name.find("shared") != name.npos) tensors.emplace_back(name, t);
    checkpoint_.reset();
    io::write_safetensors(folder_ / "model.safetensors", tensors,
                          {{kPackedLayoutKey, layout}, {kPackedFormatKey, format}});
  }
  std::vector<std::byte> blocks_;
};

TEST_F(Packed, HaveTheBitsOfTheirSource) {
  make(Form::fp8);
  const std::vector<float> x = input(20), wanted = run(resident(), x);
  tensors_.clear(), matrices_.clear(), checkpoint_.reset();
  pack();
  EXPECT_TRUE(io_experts({}).packed);
  EXPECT_EQ(run(resident(), x), wanted);
  for (const std::int64_t slots : {4, 8}) EXPECT_EQ(run(cached(slots), x), wanted);
}

TEST_F(Packed, AreSharedByColumns) {
  for (const Form form : {Form::bf16, Form::fp8, Form::int8}) {
    tensors_.clear(), matrices_.clear(), checkpoint_.reset();
    make(form);
    const std::vector<float> x = input(21), alone = run(resident(), x);
    tensors_.clear(), matrices_.clear(), checkpoint_.reset();
    pack(form);
    EXPECT_TRUE(io_experts({}).packed);
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < 3; ++rank) bytes += io_experts({.share = {rank, 3}}).stored_bytes();
    EXPECT_LE(bytes, io_experts({}).stored_bytes());  // each reads what it has
    for (const int ranks : {2, 3, 8})  // hidden and expert width have 3 panels of 64
      for (const std::int64_t slots : {8, 5})
        EXPECT_EQ(run_shared(checkpoint(), ranks, slots, {}, x, kHidden), alone) << int(form) << " " << ranks << " " << slots;
  }
}

TEST_F(Packed, AreRefusedWhereTheyCannotBeRead) {
  pack();
  expect_refusal(Status::unsupported, {"experts.packed is packed as fp8", "that are not packed"},
                 [&] { io_experts({.arithmetic = MlpOptions::Arithmetic::int8}); });
  expect_refusal(Status::unsupported, {"is packed as fp8"}, [&] { io_experts({.widen_fp8 = true}); });
  write("0", "fp8");
  expect_refusal(Status::unsupported, {"is packed in layout '0', wanted layout 1"}, [&] { io_experts({}); });
  write("1", "int4");
  expect_refusal(Status::invalid_file, {"is packed as 'int4', wanted bf16, fp8 or int8"}, [&] { io_experts({}); });
  write("1", "bf16");
  expect_refusal(Status::invalid_shape, {"experts.packed has shape [8, ", "as bf16"}, [&] { io_experts({}); });
  blocks_[blocks_.size() / kExperts * 3 + 17] = std::byte{0x7f};
  write("1", "fp8");
  for (const bool on_disk : {false, true})
    expect_refusal(Status::invalid_file, {"model.safetensors: model.layers.0.mlp.experts.packed[3] holds a NaN"},
                   [&] { run(on_disk ? cached(4) : resident(), input(20)); });
}

}  // namespace
}  // namespace dsakit
