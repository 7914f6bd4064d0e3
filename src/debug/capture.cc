// SPDX-License-Identifier: Apache-2.0
#include "dsakit/capture.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include "core/nearest.hpp"
#include "core/out_of_memory.hpp"
#include "debug/case_json.hpp"
#include "debug/environment.hpp"
#include "debug/hash.hpp"
#include "debug/record.hpp"
#include "debug/spelling.hpp"
#include "debug/steps.hpp"
#include "debug/watch.hpp"
#include "io/durable.hpp"
#include "ops/describe_text.hpp"

namespace dsakit {
namespace {

using namespace debug;

/// Held while files are written and labels change. A child of fork() finds it free.
std::mutex& recording_lock() {
  static std::mutex* one = [] {
    auto* made = new std::mutex;
    pthread_atfork([] { recording_lock().lock(); }, [] { recording_lock().unlock(); },
                   [] { recording_lock().unlock(); });
    return made;
  }();
  return *one;
}

struct Labels {
  std::optional<std::int64_t> step, layer;
  bool dummy = false;
};
Labels& labels() {  // under the lock
  static Labels one;
  return one;
}

/// Of this process, as launchers say it.
std::int64_t rank_of_process() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* text = std::getenv(name)) return std::max(0ll, std::strtoll(text, nullptr, 10));
  return 0;
}

[[noreturn]] void refuse_option(const char* option, const std::string& got, const std::string& wanted,
                                const std::string& why = {}) {
  throw Error(Status::invalid_argument, "capture", option, "", got, wanted, why);
}

void check_options(const CaptureOptions& o) {
  const auto one_of = [](const char* option, const std::string& value, std::vector<std::string_view> words) {
    if (std::find(words.begin(), words.end(), value) != words.end()) return;
    std::string all;
    for (const std::string_view word : words) all += (all.empty() ? "" : ", ") + std::string(word);
    refuse_option(option, "is \"" + io::printable(value) + "\"", "one of " + all);
  };
  if (o.path.empty()) refuse_option("path", "is empty", "a folder");
  if (o.every < 1) refuse_option("every", "is " + std::to_string(o.every), "at least 1");
  if (o.max_bytes == 0) refuse_option("max_bytes", "is 0", "at least 1");
  one_of("keep", o.keep, {"last", "first"});
  one_of("caches", o.caches, {"touched", "whole", "none"});
  one_of("weights", o.weights, {"once", "each"});
  std::vector<std::string_view> names;
  for (const Operator& op : operators()) names.push_back(op.name);
  check_steps("capture", o.taps);
  for (const std::string& name : o.operators)
    if (!find_operator(name))
      refuse_option("operators", "has \"" + io::printable(name) + "\"", "names of operators",
                    "nearest: " + std::string(nearest(name, names)));
}

std::string json_line(const std::vector<std::pair<const char*, Attribute>>& fields) {
  std::string text;
  for (const auto& [name, value] : fields)
    if (value.index() != 0) text += (text.empty() ? "" : ",") + io::json_quoted(name) + ":" + json_of(value);
  return "{" + text + "}";
}

constexpr std::size_t kSmallWeight = 4096;  // bytes; smaller ones stay in the case

