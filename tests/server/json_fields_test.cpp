#include "server/json_fields.h"

#include "protocol_fixtures.h"

namespace quire::server {
namespace {

using test::error_of;
using ::testing::HasSubstr;

TEST(RequestBodyTest, MustBeOneObject) {
  for (const char* body : {"", "{", "[]", "3", "null", "\"x\"", "{\"n\": NaN}", "{\"n\": Infinity}",
                           "{\"n\": 1e999}", "{\"n\":1,\"n\":1}", "{\"x\": \"\xFF\"}"}) {
    EXPECT_EQ(error_of([&] { parse_body(body); }).status, 400) << body;
  }
  EXPECT_NO_THROW(parse_body("{}"));
}

TEST(RequestBodyTest, IsBounded) {
  const auto nested = [](std::size_t depth) {
    return "{\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_NO_THROW(parse_body(nested(63)));
  EXPECT_THAT(error_of([&] { parse_body(nested(64)); }).what(), HasSubstr("nested"));
  EXPECT_EQ(error_of([&] { parse_body(nested(1'000'000)); }).status, 400);
  EXPECT_EQ(error_of([] { parse_body("{\"x\": \"" + std::string(1 << 20, 'y')); }).status, 400);
  std::string many = "{\"x\":[0";
  for (int i = 0; i < (1 << 21); ++i) many += ",0";
  EXPECT_THAT(error_of([&] { parse_body(many + "]}"); }).what(), HasSubstr("values"));
  // --max-body-size may allow more than its default.
  EXPECT_NO_THROW(parse_body("{\"x\": \"" + std::string(1 << 24, 'y') + "\"}"));
}

}  // namespace
}  // namespace quire::server
