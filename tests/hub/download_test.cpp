#include "hub/download.h"

#include "hub/hub_fixture.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using DownloadTest = HubTest;

const std::string kMain(40, 'a');

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) names.push_back(item.path().filename().string());
  return names;
}

TEST_F(DownloadTest, BringsTheFilesThatAreNeededInHuggingFacesLayout) {
  hub_.files["pytorch_model.bin"] = "pickle";
  hub_.files["onnx/model.onnx"] = "graph";
  hub_.files["original/model.safetensors"] = "another";
  hub_.files["chat_template.jinja"] = "{{ messages }}";
  hub_.files["chat_template.json"] = R"({"chat_template": ""})";
  hub_.files["additional_chat_templates/tool_use.jinja"] = "{{ tools }}";
  const fs::path snapshot = find();
  EXPECT_EQ(snapshot, model_folder() / "snapshots" / kMain);
  EXPECT_THAT(
      names_in(snapshot),
      UnorderedElementsAre("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja",
                           "chat_template.json", "additional_chat_templates", "model.safetensors"));
  EXPECT_EQ(read(model_folder() / "refs" / "main"), kMain);
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"),
            "../../blobs/" + git_hash_of(hub_.files["config.json"]));
  EXPECT_EQ(fs::read_symlink(snapshot / "model.safetensors"), "../../blobs/" + sha256_of(weights_));
  EXPECT_EQ(fs::read_symlink(snapshot / "additional_chat_templates" / "tool_use.jinja"),
            "../../../blobs/" + git_hash_of("{{ tools }}"));
  for (const auto& item : fs::recursive_directory_iterator(snapshot)) {
    if (!item.is_regular_file()) continue;
    EXPECT_EQ(read(item.path()), hub_.files[item.path().lexically_relative(snapshot).string()]);
  }
  EXPECT_EQ(names_in(model_folder() / "blobs").size(), 7U);  // nothing unfinished
  EXPECT_TRUE(fs::exists(settings_.cache / ".locks" / "models--org--name" / (sha256_of(weights_) + ".lock")));
}

TEST_F(DownloadTest, TextAloneIsBroughtWithoutTheWeights) {
  const fs::path snapshot = find({"org/name", "main", /*with_weights=*/false});
  EXPECT_TRUE(fs::exists(snapshot / "tokenizer.json"));
  EXPECT_EQ(hub_.count("HEAD", "model.safetensors"), 0);
  EXPECT_FALSE(has_model());
  EXPECT_EQ(find(), snapshot);
  EXPECT_TRUE(has_model());
}

TEST_F(DownloadTest, WhatIsThereIsNotBroughtAgain) {
  find();
  hub_.forget_requests();
  find();
  EXPECT_EQ(hub_.requests().size(), 1U);  // whether main has moved
  find_at(kMain);                         // a commit does not
  EXPECT_EQ(hub_.requests().size(), 1U);
}

TEST_F(DownloadTest, TheTokenGoesToTheHubAlone) {
  settings_.token = "hf_secret";
  find();
  int at_storage = 0;
  for (const HubRequest& request : hub_.requests()) {
    EXPECT_EQ(request.header("authorization"), request.at_storage ? "" : "Bearer hf_secret");
    at_storage += request.at_storage ? 1 : 0;
  }
  EXPECT_EQ(at_storage, 1);
}

TEST_F(DownloadTest, OnceAwayFromTheHubTheTokenIsNotSentAgain) {
  settings_.token = "hf_secret";
  // The storage sends back to the hub: that was not the hub's own wish.
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (!request.at_storage) return false;
    return connection.answer(302, "Location: " + hub_.url() + "/elsewhere\r\n");
  };
  expect_failure({"HTTP 4"});
  for (const HubRequest& request : hub_.requests()) {
    if (!request.at_storage && request.target == "/elsewhere") {
      EXPECT_EQ(request.header("authorization"), "");
    }
  }
  EXPECT_GE(hub_.count("GET", "/elsewhere"), 1);
}

