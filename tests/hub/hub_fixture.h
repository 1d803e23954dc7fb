#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/log.h"
#include "expect_error.h"
#include "hub/download.h"
#include "hub/fake_hub.h"
#include "temp_dir.h"

namespace quire {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using testing::FakeHub;
using testing::git_hash_of;
using testing::HubConnection;
using testing::HubRequest;
using testing::sha256_of;

inline std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A hub with a model, and an empty cache.
class HubTest : public ::testing::Test {
 protected:
  HubTest() {
    set_log_level(LogLevel::kError);  // of many attempts
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] = static_cast<char>(i * i % 251);
    hub_.files = {{"config.json", R"({"model_type":"toy"})"},
                  {"generation_config.json", "{}"},
                  {"tokenizer.json", R"({"version":"1.0"})"},
                  {"README.md", "# A model"},
                  {"model.safetensors", weights_}};
    settings_.endpoint = hub_.url();
    settings_.cache = directory_.path() / "hub";
    settings_.first_backoff = 1ms;
    settings_.max_attempts = 4;
  }

  // The model with its weights in two shards.
  void split_weights() {
    hub_.files.erase("model.safetensors");
    hub_.files["model-00001-of-00002.safetensors"] = weights_.substr(0, 1000);
    hub_.files["model-00002-of-00002.safetensors"] = weights_.substr(1000);
    hub_.files["model.safetensors.index.json"] =
        R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})";
  }

  fs::path find(const HubModel& model = {"org/name"}) {
    struct Settled {
      FakeHub& hub;
      ~Settled() { hub.settle(); }
    } const settled{hub_};
    return find_hub_model(settings_, model, hooks_);
  }
  fs::path find_at(const std::string& revision) { return find(HubModel{"org/name", revision}); }
  void expect_failure(std::initializer_list<std::string_view> parts) {
    expect_error([&] { find(); }, parts);
  }
  // What is taken for a model offline: nothing half-written may be.
  bool has_model() const {
    HubSettings offline = settings_;
    offline.offline = true;
    try {
      find_hub_model(offline, {"org/name"}, {});
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  fs::path model_folder() const { return settings_.cache / "models--org--name"; }
  fs::path weight_blob() const { return model_folder() / "blobs" / sha256_of(weights_); }
  fs::path weight_part() const { return weight_blob().string() + ".incomplete"; }
  // As an earlier download may have left it.
  void leave_part(std::string_view bytes) const {
    fs::create_directories(weight_part().parent_path());
    std::ofstream(weight_part(), std::ios::binary) << bytes;
  }

  // Sends the first bytes of the weights, or of what is asked for of them, and then no more.
  bool send_some(const HubConnection& connection, const HubRequest& request, std::size_t size) const {
    const std::string range = request.header("range");
    const std::size_t begin = range.empty() ? 0 : std::stoull(range.substr(6));
    const std::string_view rest = std::string_view(weights_).substr(begin);
    connection.head(range.empty() ? 200 : 206, "", rest.size());
    connection.send(rest.substr(0, size));
    return true;
  }

  TempDir directory_;
  std::string weights_ = std::string(300'000, '\0');
  HubSettings settings_;
  DownloadHooks hooks_;
  FakeHub hub_;  // last: its threads read the rest
};

}  // namespace quire
