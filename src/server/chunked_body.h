#pragma once

#include <cstddef>
#include <cstdint>
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

// Takes the chunked coding (RFC 9112, 7.1) off a body as it arrives, in constant memory. Chunk extensions and
// trailers are skipped. HttpError: 413 beyond max_bytes; 400 where the coding is broken, or its extensions
// and trailers exceed max_extra_bytes.
class ChunkedBody {
 public:
  ChunkedBody(std::size_t max_bytes, std::size_t max_extra_bytes)
      : max_bytes_(max_bytes), max_extra_bytes_(max_extra_bytes) {}

  // Appends what the bytes hold of the body. Returns how many were taken: all, unless the body ended.
  std::size_t feed(std::string_view bytes, std::string& body);
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State {
    kSize,       // hexadecimal digits
    kAfterSize,  // blanks
    kExtension,
    kSizeEnd,  // LF of the size's line
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,  // of a trailer's line, or of the last one, which is empty
    kTrailer,
    kTrailerEnd,  // its LF
    kLastLf,
    kDone
  };

  void step(char c);
  void size_digit(char c);
  void count_extra(char c);

  const std::size_t max_bytes_;
  const std::size_t max_extra_bytes_;
  State state_ = State::kSize;
  int digits_ = 0;           // of this chunk's size
  std::uint64_t left_ = 0;   // of this chunk
  std::uint64_t bytes_ = 0;  // of all chunks so far
  std::size_t extra_bytes_ = 0;
};

}  // namespace quire::server
