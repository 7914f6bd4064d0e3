// SPDX-License-Identifier: Apache-2.0
#include "parallel/channel.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/hash.hpp"

namespace dsakit {
namespace {

/// What every rank sends every other one at both ends of a call.
struct Record {
  std::uint32_t call;
  std::int32_t status;
  std::uint64_t digest;  // of all of the text, of which the beginning is here
  char text[368];
};
static_assert(sizeof(Record) == 384);

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr char kEnd = '\x1f';  // of a field

void set_text(Record& record, const std::string& text) {
  record.digest = hash_of(text);
  const std::size_t n = std::min(text.size(), sizeof record.text);
  std::copy_n(text.data(), n, record.text);
  std::fill(record.text + n, std::end(record.text), '\0');
}

/// The fields of a record, as many as there is room for.
std::vector<std::string> fields_of(const Record& record) {
  const std::string_view text(record.text, ::strnlen(record.text, sizeof record.text));
  std::vector<std::string> fields;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find(kEnd, at), text.size());
    fields.emplace_back(text.substr(at, end - at));
  }
  return fields;
}

/// An error as fields, each cut so that all fit.
std::string text_of(const std::exception_ptr& error) {
  std::array<std::string, 7> fields;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    fields = {e.op, e.parameter, e.position, e.got, e.wanted, e.why, e.reason};
  } catch (const std::bad_alloc&) {
    fields = {"parallel", "memory", "", "is used up", "more of it", "", ""};
  } catch (const std::exception& e) {
    fields = {"parallel", "a rank", "", "failed", "no such error", e.what(), ""};
  } catch (...) {
    fields = {"parallel", "a rank", "", "failed", "no such error", "", ""};
  }
  std::string text;
  for (const std::string& field : fields) text += field.substr(0, 100) + kEnd;
  return text;
}

Error error_of(const Record& record, std::size_t rank) {
  std::vector<std::string> f = fields_of(record);
  f.resize(7);
  Error error(Status(record.status), f[0], f[1], f[2], f[3], f[4], f[5], f[6]);
  error.rank = int(rank);
  return error;
}

std::string text_of(const Greeting& greeting) {
  std::string text;
  for (const auto& [name, value] : greeting.facts) text += value + kEnd;
  return text;
}

/// Which fact differs, and how.
[[noreturn]] void refuse(const Greeting& greeting, const Record& first, const Record& other, int rank) {
  const std::vector<std::string> a = fields_of(first), b = fields_of(other);
  const auto on = [&](const std::string& x, const std::string& y) {
    return "is " + x + " on rank 0 and " + y + " on rank " + std::to_string(rank);
  };
  if (first.call != other.call)
    throw Error(Status::invalid_argument, "parallel", "calls", "",
                on("number " + std::to_string(first.call), std::to_string(other.call)), "the same on all ranks");
  for (std::size_t i = 0; i < std::min({greeting.facts.size(), a.size(), b.size()}); ++i)
    if (a[i] != b[i])
      throw Error(Status::invalid_argument, "parallel", std::string(greeting.facts[i].first), "", on(a[i], b[i]),
                  "the same on all ranks");
  throw Error(Status::invalid_argument, "parallel", "calls", "",
              on(a.empty() ? "at its end" : "at its beginning", b.empty() ? "at its end" : "another"),
              "the same on all ranks");
}

std::span<const std::byte> bytes_of(const Record& record) { return std::as_bytes(std::span(&record, 1)); }

}  // namespace

void Conversation::keep(std::exception_ptr error) {
  error_ = error;
  status_ = Status::internal;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    status_ = e.status;
  } catch (const std::bad_alloc&) {
    status_ = Status::out_of_memory;
  } catch (...) {
  }
}

void Conversation::agree(const Greeting& greeting) {
  Record mine{call_, std::int32_t(error_ ? status_ : Status::ok), 0, {}};
  set_text(mine, error_ ? text_of(error_) : text_of(greeting));
  std::vector<Record> all(std::size_t(world_.size()));
  const std::vector<std::size_t> sizes(all.size(), sizeof(Record));
  world_.all_gather(bytes_of(mine), std::as_writable_bytes(std::span(all)), sizes)->wait();
  for (const Record& record : all) call_ = std::max(call_, record.call);  // the next one has one number everywhere
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].status != 0) throw error_of(all[r], r);
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r].call != all[0].call || all[r].digest != all[0].digest) refuse(greeting, all[0], all[r], int(r));
}

void Conversation::trace(const std::string& path) {
  trace_.open(path);
  if (!trace_) throw Error(Status::io_error, "parallel", "trace", "", "cannot be written", "a file", path.substr(0, 120));
}

void Conversation::count(const Underway& u) {
  auto at = traffic_.find(u.name_);
  if (at == traffic_.end()) at = traffic_.emplace(u.name_, ExchangeCount{}).first;
  std::uint64_t bytes = 0;
  for (std::size_t r = 0; r < u.sizes_.size(); ++r)
    if (int(r) != u.group_.rank()) bytes += u.sizes_[r];
  ++at->second.messages;
  at->second.bytes += bytes;
  if (trace_.is_open())
    trace_ << "{\"rank\": " << world_.rank() << ", \"call\": " << call_ << ", \"exchange\": \"" << u.name_
           << "\", \"ranks\": " << u.group_.size() << ", \"bytes\": " << bytes << ", \"seconds\": " << u.seconds_
           << ", \"begin\": " << u.begin_ << ", \"end\": " << events_ << ", \"polls\": " << u.polls_ << ", \"status\": \""
           << name_of(status_) << "\"}\n";
}

