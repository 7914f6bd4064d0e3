// SPDX-License-Identifier: Apache-2.0
#include "dsakit/mpi.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "dsakit/carrier.hpp"

namespace dsakit {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kNoticeTag = 0, kTagsOfGroup = 64;
constexpr auto kRollCall = 1s;

/// What a rank tells all others: where it waits in vain, what it died of, or that its program has ended.
struct Notice {
  enum Kind : int { call, death, farewell } kind;
  char text[252];
};

/// Busy for a moment, then polite, then asleep.
class Patience {
 public:
  void wait_a_little() {
    const auto waited = Clock::now() - begin_;
    if (waited > 1ms) std::this_thread::sleep_for(50us);
    else if (waited > 20us) std::this_thread::yield();
  }
  bool is_long() const { return Clock::now() - begin_ > 1ms; }
  bool is_over(std::chrono::duration<double> limit) const { return Clock::now() - begin_ > limit; }

 private:
  Clock::time_point begin_ = Clock::now();
};

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, std::size_t(length)};
}

void must(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(Status::peer_failed, "group", call, "", "failed", "success", text_of(code));
}

/// All ranks, whatever groups they form. The communicator is never freed: that is collective, and a rank may be gone.
struct World {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 0;
  double timeout = 0;
  std::size_t most = 0;
  std::int32_t groups = 1, most_groups = 0;  // tags are cut by groups
  std::optional<Error> death{};
  bool told = false;          // of one's death, or that one waits
  std::vector<bool> left{};   // whose program has ended
  int first_alive = 0;  // as far as is known

  /// The first reason stays.
  void die(const Error& e) {
    if (death) return;
    death = e;
    if (!std::exchange(told, true)) tell(Notice::death, e.what());
  }

  void tell(Notice::Kind kind, const std::string& text) {
    auto notice = new Notice{kind, {}};  // for good: who is gone never takes it
    std::snprintf(notice->text, sizeof notice->text, "%s", text.c_str());
    for (int r = 0; r < size; ++r) {
      MPI_Request request;
      if (r != rank && MPI_Isend(notice, sizeof *notice, MPI_BYTE, r, kNoticeTag, comm, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
    }
  }

  struct Heard {
    int rank;
    Notice notice;
  };
  /// What is said next; farewells are only noted.
  std::optional<Heard> listen() {
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, comm, &there, &status) != MPI_SUCCESS || !there) return {};
    Heard heard{status.MPI_SOURCE, {}};
    const int code = MPI_Recv(&heard.notice, sizeof heard.notice, MPI_BYTE, heard.rank, kNoticeTag, comm, &status);
    if (code != MPI_SUCCESS) return {};
    if (heard.notice.kind != Notice::farewell) return heard;
    left[std::size_t(heard.rank)] = true;
    return {};
  }
};

class MpiPending : public Pending {
 public:
  MpiPending(std::shared_ptr<World> world, std::shared_ptr<Sequence> sequence, const std::vector<int>& ranks, int rank,
             int first_tag, const Exchange& e)
      : world_(std::move(world)), sequence_(std::move(sequence)), name_(e.name) {
    if (world_->death) throw *world_->death;
    number_ = sequence_->begin(name_);
    const int tag = first_tag + int(number_ % kTagsOfGroup);
    try {
      for (std::size_t r = 0; r < ranks.size(); ++r)
        if (int(r) != rank) receive(e.from[r], ranks[r], tag);
      for (std::size_t r = 0; r < ranks.size(); ++r)
        if (int(r) != rank) send(e.to[r], ranks[r], tag);
      left_ = int(requests_.size());
    } catch (const Error& error) {
      world_->die(error);  // thrown where it is waited for
    }
    std::copy(e.to[std::size_t(rank)].begin(), e.to[std::size_t(rank)].end(), e.from[std::size_t(rank)].begin());
  }

  ~MpiPending() override {
    if (done_) return;
    sequence_->end();
    world_->die(dropped_unwaited(name_, number_, world_->rank));
    take_back();
  }

