#include "http/url.h"

#include <curl/curl.h>

#include <memory>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

using Url = std::unique_ptr<CURLU, decltype([](CURLU* url) { curl_url_cleanup(url); })>;

Url parse(const std::string& text) {
  Url url(curl_url());
  QUIRE_CHECK(url != nullptr);
  if (const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0); code != CURLUE_OK)
    fail("{} is no URL: {}", in_quotes(text), curl_url_strerror(code));
  return url;
}

// "" where the URL has none.
std::string part(const Url& url, CURLUPart which) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
  const std::unique_ptr<char, void (*)(void*)> owner(text, curl_free);
  return text;
}

}  // namespace

std::string join_url(const std::string& base, const std::string& location) {
  const Url url = parse(base);
  const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0);
  const std::string scheme = part(url, CURLUPART_SCHEME);
  if (code != CURLUE_OK || (scheme != "http" && scheme != "https"))
    fail("{} leads to {}, which is no http or https URL", base, in_quotes(location));
  char* text = nullptr;
  QUIRE_CHECK(curl_url_get(url.get(), CURLUPART_URL, &text, 0) == CURLUE_OK);
  const std::unique_ptr<char, void (*)(void*)> owner(text, curl_free);
  return text;
}

bool same_origin(const std::string& a, const std::string& b) {
  const Url first = parse(a);
  const Url second = parse(b);
  for (const CURLUPart which : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
    if (part(first, which) != part(second, which)) return false;
  }
  return true;
}

bool is_https(const std::string& url) { return part(parse(url), CURLUPART_SCHEME) == "https"; }

std::string escape_segment(const std::string& text) {
  if (text.empty()) return {};  // a length of 0 would have curl look for a NUL
  const std::unique_ptr<char, void (*)(void*)> escaped(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), curl_free);
  QUIRE_CHECK(escaped != nullptr);
  return escaped.get();
}

}  // namespace quire