TEST_F(DownloadTest, ARenamedModelIsFollowed) {
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    const std::size_t at = request.target.find("old/name");
    if (at == std::string::npos) return false;
    std::string target = request.target;
    target.replace(at, 8, "org/name");
    return connection.answer(307, "Location: " + target + "\r\n",
                             request.method == "HEAD" ? "" : "Temporary Redirect. Redirecting to " + target);
  };
  EXPECT_EQ(read(find({"old/name"}) / "model.safetensors"), weights_);
}

TEST_F(DownloadTest, RedirectsInACircleAreAnError) {
  hub_.intercept = [](const HubConnection& connection, const HubRequest& request) {
    return connection.answer(302, "Location: " + request.target + "\r\n");
  };
  expect_failure({"more than 5 redirects"});
  hub_.intercept = [](const HubConnection& connection, const HubRequest&) {
    return connection.answer(302, "Location: file:///etc/passwd\r\n");
  };
  expect_failure({"file:///etc/passwd", "no http"});
}

TEST_F(DownloadTest, ShardsAreThoseOfTheIndex) {
  split_weights();
  hub_.files["model-00003-of-00003.safetensors"] = "of an older upload";
  const fs::path snapshot = find();
  EXPECT_EQ(read(snapshot / "model-00001-of-00002.safetensors"), weights_.substr(0, 1000));
  EXPECT_EQ(read(snapshot / "model-00002-of-00002.safetensors"), weights_.substr(1000));
  EXPECT_FALSE(fs::exists(snapshot / "model-00003-of-00003.safetensors"));
  EXPECT_TRUE(has_model());
}

TEST_F(DownloadTest, AnInterruptedDownloadOfSeveralFilesIsGoneOnWith) {
  split_weights();
  const fs::path first = model_folder() / "blobs" / sha256_of(weights_.substr(0, 1000));
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (!request.is("GET", "model-00002") || !request.at_storage) return false;
    while (!fs::exists(first)) std::this_thread::yield();
    return connection.answer(404, "");
  };
  expect_failure({"model-00002"});
  EXPECT_FALSE(has_model());
  EXPECT_FALSE(fs::exists(model_folder() / "snapshots" / kMain / "model.safetensors.index.json"));
  hub_.intercept = nullptr;
  hub_.forget_requests();
  find();
  EXPECT_TRUE(has_model());
  EXPECT_EQ(hub_.count("GET", "model-00001"), 0);  // it was there
  EXPECT_EQ(hub_.count("GET", "config.json"), 0);
}

TEST_F(DownloadTest, WhatAnotherProgramLeftUnfinishedIsCompleted) {
  split_weights();
  const fs::path snapshot = find();
  fs::remove(fs::canonical(snapshot / "model-00002-of-00002.safetensors"));  // the link leads nowhere
  fs::remove(snapshot / "tokenizer.json");
  EXPECT_FALSE(has_model());
  EXPECT_EQ(find(), snapshot);
  EXPECT_EQ(read(snapshot / "model-00002-of-00002.safetensors"), weights_.substr(1000));
  EXPECT_TRUE(fs::exists(snapshot / "tokenizer.json"));
}

TEST_F(DownloadTest, OfflineAnUnfinishedSnapshotIsRefused) {
  split_weights();
  settings_.offline = true;
  expect_failure({"org/name", "no revision main", settings_.cache.string(), "offline"});
  settings_.offline = false;
  const fs::path snapshot = find();
  hub_.forget_requests();
  settings_.offline = true;
  EXPECT_EQ(find(), snapshot);
  EXPECT_EQ(find_at(kMain), snapshot);
  expect_error([&] { find_at("dev"); }, {"no revision dev"});
  fs::remove(snapshot / "model-00002-of-00002.safetensors");
  expect_failure({"no model-00002-of-00002.safetensors in", snapshot.string()});
  EXPECT_EQ(hub_.requests().size(), 0U);
}

