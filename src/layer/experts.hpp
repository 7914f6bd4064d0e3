// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "layer/expert.hpp"

namespace dsakit {

/// What the routed experts of a model cost since it was loaded.
struct ExpertCounts {
  std::int64_t asked = 0;      // experts that a layer wanted for a step or a pass
  std::int64_t read = 0;       // of which were not in memory
  std::uint64_t bytes = 0;     // read from files
  double waited = 0;           // seconds in which there was nothing to compute
};

/// The routed experts of all layers with a mixture of experts, in memory or to be read when they are wanted. Layers are
/// counted from 0 among those.
class Experts {
 public:
  virtual ~Experts() = default;
  virtual const MlpLayout& layout(std::int64_t layer) const = 0;
  /// How many experts may be held at once, all windows together.
  virtual std::int64_t slots() const = 0;
  virtual std::size_t bytes() const = 0;  // of memory
  virtual ExpertCounts counts() const = 0;

  /// To be held while there are windows: where slots are few, two callers would wait for each other's.
  virtual std::unique_lock<std::mutex> turn() { return {}; }

  /// Distinct experts of one layer that are held from the making of this object to its end: reading of those that are
  /// not in memory begins at once, in the order given.
  class Window {
   public:
    Window(Experts& experts, std::int64_t layer, std::span<const std::int32_t> wanted)
        : experts_(&experts), layer_(layer), wanted_(wanted.begin(), wanted.end()), taken_(wanted.size()) {
      experts_->hold(layer_, wanted_);
    }
    Window(Window&& other) noexcept
        : experts_(std::exchange(other.experts_, nullptr)),
          layer_(other.layer_),
          wanted_(std::move(other.wanted_)),
          taken_(std::move(other.taken_)) {}
    Window& operator=(Window&&) = delete;
    ~Window() {
      if (experts_) experts_->release(layer_, wanted_);
    }
    std::span<const std::int32_t> wanted() const { return wanted_; }
    /// Waits until one more is in memory, and says which: its place in wanted(). What could not be read is thrown.
    std::size_t next() { return experts_->next(layer_, wanted_, taken_); }
    /// Whether next() would not wait.
    bool has_next() const { return experts_->has_next(layer_, wanted_, taken_); }
    MlpMatrices at(std::size_t place) const { return experts_->at(layer_, wanted_[place]); }

   private:
    Experts* experts_;
    std::int64_t layer_;
    std::vector<std::int32_t> wanted_;
    std::vector<bool> taken_;
  };

 protected:
  virtual void hold(std::int64_t layer, std::span<const std::int32_t> experts) = 0;
  virtual std::size_t next(std::int64_t layer, std::span<const std::int32_t> experts, std::vector<bool>& taken) = 0;
  virtual bool has_next(std::int64_t layer, std::span<const std::int32_t> experts,
                        const std::vector<bool>& taken) const = 0;
  virtual MlpMatrices at(std::int64_t layer, std::int32_t expert) const = 0;
  virtual void release(std::int64_t layer, std::span<const std::int32_t> experts) noexcept = 0;
};

/// Where the experts of one layer come from: matrices of a published checkpoint, or one tensor of blocks that are as
/// they lie in memory.
struct StoredExperts {
  std::int64_t count = 0;
  MlpLayout layout{};
  std::vector<StoredMlp> expert{};  // empty where they are
  io::Place packed{};             // U8 [count, bytes of an expert]
  std::uint64_t packed_bytes = 0;      // of an expert in the file
  std::vector<BlockPiece> pieces{};  // of them, where layout has them

  std::uint64_t bytes() const { return layout.bytes() * std::uint64_t(count); }
  std::uint64_t stored_bytes() const;
  /// Where the block of an expert begins in its file.
  std::uint64_t position(std::int64_t expert) const;
};
/// Reads one of them into memory of layout.bytes().
void load_expert(const StoredExperts&, std::int64_t expert, std::byte* memory, const Kernels&);
/// Of layer `layer` of the model; the format is that of all experts together.
StoredExperts find_experts(const io::Checkpoint&, std::int64_t layer, const MlpOptions&);

// A file with packed experts says so in its metadata: the version of the layout, which changes with panel.hpp, and the
// format. The tensor comes first in the file, at a multiple of 4096 bytes.
inline constexpr char kPackedLayoutKey[] = "dsakit_packed_layout", kPackedFormatKey[] = "dsakit_packed_format";
inline constexpr char kPackedLayout[] = "1";
/// "model.layers.<layer>.mlp.experts.packed"
std::string packed_experts_name(std::int64_t layer);
const char* name_of(MlpFormat);

/// All of them, read now. `progress(done, all)` in bytes, now and then.
std::unique_ptr<Experts> load_experts(std::vector<StoredExperts> layers,
                                      const std::function<void(std::uint64_t, std::uint64_t)>& progress);

/// The checkpoint outlives the result, whose readers may be at work to its end. As many as fit in `memory` bytes: the least recently used one makes room. OUT_OF_MEMORY, where that is less than one
/// more than `least`.
std::unique_ptr<Experts> cache_experts(std::vector<StoredExperts> layers, std::uint64_t memory, std::int64_t least);

}  // namespace dsakit
