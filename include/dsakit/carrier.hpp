// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "dsakit/group.hpp"

// For those who write a Group: what carriers check, count and say alike.
namespace dsakit {

/// One exchange as one rank sees it: what goes to each rank, and where that of each rank is put.
struct Exchange {
  const char* name;
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
};

/// Of the arguments of Group's functions; INVALID_ARGUMENT if their sizes do not fit each other. The root of a
/// broadcast sends itself nothing.
Exchange all_gather_of(const Group&, std::span<const std::byte> mine, std::span<std::byte> all,
                       std::span<const std::size_t> bytes_of_rank);
Exchange all_to_all_of(const Group&, std::span<const std::byte> mine, std::span<const std::size_t> to,
                       std::span<std::byte> got, std::span<const std::size_t> from);
Exchange broadcast_of(const Group&, std::span<std::byte> bytes, int root);

/// Numbers the exchanges of one rank in one group, and counts those on their way.
class Sequence {
 public:
  /// The number of the exchange that begins, from 1 on; INVALID_ARGUMENT while four are pending.
  std::int64_t begin(const char* exchange);
  void end() { --pending_; }

 private:
  std::int64_t number_ = 0;
  int pending_ = 0;
};

/// What split asks of all: who named this rank's colour, in the order of key and rank, and the largest of what all gave
/// as `number`.
struct Split {
  std::vector<int> members;  // ranks of the parent
  int rank;                  // of this one among them
  std::int32_t number;
};
Split agree_on_split(Group& parent, int colour, int key, std::int32_t number = 0);

/// PEER_FAILED: `ranks` (none: unknown) have not come to an exchange after so many seconds (0: it was known at once).
Error peers_missing(const char* exchange, std::int64_t number, std::span<const int> ranks, double seconds,
                    const std::string& why = {});
/// PEER_FAILED: a Pending was destroyed before it was done.
Error dropped_unwaited(const char* exchange, std::int64_t number, int rank);

}  // namespace dsakit
