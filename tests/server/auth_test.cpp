#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "server/access_rules.h"

namespace quire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(ApiKeysTest, WithoutAKeyEverybodyMayComeIn) {
  const ApiKeys keys;
  for (const char* header : {"", "Bearer", "Bearer ", "Bearer any", "Basic dXNlcjpwYXNz", "x"})
    EXPECT_TRUE(keys.find(header)) << header;
}

TEST(ApiKeysTest, EachOfSeveralKeysOpens) {
  const ApiKeys keys({"first", "second-key", "sk-0123456789"});
  for (const char* header : {"Bearer first", "Bearer second-key", "Bearer sk-0123456789"})
    EXPECT_TRUE(keys.find(header)) << header;
}

TEST(ApiKeysTest, AnythingButAKeyDoesNot) {
  const ApiKeys keys({"secret"});
  for (const char* header :
       {"", " ", "Bearer", "Bearer ", "Bearer  ", "secret", "Bearersecret", "Bearer secre", "Bearer secret1",
        "Bearer Secret", "Bearer secret secret", "Bearer secret,", "Bearer \"secret\"", "Basic secret",
        "Bearer: secret", "xBearer secret",
        "Bearer 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"})
    EXPECT_FALSE(keys.find(header)) << header;
  EXPECT_FALSE(keys.find(std::string_view("Bearer secret\0", 14)));
  EXPECT_FALSE(keys.find("Bearer " + std::string(30'000, 'x')));
}

TEST(ApiKeysTest, TheSchemeMayBeInAnyCaseAndBlanksAroundTheKeyDoNotCount) {
  const ApiKeys keys({"secret"});
  for (const char* header : {"bearer secret", "BEARER secret", "bEaReR secret", "Bearer  secret",
                             "Bearer\tsecret", "Bearer secret ", " Bearer secret \t"})
    EXPECT_TRUE(keys.find(header)) << header;
}

TEST(ApiKeysTest, AKeyThatNoHeaderCouldCarryIsRefusedWithoutBeingShown) {
  EXPECT_THAT([] { ApiKeys({"good", ""}); }, ThrowsMessage<Error>(HasSubstr("API key 2 is empty")));
  for (const char* key : {"with blank", "tab\t", "line\n", "schl\xc3\xbcssel"})
    EXPECT_THAT([&] { ApiKeys({key}); },
                ThrowsMessage<Error>(AllOf(HasSubstr("API key 1 has a character"), Not(HasSubstr(key)))));
}

}  // namespace
}  // namespace quire::server
