#include "core/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>
#include <vector>

namespace quire {
namespace {

TEST(AvailableMemory, IsPartOfWhatTheMachineHas) {
  const int64_t all = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory(), 0);
  EXPECT_LE(available_memory(), all);
}

// A mapped file of 16 MiB, of which all was read but the middle given back.
TEST(GivenBackPages, LeaveMemoryAndAreReadAgain) {
  constexpr size_t kBytes = 16 << 20, kFirst = (4 << 20) + 100, kGiven = 8 << 20;
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  std::vector<std::byte> bytes(kBytes);
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 4096);
  ASSERT_EQ(std::fwrite(bytes.data(), 1, kBytes, file), kBytes);
  ASSERT_EQ(std::fflush(file), 0);
  ASSERT_EQ(fsync(fileno(file)), 0);  // what is not written yet cannot leave
  void* const at = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, fileno(file), 0);
  ASSERT_NE(at, MAP_FAILED);
  const std::span<std::byte> map(static_cast<std::byte*>(at), kBytes);
  const auto same = [&] { return std::equal(map.begin(), map.end(), bytes.begin()); };
  EXPECT_TRUE(same());
  EXPECT_EQ(resident_memory(map), static_cast<int64_t>(kBytes));

  give_back_pages(map.subspan(kFirst, kGiven));
  const int64_t left = resident_memory(map);
  if (left == static_cast<int64_t>(kBytes)) GTEST_SKIP() << "this file system keeps its pages";
  EXPECT_GE(left, static_cast<int64_t>(kBytes - kGiven)) << "none of what was not given back";
  EXPECT_LE(left, static_cast<int64_t>(kBytes - kGiven / 2));
  EXPECT_TRUE(same());

  give_back_pages(map.subspan(100, 50));  // no whole page
  give_back_pages({});
  EXPECT_TRUE(same());
  munmap(at, kBytes);
  std::fclose(file);
}

}  // namespace
}  // namespace quire
