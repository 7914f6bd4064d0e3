// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsakit/group.hpp"

namespace dsakit {

/// What a rank says of itself at the beginning of a call; everybody's must be equal.
struct Greeting {
  using Fact = std::pair<std::string_view, std::string>;  // "rows", "17"
  std::vector<Fact> facts;                                // as many, of the same names, everywhere
};

/// What the exchanges of one kind have carried since the counting began.
struct ExchangeCount {
  std::int64_t messages = 0;
  std::uint64_t bytes = 0;  // that came in from other ranks, without what checks them
  bool operator==(const ExchangeCount&) const = default;
};

class Conversation;

/// An exchange on its way, with buffers of its own; there are at most four of them.
class Underway {
 public:
  ~Underway();
  /// Moves it on; whether it is done. Throws nothing: what is wrong finish() says.
  bool poll() noexcept;
  /// Until it is done and the payloads are where they belong. Whether all ranks, this one among them, were well when they sent
  /// them: then they are what was meant, and all ranks know it, whatever has failed since.
  bool finish();

 private:
  friend class Conversation;
  Conversation& talk_;
  Group& group_;
  std::string name_;
  std::uint32_t number_ = 0;
  bool well_;
  std::byte* to_ = nullptr;          // payloads of the ranks, one after the other
  std::vector<std::size_t> sizes_{};  // of them
  std::vector<std::byte> out_{}, in_{};
  std::vector<std::size_t> out_sizes_{}, in_sizes_{};  // with what checks them
  std::int64_t begin_ = 0, polls_ = 0;
  double seconds_ = 0;                     // that were waited
  std::unique_ptr<Pending> pending_{};  // goes before the buffers

  Underway(Conversation& talk, Group& group, std::string_view name);
  void add_message(const std::byte* payload, std::size_t bytes);
  void take_message(const std::byte* message, std::size_t bytes, int rank, std::byte* payload);
};

/// A call that several ranks make together. All of them begin it with the same arguments, or all throw. What fails on a
/// rank in mid-call is kept: the rank takes part in the exchanges that are left with zeros, says so in them, and at the
/// end all ranks throw the lowest failing rank's error. So every path through a call has the same exchanges; what is
/// computed between them goes through work().
class Conversation {
 public:
  explicit Conversation(Group& world) : world_(world) { spare_.reserve(8); }

  /// Everybody's facts, and what `check` throws on any rank: then all ranks throw, and nothing has been done.
  template <class F>
  void begin(const Greeting& greeting, F&& check) {
    status_ = Status::ok, error_ = nullptr, exchanges_.clear(), ++call_;
    work(check);
    agree(greeting);
  }
  /// f(), unless something failed. What it throws is kept.
  template <class F>
  void work(F&& f) {
    if (failed()) return;
    try {
      f();
    } catch (...) {
      keep(std::current_exception());
    }
  }
  bool failed() const { return status_ != Status::ok; }
  /// Throws what failed anywhere: of several ranks the lowest one's.
  void end() { agree({}); }

  /// all: payloads of the ranks of `group`, one after the other; sizes[r] bytes of rank r.
  void all_gather(Group& group, std::string_view name, std::span<const std::byte> mine, std::span<const std::size_t> sizes,
                  std::byte* all) {
    start_all_gather(group, name, mine, sizes, all)->finish();
  }
  /// The same while something else goes on; all ranks start and finish in the same order. `mine` is not needed any more, `all`
  /// is until it has finished.
  std::unique_ptr<Underway> start_all_gather(Group& group, std::string_view name, std::span<const std::byte> mine,
                                             std::span<const std::size_t> sizes, std::byte* all);
  /// An exchange of nothing that may take so many seconds, where the group allows less.
  void wait_for_all(std::string_view name, double seconds);
  void all_to_all(Group& group, std::string_view name, const std::byte* mine, std::span<const std::size_t> to,
                  std::byte* got, std::span<const std::size_t> from);

  /// A JSON line for each exchange from now on, to this file: which, with how many ranks, bytes, seconds that were waited; the
  /// numbers of its begin and end among those of all exchanges, and how often it was moved on in between. IO_ERROR if it cannot
  /// be written.
  void trace(const std::string& path);
  const std::map<std::string, ExchangeCount, std::less<>>& traffic() const { return traffic_; }
  void clear_traffic() { traffic_.clear(); }

 private:
  friend class Underway;
  struct Trailer {
    std::uint32_t call, exchange;
    std::int32_t status;
    std::uint32_t rank;
  };
  static_assert(sizeof(Trailer) == 16);

  void keep(std::exception_ptr);
  void agree(const Greeting&);
  void count(const Underway&);

  Group& world_;
  std::uint32_t call_ = 0;
  std::map<const Group*, std::uint32_t> exchanges_;  // of this call; groups have theirs
  Status status_ = Status::ok;
  std::exception_ptr error_;  // of this rank; null where another one failed
  std::map<std::string, ExchangeCount, std::less<>> traffic_;
  std::ofstream trace_;
  std::int64_t events_ = 0;                     // begins and ends of exchanges
  std::vector<std::vector<std::byte>> spare_{};  // buffers that exchanges have had, for the next ones
};

}  // namespace dsakit
