// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "dsakit/group.hpp"
#include "tests/carriers.hpp"

namespace dsakit {
namespace {

using carriers::Bytes;

/// What f(group) throws on each rank; OK where it returns.
template <class F>
std::vector<Error> refusals(int ranks, F f, double timeout = 20) {
  std::vector<Error> all(std::size_t(ranks), Error(Status::ok, "", "", "", "", ""));
  try {
    threads_as_ranks(
        ranks,
        [&](Group& group) {
          try {
            f(group);
          } catch (const Error& e) {
            all[std::size_t(group.rank())] = e;
            throw;
          }
        },
        timeout);
  } catch (const Error&) {
  }
  return all;
}

/// Of the ranks but `besides`: that each has this status, and names `what`.
void expect_all(const std::vector<Error>& errors, int besides, Status status, const std::string& what) {
  for (int r = 0; r < int(errors.size()); ++r) {
    if (r == besides) continue;
    const Error& e = errors[std::size_t(r)];
    EXPECT_EQ(e.status, status) << r << ": " << e.what();
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << r << ": " << e.what();
  }
}

class Threads : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(W, Threads, testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 64), testing::PrintToStringParamName());

TEST_P(Threads, EveryExchange) {
  std::atomic<int> ranks = 0;
  constexpr double kHang = 600;  // seconds: 64 threads on a machine that others use, and under sanitizers
  EXPECT_NO_THROW(threads_as_ranks(GetParam(), [&](Group& g) { carriers::every_exchange(g), ++ranks; }, kHang));
  EXPECT_EQ(ranks, GetParam());
}

TEST(ThreadsAsRanks, ThrowsWhatTheLowestThrew) {
  EXPECT_THROW(threads_as_ranks(0, [](Group&) {}), Error);
  EXPECT_THROW(threads_as_ranks(65, [](Group&) {}), Error);
  try {
    threads_as_ranks(4, [](Group& g) {
      if (g.rank() >= 1) throw std::runtime_error(std::to_string(g.rank()));
    });
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "1");
  }
}

TEST(ThreadsAsRanks, OneThatReturnsIsNamed) {
  const auto errors = refusals(4, [](Group& g) {
    barrier(g);
    if (g.rank() == 2) return;
    carriers::must_refuse(Status::peer_failed, "a barrier without rank 2", [&] { barrier(g); });
    barrier(g);  // dead: the same sentence
  });
  EXPECT_EQ(errors[2].status, Status::ok);
  expect_all(errors, 2, Status::peer_failed, "group: all_gather 2 misses rank 2, wanted all ranks (it has returned)");
}

TEST(ThreadsAsRanks, OneThatThrowsIsNamed) {
  const auto errors = refusals(3, [](Group& g) {
    if (g.rank() == 0) throw Error(Status::invalid_value, "op", "x", "", "is 7", "8");
    barrier(g);
  });
  EXPECT_EQ(errors[0].status, Status::invalid_value);
  expect_all(errors, 0, Status::peer_failed, "misses rank 0, wanted all ranks (it threw op: x is 7, wanted 8)");
}

TEST(ThreadsAsRanks, OneInAnotherPartIsNamedByItsOwnRank) {
  const auto errors = refusals(4, [](Group& g) {
    const auto part = g.split(g.rank() / 2, 0);
    if (g.rank() == 3) return;
    if (part->rank() == 0 && g.rank() == 2) barrier(*part);
    if (g.rank() < 2) barrier(*part), barrier(g);
  });
  expect_all(errors, 3, Status::peer_failed, "misses rank 3, wanted all ranks");
}

TEST(ThreadsAsRanks, OneThatIsLateIsNamed) {
  std::atomic<int> gave_up = 0;
  const auto errors = refusals(
      3,
      [&](Group& g) {
        if (g.rank() == 1)
          while (gave_up < 2) std::this_thread::yield();
        try {
          barrier(g);
        } catch (const Error&) {
          ++gave_up;
          throw;
        }
      },
      0.05);
  expect_all(errors, -1, Status::peer_failed, "all_gather 1 misses rank 1 after 0.05 s, wanted all ranks");
}

TEST(ThreadsAsRanks, AnUnwaitedExchangeKillsTheGroup) {
  const auto errors = refusals(3, [](Group& g) {
    if (g.rank() == 1) (void)carriers::start_all_gather(g, 0, [](int) { return std::size_t{1}; });
    else barrier(g);
    barrier(g);
  });
  expect_all(errors, -1, Status::peer_failed, "was dropped by rank 1 before it was done");
}

TEST(ThreadsAsRanks, DifferingExchangesAreNamed) {
  auto errors = refusals(3, [](Group& g) {
    barrier(g);
    Bytes bytes(8);
    if (g.rank() == 1) g.broadcast(bytes, 0)->wait();
    else barrier(g);
  });
  expect_all(errors, -1, Status::internal, "exchange 2 on rank 1: is broadcast, wanted all_gather as on rank 0");

  errors = refusals(3, [](Group& g) {
    Bytes bytes(g.rank() == 2 ? 9 : 8);
    g.broadcast(bytes, 0)->wait();
  });
  expect_all(errors, -1, Status::internal, "exchange 1 on rank 0: broadcast sends 8 bytes, wanted 9 as rank 2 takes");
}

TEST(ThreadsAsRanks, AbortIsSeenByAll) {
  const auto errors = refusals(3, [](Group& g) {
    if (g.rank() == 1) g.abort(Status::invalid_file, "the file ends");
    barrier(g);
  });
  expect_all(errors, -1, Status::invalid_file, "rank 1 aborted: the file ends");
}

}  // namespace
}  // namespace dsakit
