#include "parallel/control_frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace quire {

bool FrameReader::take(std::span<const std::byte> bytes, const OnFrame& on_frame) {
  while (true) {
    if (header_bytes_ < sizeof(header_)) {
      const std::size_t n = std::min(bytes.size(), sizeof(header_) - header_bytes_);
      std::memcpy(reinterpret_cast<std::byte*>(&header_) + header_bytes_, bytes.data(), n);
      header_bytes_ += n;
      bytes = bytes.subspan(n);
      if (header_bytes_ < sizeof(header_)) return true;
    }
    if (header_.magic != FrameHeader::kMagic || header_.type > FrameType::kLost || header_.length > kMaxBody)
      return false;
    const std::size_t n = std::min<std::size_t>(bytes.size(), header_.length - body_.size());
    body_.reserve(header_.length);
    body_.insert(body_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (body_.size() < header_.length) return true;
    header_bytes_ = 0;
    on_frame(header_, std::exchange(body_, {}));
  }
}

}  // namespace quire
