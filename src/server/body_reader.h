#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quire::server {

// What a client sent is no request that this server takes; the answer is this status, and the connection
// ends.
struct HttpError : Error {
  HttpError(int error_status, const std::string& message) : Error(message), status(error_status) {}
  int status;
};

// Reads a body as it arrives: of a known length, or in the chunked coding (RFC 9112, 7.1), which is taken off
// in constant memory. Chunk extensions and trailers are skipped. HttpError: 413 beyond max_bytes; 400 where
// the coding is broken, or its extensions and trailers exceed max_extra_bytes.
class BodyReader {
 public:
  // length: unset where the body is chunked.
  BodyReader(std::optional<std::uint64_t> length, std::size_t max_bytes, std::size_t max_extra_bytes);

  // Appends what the bytes hold of the body. Returns how many were taken: all but a line that has not ended,
  // which must come again, and what stands behind the body.
  std::size_t feed(std::string_view bytes, std::string& body);
  bool done() const { return next_ == Next::kDone; }

 private:
  enum class Next { kSize, kData, kDataEnd, kTrailer, kDone };

  void check_size(std::uint64_t size) const;
  void begin_data(std::uint64_t size);

  std::size_t take_data(std::string_view bytes, std::string& body);
  std::size_t take_line(std::string_view bytes);
  void take_size(std::string_view line, bool ended);
  void take_extra(std::string_view extra, bool ended);

  const bool chunked_;
  const std::size_t max_bytes_;
  const std::size_t max_extra_bytes_;
  Next next_ = Next::kSize;
  std::uint64_t left_ = 0;   // of this chunk, or of the body
  std::uint64_t bytes_ = 0;  // of all chunks so far
  std::size_t extra_bytes_ = 0;
};

}  // namespace quire::server
