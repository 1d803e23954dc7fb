#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace quire {

// Takes a stream of server-sent events apart, whatever pieces it comes in. Lines may end with LF, CR LF or
// CR; comments and every field but `data` are dropped.
class SseReader {
 public:
  // Calls `on_data` with the data of every event that `bytes` completes. Error: an event of over 16 MiB.
  void read(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);

 private:
  void take_line(const std::function<void(std::string_view data)>& on_data);

  std::string line_;           // not ended yet
  std::string data_;           // of the event so far
  bool has_data_ = false;      // a data line was there, if only an empty one
  bool after_return_ = false;  // the last byte was CR: an LF belongs to it
};

}  // namespace quire
