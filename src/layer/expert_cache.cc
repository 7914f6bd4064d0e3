// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "io/direct_file.hpp"
#include "layer/experts.hpp"
#include "layer/mlp.hpp"
#include "run/call.hpp"

namespace dsakit {
namespace {

constexpr int kReaders = 8;                              // reads in flight
constexpr std::size_t kRead = std::size_t(4) << 20;      // bytes of one, about; a matrix that is smaller is one read
constexpr std::int32_t kNone = -1;

/// Experts in slots of equal size, filled by threads of their own. A slot that is held stays; of the others the one
/// whose use lies furthest back makes room.
class ExpertCache final : public Experts {
 public:
  ExpertCache(std::vector<StoredExperts> layers, std::uint64_t memory, std::int64_t least);
  ~ExpertCache() override;
  void start();

  const MlpLayout& layout(std::int64_t layer) const override { return layers_[layer].layout; }
  std::int64_t slots() const override { return std::int64_t(slots_.size()); }
  std::size_t bytes() const override { return slot_bytes_ * slots_.size(); }
  std::unique_lock<std::mutex> turn() override { return std::unique_lock(turn_); }
  ExpertCounts counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 protected:
  void hold(std::int64_t layer, std::span<const std::int32_t> experts) override;
  std::size_t next(std::int64_t layer, std::span<const std::int32_t> experts, std::vector<bool>& taken) override;
  bool has_next(std::int64_t layer, std::span<const std::int32_t> experts,
                const std::vector<bool>& taken) const override {
    const std::lock_guard lock(mutex_);
    return found(layer, experts, taken).has_value();
  }
  MlpMatrices at(std::int64_t layer, std::int32_t expert) const override {
    return layers_[layer].layout.at(memory_of(place_[layer][expert]));
  }
  void release(std::int64_t layer, std::span<const std::int32_t> experts) noexcept override;

 private:
  struct Slot {
    std::int64_t layer = 0;
    std::int32_t expert = kNone;
    int holds = 0;           // windows that want it
    int unread = 0;          // reads that are still to come
    std::uint64_t used = 0;  // when it was last wanted
    std::exception_ptr error;
    std::optional<MatrixPacker> packer[MlpLayout::kMatrices];

    bool is_ready() const { return expert != kNone && unread == 0; }
  };
  /// Rows of a matrix that one read brings; matrix kOpen: the scales, and then what follows from them; kBlock and below: bytes
  /// of a packed expert's pieces 0, 1, ..
  struct Read {
    std::int32_t slot;
    int matrix;
    std::int64_t first, rows;
  };
  static constexpr int kOpen = -1, kBlock = -2;

  std::byte* buffer_of(int reader) const { return buffers_.get() + std::size_t(reader) * buffer_bytes_; }
  std::byte* memory_of(std::int32_t slot) const { return memory_.get() + std::size_t(slot) * slot_bytes_; }
  std::int32_t free_slot() const;
  std::optional<std::size_t> found(std::int64_t layer, std::span<const std::int32_t> experts,
                                   const std::vector<bool>& taken) const;
  void work(std::byte* buffer);
  void do_one(std::unique_lock<std::mutex>&, std::byte* buffer);
  void open(Slot&, std::int32_t number);
  void queue_reads(std::int32_t number);
  void read(Slot&, const Read&, std::byte* buffer) const;
  void read_rows(Slot&, const Read&, std::byte* buffer) const;
  void read_block(Slot&, const Read&, std::byte* buffer) const;

  std::vector<StoredExperts> layers_;
  std::map<const io::SafetensorsFile*, io::DirectFile> files_;
  std::size_t slot_bytes_ = 0, buffer_bytes_ = 0;
  std::shared_ptr<std::byte> memory_, buffers_;
  std::vector<std::vector<std::int32_t>> place_;  // slot of [layer][expert]

