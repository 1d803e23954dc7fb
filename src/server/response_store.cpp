#include "server/response_store.h"

#include <algorithm>
#include <utility>

namespace quire::server {
namespace {

constexpr std::size_t kTextOverhead = 160;   // bytes, of the object and its allocations
constexpr std::size_t kEntryOverhead = 512;  // of the entry in list and map, both with its id

}  // namespace

StoredText::StoredText(std::string text, std::size_t bytes, std::shared_ptr<std::atomic<std::size_t>> sum)
    : text_(std::move(text)), bytes_(bytes), sum_(std::move(sum)) {
  *sum_ += bytes_;
}

std::shared_ptr<const StoredText> ResponseStore::make_text(std::string text, std::size_t beside) const {
  text.shrink_to_fit();
  const std::size_t bytes = text.size() + kTextOverhead + beside;
  return std::make_shared<const StoredText>(std::move(text), bytes, bytes_);
}

void ResponseStore::put(const std::string& id, std::size_t key, std::string answer, StoredItems earlier,
                        std::string input, std::string output) {
  std::size_t bytes = answer.size() + input.size() + output.size();
  for (const auto& text : earlier) bytes += (**text).size();
  if (bytes > std::min(max_bytes_, kMaxConversationBytes)) return;  // others are worth more

  auto made = std::make_shared<StoredResponse>();
  made->key = key;
  made->items = std::move(earlier);
  made->items.push_back(make_text(std::move(input), 0));
  made->items.push_back(make_text(std::move(output), 0));
  made->items.shrink_to_fit();
  const std::size_t beside = kEntryOverhead + made->items.size() * sizeof(StoredItems::value_type);
  made->answer = make_text(std::move(answer), beside);

  const std::lock_guard lock(mutex_);
  by_use_.push_front({id, std::move(made)});
  by_id_[id] = by_use_.begin();
  while (!by_use_.empty() && (*bytes_ > max_bytes_ || by_use_.size() > max_responses_)) {
    by_id_.erase(by_use_.back().id);
    by_use_.pop_back();
  }
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id, std::size_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->key != key) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, found->second);
  return found->second->response;
}

bool ResponseStore::erase(const std::string& id, std::size_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->key != key) return false;
  by_use_.erase(found->second);
  by_id_.erase(found);
  return true;
}

}  // namespace quire::server
