// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "dsakit/error.hpp"

namespace dsakit {

/// An exchange on its way. Its buffers belong to it until it is done. Dropped before that: the group is dead.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Whether it is done; moves it on where nothing else does.
  virtual bool poll() = 0;
  /// Until it is done. PEER_FAILED, naming the missing ranks where they are known, after the group's timeout.
  virtual void wait() = 0;
};

/// Processes that compute together, and how they exchange bytes: MPI (<dsakit/mpi.hpp>), torch.distributed (Python), threads
/// of one process (threads_as_ranks), or anything with these functions. Every rank starts the same exchanges with the same
/// sizes in the same order, from one thread at a time, at most four of them pending; a rank that has nothing to say joins
/// with zero bytes. Sizes of a message are below 2^63 and known everywhere beforehand; a carrier that counts in less sends
/// in rounds. After PEER_FAILED the group is dead, with those split from it and the one it was split from: they refuse
/// everything at once with the same sentence. Ranks in sentences are those of the outermost group.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// all: the bytes of rank 0, 1, .. one after the other, bytes_of_rank[r] of each; mine.size() is bytes_of_rank[rank()].
  virtual std::unique_ptr<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                              std::span<const std::size_t> bytes_of_rank) = 0;
  /// mine: to[r] bytes for each rank r in order; got: from[r] bytes of each.
  virtual std::unique_ptr<Pending> all_to_all(std::span<const std::byte> mine, std::span<const std::size_t> to,
                                              std::span<std::byte> got, std::span<const std::size_t> from) = 0;
  /// The bytes of rank `root` to all.
  virtual std::unique_ptr<Pending> broadcast(std::span<std::byte> bytes, int root) = 0;
  /// The group of those who name the same colour, in the order of key and then rank. All ranks call it; it ends with an
  /// exchange.
  virtual std::unique_ptr<Group> split(int colour, int key) = 0;
  /// Ends all processes of the group, if the carrier can, with the exit status of `status`; for programs, never called by
  /// the library.
  virtual void abort(Status status, const std::string& sentence) = 0;
};

/// f(group) on `ranks` threads of this process (at most 64), each a rank. What the lowest rank threw is thrown, once all
/// have ended. A rank that returns or throws while others wait for it fails their exchanges with PEER_FAILED; so does one
/// that comes `timeout` seconds late.
void threads_as_ranks(int ranks, const std::function<void(Group&)>& f, double timeout = 20);

/// All ranks have come.
void barrier(Group&);
/// values[i] = that of all ranks together, added in fp32 in the order of the ranks, or the largest.
enum class Reduction { sum, max };
void all_reduce(Group&, std::span<float> values, Reduction);

}  // namespace dsakit
