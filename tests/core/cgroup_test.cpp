#include "core/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

namespace quire {
namespace {

namespace fs = std::filesystem;

class Groups : public testing::Test {
 protected:
  Groups() {
    std::string pattern = (fs::temp_directory_path() / "quire-cgroup-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Groups() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text << "\n";
  }
  ControlGroups groups() const { return {folder_ / "sys", folder_ / "membership"}; }
  fs::path folder_;
};

constexpr double kNoQuota = std::numeric_limits<double>::infinity();
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

TEST_F(Groups, NoneThatSayAnything) {
  EXPECT_EQ(group_cpu_quota(groups()), kNoQuota);
  EXPECT_EQ(group_memory_limit(groups()), kNoLimit);
  write("membership", "0::/\nnonsense\n5:\n7:cpu:\n:::");
  write("sys/cpu.max", "max 100000");
  write("sys/memory.max", "max");
  EXPECT_EQ(group_cpu_quota(groups()), kNoQuota);
  EXPECT_EQ(group_memory_limit(groups()), kNoLimit);
}

TEST_F(Groups, Version2TakesTheSmallestAbove) {
  write("membership", "0::/a/b");
  write("sys/a/b/cpu.max", "max 100000");
  write("sys/a/cpu.max", "250000 100000");
  EXPECT_EQ(group_cpu_quota(groups()), 2.5);
  write("sys/a/b/cpu.max", "50000 100000");
  EXPECT_EQ(group_cpu_quota(groups()), 0.5);
  write("sys/a/memory.max", "1000");
  write("sys/a/b/memory.max", "2000");
  EXPECT_EQ(group_memory_limit(groups()), 1000);
}

// A container's own group is its root.
TEST_F(Groups, Version2InAContainer) {
  write("membership", "0::/");
  write("sys/cpu.max", "150000 50000");
  EXPECT_EQ(group_cpu_quota(groups()), 3.0);
}

TEST_F(Groups, Version1) {
  write("membership", "12:cpuset:/\n4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n0::/");
  write("sys/cpu/docker/x/cpu.cfs_quota_us", "-1");
  write("sys/cpu/docker/x/cpu.cfs_period_us", "100000");
  EXPECT_EQ(group_cpu_quota(groups()), kNoQuota);
  write("sys/cpu/docker/x/cpu.cfs_quota_us", "400000");
  EXPECT_EQ(group_cpu_quota(groups()), 4.0);
  write("sys/cpu/cpu.cfs_quota_us", "100000");  // as a container sees its own group
  write("sys/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(group_cpu_quota(groups()), 1.0);
  write("sys/memory/memory.limit_in_bytes", "4096");
  EXPECT_EQ(group_memory_limit(groups()), 4096);
}

}  // namespace
}  // namespace quire
