// SPDX-License-Identifier: Apache-2.0
#include "parallel/channel.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>

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

void Conversation::add_message(const std::byte* payload, std::size_t bytes) {
  const std::size_t at = out_.size();
  out_.resize(at + bytes + sizeof(Trailer));
  if (!failed() && bytes > 0) std::memcpy(out_.data() + at, payload, bytes);
  const Trailer trailer{call_, exchange_, std::int32_t(status_), std::uint32_t(world_.rank())};
  std::memcpy(out_.data() + at + bytes, &trailer, sizeof trailer);
}

void Conversation::take_message(const std::byte* message, std::size_t bytes, int rank, std::string_view name,
                                std::byte* payload) {
  Trailer trailer;
  std::memcpy(&trailer, message + bytes, sizeof trailer);
  if (bytes > 0) std::memcpy(payload, message, bytes);
  if (failed()) return;
  if (trailer.call != call_ || trailer.exchange != exchange_)
    return keep(std::make_exception_ptr(
        Error(Status::internal, "parallel", std::string(name), "",
              "is exchange " + std::to_string(exchange_) + " of call " + std::to_string(call_) + " here and " +
                  std::to_string(trailer.exchange) + " of call " + std::to_string(trailer.call) + " on rank " +
                  std::to_string(trailer.rank),
              "the same on all ranks", "please report this; rank " + std::to_string(rank) + " of its group")));
  status_ = Status(trailer.status);
}

void Conversation::trace(const std::string& path) {
  trace_.open(path);
  if (!trace_) throw Error(Status::io_error, "parallel", "trace", "", "cannot be written", "a file", path.substr(0, 120));
}

void Conversation::count(Group& group, std::string_view name, std::span<const std::size_t> from, double seconds) {
  auto at = traffic_.find(name);
  if (at == traffic_.end()) at = traffic_.emplace(std::string(name), ExchangeCount{}).first;
  std::uint64_t bytes = 0;
  for (std::size_t r = 0; r < from.size(); ++r)
    if (int(r) != group.rank()) bytes += from[r];
  ++at->second.messages;
  at->second.bytes += bytes;
  if (trace_.is_open())
    trace_ << "{\"rank\": " << world_.rank() << ", \"call\": " << call_ << ", \"exchange\": \"" << name
           << "\", \"ranks\": " << group.size() << ", \"bytes\": " << bytes << ", \"seconds\": " << seconds
           << ", \"status\": \"" << name_of(status_) << "\"}\n";
}

void Conversation::all_gather(Group& group, std::string_view name, std::span<const std::byte> mine,
                              std::span<const std::size_t> sizes, std::byte* all) {
  if (group.size() == 1) {
    if (!mine.empty()) std::memcpy(all, mine.data(), mine.size());
    return;
  }
  exchange_ = ++exchanges_[&group];
  out_.clear();
  add_message(mine.data(), mine.size());
  from_.assign(sizes.begin(), sizes.end());
  for (std::size_t& bytes : from_) bytes += sizeof(Trailer);
  in_.resize(std::accumulate(from_.begin(), from_.end(), std::size_t{0}));
  const auto begin = Clock::now();
  group.all_gather(out_, in_, from_)->wait();
  const double seconds = seconds_since(begin);
  const std::byte* message = in_.data();
  for (std::size_t r = 0; r < sizes.size(); message += from_[r], all += sizes[r], ++r)
    take_message(message, sizes[r], int(r), name, all);
  count(group, name, sizes, seconds);
}

void Conversation::all_to_all(Group& group, std::string_view name, const std::byte* mine,
                              std::span<const std::size_t> to, std::byte* got, std::span<const std::size_t> from) {
  if (group.size() == 1) {
    if (to[0] > 0) std::memcpy(got, mine, to[0]);
    return;
  }
  exchange_ = ++exchanges_[&group];
  out_.clear();
  for (std::size_t r = 0; r < to.size(); mine += to[r], ++r) add_message(mine, to[r]);
  to_.assign(to.begin(), to.end()), from_.assign(from.begin(), from.end());
  for (std::size_t& bytes : to_) bytes += sizeof(Trailer);
  for (std::size_t& bytes : from_) bytes += sizeof(Trailer);
  in_.resize(std::accumulate(from_.begin(), from_.end(), std::size_t{0}));
  const auto begin = Clock::now();
  group.all_to_all(out_, to_, in_, from_)->wait();
  const double seconds = seconds_since(begin);
  const std::byte* message = in_.data();
  for (std::size_t r = 0; r < from.size(); message += from_[r], got += from[r], ++r)
    take_message(message, from[r], int(r), name, got);
  count(group, name, from, seconds);
}

}  // namespace dsakit
