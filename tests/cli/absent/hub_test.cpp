#include <gtest/gtest.h>

#include "cli/run_program.h"

namespace quire {
namespace {

using testing::ProgramResult;
using testing::run_quire;

TEST(WithoutHubTest, AHubIdIsRefusedByName) {
  for (const char* command : {"generate org/name -p hi", "plan org/name", "tokenize org/name"}) {
    const testing::ProgramResult result = run_quire(command);
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_EQ(result.err, "quire: org/name: no such directory, and this build has no hub (QUIRE_HUB=OFF)\n");
  }
  for (const char* path : {"/nowhere/model", "./nowhere", "nowhere/model.gguf", "nowhere"}) {
    const ProgramResult result = run_quire(std::string("generate -p hi ") + path);
    EXPECT_EQ(result.code, 2) << path;
    EXPECT_EQ(result.err.find("hub"), std::string::npos) << result.err;
  }
  EXPECT_EQ(run_quire("generate --offline -p hi").code, 2);
}

}  // namespace
}  // namespace quire