  std::mutex turn_;
  mutable std::mutex mutex_;  // of all that follows
  std::condition_variable wanted_, arrived_;
  std::deque<Slot> slots_;
  std::deque<Read> reads_;
  std::uint64_t clock_ = 0;
  bool ending_ = false;
  ExpertCounts counts_;
  const int forks_ = forks();
  std::vector<std::thread> readers_;
};

std::int64_t rows_of_read(const io::StoredMatrix& m) {
  const std::size_t row = std::size_t(m.cols * size_of(m.dtype()));
  const std::int64_t panels = std::max<std::int64_t>(std::int64_t((kRead + row * kPanel - 1) / (row * kPanel)), 1);
  return std::min(panels * kPanel, m.rows);
}

ExpertCache::ExpertCache(std::vector<StoredExperts> layers, std::uint64_t memory, std::int64_t least)
    : layers_(std::move(layers)) {
  std::int64_t all = 0;
  for (const StoredExperts& layer : layers_) {
    slot_bytes_ = std::max(slot_bytes_, layer.layout.bytes());
    all += layer.count;
    place_.emplace_back(std::size_t(layer.count), kNone);
    if (layer.packed) files_.try_emplace(layer.packed.file, layer.packed.file->file());
    if (layer.packed) buffer_bytes_ = std::max(buffer_bytes_, io::DirectFile::buffer_bytes(kRead));
    for (const StoredMlp& expert : layer.expert)
      for (const io::StoredMatrix& m : expert.matrix) {
        files_.try_emplace(m.weight.file, m.weight.file->file());
        const std::size_t bytes = std::size_t(rows_of_read(m) * m.cols * size_of(m.dtype()));
        buffer_bytes_ = std::max(buffer_bytes_, io::DirectFile::buffer_bytes(bytes));
      }
  }
  const std::int64_t count = std::min(all, std::int64_t(memory / slot_bytes_));
  if (count < std::min(all, least + 1))
    throw Error(Status::out_of_memory, "load", "expert memory", "", "is " + std::to_string(memory) + " bytes",
                "at least " + std::to_string(std::uint64_t(std::min(all, least + 1)) * slot_bytes_),
                std::to_string(least + 1) + " experts of " + std::to_string(slot_bytes_) + " bytes");
  memory_ = streamed_memory(slot_bytes_ * std::size_t(count), "experts");
  slots_.resize(std::size_t(count));
  buffers_ = streamed_memory(buffer_bytes_ * kReaders, "buffers for reading experts");
}

/// Once the object is there, so that its end waits for those that have begun.
void ExpertCache::start() {
  for (int i = 0; i < kReaders; ++i) readers_.emplace_back([this, i] { work(buffer_of(i)); });
}

ExpertCache::~ExpertCache() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wanted_.notify_all();
  for (std::thread& reader : readers_)
    if (forks() != forks_) reader.detach();  // it did not come along
    else reader.join();
}

/// One that nobody holds; the caller sees to it that there is one.
std::int32_t ExpertCache::free_slot() const {
  std::int32_t best = kNone;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& s = slots_[i];
    if (s.holds == 0 && s.unread == 0 && (best == kNone || s.used < slots_[best].used)) best = std::int32_t(i);
  }
  return best;
}

void ExpertCache::hold(std::int64_t layer, std::span<const std::int32_t> experts) {
  std::unique_lock lock(mutex_);
  counts_.asked += std::int64_t(experts.size());
  ++clock_;
  for (const std::int32_t e : experts)  // before others need room
    if (const std::int32_t here = place_[layer][e]; here != kNone) ++slots_[here].holds, slots_[here].used = clock_;
  for (const std::int32_t e : experts) {
    if (place_[layer][e] != kNone) continue;
    // What nobody waits for any more may still be on its way.
    arrived_.wait(lock, [&] { return free_slot() != kNone; });
    const std::int32_t number = free_slot();
    Slot& s = slots_[number];
    if (s.expert != kNone) place_[s.layer][s.expert] = kNone;
    s.layer = layer, s.expert = e, s.holds = 1, s.used = clock_, s.error = nullptr;
    s.unread = 1;
    place_[layer][e] = number;
    reads_.push_back({number, kOpen, 0, 0});
    ++counts_.read;
  }
  wanted_.notify_all();
}

void ExpertCache::release(std::int64_t layer, std::span<const std::int32_t> experts) noexcept {
  std::unique_lock lock(mutex_);
  for (const std::int32_t e : experts) {
    const std::int32_t number = place_[layer][e];
    Slot& s = slots_[number];
    if (--s.holds > 0 || !s.error) continue;
    // To be tried anew, once nobody reads into it any more.
    s.unread -= int(std::erase_if(reads_, [&](const Read& r) { return r.slot == number; }));
    arrived_.wait(lock, [&] { return s.unread == 0; });
    place_[layer][e] = kNone;
    s.expert = kNone, s.used = 0;
  }
}

/// The first that is in memory and has not been taken.
std::optional<std::size_t> ExpertCache::found(std::int64_t layer, std::span<const std::int32_t> experts,
                                              const std::vector<bool>& taken) const {
  for (std::size_t i = 0; i < experts.size(); ++i)
    if (!taken[i] && slots_[place_[layer][experts[i]]].is_ready()) return i;
  return {};
}

