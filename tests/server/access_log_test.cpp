#include "server/access_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "temp_dir.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

AccessRecord full_record() {
  return {.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'700'000'000'042)),
          .method = "POST",
          .path = "/v1/chat/completions",
          .status = 200,
          .request_id = "chatcmpl-7",
          .prompt_tokens = 12,
          .cached_tokens = 0,
          .cache_end = CacheEnd::Reason::kDiffers,
          .output_tokens = 34,
          .finish_reason = "stop",
          .first_token = std::chrono::microseconds(12'345),
          .total = std::chrono::microseconds(678'910),
          .client_gone = false};
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(AccessLogTest, ALineOfTextTellsEverything) {
  EXPECT_EQ(text_line(full_record()),
            "2023-11-14T22:13:20.042Z POST /v1/chat/completions 200 id=chatcmpl-7 prompt=12 cached=0 "
            "cache_end=differs output=34 finish=stop first_token=12.3ms total=678.9ms\n");
}

TEST(AccessLogTest, ALineOfJsonTellsTheSame) {
  const std::string line = json_line(full_record());
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const Json parsed = parse_json(line, "line");
  EXPECT_EQ(parsed["time"], "2023-11-14T22:13:20.042Z");
  EXPECT_EQ(parsed["method"], "POST");
  EXPECT_EQ(parsed["path"], "/v1/chat/completions");
  EXPECT_EQ(parsed["status"], 200);
  EXPECT_EQ(parsed["request_id"], "chatcmpl-7");
  EXPECT_EQ(parsed["prompt_tokens"], 12);
  EXPECT_EQ(parsed["cached_tokens"], 0);
  EXPECT_EQ(parsed["cache_end"], "differs");
  EXPECT_EQ(parsed["output_tokens"], 34);
  EXPECT_EQ(parsed["finish_reason"], "stop");
  EXPECT_EQ(parsed["first_token_ms"], 12.345);
  EXPECT_EQ(parsed["total_ms"], 678.91);
  EXPECT_EQ(parsed["client_gone"], false);
}

TEST(AccessLogTest, WhatARequestDidNotComeToIsLeftOut) {
  AccessRecord record;
  record.method = "GET";
  record.path = "/health";
  record.status = 503;
  record.request_id = "r";
  record.client_gone = true;
  EXPECT_EQ(text_line(record), "1970-01-01T00:00:00.000Z GET /health 503 id=r total=0.0ms client gone\n");
  const Json parsed = parse_json(json_line(record), "line");
  for (const char* key :
       {"prompt_tokens", "cached_tokens", "cache_end", "output_tokens", "finish_reason", "first_token_ms"})
    EXPECT_FALSE(parsed.contains(key)) << key;
  EXPECT_EQ(parsed["client_gone"], true);
}

TEST(AccessLogTest, WhatAClientSendsMakesNoLineOfItsOwnAndNoFieldOfItsOwn) {
  AccessRecord record = full_record();
  record.path = "/\n1970 GET / 200 id=fake\x1b[2J\xff\"";
  record.request_id = "x total=0ms" + std::string(10'000, 'y');
  for (const std::string& line : {text_line(record), json_line(record)}) {
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    EXPECT_TRUE(std::all_of(line.begin(), line.end() - 1, [](char c) { return c >= ' ' && c < 0x7f; }))
        << line;
    EXPECT_LT(line.size(), 1000U);
  }
  EXPECT_THAT(text_line(record), HasSubstr("id=\"x total=0msyyy"));
  EXPECT_EQ(parse_json(json_line(record), "line")["path"].get<std::string>().substr(0, 6), "/\n1970");
}

TEST(AccessLogTest, ThreadsWriteWholeLines) {
  const TempDir directory;
  const auto path = directory.path() / "log";
  std::FILE* file = std::fopen(path.c_str(), "w");
  AccessLog log(AccessLogFormat::kJson, file);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) log.write(full_record());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::fclose(file);
  const std::vector<std::string> lines = lines_of(path);
  EXPECT_EQ(lines.size(), 800U);
  for (const std::string& line : lines) EXPECT_EQ(line + "\n", json_line(full_record()));
}

TEST(AccessLogTest, CanBeOffAndOtherNamesAreRefused) {
  const TempDir directory;
  const auto path = directory.path() / "log";
  std::FILE* file = std::fopen(path.c_str(), "w");
  AccessLog off(parse_access_log_format("off"), file);
  off.write(full_record());
  AccessLog text(parse_access_log_format("text"), file);
  text.write(full_record());
  std::fclose(file);
  EXPECT_EQ(lines_of(path).size(), 1U);
  EXPECT_EQ(parse_access_log_format("json"), AccessLogFormat::kJson);
  EXPECT_THAT([] { parse_access_log_format("xml"); },
              ThrowsMessage<Error>(HasSubstr("access-log \"xml\" is not known; use text, json or off")));
}

TEST(AccessLogTest, DoesNotWaitForAReaderThatStalls) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::FILE* file = ::fdopen(ends[1], "w");
  AccessLog log(AccessLogFormat::kJson, file);
  for (int i = 0; i < 2000; ++i) log.write(full_record());  // several times what a pipe holds
  std::fclose(file);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  ::close(ends[0]);
  const std::string line = json_line(full_record());
  EXPECT_GT(text.size(), 10 * line.size());
  EXPECT_EQ(text.size() % line.size(), 0U);  // whole lines
  EXPECT_LT(text.size(), 2000 * line.size());
}

}  // namespace
}  // namespace quire::server
