#include "server/api_error.h"

#include "engine/request.h"
#include "protocol_fixtures.h"

namespace quire::server {
namespace {

TEST(ApiErrorTest, HasTheBodyThatClientsRead) {
  EXPECT_EQ(openai_error({400, "n is 0", "n"}).dump(),
            R"({"error":{"message":"n is 0","type":"BadRequestError","param":"n","code":400}})");
  EXPECT_EQ(
      openai_error({404, "no such model", "model", "model_not_found"}).dump(),
      R"x({"error":{"message":"no such model (model_not_found)","type":"NotFoundError","param":"model","code":404}})x");
  EXPECT_EQ(openai_error({503, "loading"}).dump(),
            R"({"error":{"message":"loading","type":"unavailable_error","param":null,"code":503}})");
}

TEST(ApiErrorTest, TypesFollowTheStatus) {
  for (const auto& [status, type] : {std::pair{400, "BadRequestError"},
                                     {401, "AuthenticationError"},
                                     {403, "PermissionDeniedError"},
                                     {404, "NotFoundError"},
                                     {405, "MethodNotAllowedError"},
                                     {413, "BadRequestError"},
                                     {429, "RateLimitError"},
                                     {500, "InternalServerError"},
                                     {503, "unavailable_error"}}) {
    EXPECT_EQ(ApiError(status, "x").type(), type) << status;
  }
}

TEST(ApiErrorTest, OnlyWhatMayBeTriedAgainSaysWhen) {
  EXPECT_GT(ApiError(429, "x").retry_after(), 0);
  EXPECT_GT(ApiError(503, "x").retry_after(), 0);
  EXPECT_EQ(ApiError(400, "x").retry_after(), 0);
  EXPECT_EQ(ApiError(500, "x").retry_after(), 0);
}

TEST(ApiErrorTest, WhatWasCaughtBecomesAStatus) {
  const ApiError kept = to_api_error(ApiError(404, "gone", "id", "some_code"));
  EXPECT_EQ(kept.status, 404);
  EXPECT_EQ(kept.param, "id");
  EXPECT_EQ(kept.code, "some_code");
  EXPECT_EQ(to_api_error(QueueFullError(QueueFullError::Limit::kRequests, "4096 requests wait")).status, 429);
  const ApiError user = to_api_error(Error("n is 0"));
  EXPECT_EQ(user.status, 400);
  EXPECT_STREQ(user.what(), "n is 0");
}

TEST(ApiErrorTest, FieldsAreRenamedAndTheClientsWordsAreNot) {
  constexpr FieldName kNames[] = {{"input", "messages"}, {"/input_schema", "/function/parameters"}};
  const ApiError error = renamed(
      {400, R"(messages[0] names "messages of \"mine\" messages", not messages)", "messages"}, kNames);
  EXPECT_STREQ(error.what(), R"(input[0] names "messages of \"mine\" messages", not input)");
  EXPECT_EQ(error.param, "input");
  EXPECT_STREQ(renamed({400, R"(at "#/tools/0/function/parameters": messages)"}, kNames).what(),
               R"(at "#/tools/0/input_schema": input)");
}

TEST(ApiErrorTest, AnInternalFaultIsNotDescribed) {
  const ApiError error = to_api_error(std::runtime_error("0x7f00 in /usr/lib/x"));
  EXPECT_EQ(error.status, 500);
  EXPECT_EQ(std::string(error.what()).find('/'), std::string::npos);
  EXPECT_EQ(std::string(error.what()).find("0x"), std::string::npos);
}

}  // namespace
}  // namespace quire::server
