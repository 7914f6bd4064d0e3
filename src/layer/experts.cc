// SPDX-License-Identifier: Apache-2.0
#include "layer/experts.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>

#include "io/json.hpp"
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

const char* name_of(MlpFormat format) {
  return format == MlpFormat::bf16 ? "bf16" : format == MlpFormat::fp8 ? "fp8" : "int8";
}

std::string packed_experts_name(std::int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".mlp.experts.packed";
}

std::uint64_t StoredExperts::stored_bytes() const {
  std::uint64_t sum = 0;
  for (const BlockPiece& piece : pieces) sum += piece.bytes * std::uint64_t(count);
  for (const StoredMlp& mlp : expert) sum += mlp.bytes();
  return sum;
}

std::uint64_t StoredExperts::position(std::int64_t expert) const {
  return packed.file->position(*packed.tensor) + std::uint64_t(expert) * packed_bytes;
}

namespace {

[[noreturn]] void refuse(Status status, const io::Place& place, const std::string& got, const std::string& wanted,
                         const std::string& why = {}) {
  throw Error(status, "load", place.shown(), "", got, wanted, why);
}

/// Blocks as they lie in memory: nothing can be made of them but that.
StoredExperts find_packed(const io::Checkpoint& checkpoint, const io::Place& place, const MlpOptions& options) {
  const io::MoeConfig& m = checkpoint.config().moe;
  const auto metadata = place.file->metadata();
  const auto said = [&](const char* key) {
    const auto at = metadata.find(key);
    return at == metadata.end() ? std::string() : at->second;
  };
  if (said(kPackedLayoutKey) != kPackedLayout)
    refuse(Status::unsupported, place, "is packed in layout '" + io::printable(said(kPackedLayoutKey)) + "'",
           std::string("layout ") + kPackedLayout, "pack it again from the checkpoint");
  StoredExperts experts{.count = m.n_routed_experts, .packed = place};
  const std::string format = said(kPackedFormatKey);
  bool known = false;
  for (const MlpFormat f : {MlpFormat::bf16, MlpFormat::fp8, MlpFormat::int8}) {
    if (format != name_of(f)) continue;
    known = true;
    const std::int64_t hidden = checkpoint.config().hidden_size;
    const MlpLayout all(hidden, m.moe_intermediate_size, f);
    experts.layout = MlpLayout(hidden, m.moe_intermediate_size, f, options.share);
    experts.packed_bytes = all.bytes(), experts.pieces = pieces_of(all, options.share);
  }
  if (!known) refuse(Status::invalid_file, place, "is packed as '" + io::printable(format) + "'", "bf16, fp8 or int8");
  const io::FileTensor& t = *place.tensor;
  const std::int64_t wanted[] = {experts.count, std::int64_t(experts.packed_bytes)};
  if (t.rank != 2 || t.type->dtype != DType::u8 || t.shape[0] != wanted[0] || t.shape[1] != wanted[1])
    refuse(Status::invalid_shape, place, "has shape " + io::shape_text(t.shape.data(), t.rank),
           io::shape_text(wanted, 2), std::string("U8, experts and bytes of each as ") + format);
  using enum MlpOptions::Arithmetic;
  const bool other = (options.arithmetic == int8 && experts.layout.format() != MlpFormat::int8) ||
                     (options.arithmetic == bf16 && experts.layout.format() == MlpFormat::int8) ||
                     (options.widen_fp8 && experts.layout.format() == MlpFormat::fp8);
  if (other)
    refuse(Status::unsupported, place, "is packed as " + format, "experts as they are stored",
           "mlp and weights are for checkpoints that are not packed");
  return experts;
}

}  // namespace

StoredExperts find_experts(const io::Checkpoint& checkpoint, std::int64_t layer, const MlpOptions& options) {
  const io::ModelConfig& c = checkpoint.config();
  if (const io::Place packed = checkpoint.find(packed_experts_name(layer)))
    return find_packed(checkpoint, packed, options);
  StoredExperts experts{.count = c.moe.n_routed_experts};
  bool first = true, same = true;
  MlpFormat format = MlpFormat::bf16;
  for (std::int64_t e = 0; e < experts.count; ++e) {
    experts.expert.push_back(find_expert(checkpoint, layer, e));
    const MlpFormat mine = format_of(experts.expert.back(), options);
    same &= first || mine == format;
    format = mine, first = false;
    experts.expert.back() = experts.expert.back().part(options.share);
  }
  experts.layout =
      MlpLayout(c.hidden_size, c.moe.moe_intermediate_size, same ? format : MlpFormat::bf16, options.share);
  return experts;
}

void load_expert(const StoredExperts& s, std::int64_t expert, std::byte* memory, const Kernels& kernels) {
  if (!s.packed) return load_mlp(s.expert[expert], s.layout, memory, kernels);
  for (const BlockPiece& piece : s.pieces)
    s.packed.file->read(*s.packed.tensor, std::uint64_t(expert) * s.packed_bytes + piece.from, memory + piece.to, piece.bytes);
  refuse_nan(s.layout, memory, s.packed, expert);
}

std::unique_ptr<Experts> load_experts(std::vector<StoredExperts> stored,
                                      const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::uint64_t all = 0, done = 0;
  for (const StoredExperts& s : stored) all += s.bytes();
  const Kernels& kernels = *supported_kernels().back();
  std::vector<ResidentExperts::Layer> layers;
  for (const StoredExperts& s : stored) {
    check_interrupt(default_context(), "load");
    layers.push_back({s.layout, s.count, streamed_memory(s.bytes(), "the experts of a layer")});
    std::byte* const memory = layers.back().memory.get();
    FirstError error;
    Call call(default_context(), "load", 0);
    call.parallel_for(s.count, {.bytes = double(s.bytes())}, [&](std::int64_t e, int) {
      error.guard([&] { load_expert(s, e, memory + std::size_t(e) * s.layout.bytes(), kernels); });
    });
    error.rethrow();
    call.finish();
    done += s.bytes();
    if (progress) progress(done, all);
  }
  return std::make_unique<ResidentExperts>(std::move(layers));
}

}  // namespace dsakit
