// SPDX-License-Identifier: Apache-2.0
#include "run/numa.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace dsakit {
namespace {

namespace fs = std::filesystem;

/// A tree as sysfs has it.
class Numa : public testing::Test {
 protected:
  ~Numa() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  std::string root() const { return root_.string(); }

 private:
  fs::path root_ = [] {
    std::string name = (fs::temp_directory_path() / "numaXXXXXX").string();
    return fs::path(mkdtemp(name.data()));
  }();
};

TEST_F(Numa, NodesWithCoresAreRead) {
  EXPECT_TRUE(numa_nodes(root()).empty());
  EXPECT_EQ(cores_here(root()), 0);
  write("devices/system/node/online", "0-1,4");
  write("devices/system/node/node0/cpulist", "0-15,32-47");
  write("devices/system/node/node1/cpulist", "16-31,48-63");
  write("devices/system/node/node4/cpulist", "");  // memory alone
  write("devices/system/cpu/online", "0-63");
  const auto nodes = numa_nodes(root());
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1].number, 1);
  EXPECT_EQ(nodes[1].cores, "16-31,48-63");
  EXPECT_EQ(cores_here(root()), 64);
  write("fs/cgroup/cpuset.cpus.effective", "2-5");
  EXPECT_EQ(cores_here(root()), 4);
}

TEST_F(Numa, ListsOfCoresAreCounted) {
  EXPECT_EQ(count_of_cores("0"), 1);
  EXPECT_EQ(count_of_cores("0-3,8,10-11"), 7);
  for (const char* wrong : {"", "a", "3-1", "0-", "-1", "0-3;4", "1,b"}) EXPECT_EQ(count_of_cores(wrong), 0) << wrong;
}

TEST_F(Numa, ARankWithLessThanItsShareIsWarnedOf) {
  EXPECT_EQ(binding_warning(2, 8, 4), "");
  EXPECT_EQ(binding_warning(8, 8, 4), "");   // not bound
  EXPECT_EQ(binding_warning(1, 3, 2), "");   // a share is rounded down
  EXPECT_EQ(binding_warning(1, 2, 4), "");   // more ranks than cores
  EXPECT_EQ(binding_warning(1, 0, 2), "");   // unknown
  EXPECT_EQ(binding_warning(1, 16, 2), "this rank may use 1 of 16 cores, its share is 8: mpirun binds to less; "
                                       "--bind-to numa, or --bind-to none");
}

TEST_F(Numa, OneRankPerNodeIsRecommended) {
  EXPECT_EQ(rank_per_node(2), "mpirun -n 2 --map-by ppr:1:numa --bind-to numa dsakit run MODEL --parallel heads=2");
}

TEST_F(Numa, TheShareOfHugePagesIsAShare) {
  const auto share = huge_page_share();
  if (!share) GTEST_SKIP() << "this system does not say how much of a process lies on huge pages";
  EXPECT_GE(*share, 0);
  EXPECT_LE(*share, 1);
}

}  // namespace
}  // namespace dsakit
