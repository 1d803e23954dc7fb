#include <gtest/gtest.h>

#include "cli/run_program.h"

namespace quire {
namespace {

using testing::run_quire;

TEST(WithoutServerTest, ItsCommandsAreNotThereAndRefusedByName) {
  EXPECT_EQ(run_quire("--help").out.find("serve "), std::string::npos);
  EXPECT_EQ(run_quire("bench --help").out.find("serve "), std::string::npos);
  for (const char* command : {"serve", "serve --help", "serve --port 8000 org/name", "bench serve --url x",
                              "bench agent --url x"}) {
    const testing::ProgramResult result = run_quire(command);
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_EQ(result.err, "quire: this build has no server (QUIRE_SERVER=OFF)\n") << command;
    EXPECT_EQ(result.out, "") << command;
  }
}

}  // namespace
}  // namespace quire
