#include "server/response_store.h"

#include <algorithm>

namespace quire::server {
namespace {

constexpr std::size_t kTextOverhead = 160;      // bytes, of its objects and allocations
constexpr std::size_t kResponseOverhead = 512;  // of its places in list and map, both with the id

}  // namespace

StoredText ResponseStore::make_text(std::string text, std::size_t beside) const {
  text.shrink_to_fit();
  const std::size_t bytes = text.size() + kTextOverhead + beside;
  *bytes_ += bytes;
  return {new const std::string(std::move(text)), [bytes, sum = bytes_](const std::string* stored) {
            *sum -= bytes;
            delete stored;
          }};
}

void ResponseStore::put(const std::string& id, std::size_t key, std::string answer,
                        std::vector<StoredText> earlier, std::string input, std::string output) {
  std::size_t bytes = answer.size() + input.size() + output.size();
  for (const StoredText& text : earlier) bytes += text->size();
  if (bytes > std::min(max_bytes_, kMaxConversationBytes)) return;  // others are worth more

  auto made = std::make_shared<StoredResponse>();
  made->key = key;
  made->items = std::move(earlier);
  made->items.push_back(make_text(std::move(input), 0));
  made->items.push_back(make_text(std::move(output), 0));
  made->items.shrink_to_fit();
  made->answer = make_text(std::move(answer), kResponseOverhead + made->items.size() * sizeof(StoredText));

  const std::lock_guard lock(mutex_);
  by_use_.emplace_front(id, std::move(made));
  by_id_[id] = by_use_.begin();
  while (!by_use_.empty() && (*bytes_ > max_bytes_ || by_use_.size() > max_responses_)) {
    by_id_.erase(by_use_.back().first);
    by_use_.pop_back();
  }
}

// Under mutex_; the end: there is none.
ResponseStore::ByUse::iterator ResponseStore::look_up(const std::string& id, std::size_t key) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() || found->second->second->key != key ? by_use_.end() : found->second;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id, std::size_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = look_up(id, key);
  if (found == by_use_.end()) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, found);
  return found->second;
}

bool ResponseStore::erase(const std::string& id, std::size_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = look_up(id, key);
  if (found == by_use_.end()) return false;
  by_use_.erase(found);
  by_id_.erase(id);
  return true;
}

}  // namespace quire::server
