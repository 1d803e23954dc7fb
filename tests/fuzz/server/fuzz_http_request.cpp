// Requests of one connection, in pieces: the first byte of the input is the size of a piece. Whole, the same
// bytes must be refused or taken alike.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/request_parser.h"

namespace {

using quire::server::HttpError;
using quire::server::HttpLimits;
using quire::server::HttpRequest;
using quire::server::RequestParser;

constexpr HttpLimits kLimits{
    .max_header_bytes = 512, .max_headers = 8, .max_target_bytes = 64, .max_body_bytes = 256};

// All that was read, then whether the connection was refused.
std::string read_all(std::string_view bytes, std::size_t piece) {
  RequestParser parser(kLimits);
  std::string waiting, seen;
  const auto take_requests = [&] {
    for (;;) {
      waiting.erase(0, parser.feed(waiting));
      if (!parser.complete()) return;
      const HttpRequest request = parser.take();
      if (request.body.size() > kLimits.max_body_bytes || request.headers.size() > kLimits.max_headers)
        std::abort();
      seen += request.method + " " + request.target + "\n";
      for (const auto& [name, value] : request.headers) seen += name + ":" + value + "\n";
      seen += request.body + "\n";
    }
  };
  try {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
      waiting += bytes.substr(0, piece);
      take_requests();
      if (waiting.size() > kLimits.max_header_bytes) std::abort();  // would be kept without bound
    }
  } catch (const HttpError&) {
    seen += "refused";
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string pieces = read_all(bytes, std::size_t{data[0]} + 1);
  // A fault may be seen later in pieces, when more of the head is there; never can more requests be seen.
  const std::string whole = read_all(bytes, size);
  if (whole.ends_with("refused") && pieces.ends_with("refused") && whole != pieces) std::abort();
  if (!whole.ends_with("refused") && whole != pieces) std::abort();
  return 0;
}
