#include "core/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace quire {
namespace {

TEST(AvailableMemory, IsPartOfWhatTheMachineHas) {
  const int64_t all = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory(), 0);
  EXPECT_LE(available_memory(), all);
}

}  // namespace
}  // namespace quire