std::size_t ExpertCache::next(std::int64_t layer, std::span<const std::int32_t> experts, std::vector<bool>& taken) {
  const auto found = [&] { return this->found(layer, experts, taken); };
  std::unique_lock lock(mutex_);
  while (forks() != forks_ && !found()) do_one(lock, buffer_of(0));  // the readers did not come along
  if (!found()) {
    const auto start = std::chrono::steady_clock::now();
    arrived_.wait(lock, [&] { return found().has_value(); });
    counts_.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const std::size_t place = *found();
  if (const std::exception_ptr error = slots_[place_[layer][experts[place]]].error) std::rethrow_exception(error);
  taken[place] = true;
  return place;
}

void ExpertCache::work(std::byte* buffer) {
  std::unique_lock lock(mutex_);
  while (true) {
    wanted_.wait(lock, [&] { return ending_ || !reads_.empty(); });
    if (ending_) return;
    do_one(lock, buffer);
  }
}

/// Takes a read from the queue and does it, unlocked.
void ExpertCache::do_one(std::unique_lock<std::mutex>& lock, std::byte* buffer) {
  const Read task = reads_.front();
  reads_.pop_front();
  Slot& s = slots_[task.slot];
  const bool failed = s.error != nullptr;
  lock.unlock();
  std::exception_ptr error;
  if (!failed) try {
      if (task.matrix == kOpen) open(s, task.slot);
      else read(s, task, buffer);
    } catch (...) {
      error = std::current_exception();
    }
  lock.lock();
  if (error && !s.error) s.error = error;
  if (task.matrix == kOpen && !s.error) {
    queue_reads(task.slot);
    wanted_.notify_all();
  }
  if (s.unread == 1 && !s.error && task.matrix <= kBlock) {  // the last of a packed expert
    lock.unlock();
    try {
      refuse_nan(layers_[s.layer].layout, memory_of(task.slot), layers_[s.layer].packed, s.expert);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    s.error = error;
  }
  if (--s.unread == 0) arrived_.notify_all();
}

/// Everything that is to come of an expert.
void ExpertCache::queue_reads(std::int32_t number) {
  Slot& s = slots_[number];
  const auto cut = [&](int what, std::int64_t all, std::int64_t most) {
    for (std::int64_t first = 0; first < all; first += most, ++s.unread)
      reads_.push_back({number, what, first, std::min(most, all - first)});
  };
  const StoredExperts& layer = layers_[s.layer];
  if (layer.packed) {
    for (std::size_t i = 0; i < layer.pieces.size(); ++i) {
      counts_.bytes += layer.pieces[i].bytes;
      cut(kBlock - int(i), std::int64_t(layer.pieces[i].bytes), std::int64_t(kRead));
    }
    return;
  }
  for (int i = 0; i < MlpLayout::kMatrices; ++i) {
    const io::StoredMatrix& m = layer.expert[s.expert].matrix[i];
    counts_.bytes += m.bytes();
    cut(i, m.rows, rows_of_read(m));
  }
}

/// Nothing but this touches the slot until its other reads are queued.
void ExpertCache::open(Slot& s, std::int32_t number) {
  const StoredExperts& layer = layers_[s.layer];
  for (int i = 0; i < MlpLayout::kMatrices && !layer.packed; ++i)
    s.packer[i].emplace(layer.expert[s.expert].matrix[i], layer.layout.format(),
                        memory_of(number) + layer.layout.offset(i));
}

void ExpertCache::read(Slot& s, const Read& task, std::byte* buffer) const {
  const StoredExperts& layer = layers_[s.layer];
  const bool packed = task.matrix <= kBlock;
  const io::Place& place = packed ? layer.packed : layer.expert[s.expert].matrix[task.matrix].weight;
  try {
    if (packed) read_block(s, task, buffer);
    else read_rows(s, task, buffer);
  } catch (const Error& e) {
    if (e.status != Status::io_error) throw;
    throw Error(e.status, e.op, place.shown(), "", e.got, e.wanted);
  }
}

void ExpertCache::read_rows(Slot& s, const Read& task, std::byte* buffer) const {
  const io::StoredMatrix& m = layers_[s.layer].expert[s.expert].matrix[task.matrix];
  const MatrixPacker& packer = *s.packer[task.matrix];
  const std::uint64_t begin = m.weight.file->position(*m.weight.tensor) + m.offset;
  const std::byte* rows =
      files_.at(m.weight.file)
          .read(begin + std::uint64_t(task.first) * packer.row_bytes(), std::size_t(task.rows) * packer.row_bytes(), buffer);
  packer.pack(rows, task.first, task.rows, *supported_kernels().back());
}

/// Straight to where it is wanted, if the file is as convert writes it and all of it is.
void ExpertCache::read_block(Slot& s, const Read& task, std::byte* buffer) const {
  const StoredExperts& layer = layers_[s.layer];
  const BlockPiece& piece = layer.pieces[std::size_t(kBlock - task.matrix)];
  const std::uint64_t offset = layer.position(s.expert) + piece.from + std::uint64_t(task.first);
  std::byte* const to = memory_of(task.slot) + piece.to + task.first;
  const bool straight = layer.pieces.size() == 1 && offset % io::DirectFile::kBlock == 0;
  const std::byte* bytes =
      files_.at(layer.packed.file).read(offset, std::size_t(task.rows), straight ? to : buffer);
  if (!straight) std::memcpy(to, bytes, std::size_t(task.rows));
}

}  // namespace

std::unique_ptr<Experts> cache_experts(std::vector<StoredExperts> layers, std::uint64_t memory, std::int64_t least) {
  auto cache = std::make_unique<ExpertCache>(std::move(layers), memory, least);
  cache->start();
  return cache;
}

}  // namespace dsakit
