#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <mutex>
#include <set>

#include "hub/hub_fixture.h"
#include "hub/partial_file.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using DownloadFaultTest = HubTest;

bool asks_for_weights(const HubRequest& request) { return request.at_storage && request.method == "GET"; }

TEST_F(DownloadFaultTest, ACutConnectionIsGoneOnWith) {
  std::atomic<int> cuts = 0;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return asks_for_weights(request) && ++cuts <= 3 && send_some(connection, request, 70'000);
  };
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
  std::vector<std::string> ranges;
  for (const HubRequest& request : hub_.requests()) {
    if (asks_for_weights(request)) ranges.push_back(request.header("range"));
  }
  EXPECT_THAT(ranges, ElementsAre("", "bytes=70000-", "bytes=140000-", "bytes=210000-"));
}

TEST_F(DownloadFaultTest, CutsThatBringSomethingAreNotCounted) {
  settings_.max_attempts = 2;
  std::atomic<int> cuts = 0;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return asks_for_weights(request) && ++cuts < 30 && send_some(connection, request, 10'000);
  };
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
}

TEST_F(DownloadFaultTest, CutsThatBringNothingEnd) {
  leave_part(weights_.substr(0, 100));
  std::atomic<int> cuts = 0;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (!asks_for_weights(request)) return false;
    ++cuts;
    return send_some(connection, request, 0);
  };
  expect_failure({"model.safetensors"});
  EXPECT_EQ(cuts, settings_.max_attempts);
  EXPECT_EQ(read(weight_part()), weights_.substr(0, 100));
  EXPECT_FALSE(has_model());
}

TEST_F(DownloadFaultTest, AServerWithoutRangesIsReadFromTheBeginning) {
  hub_.gives_ranges = false;
  std::atomic<bool> cut = false;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return asks_for_weights(request) && !cut.exchange(true) && send_some(connection, request, 70'000);
  };
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
}

TEST_F(DownloadFaultTest, ThePartOfAnEarlierProgramIsGoneOnWith) {
  leave_part(weights_.substr(0, 123'456));
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
  EXPECT_EQ(hub_.requests().back().header("range"), "bytes=123456-");
  EXPECT_FALSE(fs::exists(weight_part()));
}

TEST_F(DownloadFaultTest, AWholePartIsOnlyChecked) {
  leave_part(weights_);
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
  EXPECT_EQ(hub_.count("GET", "model.safetensors"), 0);
}

TEST_F(DownloadFaultTest, ADamagedPartIsBroughtAgain) {
  leave_part(std::string(1000, 'x'));
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
  fs::remove_all(settings_.cache);
  leave_part(weights_ + "and more");
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
}

TEST_F(DownloadFaultTest, AWrongHashIsNeverTakenForAModel) {
  for (const std::string name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
      if (request.method != "GET" || !request.target.ends_with("/" + name)) return false;
      if (name.ends_with(".safetensors") && !request.at_storage) return false;
      std::string content = hub_.files[name];
      content.back() ^= 1;
      return connection.answer(200, "", content);
    };
    expect_failure({name, "another content", "hash"});
    EXPECT_FALSE(has_model());
    const std::string& content = hub_.files[name];
    const std::string hash = name == "model.safetensors" ? sha256_of(content) : git_hash_of(content);
    EXPECT_FALSE(fs::exists(model_folder() / "blobs" / hash));
    EXPECT_FALSE(fs::exists(model_folder() / "blobs" / (hash + ".incomplete")));
    fs::remove_all(settings_.cache);
  }
}

TEST_F(DownloadFaultTest, AnAnswerThatIsTooShortIsAnError) {
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return asks_for_weights(request) && connection.answer(200, "", weights_.substr(0, 1000));
  };
  expect_failure({"ended after 1000 bytes"});
  EXPECT_FALSE(has_model());
}

TEST_F(DownloadFaultTest, AnAnswerWithoutEndIsCut) {
  std::atomic<std::size_t> sent = 0;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (!asks_for_weights(request)) return false;
    connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    const std::string piece(65536, 'x');
    while (connection.send(piece)) sent += piece.size();
    return true;
  };
  expect_failure({"more than the 300000 bytes"});
  EXPECT_FALSE(fs::exists(weight_part()));
  EXPECT_FALSE(has_model());
}

TEST_F(DownloadFaultTest, AStalledConnectionIsCutAndGoneOnWith) {
  settings_.stall_timeout = 1s;
  std::atomic<bool> stalled = false;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (!asks_for_weights(request) || stalled.exchange(true)) return false;
    send_some(connection, request, 1000);
    connection.hold();
    return true;
  };
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
  EXPECT_EQ(hub_.requests().back().header("range"), "bytes=1000-");
}

TEST_F(DownloadFaultTest, TooManyRequestsAreWaitedFor) {
  std::atomic<int> refused = 0;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest&) {
    return refused++ == 0 && connection.answer(429, "Retry-After: 1\r\n");
  };
  const auto start = std::chrono::steady_clock::now();
  find();
  EXPECT_GE(std::chrono::steady_clock::now() - start, 1s);
  EXPECT_TRUE(has_model());
}

TEST_F(DownloadFaultTest, AnHourIsNotWaitedFor) {
  hub_.intercept = [&](const HubConnection& connection, const HubRequest&) {
    return connection.answer(429, "Retry-After: 3600\r\n");
  };
  expect_failure({"HTTP 429", "3600 s"});
}

TEST_F(DownloadFaultTest, ErrorsOfTheServerAreTriedAgain) {
  std::mutex mutex;
  std::set<std::string> seen;  // under mutex: what has been asked for, each of which fails once
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    const std::lock_guard lock(mutex);
    const bool first = seen.insert(request.method + request.target).second;
    return first && connection.answer(seen.size() % 2 == 0 ? 500 : 503, "");
  };
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
}