TEST_F(DownloadTest, OfflineTheListOfHuggingfaceHubTellsWhatIsMissing) {
  const fs::path snapshot = find();
  fs::remove(snapshot / "tokenizer.json");
  EXPECT_TRUE(has_model());  // a model without tokenizer, for all that can be known
  fs::create_directories(model_folder() / "trees");
  std::ofstream(model_folder() / "trees" / (kMain + ".json"))
      << R"({"format_version":1,"files":{"config.json":{"size":1},"tokenizer.json":{"size":1},"a.bin":{}}})";
  settings_.offline = true;
  expect_failure({"no tokenizer.json in"});
  std::ofstream(model_folder() / "trees" / (kMain + ".json")) << "{";  // cut off, or another user's
  EXPECT_TRUE(has_model());
  EXPECT_EQ(find(), snapshot);
}

TEST_F(DownloadTest, ACommitWithoutATokenizerIsCompleted) {
  const fs::path snapshot = find();
  fs::remove(snapshot / "tokenizer.json");
  EXPECT_EQ(find_at(kMain), snapshot);
  EXPECT_TRUE(fs::exists(snapshot / "tokenizer.json"));
}

TEST_F(DownloadTest, ABranchWithoutItsCommitIsAskedForAgain) {
  const fs::path snapshot = find();
  std::ofstream(model_folder() / "refs" / "main") << "";
  EXPECT_EQ(find(), snapshot);
  EXPECT_EQ(read(model_folder() / "refs" / "main"), kMain);
}

TEST_F(DownloadTest, AMirrorMayLeadToWhatItMirrors) {
  settings_.token = "hf_secret";
  FakeHub mirror;
  mirror.files = hub_.files;
  mirror.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (request.target.find("/resolve/") == std::string::npos) return false;
    return connection.answer(308, "Location: " + hub_.url() + request.target + "\r\n");
  };
  settings_.mirrored = hub_.url();
  settings_.endpoint = mirror.url();
  EXPECT_EQ(read(find() / "model.safetensors"), weights_);
  for (const HubRequest& request : hub_.requests())
    EXPECT_EQ(request.header("authorization"), request.at_storage ? "" : "Bearer hf_secret");
  mirror.settle();
}

TEST_F(DownloadTest, ABranchThatMovedIsFollowedAndTheOldSnapshotKept) {
  const fs::path old = find();
  hub_.revisions["main"] = std::string(40, 'b');
  hub_.files["config.json"] = R"({"model_type":"newer"})";
  hub_.forget_requests();
  const fs::path moved = find();
  EXPECT_EQ(moved, model_folder() / "snapshots" / std::string(40, 'b'));
  EXPECT_EQ(read(model_folder() / "refs" / "main"), std::string(40, 'b'));
  EXPECT_EQ(read(moved / "config.json"), R"({"model_type":"newer"})");
  EXPECT_EQ(read(old / "config.json"), R"({"model_type":"toy"})");
  EXPECT_EQ(hub_.count("GET", "model.safetensors"), 0);  // the same blob
}

TEST_F(DownloadTest, AnOldCopyStaysInPlaceUntilTheNewOneIsWhole) {
  const fs::path old = find();
  hub_.revisions["main"] = std::string(40, 'b');
  hub_.files["model.safetensors"] = weights_ + "more";
  find({"org/name", "main", /*with_weights=*/false});
  hub_.intercept = [](const HubConnection& connection, const HubRequest& request) {
    return request.at_storage && connection.answer(404, "");
  };
  expect_failure({"model.safetensors"});
  settings_.offline = true;
  EXPECT_EQ(find(), old);
}