  bool poll() override {
    if (done_) return true;
    if (world_->death) throw *world_->death;
    std::vector<int> which(requests_.size());
    std::vector<MPI_Status> statuses(requests_.size());
    while (left_ > 0) {
      int n = 0;
      const int code = MPI_Testsome(int(requests_.size()), requests_.data(), &n, which.data(), statuses.data());
      if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) die(failure(code));
      for (int i = 0; i < n; ++i) check(which[std::size_t(i)], statuses[std::size_t(i)], code != MPI_SUCCESS);
      if (n == 0) return false;
      left_ -= n;
    }
    sequence_->end();
    return done_ = true;
  }

  void wait() override {
    for (Patience patience; !poll(); patience.wait_a_little()) {
      if (!patience.is_long()) continue;
      if (const int r = waits_for_gone(); r >= 0) die(peers_missing(name_, number_, {&r, 1}, 0, "it has ended"));
      if (const auto heard = world_->listen()) give_up(heard, 0);
      if (patience.is_over(std::chrono::duration<double>(world_->timeout))) give_up({}, world_->timeout);
    }
  }

 private:
  void receive(std::span<std::byte> bytes, int rank, int tag) {
    for (; !bytes.empty(); bytes = bytes.subspan(lengths_.back())) {
      lengths_.push_back(std::min(bytes.size(), world_->most));
      must(MPI_Irecv(bytes.data(), int(lengths_.back()), MPI_BYTE, rank, tag, world_->comm, &next(rank)), "MPI_Irecv");
    }
  }

  void send(std::span<const std::byte> bytes, int rank, int tag) {
    while (!bytes.empty()) {
      const std::size_t n = std::min(bytes.size(), world_->most);
      must(MPI_Isend(bytes.data(), int(n), MPI_BYTE, rank, tag, world_->comm, &next(rank)), "MPI_Isend");
      bytes = bytes.subspan(n);
    }
  }

  MPI_Request& next(int rank) {
    with_.push_back(rank);
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  /// A rank whose program has ended, though a message from or to it is on its way; -1 if none. What it sent before came
  /// before its farewell, and poll() has seen it.
  int waits_for_gone() const {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && world_->left[std::size_t(with_[i])]) return with_[i];
    return -1;
  }

  Error differs(int rank, const std::string& got, std::size_t wanted) const {
    return Error(Status::internal, "group", name_ + (" " + std::to_string(number_)), "",
                 "of rank " + std::to_string(rank) + " to rank " + std::to_string(world_->rank) + " " + got,
                 std::to_string(wanted), "all ranks start the same exchanges");
  }

  [[noreturn]] void die(const Error& e) {
    world_->die(e);
    throw *world_->death;
  }

  Error failure(int code) const { return peers_missing(name_, number_, {}, 0, text_of(code)); }

  void check(int request, const MPI_Status& status, bool some_failed) {
    const bool is_receive = std::size_t(request) < lengths_.size();
    if (some_failed && status.MPI_ERROR != MPI_SUCCESS) {
      int reason = MPI_SUCCESS;
      MPI_Error_class(status.MPI_ERROR, &reason);
      if (!is_receive || reason != MPI_ERR_TRUNCATE) die(failure(status.MPI_ERROR));
      die(differs(status.MPI_SOURCE, "has more bytes", lengths_[std::size_t(request)]));
    }
    if (!is_receive) return;
    int got = 0;
    MPI_Get_count(&status, MPI_BYTE, &got);
    if (const std::size_t wanted = lengths_[std::size_t(request)]; std::size_t(got) != wanted)
      die(differs(status.MPI_SOURCE, "has " + std::to_string(got) + (got == 1 ? " byte" : " bytes"), wanted));
  }

  /// Calls all ranks, and dies of what a rank says it died of, or else of those who do not answer within a second.
  [[noreturn]] void give_up(std::optional<World::Heard> heard, double seconds) {
    if (!std::exchange(world_->told, true)) world_->tell(Notice::call, name_ + (" " + std::to_string(number_)));
    std::vector<std::string> waits_for(std::size_t(world_->size));  // "": not heard of
    waits_for[std::size_t(world_->rank)] = name_ + (" " + std::to_string(number_));
    for (Patience patience; !patience.is_over(kRollCall); heard = world_->listen(), patience.wait_a_little()) {
      if (!heard) continue;
      if (heard->notice.kind == Notice::death)
        die(peers_missing(name_, number_, {&heard->rank, 1}, 0, heard->notice.text));
      waits_for[std::size_t(heard->rank)] = heard->notice.text;
      if (std::find(waits_for.begin(), waits_for.end(), "") == waits_for.end()) break;
    }
    for (world_->first_alive = 0; waits_for[std::size_t(world_->first_alive)].empty();) ++world_->first_alive;
    std::vector<int> missing;
    std::string why = "all answer";
    for (int r = 0; r < world_->size; ++r)
      if (waits_for[std::size_t(r)].empty()) missing.push_back(r);
      else why += ", rank " + std::to_string(r) + " in " + waits_for[std::size_t(r)];
    if (!missing.empty()) why = "no answer to a call of all ranks";
    die(peers_missing(name_, number_, missing, seconds, why));
  }

  /// The buffers are their owner's again: receives are cancelled, or end within a second.
  void take_back() {
    const std::span received = std::span(requests_).first(lengths_.size());
    for (MPI_Request& request : received)
      if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
    for (Patience patience; !patience.is_over(kRollCall); patience.wait_a_little()) {
      int done = 0;
      if (MPI_Testall(int(received.size()), received.data(), &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS || done) return;
    }
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<Sequence> sequence_;
  const char* name_;
  std::int64_t number_ = 0;
  std::vector<MPI_Request> requests_{};  // receives, then sends
  std::vector<int> with_{};              // the rank at the other end of each
  std::vector<std::size_t> lengths_{};   // of the receives
  int left_ = 0;
  bool done_ = false;
};

/// Messages go from each rank to each, as in MPI libraries' own exchanges that do not block; so a rank finds out about a
/// message of another length, and no call of MPI waits for a rank.
class MpiGroup : public Group {
 public:
  MpiGroup(std::shared_ptr<World> world, std::vector<int> ranks, int rank, std::int32_t number)
      : world_(std::move(world)), ranks_(std::move(ranks)), rank_(rank), number_(number) {}

  int rank() const override { return rank_; }
  int size() const override { return int(ranks_.size()); }

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

  /// No communicator of its own, only tags that none of its ranks uses already.
  std::unique_ptr<Group> split(int colour, int key) override {
    const Split agreed = agree_on_split(*this, colour, key, world_->groups);
    if (agreed.number == world_->most_groups)
      throw Error(Status::unsupported, "split", "groups", "", "are " + std::to_string(agreed.number) + " already",
                  "at most " + std::to_string(world_->most_groups), "MPI_TAG_UB");
    world_->groups = agreed.number + 1;
    std::vector<int> ranks;
    for (const int r : agreed.members) ranks.push_back(ranks_[std::size_t(r)]);
    auto group = std::make_unique<MpiGroup>(world_, std::move(ranks), agreed.rank, agreed.number);
    barrier(*group);
    return group;
  }

  void abort(Status status, const std::string& sentence) override {
    std::fprintf(stderr, "%s\n", sentence.c_str());
    std::fflush(nullptr);
    // One rank ends all: mpirun of Open MPI 4.1 now and then crashes when several ask for it at once.
    if (world_->death && world_->rank != world_->first_alive) std::this_thread::sleep_for(kRollCall);
    MPI_Abort(world_->comm, exit_code(status));
    std::_Exit(exit_code(status));
  }

 private:
  std::unique_ptr<Pending> start(const Exchange& exchange) {
    return std::make_unique<MpiPending>(world_, sequence_, ranks_, rank_, 1 + number_ * kTagsOfGroup, exchange);
  }

  std::shared_ptr<World> world_;
  std::vector<int> ranks_;  // of the world
  int rank_;
  std::int32_t number_;
  std::shared_ptr<Sequence> sequence_ = std::make_shared<Sequence>();
};

/// The first of this program.
std::shared_ptr<World>& first_world() {
  static auto& world = *new std::shared_ptr<World>;  // longer than any static variable
  return world;
}

/// MPI_Finalize waits for all ranks, deaf to those who miss this one: so they are told, and it begins when all have come.
void finalise() {
  int over = 0;
  MPI_Finalized(&over);
  const std::shared_ptr<World> world = first_world();
  if (over || !world || world->death) return;
  world->left[std::size_t(world->rank)] = true;
  world->tell(Notice::farewell, "");
  for (Patience patience; std::find(world->left.begin(), world->left.end(), false) != world->left.end();
       patience.wait_a_little())
    while (world->listen()) {  // who died ends this program too
    }
  MPI_Finalize();
}

Error no_mpi(const std::string& got, const std::string& wanted) {
  return Error(Status::unsupported, "mpi_group", "MPI", "", got, wanted);
}

void initialise() {
  int over = 0, there = 0, threads = MPI_THREAD_SINGLE;
  MPI_Finalized(&over);
  if (over) throw no_mpi("is finalised", "a program that has not ended it");
  MPI_Initialized(&there);
  if (there) {
    MPI_Query_thread(&threads);
  } else {
    must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads), "MPI_Init_thread");
#ifdef MPICH_VERSION  // it raises what MPI_Testsome finds on these, whatever the communicator of the messages
    for (const MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
#endif
    std::atexit(finalise);
  }
  if (threads < MPI_THREAD_FUNNELED) throw no_mpi("is for programs of one thread", "MPI_THREAD_FUNNELED or above");
}

}  // namespace

std::unique_ptr<Group> mpi_group(double timeout, std::size_t most) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // MPI counts in int
  if (most < 1 || most > kMost)
    throw Error(Status::invalid_argument, "mpi_group", "most", "", "is " + std::to_string(most),
                "1.." + std::to_string(kMost));
  initialise();
  auto world = std::make_shared<World>();
  must(MPI_Comm_dup(MPI_COMM_WORLD, &world->comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world->comm, &world->rank);
  MPI_Comm_size(world->comm, &world->size);
  world->left.resize(std::size_t(world->size));
  if (!first_world()) first_world() = world;
  world->timeout = timeout;
  world->most = most;
  int *tag_limit = nullptr, there = 0;
  MPI_Comm_get_attr(world->comm, MPI_TAG_UB, &tag_limit, &there);
  world->most_groups = (there ? *tag_limit : 32767) / kTagsOfGroup;  // 32767: what the standard promises
  std::vector<int> ranks;
  for (int r = 0; r < world->size; ++r) ranks.push_back(r);
  const int rank = world->rank;
  return std::make_unique<MpiGroup>(std::move(world), std::move(ranks), rank, 0);
}

}  // namespace dsakit
