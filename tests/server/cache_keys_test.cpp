// Whether a prefix that was computed for one key is found for another.
#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

constexpr const char* kText = "the water ran over the stones and the boy looked at the fish that swam in it";

class CacheKeysTest : public ApiServerTest {
 protected:
  void serve(bool separate) {
    ApiServerConfig config = quiet();
    config.api_keys = {"one", "two"};
    listen(config);
    ServiceOptions options;
    options.separate_keys = separate;
    load(small(), {}, options);
  }
  OrderedJson ask_as(const char* key, const std::string& path, const std::string& fields) {
    const std::string headers = "Authorization: Bearer " + std::string(key) + "\r\n";
    const HttpReply reply = ask(post_json(path, "{" + fields + "}", headers));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply);
  }
  static std::string prompt(const std::string& more = {}) {
    return R"("prompt": ")" + std::string(kText) + R"(", "max_tokens": 2, "timings": true)" + more;
  }
  // Tokens of the prompt that were reused; what its timings tell agrees with it.
  std::int64_t cached_as(const char* key, const std::string& more = {}) {
    const OrderedJson answer = ask_as(key, "/v1/completions", prompt(more));
    const std::int64_t cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    EXPECT_EQ(answer["timings"]["cache_n"], cached);
    if (cached == 0) {
      EXPECT_EQ(answer["timings"]["cache_end"]["reason"], expected_);
    }
    return cached;
  }

  std::string expected_ = "salt";  // why nothing is reused
};

TEST_F(CacheKeysTest, APrefixOfOneKeyIsNotFoundByAnother) {
  serve(true);
  EXPECT_EQ(cached_as("one"), 0);
  EXPECT_GE(cached_as("one"), 16);
  EXPECT_EQ(cached_as("two"), 0);
  EXPECT_GE(cached_as("two"), 16);
  EXPECT_GE(cached_as("one"), 16);
}

TEST_F(CacheKeysTest, SaltsStayApartWithinAKey) {
  serve(true);
  const std::string salt = R"(, "cache_salt": "s")";
  EXPECT_EQ(cached_as("one"), 0);
  EXPECT_EQ(cached_as("one", salt), 0);
  EXPECT_GE(cached_as("one", salt), 16);
  EXPECT_EQ(cached_as("two", salt), 0);
  EXPECT_EQ(cached_as("two", R"(, "cache_salt": "key-0 s")"), 0);
}

TEST_F(CacheKeysTest, EveryApiKeepsKeysApart) {
  serve(true);
  const std::string messages =
      R"("max_tokens": 2, "messages": [{"role": "user", "content": ")" + std::string(kText) + R"("}])";
  const auto chat = [&](const char* key) -> std::int64_t {
    return ask_as(key, "/v1/chat/completions", messages)["usage"]["prompt_tokens_details"]["cached_tokens"];
  };
  const auto message = [&](const char* key) -> std::int64_t {
    return ask_as(key, "/v1/messages", messages)["usage"]["cache_read_input_tokens"];
  };
  const auto response = [&](const char* key) -> std::int64_t {
    const std::string fields = R"("max_output_tokens": 2, "input": ")" + std::string(kText) + '"';
    return ask_as(key, "/v1/responses", fields)["usage"]["input_tokens_details"]["cached_tokens"];
  };
  const auto embedding = [&](const char* key) -> std::int64_t {
    const OrderedJson answer = ask_as(key, "/v1/embeddings", R"("input": ")" + std::string(kText) + '"');
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
  };
  EXPECT_EQ(chat("one"), 0);
  EXPECT_EQ(message("two"), 0);
  EXPECT_GE(message("one"), 16);
  EXPECT_GE(response("two"), 16);
  EXPECT_EQ(embedding("one"), 0);
  EXPECT_EQ(embedding("two"), 0);
  EXPECT_GE(embedding("two"), 16);
}

TEST_F(CacheKeysTest, KeysMayShareThem) {
  expected_ = "new";
  serve(false);
  EXPECT_EQ(cached_as("one"), 0);
  EXPECT_GE(cached_as("two"), 16);
}

}  // namespace
}  // namespace quire::server
