#include "base/json.h"
#include "server/window.h"

namespace quire::server {
namespace {

struct File {
  std::string_view path, text;
};
constexpr File kFiles[] = {
#include "server/window/page.inc"  // which CMake makes of the folder
};

// Nothing from elsewhere is loaded, and nobody frames the page.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string type_of(std::string_view path) {
  const char* const type = path.ends_with(".js") ? "javascript" : path.ends_with(".css") ? "css" : "html";
  return format_text("text/{}; charset=utf-8", type);
}

}  // namespace

void require_window() {}

void answer_page(Exchange& exchange) {
  const std::string_view path = exchange.request().path().substr(std::string_view("/window").size());
  for (const File& file : kFiles) {
    if (file.path != path) continue;
    return exchange.send(200,
                         {{"Content-Type", type_of(path)},
                          {"Content-Security-Policy", kPolicy},
                          {"X-Content-Type-Options", "nosniff"},
                          {"Referrer-Policy", "no-referrer"},
                          {"Cache-Control", "no-cache"}},
                         std::string(file.text));
  }
  throw ApiError(404, format_text("the window has no {}", in_quotes(path)));
}

}  // namespace quire::server
