// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "dsakit/carrier.hpp"
#include "core/out_of_memory.hpp"

namespace dsakit {
namespace {

constexpr int kMostRanks = 64;

/// An exchange that some ranks have come to. Who comes last copies for all.
struct Meeting {
  std::vector<std::optional<Exchange>> of_rank;
  int missing;
  bool done = false;
};

/// What the threads share: everything below is read and written under the mutex.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  double timeout;
  std::vector<std::optional<std::string>> ended;  // by rank: how
  std::optional<Error> death;

  [[noreturn]] void die(const Error& e) {
    if (!death) death = e, changed.notify_all();
    throw *death;
  }
};

/// A group: the outermost one, or a part of it.
struct Room {
  std::vector<int> ranks;  // of the world
  std::map<std::int64_t, std::shared_ptr<Meeting>> open{};
  std::map<std::pair<std::int64_t, int>, std::shared_ptr<Room>> parts{};  // by split and colour
};

Error mismatch(std::int64_t number, int rank, const std::string& got, const std::string& wanted) {
  return Error(Status::internal, "group", "exchange " + std::to_string(number), "",
               "on rank " + std::to_string(rank) + ": " + got, wanted, "all ranks start the same exchanges");
}

void check_alike(const Room& room, std::int64_t number, const Meeting& meeting) {
  const std::size_t n = room.ranks.size();
  for (std::size_t s = 0; s < n; ++s) {
    const Exchange &a = *meeting.of_rank[0], &b = *meeting.of_rank[s];
    if (std::strcmp(a.name, b.name) != 0)
      throw mismatch(number, room.ranks[s], std::string("is ") + b.name,
                     a.name + (" as on rank " + std::to_string(room.ranks[0])));
  }
  for (std::size_t s = 0; s < n; ++s)
    for (std::size_t r = 0; r < n; ++r) {
      const std::size_t sent = meeting.of_rank[s]->to[r].size(), taken = meeting.of_rank[r]->from[s].size();
      if (sent != taken)
        throw mismatch(number, room.ranks[s], meeting.of_rank[s]->name + (" sends " + std::to_string(sent)) + " bytes",
                       std::to_string(taken) + " as rank " + std::to_string(room.ranks[r]) + " takes");
    }
}

void copy(const Meeting& meeting) {
  const std::size_t n = meeting.of_rank.size();
  for (std::size_t s = 0; s < n; ++s)
    for (std::size_t r = 0; r < n; ++r) {
      const std::span<const std::byte> bytes = meeting.of_rank[s]->to[r];
      if (!bytes.empty()) std::memcpy(meeting.of_rank[r]->from[s].data(), bytes.data(), bytes.size());
    }
}

class ThreadPending : public Pending {
 public:
  ThreadPending(std::shared_ptr<World> world, std::shared_ptr<Room> room, std::shared_ptr<Sequence> sequence, int rank,
                Exchange exchange)
      : world_(std::move(world)),
        room_(std::move(room)),
        sequence_(std::move(sequence)),
        rank_(rank),
        name_(exchange.name) {
    std::lock_guard lock(world_->mutex);
    if (world_->death) throw *world_->death;
    number_ = sequence_->begin(name_);
    std::shared_ptr<Meeting>& meeting = room_->open[number_];
    const std::size_t n = room_->ranks.size();
    if (!meeting) meeting = std::make_shared<Meeting>(Meeting{std::vector<std::optional<Exchange>>(n), int(n)});
    meeting_ = meeting;
    meeting_->of_rank[std::size_t(rank_)] = std::move(exchange);
    if (--meeting_->missing == 0) end();
  }

  ~ThreadPending() override {
    std::lock_guard lock(world_->mutex);
    if (seen_) return;
    sequence_->end();
    if (world_->death) return;
    world_->death = dropped_unwaited(name_, number_, room_->ranks[std::size_t(rank_)]);
    world_->changed.notify_all();
  }

  bool poll() override {
    std::lock_guard lock(world_->mutex);
    return is_done();
  }

  void wait() override {
    std::unique_lock lock(world_->mutex);
    const auto latest = std::chrono::steady_clock::now() + std::chrono::duration<double>(world_->timeout);
    while (!is_done())
      if (world_->changed.wait_until(lock, latest) == std::cv_status::timeout && !is_done())
        world_->die(peers_missing(name_, number_, missing(), world_->timeout));
  }

