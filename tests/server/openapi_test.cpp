#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "server/api_server.h"
#include "server/text_requests.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;

ServedModel small_model() {
  ServedModel model;
  model.names = {"one", "two"};
  model.max_n = 3;
  model.max_prompts = 5;
  model.sampling.max_logprobs = 7;
  model.sampling.vocab_size = 100;
  return model;
}

OrderedJson document() { return openapi_document(small_model(), "/quire"); }

// As served_routes has them: what stands in braces may be anything.
std::set<std::string> documented_routes(const OrderedJson& of) {
  std::set<std::string> routes;
  for (const auto& [path, item] : of.at("paths").items()) {
    for (const auto& [method, operation] : item.items()) {
      std::string name = method + " " + path.substr(0, path.find('{'));
      std::transform(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(method.size()), name.begin(),
                     [](char c) { return static_cast<char>(std::toupper(c)); });
      routes.insert(name);
    }
  }
  return routes;
}

TEST(OpenApiTest, HasEveryRouteThatIsServedAndNoOther) {
  const std::vector<std::string> served = served_routes();
  EXPECT_EQ(documented_routes(document()), std::set<std::string>(served.begin(), served.end()));
}

TEST(OpenApiTest, LimitsAreTheServersOwn) {
  const OrderedJson made = document();
  const OrderedJson& generation = made.at("components").at("schemas").at("Generation").at("properties");
  EXPECT_EQ(generation.at("model").at("enum"), OrderedJson({"one", "two", nullptr}));
  EXPECT_EQ(generation.at("n").at("maximum"), 3);
  EXPECT_EQ(generation.at("prompt_logprobs").at("maximum"), 7);
  const OrderedJson& prompts = made.at("components").at("schemas").at("Prompts").at("anyOf");
  EXPECT_EQ(prompts.at(2).at("maxItems"), 5);
  EXPECT_EQ(made.at("components").at("schemas").at("TokenIds").at("items").at("maximum"), 99);
  EXPECT_EQ(made.at("servers").at(0).at("url"), "/quire/");
  EXPECT_EQ(made.dump().find("\"{"), std::string::npos);  // no limit is left out
}

TEST(OpenApiTest, OptionalFieldsMayBeNullAndRequiredOnesNot) {
  const OrderedJson made = document();
  const OrderedJson& schemas = made.at("components").at("schemas");
  EXPECT_THAT(schemas.at("Generation").at("properties").at("seed").at("type"),
              ElementsAre("integer", "null"));
  EXPECT_EQ(schemas.at("ChatRequest").at("properties").at("messages").at("type"), "array");
  const OrderedJson& stops = schemas.at("Generation").at("properties").at("stop_token_ids");
  EXPECT_EQ(stops.at("anyOf").at(1).at("type"), "null");
}

TEST(OpenApiTest, ErrorsStandWhereTheyMayCome) {
  const OrderedJson made = document();
  const auto has = [&](const char* path, const char* method, const char* status) {
    return made.at("paths").at(path).at(method).at("responses").contains(status);
  };
  EXPECT_TRUE(has("/v1/completions", "post", "429"));
  EXPECT_TRUE(has("/v1/models/{id}", "get", "404"));
  EXPECT_TRUE(has("/v1/models", "get", "401"));
  EXPECT_FALSE(has("/v1/models", "get", "429"));
  EXPECT_FALSE(has("/health", "get", "401"));
  EXPECT_TRUE(has("/health", "get", "503"));
}

}  // namespace
}  // namespace quire::server
