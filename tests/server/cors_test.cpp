#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "server/access_rules.h"

namespace quire::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::ThrowsMessage;

constexpr const char* kAllowOrigin = "Access-Control-Allow-Origin";
constexpr const char* kAllowMethods = "Access-Control-Allow-Methods";
constexpr const char* kAllowHeaders = "Access-Control-Allow-Headers";

TEST(CorsTest, ByDefaultNoPageMayReadAnything) {
  const Cors cors;
  EXPECT_THAT(cors.headers("https://example.com"), IsEmpty());
  EXPECT_THAT(cors.headers(""), IsEmpty());
  EXPECT_THAT(cors.preflight_headers("https://example.com", "authorization"), IsEmpty());
}

TEST(CorsTest, AnAllowedOriginIsNamedAndOthersAreNot) {
  const Cors cors({"https://example.com", "http://localhost:3000"});
  for (const char* origin : {"https://example.com", "http://localhost:3000"}) {
    EXPECT_THAT(cors.headers(origin), Contains(Pair(kAllowOrigin, origin)));
    EXPECT_THAT(cors.headers(origin), Contains(Pair("Vary", "Origin")));
  }
  for (const char* origin :
       {"", "null", "http://example.com", "https://example.com:444", "https://example.com.evil.org",
        "https://evil-example.com", "https://example.co", "http://localhost:30000", "*"})
    EXPECT_THAT(cors.headers(origin), ElementsAre(Pair("Vary", "Origin"))) << origin;
}

TEST(CorsTest, APreflightTellsWhatAnAllowedPageMaySend) {
  const Cors cors({"https://example.com"});
  const auto headers =
      cors.preflight_headers("https://example.com", "authorization,content-type, x-stainless-os");
  EXPECT_THAT(headers, Contains(Pair(kAllowMethods, HasSubstr("POST"))));
  EXPECT_THAT(headers, Contains(Pair(kAllowHeaders, "authorization,content-type, x-stainless-os")));
  EXPECT_THAT(cors.preflight_headers("https://example.com", ""), Not(Contains(Key(kAllowHeaders))));
  EXPECT_THAT(cors.preflight_headers("https://evil.org", "authorization"), IsEmpty());
  EXPECT_THAT(cors.preflight_headers("", "authorization"), IsEmpty());
}

TEST(CorsTest, OnlyNamesOfHeadersAreRepeated) {
  const Cors cors({"https://example.com"});
  for (const std::string& wanted : {std::string("a\r\nSet-Cookie: x"), std::string("a: b"),
                                    std::string("\xc3\xbc"), std::string("a\0b", 3), std::string(5000, 'a')})
    EXPECT_THAT(cors.preflight_headers("https://example.com", wanted), Not(Contains(Key(kAllowHeaders))));
}

TEST(CorsTest, AllOriginsMayBeAllowedButNeverWithCredentials) {
  const Cors cors({"https://example.com", "*"});
  EXPECT_THAT(cors.headers("https://anything.org"), Contains(Pair(kAllowOrigin, "*")));
  EXPECT_THAT(cors.headers(""), IsEmpty());
  EXPECT_THAT(cors.preflight_headers("null", "authorization"),
              Contains(Pair(kAllowHeaders, "authorization")));
  for (const Cors& any : {cors, Cors({"https://example.com"})})
    EXPECT_THAT(any.preflight_headers("https://example.com", "authorization"),
                Not(Contains(Key("Access-Control-Allow-Credentials"))));
}

TEST(CorsTest, AnOriginIsComparedInLowerCase) {
  EXPECT_THAT(Cors({"HTTPS://Example.COM"}).headers("https://example.com"),
              Contains(Pair(kAllowOrigin, "https://example.com")));
}

TEST(CorsTest, WhatIsNoOriginIsRefused) {
  for (const char* origin :
       {"", "example.com", "null", "https://", "://example.com", "https://example.com/",
        "https://example.com/path", "https://*.example.com", "https://a b", "https://u@host"})
    EXPECT_THAT([&] { Cors({origin}); }, ThrowsMessage<Error>(HasSubstr("allowed-origins has"))) << origin;
}

}  // namespace
}  // namespace quire::server
