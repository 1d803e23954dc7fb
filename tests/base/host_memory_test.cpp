#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

#include "temp_dir.h"

namespace quire {
namespace {

TEST(HostMemoryTest, TheLeastLimitOfAGroupAndThoseAroundItCounts) {
  const TempDir root;
  std::filesystem::create_directories(root.path() / "a" / "b");
  const auto limit = [&](const char* group, const std::string& value) {
    std::ofstream(root.path() / group / "memory.max") << value << "\n";
  };
  EXPECT_EQ(control_group_memory(root.path(), "a/b"), std::numeric_limits<std::size_t>::max());
  limit("a/b", "max");
  EXPECT_EQ(control_group_memory(root.path(), "a/b"), std::numeric_limits<std::size_t>::max());
  limit("a", "3000000000");
  EXPECT_EQ(control_group_memory(root.path(), "a/b"), 3'000'000'000U);
  limit("a/b", "2000");
  EXPECT_EQ(control_group_memory(root.path(), "a/b"), 2000U);
  EXPECT_EQ(control_group_memory(root.path(), "a/gone"), 3'000'000'000U);
  limit(".", "1000");
  EXPECT_EQ(control_group_memory(root.path(), ""), 1000U);
}

TEST(HostMemoryTest, AProcessMayHaveNoMoreThanTheMachineHas) {
  EXPECT_GT(allowed_memory(), std::size_t{1} << 20);
  EXPECT_LE(allowed_memory(), host_memory());
}

}  // namespace
}  // namespace quire
