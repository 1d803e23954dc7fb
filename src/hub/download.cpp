#include "hub/download.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWorkers = 4;  // files at once
constexpr std::chrono::milliseconds kTick{100};

// Where `quire verify` finds what a model's logits should be. Few repositories have one.
constexpr const char* kExpectedFile = "expected.safetensors";

struct Item {
  std::string name;
  HubFile file;
};

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void check_names(const std::string& id, const HubRevision& revision) {
  if (!is_commit(revision.commit)) fail("{}: the hub names a commit {}", id, in_quotes(revision.commit));
  for (const std::string& file : revision.files)
    if (!is_safe_path(file)) fail("{}: the hub lists a file {}, which is no safe name", id, in_quotes(file));
}

[[noreturn]] void fail_incomplete(const std::string& id, const std::vector<std::string>& files) {
  const auto gguf = std::ranges::find_if(files, [](const auto& file) { return file.ends_with(".gguf"); });
  if (gguf != files.end())
    fail(
        "{}: has no model.safetensors; name one of its GGUF files or quantisations behind a colon, as in "
        "{}:{}",
        id, id, *gguf);
  if (!contains(files, kConfigFile)) fail("{}: has no config.json: it is no model", id);
  for (const std::string& file : files) {
    const std::string extension = fs::path(file).extension().string();
    if (contains({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"}, extension))
      fail("{}: has no model.safetensors, only {} and the like, which Quire does not read", id,
           in_quotes(file));
  }
  fail("{}: has no model.safetensors: it is no model that Quire reads", id);
}

class Download {
 public:
  Download(const HubSettings& settings, const HubModel& model, const DownloadHooks& hooks)
      : settings_(settings), model_(model), hooks_(hooks), cache_(settings.cache, model.id) {}

  fs::path run() {
    const std::optional<std::string> cached = cache_.commit_of(model_.revision);
    const bool whole = cached && is_whole(*cached);
    if (settings_.offline && !whole) fail_offline(cached);
    // A commit is what it was; but a program that needed no tokenizer may have left it without one.
    const bool is_settled = whole && is_commit(model_.revision) &&
                            (!model_.gguf.empty() || cache_.has(*cached, "tokenizer.json"));
    if (settings_.offline || is_settled) return found(*cached);
    HubRevision revision;
    try {
      revision = ask_revision(whole ? 1 : settings_.max_attempts);
    } catch (const Error& e) {
      if (!whole) throw;
      log_warning("{}; the copy of {} in the cache is used, commit {}", e.what(), model_.id, *cached);
      return found(*cached);
    }
    model_.gguf.empty() ? complete(revision) : complete_gguf(revision);
    // A whole copy stays what an offline start finds, until the new one is whole too.
    if (model_.with_weights || !model_.gguf.empty() || !cached ||
        cache_.missing_file(*cached, /*with_weights=*/true))
      cache_.set_commit(model_.revision, revision.commit);
    return found(revision.commit);
  }

 private:
  using Task = std::function<void(HubClient& client, std::size_t index)>;

  bool is_whole(const std::string& commit) const {
    return model_.gguf.empty() ? !cache_.missing_file(commit, model_.with_weights)
                               : !cache_.find_gguf(commit, model_.gguf).empty();
  }

  // What is whole, as it is opened.
  fs::path found(const std::string& commit) const {
    const fs::path folder = cache_.snapshot(commit);
    return model_.gguf.empty() ? folder : folder / cache_.find_gguf(commit, model_.gguf).front();
  }

  void complete_gguf(const HubRevision& revision) {
    const std::vector<std::string> names = choose_gguf(revision.files, model_.gguf);
    if (names.empty()) {
      std::vector<std::string> others;
      for (const std::string& file : revision.files)
        if (file.ends_with(".gguf")) others.push_back(file);
      fail("{}: has no GGUF file {}{}", model_.id, in_quotes(model_.gguf),
           others.empty() ? "" : "; there are " + join_text(others, ", "));
    }
    if (names.size() != num_gguf_parts(names.front()))
      fail("{}: has {} of the {} parts of {}", model_.id, names.size(), num_gguf_parts(names.front()),
           in_quotes(names.front()));
    link(revision.commit, fetch(revision.commit, names));
  }

  [[noreturn]] void fail_offline(const std::optional<std::string>& commit) const {
    if (commit && fs::exists(cache_.snapshot(*commit)))
      fail("{}: no {} in {}, and nothing is downloaded offline", model_.id,
           model_.gguf.empty() ? *cache_.missing_file(*commit, model_.with_weights) : model_.gguf,
           cache_.snapshot(*commit).string());
    fail("{}: no such directory, and no revision {} of such a model in {}; nothing is downloaded offline",
         model_.id, model_.revision, settings_.cache.string());
  }

  HubRevision ask_revision(int max_attempts) const {
    HubSettings settings = settings_;
    settings.max_attempts = max_attempts;
    HubClient client(settings, model_.id, hooks_.stopped);
    HubRevision revision = client.revision(model_.revision);
    check_names(model_.id, revision);
    return revision;
  }

  // In this order of links: a snapshot with a config.json has all text, one with model.safetensors or its
  // index has all.
  void complete(const HubRevision& revision) {
    const std::string& commit = revision.commit;
    std::vector<std::string> names = text_files(revision.files);
    const bool has_weights = contains(revision.files, kWeightFile);
    const bool has_index = !has_weights && contains(revision.files, kIndexFile);
    if (!contains(names, kConfigFile) || (model_.with_weights && !has_weights && !has_index))
      fail_incomplete(model_.id, revision.files);
    std::stable_partition(names.begin(), names.end(), [](const auto& name) { return name != kConfigFile; });
    link(commit, fetch(commit, names));
    if (!model_.with_weights) return;
    const std::vector<Item> index = fetch(commit, std::vector<std::string>(has_index ? 1 : 0, kIndexFile));
    link(commit, fetch(commit, weight_files(revision, index)));
    link(commit, index);
  }

  void link(const std::string& commit, const std::vector<Item>& items) const {
    for (const Item& item : items) cache_.link(commit, item.name, item.file.etag);
  }

  std::vector<std::string> weight_files(const HubRevision& revision, const std::vector<Item>& index) const {
    std::vector<std::string> names;
    if (contains(revision.files, kExpectedFile)) names.push_back(kExpectedFile);
    if (contains(revision.files, kWeightFile)) {
      names.push_back(kWeightFile);
      return names;
    }
    for (std::string& shard : shards_of(index.empty() ? cache_.snapshot(revision.commit) / kIndexFile
                                                      : cache_.blob(index[0].file.etag))) {
      if (!contains(revision.files, shard))
        fail("{}: {} names {}, which the hub does not have", model_.id, kIndexFile, in_quotes(shard));
      names.push_back(std::move(shard));
    }
    return names;
  }

  // Returns those that the snapshot had not: their blobs are there now.
  std::vector<Item> fetch(const std::string& commit, const std::vector<std::string>& names) {
    std::vector<Item> items;
    for (const std::string& name : names)
      if (!cache_.has(commit, name)) items.push_back({name, {}});
    in_parallel(items.size(), [&](HubClient& client, std::size_t i) {
      items[i].file = client.look_up(commit, items[i].name);
    });
    check_space(items);
    in_parallel(items.size(),
                [&](HubClient& client, std::size_t i) { fetch_blob(client, commit, items[i]); });
    return items;
  }

  void check_space(const std::vector<Item>& items) {
    std::set<std::string> etags;  // two names may have the same contents
    std::uint64_t needed = 0;
    total_ = 0;
    done_ = 0;
    for (const Item& item : items) {
      std::error_code ec;
      if (fs::exists(cache_.blob(item.file.etag), ec) || !etags.insert(item.file.etag).second) continue;
      const auto there = fs::file_size(cache_.blob(item.file.etag).string() + ".incomplete", ec);
      needed += item.file.size - (ec ? 0 : std::min<std::uint64_t>(there, item.file.size));
      total_ += static_cast<std::int64_t>(item.file.size);
    }
    if (needed == 0) return;
    std::error_code ec;
    fs::create_directories(settings_.cache, ec);
    const fs::space_info space = fs::space(settings_.cache, ec);
    if (!ec && space.available < needed)
      fail("{}: {} bytes are needed for {}, {} are free", settings_.cache.string(), needed, model_.id,
           space.available);
  }

  void fetch_blob(HubClient& client, const std::string& commit, const Item& item) {
    const fs::path blob = cache_.blob(item.file.etag);
    std::error_code ec;
    if (fs::exists(blob, ec)) return;
    const FileLock lock(cache_.lock(item.file.etag), [this] { return stop_.load(); });
    if (fs::exists(blob, ec)) {  // who had the lock has made it
      total_ -= static_cast<std::int64_t>(item.file.size);
      return;
    }
    PartialFile partial(blob, item.file.etag, item.file.size, [this](std::int64_t bytes) {
      if (stop_) throw Stopped();  // a long part that was there is read first
      done_ += bytes;
    });
    // A part that was there before may be what is wrong; that it is wrong twice is the hub's doing.
    for (int attempt = partial.size() > 0 ? 0 : 1; attempt < 2; ++attempt) {
      client.fetch(commit, item.name, partial);
      if (partial.finish()) return;
    }
    fs::remove(blob.string() + ".incomplete", ec);
    fail("{}: {} came with another content than its hash {} says; nothing of it was kept", model_.id,
         item.name, item.file.etag);
  }

  void in_parallel(std::size_t count, const Task& task) {
    std::atomic<std::size_t> next = 0;
    std::exception_ptr first;
    const auto work = [&] {
      try {
        HubClient client(settings_, model_.id, [this] { return stop_.load(); });
        for (std::size_t index; !stop_ && (index = next++) < count;) task(client, index);
      } catch (...) {
        if (!stop_.exchange(true)) first = std::current_exception();  // what others throw comes of it
      }
    };
    std::vector<std::future<void>> workers;
    for (std::size_t i = 0; i < std::min(count, kWorkers); ++i)
      workers.push_back(std::async(std::launch::async, work));
    for (const std::future<void>& worker : workers)
      while (worker.wait_for(kTick) != std::future_status::ready) tick();
    tick();
    if (first) std::rethrow_exception(first);
    if (stop_) throw Stopped();
  }

  void tick() {
    if (hooks_.stopped()) stop_ = true;
    const std::int64_t total = total_;
    if (hooks_.on_progress && total > 0)
      hooks_.on_progress(static_cast<std::uint64_t>(std::clamp<std::int64_t>(done_, 0, total)),
                         static_cast<std::uint64_t>(total));
  }

  const HubSettings& settings_;
  const HubModel& model_;
  const DownloadHooks& hooks_;
  const HubCache cache_;
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> done_{0};  // bytes, of
  std::atomic<std::int64_t> total_{0};
};

}  // namespace

bool is_hub_model(const std::string& name) {
  std::error_code ec;
  return is_hub_id(name.substr(0, name.find(':'))) && !fs::exists(name, ec);
}

HubModel parse_hub_model(const std::string& name, std::string revision, bool with_weights) {
  const std::size_t colon = std::min(name.find(':'), name.size());
  if (colon + 1 == name.size())
    fail("{}: behind the colon comes a GGUF file of it, or a quantisation such as Q4_K_M", name);
  return {name.substr(0, colon), std::move(revision), with_weights,
          name.substr(std::min(colon + 1, name.size()))};
}

fs::path find_hub_model(const HubSettings& settings, const HubModel& model, const DownloadHooks& hooks) {
  QUIRE_CHECK(is_hub_id(model.id));
  if (!is_safe_path(model.revision))
    fail("--revision: {} is no branch, tag or commit", in_quotes(model.revision));
  return Download(settings, model, hooks).run();
}

}  // namespace quire