TEST_F(DownloadTest, BranchesTagsAndCommitsAreRevisions) {
  hub_.revisions = {{"main", kMain}, {"v1.0", std::string(40, 'c')}, {"refs%2Fpr%2F7", std::string(40, 'd')}};
  EXPECT_EQ(find_at("v1.0").filename(), std::string(40, 'c'));
  EXPECT_EQ(find_at("refs/pr/7").filename(), std::string(40, 'd'));
  EXPECT_EQ(read(model_folder() / "refs" / "refs" / "pr" / "7"), std::string(40, 'd'));
  EXPECT_EQ(find_at(kMain).filename(), kMain);
  EXPECT_FALSE(fs::exists(model_folder() / "refs" / kMain));
  expect_error([&] { find_at("nightly"); }, {"nightly", "no such revision"});
  expect_error([&] { find_at("../../x"); }, {"--revision", "../../x"});
}

TEST_F(DownloadTest, WithoutTheHubTheCopyInTheCacheIsUsed) {
  hub_.intercept = [](const HubConnection& connection, const HubRequest&) {
    return connection.answer(503, "");
  };
  expect_failure({"HTTP 503"});
  EXPECT_EQ(hub_.count("GET", "/api/"), settings_.max_attempts);
  hub_.intercept = nullptr;
  const fs::path snapshot = find();
  settings_.endpoint = "http://127.0.0.1:1";  // where nobody listens
  EXPECT_EQ(find(), snapshot);
  expect_error([&] { find_at("v1.0"); }, {"127.0.0.1"});
}

TEST_F(DownloadTest, AModelWithoutSafetensorsIsRefusedByName) {
  hub_.files.erase("model.safetensors");
  hub_.files["pytorch_model.bin"] = "pickle";
  expect_failure({"org/name", "no model.safetensors", "\"pytorch_model.bin\""});
  hub_.files = {{"config.json", "{}"}};
  expect_failure({"org/name", "no model.safetensors"});
  hub_.files = {{"model.safetensors", "x"}};
  expect_failure({"org/name", "no config.json"});
  hub_.files = {{"name-Q8_0.gguf", "x"}};
  expect_failure({"org/name", "no model.safetensors", "org/name:name-Q8_0.gguf"});
  EXPECT_FALSE(fs::exists(settings_.cache));
}

