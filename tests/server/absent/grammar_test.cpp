#include "server/completion.h"
#include "server/protocol_fixtures.h"

namespace quire::server {
namespace {

TEST(WithoutGrammarTest, StructuredOutputsAreRefusedByName) {
  const ApiError error = test::error_of([] {
    parse_completion_request(parse_body(R"({"prompt": "x", "response_format": {"type": "json_object"}})"),
                             test::served_model());
  });
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "structured_outputs");
  EXPECT_THAT(error.what(), ::testing::HasSubstr("not in this build (QUIRE_GRAMMAR=OFF)"));
}

}  // namespace
}  // namespace quire::server
