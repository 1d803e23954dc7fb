#pragma once

#include <string>

namespace quire {

// Where `location`, absolute or relative, leads to from `base`. Error when it is no http or https URL.
std::string join_url(const std::string& base, const std::string& location);

// Whether both have the same scheme, host and port. Both are http or https URLs.
bool same_origin(const std::string& a, const std::string& b);

bool is_https(const std::string& url);

// A segment of a path: all but letters, digits and -._~ as %XX.
std::string escape_segment(const std::string& text);

}  // namespace quire
