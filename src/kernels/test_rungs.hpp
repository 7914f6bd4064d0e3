// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>

#include "core/random.hpp"
#include "kernels/kernels.hpp"

namespace dsakit {

inline std::ostream& operator<<(std::ostream& out, const Rung& rung) { return out << rung.isa; }

/// A suite whose tests run once for each rung, INSTANTIATE_TEST_SUITE_P(Any, TheSuite, for_every_rung(), rung_name):
/// those that this machine cannot run are listed, and skipped by name.
class EveryRung : public ::testing::TestWithParam<Rung> {
 protected:
  void SetUp() override {
    if (!GetParam().kernels) GTEST_SKIP() << GetParam().isa << " does not run on this machine, which lacks " << GetParam().why;
  }
  const Kernels& kernels() const { return *GetParam().kernels; }
};
inline auto for_every_rung() { return ::testing::ValuesIn(known_rungs().begin(), known_rungs().end()); }
inline std::string rung_name(const ::testing::TestParamInfo<Rung>& info) { return info.param.isa; }

/// Random numbers of the test that asks, the same whatever else runs: the seed is its name without the rung's, so that
/// every rung sees the same.
inline Random random_of_test() {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string_view name = test.name();
  std::uint64_t seed = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : test.test_suite_name() + std::string(name.substr(0, name.find('/'))))
    seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Random(seed);
}

}  // namespace dsakit
