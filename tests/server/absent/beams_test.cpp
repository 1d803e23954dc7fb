#include "server/completion.h"
#include "server/protocol_fixtures.h"

namespace quire::server {
namespace {

TEST(WithoutBeamsTest, ABeamSearchIsRefusedByName) {
  const ApiError error = test::error_of([] {
    parse_completion_request(parse_body(R"({"prompt": "x", "use_beam_search": true, "n": 4})"),
                             test::served_model());
  });
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "use_beam_search");
  EXPECT_THAT(error.what(), ::testing::HasSubstr("no beam search (QUIRE_BEAMS=OFF)"));
}

}  // namespace
}  // namespace quire::server
