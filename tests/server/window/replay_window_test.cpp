// /window of a recording.
#include <gmock/gmock.h>

#include "record/recorder.h"
#include "scheduler/harness.h"
#include "server/api_server_fixture.h"
#include "server/window.h"
#include "temp_dir.h"

namespace quire::server {
namespace {

class ReplayWindowTest : public ApiServerTest {
 protected:
  // Six sequences, of which two run at a time.
  void record() {
    testing::Scenario scenario;
    scenario.config.max_num_seqs = 2;
    scenario.config.max_num_batched_tokens = 16;
    scenario.config.max_model_len = 100;
    scenario.config.num_blocks = 12;
    Recorder recorder({.model = "a model", .device = "cpu", .dtype = "float32", .scheduler = scenario.config},
                      path());
    scenario.config.observers = {&recorder};
    testing::Harness harness(scenario);
    for (int i = 0; i < 6; ++i) {
      SequenceRequest request;
      request.prompt = std::vector<TokenId>(20, 40 + i);
      request.max_tokens = 10;
      harness.add(request, 1);
    }
    harness.drain();
  }
  void open() {
    listen();
    server_->show(make_window(Recording(path())));
  }
  std::filesystem::path path() const { return directory_.path() / "recording"; }
  Json state(const std::string& query) const {
    const HttpReply reply = ask(get("/window/state" + query));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
    return Json::parse(reply.body);
  }

  TempDir directory_;
};

TEST_F(ReplayWindowTest, ShowsEveryStepInAnyOrder) {
  record();
  open();
  EXPECT_EQ(ask(get("/window")).status, 200);
  const Json first = state("");
  EXPECT_EQ(first.at("step").at("id"), 1);
  EXPECT_EQ(first.at("difference"), "");
  EXPECT_EQ(first.at("sequences").size(), 6U);
  const int num_steps = first.at("about").at("steps");
  ASSERT_GT(num_steps, 30);
  const Json fifth = state("?step=5"), tenth = state("?step=10");
  EXPECT_EQ(tenth.at("step").at("id"), 10);
  EXPECT_EQ(state("?step=5"), fifth);
  EXPECT_EQ(state("?step=10"), tenth);
  const std::string behind_last = format_text("?step={}", num_steps - 1);
  const Json last = state(behind_last), end = state("?step=1000000");
  EXPECT_EQ(end.at("step").at("id"), num_steps - 1);
  for (const Json& sequence : end.at("sequences")) EXPECT_EQ(sequence.at("state"), "ended");
  EXPECT_NE(last, end);
  EXPECT_EQ(state(behind_last), last);
  EXPECT_EQ(state("?step=0"), first);
  EXPECT_EQ(state("?step=x"), first);
}

TEST_F(ReplayWindowTest, ATimeIsTheLastStepPlannedByThen) {
  record();
  open();
  const Json tenth = state("?step=10");
  const double time = tenth.at("time");
  EXPECT_EQ(state(format_text("?time={:.7f}", time + 1e-7)).at("step").at("id"), 10);
  EXPECT_EQ(state("?time=0").at("step").at("id"), 1);
  const int last = tenth.at("about").at("steps").get<int>() - 1;
  EXPECT_EQ(state("?time=nan").at("step").at("id"), last);
  EXPECT_EQ(state("?time=1e9").at("step").at("id"), last);
}

TEST_F(ReplayWindowTest, WhatIsNoServerOfAModelSaysSo) {
  record();
  open();
  EXPECT_EQ(ask(get("/v1/models")).status, 503);
}

TEST_F(ReplayWindowTest, TheLastPartOfARecordingIsRefused) {
  RecordingInfo info;
  info.from_start = false;
  const std::vector<std::byte> header = write_header(info);
  const std::string whole(reinterpret_cast<const char*>(header.data()), header.size());
  EXPECT_THROW(make_window(Recording(whole, "F")), Error);
}

}  // namespace
}  // namespace quire::server