 private:
  void end() {
    room_->open.erase(number_);
    try {
      check_alike(*room_, number_, *meeting_);
    } catch (const Error& e) {
      world_->death = e;  // thrown where it is waited for, as on the other ranks
    }
    if (!world_->death) copy(*meeting_), meeting_->done = true;
    world_->changed.notify_all();
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < room_->ranks.size(); ++r)
      if (!meeting_->of_rank[r]) ranks.push_back(room_->ranks[r]);
    return ranks;
  }

  bool is_done() {
    if (seen_) return true;
    if (meeting_->done) {
      sequence_->end();
      return seen_ = true;
    }
    if (world_->death) throw *world_->death;
    for (const int r : missing())
      if (const auto& how = world_->ended[std::size_t(r)]) world_->die(peers_missing(name_, number_, {&r, 1}, 0, *how));
    return false;
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<Room> room_;
  std::shared_ptr<Sequence> sequence_;
  int rank_;
  const char* name_;
  std::int64_t number_ = 0;
  std::shared_ptr<Meeting> meeting_;
  bool seen_ = false;  // done, and this rank knows
};

class ThreadGroup : public Group {
 public:
  ThreadGroup(std::shared_ptr<World> world, std::shared_ptr<Room> room, int rank)
      : world_(std::move(world)), room_(std::move(room)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return int(room_->ranks.size()); }

  std::unique_ptr<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                      std::span<const std::size_t> bytes_of_rank) override {
    return start(all_gather_of(*this, mine, all, bytes_of_rank));
  }
  std::unique_ptr<Pending> all_to_all(std::span<const std::byte> mine, std::span<const std::size_t> to,
                                      std::span<std::byte> got, std::span<const std::size_t> from) override {
    return start(all_to_all_of(*this, mine, to, got, from));
  }
  std::unique_ptr<Pending> broadcast(std::span<std::byte> bytes, int root) override {
    return start(broadcast_of(*this, bytes, root));
  }

  std::unique_ptr<Group> split(int colour, int key) override {
    const Split agreed = agree_on_split(*this, colour, key);
    std::shared_ptr<Room> part;
    {
      std::lock_guard lock(world_->mutex);
      std::shared_ptr<Room>& known = room_->parts[{splits_++, colour}];
      if (!known) {
        known = std::make_shared<Room>();
        for (const int r : agreed.members) known->ranks.push_back(room_->ranks[std::size_t(r)]);
      }
      part = known;
    }
    auto group = std::make_unique<ThreadGroup>(world_, std::move(part), agreed.rank);
    barrier(*group);
    return group;
  }

  /// Threads cannot be ended: all find their groups dead.
  void abort(Status status, const std::string& sentence) override {
    std::lock_guard lock(world_->mutex);
    if (world_->death) return;
    world_->death = Error(status, "group", "rank " + std::to_string(rank_), "", "aborted: " + sentence, "");
    world_->changed.notify_all();
  }

 private:
  std::unique_ptr<Pending> start(Exchange exchange) {
    return std::make_unique<ThreadPending>(world_, room_, sequence_, rank_, std::move(exchange));
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<Room> room_;
  int rank_;
  std::shared_ptr<Sequence> sequence_ = std::make_shared<Sequence>();
  std::int64_t splits_ = 0;
};

void leave(World& world, int rank, std::string how) {
  std::lock_guard lock(world.mutex);
  world.ended[std::size_t(rank)] = std::move(how);
  world.changed.notify_all();
}

std::string how_it_threw(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    const std::string what = e.what();
    return "it threw " + what.substr(what.rfind('\n') + 1);  // Python's begin with a traceback
  } catch (...) {
    return "it threw";
  }
}

}  // namespace

void threads_as_ranks(int ranks, const std::function<void(Group&)>& f, double timeout) try {
  if (ranks < 1 || ranks > kMostRanks)
    throw Error(Status::invalid_argument, "threads_as_ranks", "ranks", "", "is " + std::to_string(ranks),
                "1.." + std::to_string(kMostRanks));
  auto world = std::make_shared<World>();
  world->timeout = timeout;
  world->ended.resize(std::size_t(ranks));
  auto room = std::make_shared<Room>();
  for (int r = 0; r < ranks; ++r) room->ranks.push_back(r);

  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  const auto run = [&](int rank) {
    std::string how = "it has returned";
    try {
      ThreadGroup group(world, room, rank);
      f(group);
    } catch (...) {
      how = how_it_threw(thrown[std::size_t(rank)] = std::current_exception());
    }
    leave(*world, rank, how);
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) try {
      threads.emplace_back(run, r);
    } catch (...) {  // the system gives no more threads
      leave(*world, r, how_it_threw(thrown[std::size_t(r)] = std::current_exception()));
    }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& e : thrown)
    if (e) std::rethrow_exception(e);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
