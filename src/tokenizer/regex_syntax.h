#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace quire {

// Rewrites a pattern from Oniguruma's Ruby syntax, which tokenizer.json uses, to PCRE2's, where the two
// differ in meaning: \s \d \w \h \v, \u, scripts as \p{...}, nested classes, {,n}. Error for what has no
// equal meaning there and what no published tokenizer uses: back references, flags other than i, && in
// classes. `is_script` tells whether PCRE2 knows a name as that of a script.
std::string oniguruma_to_pcre2(std::string_view pattern,
                               const std::function<bool(const std::string&)>& is_script,
                               std::string_view where);

}  // namespace quire
