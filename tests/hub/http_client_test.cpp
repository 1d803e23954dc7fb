#include "http/http_client.h"

#include <gtest/gtest.h>

#include <new>

#include "expect_error.h"
#include "hub/fake_hub.h"

namespace quire {
namespace {

TEST(UrlTest, ALocationIsJoinedToItsBase) {
  EXPECT_EQ(join_url("https://hub.example/a/b?c", "/d?e=%2F"), "https://hub.example/d?e=%2F");
  EXPECT_EQ(join_url("https://hub.example/a/b", "https://cdn.example/x?y"), "https://cdn.example/x?y");
  EXPECT_EQ(join_url("https://hub.example/a", "//cdn.example/x"), "https://cdn.example/x");
  expect_error([] { join_url("https://hub.example/a", "file:///etc/passwd"); }, {"hub.example", "file:///"});
  expect_error([] { join_url("https://hub.example/a", "ftp://x/y"); }, {"ftp://x/y"});
}

TEST(UrlTest, AnOriginIsSchemeHostAndPort) {
  EXPECT_TRUE(same_origin("https://hub.example/a", "https://hub.example:443/b?c"));
  EXPECT_TRUE(same_origin("http://127.0.0.1:80", "http://127.0.0.1/x"));
  EXPECT_FALSE(same_origin("https://hub.example/a", "http://hub.example/a"));
  EXPECT_FALSE(same_origin("https://hub.example/a", "https://hub.example:8443/a"));
  EXPECT_FALSE(same_origin("https://hub.example/a", "https://cdn.hub.example/a"));
  EXPECT_FALSE(same_origin("https://hub.example/a", "https://hub.example@evil.example/a"));
  EXPECT_FALSE(same_origin("https://hub.example/a", "https://hub.example.evil.example/a"));
}

TEST(HttpClientTest, WhatACallThrowsComesToWhoPolls) {
  const testing::HubPort port([](const testing::HubConnection& client, const testing::HubRequest&) {
    client.answer(200, "", "some bytes");
  });
  HttpClient client;
  const auto run = [&](const auto& on_bytes) {
    return client.run({.url = port.url(), .on_bytes = on_bytes});
  };
  EXPECT_THROW(run([](int, std::string_view) -> bool { throw std::bad_alloc(); }), std::bad_alloc);
  const std::optional<HttpOutcome> next = run([](int, std::string_view) { return true; });
  ASSERT_TRUE(next);
  EXPECT_EQ(next->status, 200);
  EXPECT_EQ(next->error, "");
}

TEST(UrlTest, ASegmentHasNoCharactersThatMeanSomething) {
  EXPECT_EQ(escape_segment("refs/pr/1"), "refs%2Fpr%2F1");
  EXPECT_EQ(escape_segment("a b?c#d%\xc3\xa4"), "a%20b%3Fc%23d%25%C3%A4");
  EXPECT_EQ(escape_segment("model-00001-of-00002.safetensors"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(escape_segment({"main\0/..", 8}), "main%00%2F..");
  EXPECT_EQ(escape_segment(std::string(1, '\0')), "%00");
  EXPECT_EQ(escape_segment(""), "");
}

}  // namespace
}  // namespace quire
