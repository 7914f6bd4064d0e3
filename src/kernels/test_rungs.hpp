// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.hpp"
#include "kernels/kernels.hpp"

namespace dsakit {

/// A rung that the library knows; null where this machine cannot run it.
struct KnownRung {
  std::string name;
  const Kernels* kernels;
};
inline std::ostream& operator<<(std::ostream& out, const KnownRung& rung) { return out << rung.name; }

inline std::vector<KnownRung> every_rung() {
  std::vector<KnownRung> rungs;
#if defined(__x86_64__)
  for (const char* name : {"generic", "avx2", "avx512"}) rungs.push_back({name, find_kernels(name)});
#else
  rungs.push_back({"generic", find_kernels("generic")});
#endif
  return rungs;
}

/// A suite whose tests run once for each rung, INSTANTIATE_TEST_SUITE_P(Any, TheSuite, for_every_rung(), rung_name):
/// those that this machine cannot run are listed, and skipped by name.
class EveryRung : public ::testing::TestWithParam<KnownRung> {
 protected:
  void SetUp() override {
    if (!GetParam().kernels) GTEST_SKIP() << GetParam().name << " does not run on this machine";
  }
  const Kernels& kernels() const { return *GetParam().kernels; }
};
inline auto for_every_rung() { return ::testing::ValuesIn(every_rung()); }
inline std::string rung_name(const ::testing::TestParamInfo<KnownRung>& info) { return info.param.name; }

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
