// /window of a server: the page, who may see what, and the frames.
#include <gmock/gmock.h>

#include "allocations.h"
#include "server/api_server_fixture.h"
#include "server/window.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

class LiveWindowTest : public ApiServerTest {
 protected:
  void open(const ApiServerConfig& config = quiet(), bool with_text = false) {
    listen(config);
    EngineHooks hooks;
    hooks.fault = [](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kSubmit && is_slow_)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    load(small(), std::move(hooks));
    server_->show(make_window(*engine_, {.model = "toy", .with_text = with_text}));
  }
  // The next event's JSON.
  static Json next(HttpClient& client) {
    client.read_until("data: ");
    return Json::parse(client.read_until("\n\n"));
  }
  static bool has_state(const Json& frame, const char* wanted) {
    return std::ranges::any_of(frame.at("sequences"), [&](const Json& s) { return s.at("state") == wanted; });
  }
  // What events add up to, until it is so; at the latest when a sequence has ended.
  template <typename Condition>
  static Json follow(HttpClient& client, Json state, const Condition& condition) {
    while (!condition(state) && !has_state(state, "ended")) state.merge_patch(next(client));
    return state;
  }
  // What is shown while the engine decodes a long completion, which the client asks for. Frames are far
  // apart: at its own speed it might begin and end between two.
  Json show_decoding(HttpClient& client, HttpClient& watcher, Json state) {
    struct Slow {
      Slow() { is_slow_ = true; }
      ~Slow() { is_slow_ = false; }
    } slow;
    client.send(post_json("/v1/completions", kLongCompletion));
    return follow(watcher, std::move(state), [](const Json& frame) { return has_state(frame, "decoding"); });
  }

  static inline std::atomic<bool> is_slow_ = false;  // each step takes 20 ms
};

TEST_F(LiveWindowTest, ThePageAndItsFilesNeedNoKeyAndLoadNothingFromElsewhere) {
  ApiServerConfig config = quiet();
  config.api_keys = {"secret"};
  open(config);
  const HttpReply page = ask(get("/window"));
  ASSERT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.headers.at("content-security-policy"), HasSubstr("default-src 'none'; script-src 'self'"));
  EXPECT_THAT(page.body, HasSubstr("window/main.js"));
  EXPECT_EQ(page.body.find("://"), std::string::npos);
  for (const char* file : {"/window/style.css", "/window/main.js", "/window/stream.js", "/window/field.js",
                           "/window/sequences.js", "/window/charts.js", "/window/words.js"}) {
    const HttpReply reply = ask(get(file));
    EXPECT_EQ(reply.status, 200) << file;
    EXPECT_EQ(reply.body.find("://"), std::string::npos) << file;
  }
  EXPECT_EQ(ask(get("/window/other.js")).status, 404);
  EXPECT_EQ(ask(get("/window/state")).status, 401);
  EXPECT_EQ(ask("/window", "{}").status, 405);
}

TEST_F(LiveWindowTest, WithoutTheFlagThereIsNone) {
  listen();
  EXPECT_EQ(ask(get("/window")).status, 503);
  load();
  const HttpReply reply = ask(get("/window/state"));
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(error_of(reply), "there is no window; `quire serve --window` opens one");
}

TEST_F(LiveWindowTest, FollowsASequenceFromItsPromptToItsEnd) {
  open();
  HttpClient watcher = connect();
  watcher.send(get("/window/state"));
  const Json first = next(watcher);
  EXPECT_EQ(first.at("about").at("model"), "toy");
  EXPECT_EQ(first.at("blocks").size(), first.at("about").at("blocks").get<std::size_t>());
  EXPECT_TRUE(first.at("sequences").empty());

  HttpClient client = connect();
  const Json decoding = show_decoding(client, watcher, first);
  const Json& sequence = decoding.at("sequences").begin().value();
  ASSERT_EQ(sequence.at("state"), "decoding");
  EXPECT_GT(sequence.at("prompt"), 0);
  EXPECT_FALSE(sequence.at("table").empty());
  EXPECT_EQ(sequence.at("text"), "");
  const int block = sequence.at("table").at("0");
  EXPECT_EQ(decoding.at("blocks").at(std::to_string(block)).at(0), 1);
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_TRUE(has_state(follow(watcher, decoding, [](const Json&) { return false; }), "ended"));
}

TEST_F(LiveWindowTest, EveryWatcherGetsAWholeFrameAndThenTheSameDifferences) {
  open();
  HttpClient early = connect(), late = connect();
  early.send(get("/window/state"));
  Json state = next(early);
  late.send(get("/window/state"));
  const Json whole = next(late);
  EXPECT_TRUE(whole.contains("about"));
  while (state.at("time") < whole.at("time")) state.merge_patch(next(early));
  EXPECT_EQ(state, whole);
  const Json difference = next(late);
  EXPECT_FALSE(difference.contains("about"));
  EXPECT_FALSE(difference.contains("blocks"));
}

TEST_F(LiveWindowTest, TextsAreShownOnlyWhereTheyAreAskedFor) {
  open(quiet(), true);
  HttpClient watcher = connect();
  watcher.send(get("/window/state"));
  HttpClient client = connect();
  const Json frame = show_decoding(client, watcher, next(watcher));
  ASSERT_TRUE(has_state(frame, "decoding"));
  EXPECT_NE(frame.at("sequences").begin().value().at("text"), "");
}

TEST_F(LiveWindowTest, NoMemoryForAFrameEndsNothing) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  open();
  HttpClient watcher = connect();
  watcher.send(get("/window/state"));
  next(watcher);
  static std::atomic<const char*> thread;
  static std::atomic<int> left = 0;  // allocations of that thread until one fails, and that one
  testing::on_allocation = [](std::size_t) {
    char name[16] = "";
    if (left > 0 && pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
        std::string_view(name) == thread.load() && --left == 0)
      throw std::bad_alloc();
  };
  for (const char* const each : {"quire-window", "quire-engine"}) {  // asks for it; makes it
    thread = each;
    for (int nth = 1; nth <= 3; ++nth)
      for (left = nth; left > 0;) next(watcher);
    next(watcher);
  }
  testing::on_allocation = nullptr;
}

TEST_F(LiveWindowTest, NothingIsBookedOnceNobodyWatches) {
  open();
  const auto watch_once = [&] {
    HttpClient watcher = connect();
    watcher.send(get("/window/state"));
    return next(watcher).at("time").get<double>();
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  watch_once();
  double time = 0;
  do {  // until the window has seen that the client has gone
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    time = watch_once();
  } while (time >= 0.2 && std::chrono::steady_clock::now() < end);
  EXPECT_LT(time, 0.2) << "the watching never began anew";
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": "Once", "max_tokens": 3})").status, 200);
}

TEST_F(LiveWindowTest, StoppingDoesNotWaitForWhoeverWatches) {
  open();
  HttpClient watcher = connect();
  watcher.send(get("/window/state"));
  next(watcher);
  const auto start = std::chrono::steady_clock::now();
  server_->stop(std::chrono::seconds(20));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_THAT(watcher.read_to_end(), HasSubstr("event: end"));
}

TEST_F(LiveWindowTest, TooManyWatchersAreRefused) {
  open();
  std::vector<HttpClient> watchers;
  for (int i = 0; i < 32; ++i) {
    watchers.push_back(connect());
    watchers.back().send(get("/window/state"));
    watchers.back().read_until("\r\n\r\n");
  }
  EXPECT_EQ(ask(get("/window/state")).status, 503);
}

}  // namespace
}  // namespace quire::server