TEST_F(DownloadFaultTest, RefusalsSayWhatToDo) {
  hub_.files = {{"config.json", "{}"}, {"model.safetensors", weights_}};  // who is refused first is certain
  int status = 0;
  std::string headers;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return request.target.find("/resolve/") != std::string::npos && connection.answer(status, headers);
  };
  const auto expect_refusal = [&](int the_status, const std::string& code,
                                  std::initializer_list<std::string_view> parts) {
    status = the_status;
    headers = code.empty() ? "" : "X-Error-Code: " + code + "\r\n";
    hub_.forget_requests();
    expect_failure(parts);
    EXPECT_FALSE(has_model());
  };
  const std::string page = hub_.url() + "/org/name";
  expect_refusal(401, "GatedRepo", {"org/name", "licence", page, "HF_TOKEN"});
  expect_refusal(403, "GatedRepo", {"org/name", "licence", page, "HF_TOKEN"});
  expect_refusal(401, "", {"org/name", "no such model", "private", "HF_TOKEN"});
  expect_refusal(404, "RepoNotFound", {"org/name", "no such model or revision"});
  expect_refusal(404, "EntryNotFound", {"config.json", "HTTP 404"});
  settings_.token = "hf_old";
  expect_refusal(401, "", {"org/name", "does not take the token"});
  expect_refusal(403, "", {"org/name", "licence", "is set"});
  expect_refusal(418, "", {"config.json", "HTTP 418"});
  hub_.intercept = nullptr;
  expect_error([&] { find({"nobody/nothing"}); }, {"nobody/nothing"});
}

TEST_F(DownloadFaultTest, AnswersThatAreNoneOfAHubAreErrors) {
  std::string body;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return request.is("GET", "/api/") && connection.answer(200, "", body);
  };
  for (const std::string text : {"", "<html>", "{", "[]", "{}", R"({"sha":1,"siblings":[]})",
                                 R"({"sha":"main","siblings":[]})", R"({"sha":"../..","siblings":[]})"}) {
    body = text;
    expect_failure({});
  }
  const std::string commit(40, 'a');
  for (const std::string text : {"[1]", "[{}]", R"([{"rfilename":7}])", R"({"a":"b"})"}) {
    body = R"({"sha":")" + commit + R"(","siblings":)" + text + "}";
    expect_failure({"siblings"});
  }
}

TEST_F(DownloadFaultTest, AFileWithoutHashOrSizeIsRefused) {
  std::string headers;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return request.method == "HEAD" &&
           connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n" + headers + "\r\n");
  };
  const std::string hash(40, 'e');
  for (const std::string text : {"Content-Length: 5\r\n", "ETag: \"../../x\"\r\nContent-Length: 5\r\n",
                                 "ETag: \"abc\"\r\nContent-Length: 5\r\n"}) {
    headers = text;
    expect_failure({"hash and size"});
  }
  headers = "ETag: \"" + hash + "\"\r\n";
  expect_failure({"hash and size"});
  headers = "ETag: \"" + hash + "\"\r\nX-Linked-Size: -5\r\n";
  expect_failure({"hash and size"});
  headers = "ETag: \"" + hash + "\"\r\nX-Linked-Size: 5\r\nX-Repo-Commit: " + hash + "\r\n";
  expect_failure({"commit"});
}

TEST_F(DownloadFaultTest, ExpiredLinksToTheStorageAreAskedForAgain) {
  std::atomic<int> refused = 0;
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    return request.at_storage && refused++ == 0 && connection.answer(403, "", "expired");
  };
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
}

// What a full disk does to a write, without a disk: the file may not grow beyond a size.
TEST_F(DownloadFaultTest, AWriteThatFailsIsOneLineAndKeepsThePart) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100'000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_failure({weight_part().string(), "File too large", "200000 more bytes are needed", "are free"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read(weight_part()), weights_.substr(0, 100'000));
  EXPECT_FALSE(has_model());
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
}

// A file system of 256 KiB.
class SmallDisk {
 public:
  explicit SmallDisk(const fs::path& path) : path_(path) {
    fs::create_directories(path);
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=256k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  fs::path path_;
  bool mounted_ = false;
};

TEST_F(DownloadFaultTest, ADiskWithoutRoomIsNoticedBeforehand) {
  const SmallDisk disk(settings_.cache);
  if (!disk.mounted()) GTEST_SKIP() << "only root may mount a small file system";
  expect_failure({settings_.cache.string(), "300000 bytes are needed", "are free"});
  EXPECT_EQ(hub_.count("GET", "model.safetensors"), 0);
  EXPECT_FALSE(has_model());
}

TEST_F(DownloadFaultTest, ADiskThatFillsUpIsOneLineAndKeepsThePart) {
  const SmallDisk disk(settings_.cache);
  if (!disk.mounted()) GTEST_SKIP() << "only root may mount a small file system";
  PartialFile partial(weight_blob(), sha256_of(weights_), weights_.size(), [](std::int64_t) {});
  expect_error([&] { partial.append(weights_); },
               {weight_part().string(), "No space left on device", "more bytes are needed, 0 are free"});
  EXPECT_GT(fs::file_size(weight_part()), 100'000U);
  EXPECT_FALSE(fs::exists(weight_blob()));
}

TEST_F(DownloadFaultTest, ACacheThatCannotBeWrittenIsNamed) {
  std::ofstream(settings_.cache) << "a file where the cache should be";
  expect_failure({settings_.cache.string()});
}

}  // namespace
}  // namespace quire