TEST_F(DownloadTest, AGgufFileIsBroughtByNameOrQuantisation) {
  hub_.files = {{"README.md", "# Files"},
                {"name-Q4_K_M.gguf", "four"},
                {"name-Q4_K_S.gguf", "small"},
                {"mmproj-name-Q4_K_M.gguf", "pictures"},
                {"Q8_0/name-Q8_0-00001-of-00002.gguf", "first"},
                {"Q8_0/name-Q8_0-00002-of-00002.gguf", "second"}};
  const auto find_gguf = [&](const std::string& gguf) { return find({"org/name", "main", true, gguf}); };
  const fs::path four = find_gguf("q4_k_m");
  EXPECT_EQ(four, model_folder() / "snapshots" / kMain / "name-Q4_K_M.gguf");
  EXPECT_EQ(read(four), "four");
  EXPECT_THAT(names_in(four.parent_path()), ElementsAre("name-Q4_K_M.gguf"));
  EXPECT_EQ(find_gguf("name-Q4_K_M.gguf"), four);
  const fs::path eight = find_gguf("Q8_0");
  EXPECT_EQ(eight.filename(), "name-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(read(eight.parent_path() / "name-Q8_0-00002-of-00002.gguf"), "second");
  expect_error([&] { find_gguf("Q4_K"); }, {"org/name", "\"Q4_K\"", "name-Q4_K_S.gguf"});
  hub_.files["other-Q4_K_M.gguf"] = "other";
  fs::remove_all(settings_.cache);
  expect_error([&] { find_gguf("Q4_K_M"); }, {"name-Q4_K_M.gguf or other-Q4_K_M.gguf"});
  settings_.offline = true;
  expect_error([&] { find_gguf("Q8_0"); }, {"nothing is downloaded offline"});
}

TEST_F(DownloadTest, AGgufFileIsAnotherThanTheOneOfItsNameInParts) {
  hub_.files = {{"a-Q8_0.gguf", "whole"},
                {"a-Q8_0-00001-of-00002.gguf", "first"},
                {"a-Q8_0-00002-of-00002.gguf", "second"}};
  EXPECT_EQ(read(find({"org/name", "main", true, "a-Q8_0.gguf"})), "whole");
  EXPECT_EQ(read(find({"org/name", "main", true, "a-Q8_0-00001-of-00002.gguf"})), "first");
  expect_error(
      [&] {
        find({"org/name", "main", true, "Q8_0"});
      },
      {"a-Q8_0.gguf or a-Q8_0-00001-of-00002.gguf"});
}

TEST_F(DownloadTest, OfflineAGgufFileIsFoundWhenAllOfItIsThere) {
  hub_.files = {{"a-Q8_0-00001-of-00002.gguf", "first"}, {"a-Q8_0-00002-of-00002.gguf", "second"}};
  const HubModel model{"org/name", "main", true, "Q8_0"};
  const fs::path found = find(model);
  settings_.offline = true;
  hub_.forget_requests();
  EXPECT_EQ(find(model), found);
  EXPECT_EQ(hub_.requests().size(), 0U);
  fs::remove(found.parent_path() / "a-Q8_0-00002-of-00002.gguf");
  expect_error([&] { find(model); }, {"no Q8_0 in"});
}

TEST_F(DownloadTest, UnsafeNamesAreRefused) {
  for (const char* name : {"../evil", "/etc/passwd", "a/../../b", "a//b", "a\\b", "", "./a"}) {
    hub_.files[name] = "x";
    expect_failure({"no safe name"});
    hub_.files.erase(name);
  }
  split_weights();
  for (const char* name : {"../model.safetensors", "/model.safetensors", "folder/model.safetensors",
                           "config.json", "..", ".safetensors/.."}) {
    hub_.files["model.safetensors.index.json"] = nlohmann::json{{"weight_map", {{"a", name}}}}.dump();
    expect_failure({name});
  }
  hub_.files["model.safetensors.index.json"] = R"({"weight_map":{"a":"absent.safetensors"}})";
  expect_failure({"absent.safetensors", "does not have"});
  EXPECT_FALSE(has_model());
}

TEST_F(DownloadTest, TwoDownloadsAtOnceBringEachFileOnce) {
  std::vector<std::jthread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] { EXPECT_EQ(read(find() / "model.safetensors"), weights_); });
  callers.clear();
  int at_storage = 0;
  for (const HubRequest& request : hub_.requests()) at_storage += request.at_storage ? 1 : 0;
  EXPECT_EQ(at_storage, 1);
  EXPECT_EQ(hub_.count("GET", "tokenizer.json"), 1);
}

TEST_F(DownloadTest, AWishToStopIsHeededAndThePartKept) {
  std::atomic<bool> stop = false;
  hooks_.stopped = [&] { return stop.load(); };
  hub_.intercept = [&](const HubConnection& connection, const HubRequest& request) {
    if (!request.at_storage) return false;
    send_some(connection, request, 5000);
    connection.hold();
    return true;
  };
  hooks_.on_progress = [&](std::uint64_t done, std::uint64_t total) {
    stop = total == weights_.size() && done == 5000;
  };
  EXPECT_THROW(find(), Stopped);
  EXPECT_EQ(read(weight_part()), weights_.substr(0, 5000));
  EXPECT_FALSE(has_model());
  stop = false;
  hooks_.on_progress = nullptr;
  hub_.intercept = nullptr;
  hub_.forget_requests();
  find();
  EXPECT_EQ(hub_.requests().back().header("range"), "bytes=5000-");
}

TEST_F(DownloadTest, ProgressGrowsToTheWhole) {
  std::vector<std::uint64_t> seen;
  hooks_.on_progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_LE(done, total);
    if (total == weights_.size()) seen.push_back(done);
  };
  find();
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back(), weights_.size());
}

}  // namespace
}  // namespace quire
