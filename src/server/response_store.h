#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quire::server {

// JSON. It counts among the bytes of the store that made it as long as it lives.
using StoredText = std::shared_ptr<const std::string>;

struct StoredResponse {
  std::size_t key = 0;  // the API key that made it
  StoredText answer;    // without its output
  // Lists of items: what it answers, which begins with those of the turns before, shared; then its output.
  std::vector<StoredText> items;
};

// Responses by id. Those that nobody has asked for longest go first. Thread contract: from any thread.
class ResponseStore {
 public:
  // Of one conversation, as of a request's body. A longer one is not kept.
  static constexpr std::size_t kMaxConversationBytes = 16 << 20;

  // max_bytes: of all texts, each with what it takes beside; 0: nothing is kept.
  explicit ResponseStore(std::size_t max_bytes, std::size_t max_responses = 16384)
      : max_bytes_(max_bytes), max_responses_(max_responses) {}

  bool keeps() const { return max_bytes_ > 0; }
  std::size_t bytes() const { return *bytes_; }
  // earlier: items of the turns before; input, output: of the new one.
  void put(const std::string& id, std::size_t key, std::string answer, std::vector<StoredText> earlier,
           std::string input, std::string output);
  // Null: there is none of that id and key.
  std::shared_ptr<const StoredResponse> find(const std::string& id, std::size_t key);
  bool erase(const std::string& id, std::size_t key);

 private:
  using ByUse = std::list<std::pair<std::string, std::shared_ptr<const StoredResponse>>>;

  StoredText make_text(std::string text, std::size_t beside) const;
  ByUse::iterator look_up(const std::string& id, std::size_t key);

  const std::size_t max_bytes_;
  const std::size_t max_responses_;
  const std::shared_ptr<std::atomic<std::size_t>> bytes_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::mutex mutex_;  // of all below
  ByUse by_use_;      // the latest first
  std::unordered_map<std::string, ByUse::iterator> by_id_;
};

}  // namespace quire::server
