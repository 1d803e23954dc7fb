#include <gtest/gtest.h>

#include "expect_error.h"
#include "server/access_rules.h"

namespace quire::server {
namespace {

TEST(HostNames, AnAuthorityIsAHostAndPerhapsAPort) {
  for (const char* text : {"a", "a:80", "a:", "A-b_c.example.", "127.0.0.1", "[::1]", "[2001:db8::1]:8000",
                           "xn--e1aybc.example"})
    EXPECT_TRUE(is_authority(text)) << text;
  for (const char* text : {"", ":80", "a b", "a:b", "a:80:80", "::1", "[::1", "[]", "[:]", "[::1]x",
                           "[::1]x:80", "user@a", "a/b", "a?b", "a#b", "a\\b", "<a>", "a\tb", "\xc3\xa4"})
    EXPECT_FALSE(is_authority(text)) << text;
}

TEST(HostNames, LoopbackIsThisMachine) {
  const HostNames names("127.0.0.1", {});
  for (const char* host :
       {"localhost", "LocalHost:8000", "localhost.", "a.b.localhost", "127.0.0.1", "127.1.2.3:80", "[::1]",
        "[::ffff:127.0.0.1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]", ""})
    EXPECT_TRUE(names.accept(host)) << host;
  for (const char* host : {"example.com", "localhost.example.com", "notlocalhost", "127.0.0.1.example.com",
                           "10.0.0.1", "0.0.0.0", "[::2]", "[fe80::1]", "127.0.0.1x", "."})
    EXPECT_FALSE(names.accept(host)) << host;
}

TEST(HostNames, SoIsWhatItListensOn) {
  EXPECT_TRUE(HostNames("my-machine", {}).accept("My-Machine.:8000"));
  EXPECT_TRUE(HostNames("0.0.0.0", {}).accept("0.0.0.0:8000"));
  EXPECT_TRUE(HostNames("FE80::0:1", {}).accept("[fe80::1]:8000"));
}

TEST(HostNames, OthersMayBeAllowed) {
  const HostNames names("127.0.0.1", {"AI.example", "10.0.0.1", "2001:DB8::1"});
  for (const char* host : {"ai.example", "ai.EXAMPLE.:443", "10.0.0.1:80", "[2001:db8:0::1]", "localhost"})
    EXPECT_TRUE(names.accept(host)) << host;
  for (const char* host : {"www.ai.example", "example", "10.0.0.2"}) EXPECT_FALSE(names.accept(host)) << host;
  EXPECT_TRUE(HostNames("127.0.0.1", {"*"}).accept("any.example"));
}

TEST(HostNames, WhatIsNoHostIsNamed) {
  for (const char* host : {"", "a:80", "http://a", "a b", "a/b"})
    expect_error([&] { HostNames("127.0.0.1", {host}); }, {"allowed-hosts has", "without a port"});
}

}  // namespace
}  // namespace quire::server