std::unique_ptr<Underway> Conversation::start_all_gather(Group& group, std::string_view name, std::span<const std::byte> mine,
                                                         std::span<const std::size_t> sizes, std::byte* all) {
  std::unique_ptr<Underway> u(new Underway(*this, group, name));
  if (group.size() == 1) {
    if (!mine.empty()) std::memcpy(all, mine.data(), mine.size());
    return u;
  }
  u->to_ = all;
  u->sizes_.assign(sizes.begin(), sizes.end());
  u->add_message(mine.data(), mine.size());
  u->in_sizes_ = u->sizes_;
  for (std::size_t& bytes : u->in_sizes_) bytes += sizeof(Trailer);
  u->in_.resize(std::accumulate(u->in_sizes_.begin(), u->in_sizes_.end(), std::size_t{0}));
  u->pending_ = group.all_gather(u->out_, u->in_, u->in_sizes_);
  return u;
}

void Conversation::all_to_all(Group& group, std::string_view name, const std::byte* mine,
                              std::span<const std::size_t> to, std::byte* got, std::span<const std::size_t> from) {
  Underway u(*this, group, name);
  if (group.size() == 1) {
    if (to[0] > 0) std::memcpy(got, mine, to[0]);
    return;
  }
  u.to_ = got;
  u.sizes_.assign(from.begin(), from.end());
  for (std::size_t r = 0; r < to.size(); mine += to[r], ++r) u.add_message(mine, to[r]);
  u.out_sizes_.assign(to.begin(), to.end()), u.in_sizes_ = u.sizes_;
  for (std::size_t& bytes : u.out_sizes_) bytes += sizeof(Trailer);
  for (std::size_t& bytes : u.in_sizes_) bytes += sizeof(Trailer);
  u.in_.resize(std::accumulate(u.in_sizes_.begin(), u.in_sizes_.end(), std::size_t{0}));
  u.pending_ = group.all_to_all(u.out_, u.out_sizes_, u.in_, u.in_sizes_);
  u.finish();
}

void Conversation::wait_for_all(std::string_view name, double seconds) {
  const std::vector<std::size_t> nothing(std::size_t(world_.size()));
  const auto u = start_all_gather(world_, name, {}, nothing, nullptr);
  for (const auto begin = Clock::now(); u->pending_ && !u->pending_->poll() && seconds_since(begin) < seconds;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  u->finish();
}

Underway::Underway(Conversation& talk, Group& group, std::string_view name)
    : talk_(talk), group_(group), name_(name), well_(!talk.failed()) {
  if (group.size() == 1) return;
  number_ = ++talk.exchanges_[&group];
  begin_ = ++talk.events_;
  for (std::vector<std::byte>* buffer : {&in_, &out_}) {
    if (talk.spare_.empty()) break;
    *buffer = std::move(talk.spare_.back());
    talk.spare_.pop_back();
  }
  out_.clear();
}

Underway::~Underway() {
  pending_.reset();
  for (std::vector<std::byte>* buffer : {&out_, &in_})
    if (talk_.spare_.size() < talk_.spare_.capacity()) talk_.spare_.push_back(std::move(*buffer));
}

void Underway::add_message(const std::byte* payload, std::size_t bytes) {
  const std::size_t at = out_.size();
  out_.resize(at + bytes + sizeof(Conversation::Trailer));
  if (well_ && bytes > 0) std::memcpy(out_.data() + at, payload, bytes);
  const Conversation::Trailer trailer{talk_.call_, number_, std::int32_t(talk_.status_), std::uint32_t(talk_.world_.rank())};
  std::memcpy(out_.data() + at + bytes, &trailer, sizeof trailer);
}

void Underway::take_message(const std::byte* message, std::size_t bytes, int rank, std::byte* payload) {
  Conversation::Trailer trailer;
  std::memcpy(&trailer, message + bytes, sizeof trailer);
  if (bytes > 0) std::memcpy(payload, message, bytes);
  const bool here = trailer.call == talk_.call_ && trailer.exchange == number_;
  if (!here || trailer.status != 0) well_ = false;
  if (talk_.failed()) return;
  if (!here)
    return talk_.keep(std::make_exception_ptr(
        Error(Status::internal, "parallel", name_, "",
              "is exchange " + std::to_string(number_) + " of call " + std::to_string(talk_.call_) + " here and " +
                  std::to_string(trailer.exchange) + " of call " + std::to_string(trailer.call) + " on rank " +
                  std::to_string(trailer.rank),
              "the same on all ranks", "please report this; rank " + std::to_string(rank) + " of its group")));
  talk_.status_ = Status(trailer.status);
}

bool Underway::poll() noexcept {
  if (!pending_) return true;
  ++polls_;
  try {
    return pending_->poll();
  } catch (...) {  // the group is dead, and says so again
    return false;
  }
}

bool Underway::finish() {
  if (!pending_) return well_;
  const auto begin = Clock::now();
  pending_->wait();
  pending_.reset();
  seconds_ = seconds_since(begin);
  const std::byte* message = in_.data();
  std::byte* to = to_;
  for (std::size_t r = 0; r < sizes_.size(); message += in_sizes_[r], to += sizes_[r], ++r)
    take_message(message, sizes_[r], int(r), to);
  ++talk_.events_;
  talk_.count(*this);
  return well_;
}

}  // namespace dsakit
