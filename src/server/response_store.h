#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace quire::server {

// A text that counts, as long as it lives, among the bytes of the store that made it.
class StoredText {
 public:
  StoredText(std::string text, std::size_t bytes, std::shared_ptr<std::atomic<std::size_t>> sum);
  ~StoredText() { *sum_ -= bytes_; }
  StoredText(const StoredText&) = delete;
  StoredText& operator=(const StoredText&) = delete;

  const std::string& operator*() const { return text_; }

 private:
  const std::string text_;
  const std::size_t bytes_;
  const std::shared_ptr<std::atomic<std::size_t>> sum_;
};

// Lists of items as JSON, in order. Turns of one conversation share those of the turns before them.
using StoredItems = std::vector<std::shared_ptr<const StoredText>>;

struct StoredResponse {
  std::size_t key = 0;                       // the API key that made it
  std::shared_ptr<const StoredText> answer;  // as JSON, its output left out
  StoredItems items;                         // what it answers, earlier turns first; then its output
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
  // earlier: of the turns before; input, output: the new one's, as JSON.
  void put(const std::string& id, std::size_t key, std::string answer, StoredItems earlier, std::string input,
           std::string output);
  // Null: there is none of that id and key.
  std::shared_ptr<const StoredResponse> find(const std::string& id, std::size_t key);
  bool erase(const std::string& id, std::size_t key);

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
  };
  using Place = std::list<Entry>::iterator;

  std::shared_ptr<const StoredText> make_text(std::string text, std::size_t beside) const;

  const std::size_t max_bytes_;
  const std::size_t max_responses_;
  const std::shared_ptr<std::atomic<std::size_t>> bytes_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::mutex mutex_;         // of all below
  std::list<Entry> by_use_;  // the latest first
  std::unordered_map<std::string, Place> by_id_;
};

}  // namespace quire::server
