// SPDX-License-Identifier: Apache-2.0
#include "layer/experts.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "layer/mlp.hpp"

namespace dsakit {
namespace {

/// Every expert has its place.
class ResidentExperts final : public Experts {
 public:
  struct Layer {
    MlpLayout layout;
    std::int64_t count;
    std::shared_ptr<std::byte> memory;
  };
  explicit ResidentExperts(std::vector<Layer> layers) : layers_(std::move(layers)) {}

  const MlpLayout& layout(std::int64_t layer) const override { return layers_[layer].layout; }
  std::int64_t slots() const override {
    std::int64_t all = 0;
    for (const Layer& l : layers_) all += l.count;
    return all;
  }
  std::size_t bytes() const override {
    std::size_t sum = 0;
    for (const Layer& l : layers_) sum += l.layout.bytes() * std::size_t(l.count);
    return sum;
  }
  ExpertCounts counts() const override { return counts_; }

 protected:
  void hold(std::int64_t, std::span<const std::int32_t> experts) override {
    const std::lock_guard lock(mutex_);
    counts_.asked += std::int64_t(experts.size());
  }
  std::size_t next(std::int64_t, std::span<const std::int32_t>, std::vector<bool>& taken) override {
    const auto at = std::find(taken.begin(), taken.end(), false);
    *at = true;
    return std::size_t(at - taken.begin());
  }
  bool has_next(std::int64_t, std::span<const std::int32_t>, const std::vector<bool>& taken) const override {
    return std::find(taken.begin(), taken.end(), false) != taken.end();
  }
  MlpMatrices at(std::int64_t layer, std::int32_t expert) const override {
    const Layer& l = layers_[layer];
    return l.layout.at(l.memory.get() + std::size_t(expert) * l.layout.bytes());
  }
  void release(std::int64_t, std::span<const std::int32_t>) noexcept override {}

 private:
  std::vector<Layer> layers_;
  std::mutex mutex_;
  ExpertCounts counts_;
};

/// The first thing that went wrong on any thread.
class FirstError {
 public:
  template <class F>
  void guard(F&& f) {
    try {
      if (!failed_) f();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

StoredExperts find_experts(const io::Checkpoint& checkpoint, std::int64_t layer, const MlpOptions& options) {
  const io::ModelConfig& c = checkpoint.config();
  StoredExperts experts;
  bool first = true, same = true;
  MlpFormat format = MlpFormat::bf16;
  for (std::int64_t e = 0; e < c.moe.n_routed_experts; ++e) {
    experts.expert.push_back(find_expert(checkpoint, layer, e));
    const MlpFormat mine = format_of(experts.expert.back(), options);
    same &= first || mine == format;
    format = mine, first = false;
  }
  experts.layout = MlpLayout(c.hidden_size, c.moe.moe_intermediate_size, same ? format : MlpFormat::bf16);
  return experts;
}

std::unique_ptr<Experts> load_experts(std::vector<StoredExperts> stored,
                                      const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::uint64_t all = 0, done = 0;
  for (const StoredExperts& s : stored) all += s.bytes();
  const Kernels& kernels = *supported_kernels().back();
  std::vector<ResidentExperts::Layer> layers;
  for (const StoredExperts& s : stored) {
    const std::int64_t count = std::int64_t(s.expert.size());
    layers.push_back({s.layout, count, streamed_memory(s.bytes(), "the experts of a layer")});
    std::byte* const memory = layers.back().memory.get();
    FirstError error;
    Call call(default_context(), "load", 0);
    call.parallel_for(count, {.bytes = double(s.bytes())}, [&](std::int64_t e, int) {
      error.guard([&] { load_mlp(s.expert[e], s.layout, memory + std::size_t(e) * s.layout.bytes(), kernels); });
    });
    error.rethrow();
    call.finish();
    done += s.bytes();
    if (progress) progress(done, all);
  }
  return std::make_unique<ResidentExperts>(std::move(layers));
}

}  // namespace dsakit
