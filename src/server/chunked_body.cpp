#include "server/chunked_body.h"

#include <algorithm>

#include "server/hex_digit.h"

namespace quire::server {

namespace {

[[noreturn]] void fail_coding() { throw HttpError(400, "malformed request: bad chunked coding"); }

}  // namespace

std::size_t ChunkedBody::feed(std::string_view bytes, std::string& body) {
  std::size_t at = 0;
  while (at < bytes.size() && state_ != State::kDone) {
    if (state_ != State::kData) {
      step(bytes[at++]);
      continue;
    }
    const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size() - at));
    body.append(bytes.substr(at, n));
    at += n;
    left_ -= n;
    if (left_ == 0) state_ = State::kDataCr;
  }
  return at;
}

void ChunkedBody::step(char c) {
  const auto expect = [&](char expected, State next) {
    if (c != expected) fail_coding();
    state_ = next;
  };
  switch (state_) {
    case State::kSize:
      if (hex_digit(c) >= 0) return size_digit(c);
      if (digits_ == 0) fail_coding();
      state_ = State::kAfterSize;
      [[fallthrough]];
    case State::kAfterSize:
      if (c == '\r') return expect('\r', State::kSizeEnd);
      if (c == ';') state_ = State::kExtension;
      if (c != ';' && c != ' ' && c != '\t') fail_coding();
      return count_extra(c);
    case State::kExtension:
      if (c == '\r') return expect('\r', State::kSizeEnd);
      return count_extra(c);
    case State::kSizeEnd:
      expect('\n', left_ == 0 ? State::kTrailerStart : State::kData);
      digits_ = 0;
      bytes_ += left_;
      return;
    case State::kDataCr:
      return expect('\r', State::kDataLf);
    case State::kDataLf:
      return expect('\n', State::kSize);
    case State::kTrailerStart:
      if (c == '\r') return expect('\r', State::kLastLf);
      state_ = State::kTrailer;
      [[fallthrough]];
    case State::kTrailer:
      if (c == '\r') return expect('\r', State::kTrailerEnd);
      return count_extra(c);
    case State::kTrailerEnd:
      return expect('\n', State::kTrailerStart);
    case State::kLastLf:
      return expect('\n', State::kDone);
    case State::kData:
    case State::kDone:
      return;
  }
}

void ChunkedBody::size_digit(char c) {
  if (++digits_ > 16) fail_coding();
  left_ = left_ * 16 + static_cast<std::uint64_t>(hex_digit(c));
  // Of 16 digits none is lost, and the sum cannot wrap: bytes_ stays within max_bytes_.
  if (left_ > max_bytes_ - bytes_) throw HttpError(413, "the request body is too large");
}

void ChunkedBody::count_extra(char c) {
  const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  if ((control && c != '\t') || ++extra_bytes_ > max_extra_bytes_) fail_coding();
}

}  // namespace quire::server