bool ends_in_half_a_line(const io::Descriptor& file) {
  const off_t size = ::lseek(file.number(), 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(file.number(), &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

/// What is recorded, and how much of it.
class Capture::Recorder : public Watcher {
 public:
  explicit Recorder(const CaptureOptions& options) : options_(options), rank_(rank_of_process()) {
    check_options(options);
    std::error_code error;
    std::filesystem::create_directories(options.path, error);
    if (error || ::access(options.path.c_str(), W_OK) != 0)
      throw Error(Status::io_error, "capture", io::printable(options.path), "", "cannot be written", "a folder",
                  error ? error.message() : "");
    rebuild_index();
  }

  std::unique_ptr<WatchedCall> begin(const Arguments& arguments, Context& context) noexcept override;
  void finish(Context&) noexcept;

  std::int64_t seen() const { return locked(seen_); }
  std::int64_t written() const { return locked(written_); }

 private:
  class Call;
  struct File {
    std::string name;
    std::uint64_t bytes;
  };

  std::int64_t locked(const std::int64_t& value) const {
    std::lock_guard lock(recording_lock());
    return value;
  }
  /// "" if the call is to be recorded, else why not.
  const char* reason_to_skip(const std::string& op);
  Caches caches() const {
    return options_.caches == "touched" ? Caches::touched : options_.caches == "whole" ? Caches::whole : Caches::none;
  }
  void write(Case, std::int64_t number, const Labels&, const Error* refusal);
  void put_weights_beside(Case&);
  bool make_room(std::uint64_t bytes);
  void append_index(const std::string& line) const;
  void rebuild_index() const;
  void stop(Context&, const std::string& why) noexcept;
  void write_summary(const std::string& note) const;

  const CaptureOptions options_;
  const std::string index_ = options_.path + "/index.jsonl";
  const std::int64_t rank_;
  bool ended_ = false, finished_ = false;
  std::int64_t seen_ = 0, written_ = 0;
  std::map<std::string, std::int64_t> skipped_, seen_of_;
  std::deque<File> files_;  // cases of this process that are there, oldest first
  std::set<std::string> weights_;
  std::uint64_t bytes_ = 0;
};

class Capture::Recorder::Call : public WatchedCall {
 public:
  Call(Recorder& recorder, const Arguments& arguments, Context& context, std::int64_t number, const Labels& labels)
      : recorder_(recorder),
        context_(context),
        number_(number),
        labels_(labels),
        recording_(arguments, recorder.caches()) {
    if (recorder.options_.taps.empty()) return;
    steps_.emplace(arguments.op->name, recorder.options_.taps);
    tapped_.emplace(&*steps_);
  }

  void end(const Error* refusal, double) noexcept override {
    tapped_.reset();
    try {
      Case made = recording_.finish(refusal != nullptr, context_);
      if (steps_ && !refusal) made.tensors.merge(steps_->tensors());
      std::lock_guard lock(recording_lock());
      if (!recorder_.ended_) recorder_.write(std::move(made), number_, labels_, refusal);
    } catch (const std::exception& e) {
      recorder_.stop(context_, e.what());
    }
  }

 private:
  Recorder& recorder_;
  Context& context_;
  std::int64_t number_;
  Labels labels_;
  Recording recording_;
  std::optional<Steps> steps_;
  std::optional<Tapped> tapped_;  // to the end of the call
};

const char* Capture::Recorder::reason_to_skip(const std::string& op) {
  if (ended_) return "ended";
  if (labels().dummy) return "dummy";
  if (!options_.operators.empty() &&
      std::find(options_.operators.begin(), options_.operators.end(), op) == options_.operators.end())
    return "operators";
  return seen_of_[op]++ % options_.every == 0 ? "" : "every";
}

std::unique_ptr<WatchedCall> Capture::Recorder::begin(const Arguments& arguments, Context& context) noexcept {
  try {
    std::int64_t number = 0;
    Labels now;
    {
      std::lock_guard lock(recording_lock());
      number = ++seen_, now = labels();
      const std::string reason = reason_to_skip(std::string(arguments.op->name));
      if (!reason.empty()) {
        ++skipped_[reason];
        return nullptr;
      }
    }
    return std::make_unique<Call>(*this, arguments, context, number, now);
  } catch (const std::exception& e) {
    stop(context, e.what());
  }
  return nullptr;
}

void Capture::Recorder::write(Case c, std::int64_t number, const Labels& labels, const Error* refusal) {
  const std::string op(c.op().name);
  std::vector<std::pair<const char*, Attribute>> where{{"sequence", number}};
  if (labels.step) where.emplace_back("step", *labels.step);
  if (labels.layer) where.emplace_back("layer", *labels.layer);
  where.emplace_back("rank", rank_);
  c.metadata["where"] = json_line(where);
  if (refusal) c.set_refusal(refusal->what());
  if (options_.weights == "once") put_weights_beside(c);
  const std::uint64_t bytes = bytes_of(c);
  if (!make_room(bytes)) {
    ++skipped_["max_bytes"];
    return;
  }
  char name[160];
  std::snprintf(name, sizeof name, "%06lld-%s-r%lld-%d.safetensors", (long long)number, op.c_str(), (long long)rank_,
                int(::getpid()));
  write_case(c, options_.path + "/" + name);
  files_.push_back({name, bytes});
  bytes_ += bytes;
  ++written_;
  where.insert(where.begin(), {{"file", name}, {"operator", op}});
  where.emplace_back("status", std::string(refusal ? name_of(refusal->status) : "OK"));
  where.emplace_back("bytes", std::int64_t(bytes));
  append_index(json_line(where));
}

/// Each once, under a name that its contents make.
void Capture::Recorder::put_weights_beside(Case& c) {
  for (const Parameter& p : c.op().parameters) {
    if (p.field.kind != Kind::weight) continue;
    const std::string key = "in." + std::string(p.field.name);
    const auto at = c.tensors.find(key);
    if (at == c.tensors.end() || at->second.bytes->size() < kSmallWeight) continue;
    const Stored& weight = at->second;
    const std::string name = sibling_name(weight);
    c.layouts[key].file = name;
    if (weights_.contains(name) || std::filesystem::exists(options_.path + "/" + name)) continue;
    io::TensorToWrite t{"weight", weight.type, int(weight.shape.size()), {}, weight.bytes->data()};
    std::copy(weight.shape.begin(), weight.shape.end(), t.shape.begin());
    io::DurableFile file(options_.path, name, "capture");
    file.write(io::safetensors_header({t}, {}));
    file.write(t.data, t.bytes());
    file.commit(io::DurableFile::Sync::no);
    weights_.insert(name);
    bytes_ += t.bytes();
  }
}

/// For a case more: the oldest ones go, or nothing more is recorded.
bool Capture::Recorder::make_room(std::uint64_t bytes) {
  if (options_.keep == "first" && bytes_ + bytes > options_.max_bytes) return ended_ = true, false;
  while (bytes_ + bytes > options_.max_bytes && !files_.empty()) {
    ::unlink((options_.path + "/" + files_.front().name).c_str());
    bytes_ -= files_.front().bytes;
    files_.pop_front();
  }
  return bytes_ + bytes <= options_.max_bytes;
}

/// One write, so that lines of several processes do not mix. What does not fit leaves no half line; after one that is
/// there all the same (of a process or a machine that died) begins another.
void Capture::Recorder::append_index(const std::string& line) const {
  const io::Descriptor file(::open(index_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  const std::string text = (ends_in_half_a_line(file) ? "\n" : "") + line + "\n";
  const ssize_t written = ::write(file.number(), text.data(), text.size());
  if (written == ssize_t(text.size())) return;
  const off_t end = ::lseek(file.number(), 0, SEEK_CUR);  // of what was written; others may have gone on
  if (written > 0 && ::lseek(file.number(), 0, SEEK_END) == end) std::ignore = ::ftruncate(file.number(), end - written);
  throw Error(Status::io_error, "capture", io::printable(index_), "", "cannot be written", "a file that can");
}

/// Of a folder that has cases and no index any more, or half of one, from what they say.
void Capture::Recorder::rebuild_index() const {
  {
    const io::Descriptor file(::open(index_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.number() < 0 ? errno != ENOENT : !ends_in_half_a_line(file)) return;
  }
  ::unlink(index_.c_str());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(options_.path)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".safetensors") && name[0] != '.' && !name.starts_with("weight-")) names.insert(name);
  }
  for (const std::string& name : names) try {
      const io::SafetensorsFile file(options_.path + "/" + name);
      auto metadata = file.metadata();
      const Operator* op = find_spelling(metadata["call"]);
      const std::string where = metadata["where"];  // an object: its members go into the line
      if (!op || where.size() < 2) continue;
      append_index("{\"file\":" + io::json_quoted(name) + ",\"operator\":" + io::json_quoted(op->name) + "," +
                   where.substr(1, where.size() - 2) + ",\"status\":\"" +
                   (metadata.contains("status") ? "REFUSED" : "OK") +
                   "\",\"bytes\":" + std::to_string(file.file().size()) + "}");
    } catch (const Error&) {
      // No file of ours.
    }
}

void Capture::Recorder::stop(Context& context, const std::string& why) noexcept {
  try {
    std::lock_guard lock(recording_lock());
    if (ended_) return;
    ended_ = true;
    context.warn("capture: recording into " + io::printable(options_.path) + " has ended: " + why);
  } catch (const std::exception&) {
    ended_ = true;
  }
}

void Capture::Recorder::finish(Context& context) noexcept {
  try {
    std::lock_guard lock(recording_lock());
    if (finished_) return;
    ended_ = finished_ = true;
    std::string note;
    if (written_ == 0) {
      note = "nothing was recorded: ";
      if (seen_ == 0) note += "no operator was called";
      for (const auto& [reason, count] : skipped_)
        note += (note.back() == ' ' ? "" : ", ") + std::to_string(count) + " calls left out by " + reason;
      context.warn("capture: " + io::printable(options_.path) + ": " + note);
    }
    write_summary(note);
  } catch (const std::exception&) {
    // A full disk: the cases are there.
  }
}

void Capture::Recorder::write_summary(const std::string& note) const {
  std::string skipped, names;
  for (const auto& [reason, count] : skipped_)
    skipped += (skipped.empty() ? "" : ", ") + io::json_quoted(reason) + ": " + std::to_string(count);
  for (const std::string& op : options_.operators) names += (names.empty() ? "" : ", ") + io::json_quoted(op);
  std::string text = "{\"seen\": " + std::to_string(seen_) + ", \"written\": " + std::to_string(written_) +
                     ", \"bytes\": " + std::to_string(bytes_) + ", \"skipped\": {" + skipped + "},\n \"operators\": [" +
                     names + "], \"every\": " + std::to_string(options_.every) +
                     ", \"max_bytes\": " + std::to_string(options_.max_bytes) + ", \"rank\": " + std::to_string(rank_) +
                     ", \"process\": " + std::to_string(::getpid()) + ", \"note\": " + io::json_quoted(note) + "}\n";
  // Of several processes that share a folder, the first to end has the plain name.
  std::string name = "summary.json";
  if (std::filesystem::exists(options_.path + "/" + name)) name = "summary-" + std::to_string(::getpid()) + ".json";
  io::DurableFile file(options_.path, name, "capture");
  file.write(text);
  file.commit(io::DurableFile::Sync::no);
}

Capture::Capture(const CaptureOptions& options) try : recorder_(std::make_shared<Recorder>(options)) {
  add_watcher(recorder_);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
Capture::~Capture() { end(); }
void Capture::end() {
  remove_watcher(recorder_.get());
  recorder_->finish(default_context());
}
std::int64_t Capture::seen() const { return recorder_->seen(); }
std::int64_t Capture::written() const { return recorder_->written(); }

void mark(const Mark& m) {
  std::lock_guard lock(recording_lock());
  if (m.step) labels().step = m.step;
  if (m.layer) labels().layer = m.layer;
  if (m.dummy) labels().dummy = *m.dummy;
}

namespace debug {
namespace {

/// "2GB", "100": bytes; 0 for anything else.
std::uint64_t bytes_of_text(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(number > 0)) return 0;
  static constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},         {"KB", 1e3},     {"MB", 1e6},
                                                                   {"GB", 1e9},     {"TB", 1e12},    {"KiB", 0x1p10},
                                                                   {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  for (const auto& [unit, factor] : kUnits)
    if (unit == end && number * factor < 0x1p63) return std::uint64_t(number * factor);
  return 0;
}

/// "dump,operators=a+b,every=10,max_bytes=2GB"
CaptureOptions options_of(const std::string& text) {
  CaptureOptions options;
  const auto add = [](std::vector<std::string>& names, const std::string& value) {
    for (std::size_t at = 0; at <= value.size();) {
      const std::size_t plus = std::min(value.find('+', at), value.size());
      names.push_back(value.substr(at, plus - at));
      at = plus + 1;
    }
  };
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == part.npos ? "" : part.substr(equals + 1);
    if (begin == 0) options.path = part;
    else if (name == "operators") add(options.operators, value);
    else if (name == "taps") add(options.taps, value);
    else if (name == "every") options.every = std::strtoll(value.c_str(), nullptr, 10);
    else if (name == "max_bytes") options.max_bytes = bytes_of_text(value);
    else if (name == "keep") options.keep = value;
    else if (name == "caches") options.caches = value;
    else if (name == "weights") options.weights = value;
    else
      refuse_option("DSAKIT_CAPTURE", "has \"" + io::printable(part) + "\"",
                    "DIR,operators=A+B,every=N,max_bytes=SIZE,keep=,caches=,weights=,taps=");
    begin = end + 1;
  }
  return options;
}

}  // namespace

void capture_as_environment_says() {
  const char* text = std::getenv("DSAKIT_CAPTURE");
  if (!text || !*text) return;
  try {
    static Capture capture(options_of(text));  // to the end of the process
  } catch (const Error& e) {
    default_context().warn(std::string(e.what()) + " [DSAKIT_CAPTURE]");
  }
}

}  // namespace debug
}  // namespace dsakit
