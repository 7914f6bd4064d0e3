// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "parallel/channel.hpp"

namespace dsakit {
namespace {

std::string say(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// What every rank hears of f.
std::vector<std::string> heard(int ranks, const std::function<void(Group&, Conversation&)>& f) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  threads_as_ranks(ranks, [&](Group& group) {
    Conversation talk(group);
    all[std::size_t(group.rank())] = say([&] { f(group, talk); });
    talk.begin({}, [] {});  // goes on
    talk.end();
  }, 60);
  return all;
}

std::vector<std::size_t> sizes(int ranks, std::size_t each) {
  return std::vector<std::size_t>(static_cast<std::size_t>(ranks), each);
}

void exchange(Group& group, Conversation& talk, std::vector<int>& all) {
  const int mine = group.rank() + 1;
  all.resize(std::size_t(group.size()));
  talk.all_gather(group, "numbers", std::as_bytes(std::span(&mine, 1)), sizes(group.size(), sizeof mine),
                  reinterpret_cast<std::byte*>(all.data()));
}

TEST(Conversation, ExchangesAndCounts) {
  threads_as_ranks(3, [](Group& group) {
    Conversation talk(group);
    talk.begin({{{"rows", "7"}}}, [] {});
    std::vector<int> all;
    exchange(group, talk, all);
    EXPECT_EQ(all, (std::vector<int>{1, 2, 3}));
    // Rank r has r + 1 bytes for rank 0, r + 2 for rank 1, ..
    std::vector<std::size_t> to, from;
    for (int r = 0; r < 3; ++r) to.push_back(std::size_t(group.rank() + r + 1)), from.push_back(std::size_t(r + group.rank() + 1));
    std::vector<std::byte> out, in;
    for (int r = 0; r < 3; ++r) out.insert(out.end(), to[std::size_t(r)], std::byte(10 * group.rank() + r));
    for (int r = 0; r < 3; ++r) in.insert(in.end(), from[std::size_t(r)], std::byte(0));
    talk.all_to_all(group, "pieces", out.data(), to, in.data(), from);
    std::size_t at = 0;
    for (int r = 0; r < 3; ++r)
      for (std::size_t i = 0; i < from[std::size_t(r)]; ++i) EXPECT_EQ(in[at++], std::byte(10 * r + group.rank()));
    talk.end();
    EXPECT_EQ(talk.traffic().at("numbers"), (ExchangeCount{1, 8}));
    EXPECT_EQ(talk.traffic().at("pieces").messages, 1);
  }, 60);
}

TEST(Conversation, DifferentArgumentsAreRefusedByNameBeforeAnyWork) {
  for (const std::string& said : heard(3, [](Group& group, Conversation& talk) {
         talk.begin({{{"mode", "dense"}, {"rows", group.rank() == 2 ? "8" : "7"}}}, [] {});
         ADD_FAILURE() << "begun";
       }))
    EXPECT_EQ(said, "parallel: rows is 7 on rank 0 and 8 on rank 2, wanted the same on all ranks");
}

TEST(Conversation, WhatOneRankRefusesAllThrow) {
  for (const std::string& said : heard(3, [](Group& group, Conversation& talk) {
         talk.begin({{{"rows", "7"}}}, [&] {
           if (group.rank() > 0)
             throw Error(Status::invalid_argument, "model", "tokens", "[" + std::to_string(group.rank()) + "]", "is 9", "0..8");
         });
       }))
    EXPECT_EQ(said, "model: tokens[1] is 9, wanted 0..8");  // the lowest rank's
}

TEST(Conversation, AFailureInMidCallIsThrownByAllAtItsEnd) {
  for (int failing = 0; failing < 3; ++failing) {
    std::vector<int> ranks(3, -2);
    const auto all = heard(3, [&](Group& group, Conversation& talk) {
      talk.begin({}, [] {});
      std::vector<int> numbers;
      exchange(group, talk, numbers);
      talk.work([&] {
        if (group.rank() == failing) throw std::bad_alloc();
      });
      EXPECT_EQ(talk.failed(), group.rank() == failing);
      exchange(group, talk, numbers);  // those who did not fail hear of it
      EXPECT_TRUE(talk.failed());
      EXPECT_EQ(numbers[std::size_t(failing)], 0);
      talk.work([] { ADD_FAILURE() << "worked on"; });
      exchange(group, talk, numbers);
      EXPECT_EQ(numbers, (std::vector<int>{0, 0, 0}));
      try {
        talk.end();
      } catch (const Error& e) {
        EXPECT_EQ(e.status, Status::out_of_memory);
        ranks[std::size_t(group.rank())] = e.rank;
        throw;
      }
    });
    EXPECT_EQ(all, std::vector<std::string>(3, all[0]));
    EXPECT_EQ(ranks, std::vector<int>(3, failing));
  }
}

TEST(Conversation, AnotherCallIsRefused) {
  for (const std::string& said : heard(2, [](Group& group, Conversation& talk) {
         talk.begin({{{"operation", group.rank() == 0 ? "append" : "save"}}}, [] {});
       }))
    EXPECT_EQ(said, "parallel: operation is append on rank 0 and save on rank 1, wanted the same on all ranks");
  for (const std::string& said : heard(2, [](Group& group, Conversation& talk) {
         talk.begin({{{"operation", "append"}}}, [] {});
         if (group.rank() == 0) talk.end();
         else talk.begin({{{"operation", "append"}}}, [] {});
       }))
    EXPECT_EQ(said.substr(0, 19), "parallel: calls is ") << said;
}

}  // namespace
}  // namespace dsakit
