// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "dsakit/context.hpp"
#include "dsakit/error.hpp"
#include "kernels/test_rungs.hpp"
#include "kernels/unused.hpp"

// One test for each rung that the library knows: it runs here, or is skipped by name (scripts/count.py tells).
namespace dsakit {
namespace {

class Rungs : public EveryRung {};
INSTANTIATE_TEST_SUITE_P(Known, Rungs, for_every_rung(), rung_name);

TEST_P(Rungs, CanBeAskedFor) { EXPECT_EQ(Context({.isa = GetParam().isa}).isa(), GetParam().isa); }

TEST(KnownRungs, HoldEveryOneThatRunsAndRefuseTheOthersByName) {
  std::size_t run = 0;
  for (const Rung& rung : known_rungs()) {
    run += rung.kernels != nullptr;
    if (rung.kernels) continue;
    const auto lacking = rungs_elsewhere();
    EXPECT_NE(std::ranges::find(lacking, std::pair<std::string, std::string>(rung.isa, rung.why)), lacking.end());
    try {
      Context context({.isa = rung.isa});
      ADD_FAILURE() << rung.isa << " was not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::unsupported);
      EXPECT_NE(std::string(e.what()).find(rung.isa), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(run, supported_kernels().size());
}

TEST(UnusedInstructions, AreNamed) {
  EXPECT_EQ(
      unused_instructions("model name : x avx10\nflags\t\t: fpu avx2 amx_fp16 amx_tile avx512_vnni avx_vnni_int8\n"),
      "amx_fp16, avx_vnni_int8");
  EXPECT_EQ(unused_instructions("processor\t: 0\nFeatures\t: fp asimd asimddp sve i8mm\nprocessor\t: 1\n"),
            "sve");
  EXPECT_EQ(unused_instructions("flags\t\t: fpu avx2 avx512_bf16\n"), "");
  EXPECT_EQ(unused_instructions(""), "");
}

TEST(RandomOfTest, IsTheSameAgain) { EXPECT_EQ(random_of_test().next(), random_of_test().next()); }

}  // namespace
}  // namespace dsakit
