#include "inspect/sse_reader.h"

#include "base/error.h"

namespace quire {

namespace {
constexpr std::size_t kMaxEventBytes = std::size_t{16} << 20;
}  // namespace

void SseReader::read(std::string_view bytes, const std::function<void(std::string_view data)>& on_data) {
  if (after_return_ && !bytes.empty()) {
    if (bytes.front() == '\n') bytes.remove_prefix(1);
    after_return_ = false;
  }
  while (!bytes.empty()) {
    const std::size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kMaxEventBytes)
      fail("an event of the stream is longer than {} bytes", kMaxEventBytes);
    if (end == std::string_view::npos) return;
    take_line(on_data);
    const bool is_return = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (!is_return) continue;
    after_return_ = bytes.empty();
    if (bytes.starts_with('\n')) bytes.remove_prefix(1);
  }
}

void SseReader::take_line(const std::function<void(std::string_view data)>& on_data) {
  constexpr std::string_view kField = "data:";
  if (line_.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
  } else if (line_.starts_with(kField)) {
    if (has_data_) data_ += '\n';
    const std::size_t start = kField.size();
    data_ += std::string_view(line_).substr(line_.size() > start && line_[start] == ' ' ? start + 1 : start);
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace quire
