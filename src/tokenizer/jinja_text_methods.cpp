#include <algorithm>

#include "tokenizer/jinja_builtins.h"

namespace quire::jinja {
namespace {

constexpr std::size_t kNowhere = std::string_view::npos;
enum class Side { kLeft, kRight };  // where a search begins

const Text& self_text(const Invocation& call) { return *call.self.text(); }

// visit(offset) for up to `limit` places of `part` that do not overlap, in the order they are found. An
// empty one stands before every code point and at the end.
template <typename Visit>
void find_places(Runtime& runtime, const Text& text, const Text& part, std::size_t limit, Side side,
                 const Visit& visit) {
  runtime.charge_search(text, part);
  std::string_view bytes = text.bytes(), wanted = part.bytes();
  std::string backwards, wanted_backwards;
  if (side == Side::kRight) {
    runtime.charge(2 * text.size());
    backwards.assign(bytes.rbegin(), bytes.rend());
    wanted_backwards.assign(wanted.rbegin(), wanted.rend());
    bytes = backwards;
    wanted = wanted_backwards;
  }
  for (std::size_t from = 0; limit > 0; --limit) {
    const std::size_t place = find_first(bytes, wanted, from);
    if (place == kNowhere) return;
    visit(side == Side::kLeft ? place : bytes.size() - place - wanted.size());
    from = place + wanted.size();
    if (!wanted.empty()) continue;
    if (from == bytes.size()) return;
    while (++from < bytes.size() && is_continuation(bytes[from])) continue;
  }
}

// split(None): words between runs of spaces. With a limit one part is the unsplit rest, spaces at its
// outer end included.
std::vector<Value> split_words(Runtime& runtime, const Text& text, std::size_t limit, Side side) {
  runtime.charge_product(text.size(), 4);
  std::vector<TextRange> words;
  bool inside = false;
  for (const auto& [begin, end, c] : Characters(text.bytes())) {
    const bool space = is_space(c);
    if (!space && !inside) words.push_back({begin, end});
    if (!space) words.back().end = end;
    inside = !space;
  }
  if (words.size() > limit) {
    if (side == Side::kRight) {
      const std::size_t merged = words.size() - limit;
      words[merged - 1].begin = 0;
      words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(merged - 1));
    } else {
      words[limit].end = text.size();
      words.resize(limit + 1);
    }
  }
  std::vector<Value> parts;
  for (const TextRange& word : words) parts.push_back(runtime.make(text.slice(word.begin, word.end)));
  return parts;
}

std::vector<Value> split_by(Runtime& runtime, const Text& text, const Text& separator, std::size_t limit,
                            Side side) {
  if (separator.empty()) fail("empty separator");
  std::vector<Value> parts;
  std::size_t begin = 0, end = text.size();  // of what is not split yet
  find_places(runtime, text, separator, limit, side, [&](std::size_t place) {
    const std::size_t behind = place + separator.size();
    parts.push_back(runtime.make(side == Side::kLeft ? text.slice(begin, place) : text.slice(behind, end)));
    (side == Side::kLeft ? begin : end) = side == Side::kLeft ? behind : place;
  });
  parts.push_back(runtime.make(text.slice(begin, end)));
  if (side == Side::kRight) std::ranges::reverse(parts);
  return parts;
}

template <Side side>
Value split_method(const Invocation& call) {
  const Text* separator = call.text_or_none(0);
  const auto limit = static_cast<std::size_t>(call.integer(1, -1));  // none if it was negative
  return call.runtime.make(separator == nullptr
                               ? split_words(call.runtime, self_text(call), limit, side)
                               : split_by(call.runtime, self_text(call), *separator, limit, side));
}

template <Side side>
Value partition_method(const Invocation& call) {
  const Text& text = self_text(call);
  std::vector<Value> parts = split_by(call.runtime, text, call.text(0), 1, side);
  const bool found = parts.size() == 2;
  parts.resize(3, call.runtime.make("", true));
  if (found) {
    const std::size_t place = parts[0].text()->size();
    const Text separator = text.slice(place, place + call.text(0).size());
    parts[2] = std::exchange(parts[1], call.runtime.make(separator));
  } else if (side == Side::kRight) {
    std::swap(parts[0], parts[2]);
  }
  return call.runtime.make(std::move(parts), ListKind::kTuple);
}

Text stripped(Runtime& runtime, const Text& text, const Text* characters, bool left, bool right) {
  runtime.charge_product(text.memory(), characters == nullptr ? 2 : 2 + characters->size());
  const auto strips = [&](char32_t c) {
    if (characters == nullptr) return is_space(c);
    for (const Character& character : Characters(characters->bytes()))
      if (character.code_point == c) return true;
    return false;
  };
  std::string_view rest = text.bytes();
  if (left) rest = strip_left(rest, strips);
  if (right) rest = strip_right(rest, strips);
  const std::size_t begin = rest.data() - text.bytes().data();
  return text.slice(begin, begin + rest.size());
}

template <bool left, bool right>
Value strip_method(const Invocation& call) {
  const Text& text = text_of(call.runtime, call.self);
  return call.runtime.make(stripped(call.runtime, text, call.text_or_none(0), left, right));
}

bool has_affix(const Invocation& call, const Value& affix, Side side) {
  const std::string_view text = self_text(call).bytes(), part = require_text(affix).bytes();
  call.runtime.charge(part.size());
  return side == Side::kLeft ? text.starts_with(part) : text.ends_with(part);
}

template <Side side>
Value affix_method(const Invocation& call) {
  const List* choices = call[0]->list();
  if (choices == nullptr || choices->kind != ListKind::kTuple) return {has_affix(call, *call[0], side)};
  const auto matches = [&](const Value& choice) { return has_affix(call, choice, side); };
  return {std::ranges::any_of(choices->items, matches)};
}

template <Side side>
Value remove_affix_method(const Invocation& call) {
  if (!has_affix(call, *call[0], side)) return call.self;
  const Text& text = self_text(call);
  const std::size_t length = call.text(0).size();
  return call.runtime.make(side == Side::kLeft ? text.slice(length, text.size())
                                               : text.slice(0, text.size() - length));
}

// find, rfind, index and rindex: where the part begins, in code points.
template <Side side, bool must_exist>
Value find_method(const Invocation& call) {
  const Text& text = self_text(call);
  const Text& part = call.text(0);
  call.runtime.charge(2 * text.memory());
  const auto length = static_cast<std::int64_t>(count_code_points(text.bytes()));
  const auto bound = [&](std::size_t parameter, std::int64_t absent) {
    const std::int64_t index = call.given(parameter) == nullptr ? absent : call.integer(parameter, absent);
    return std::max<std::int64_t>(index < 0 ? index + length : index, 0);
  };
  const std::int64_t start = bound(1, 0), end = std::min(bound(2, length), length);
  std::optional<std::size_t> found;
  if (start <= end) {
    const std::size_t begin = byte_offset(text.bytes(), static_cast<std::size_t>(start));
    const Text range = text.slice(begin, byte_offset(text.bytes(), static_cast<std::size_t>(end)));
    find_places(call.runtime, range, part, 1, side, [&](std::size_t place) { found = begin + place; });
  }
  if (found) return count_value(count_code_points(text.bytes().substr(0, *found)));
  if (must_exist) fail("substring not found");
  return {std::int64_t{-1}, false};
}

Value count_method(const Invocation& call) {
  std::size_t count = 0;
  find_places(call.runtime, self_text(call), call.text(0), kNowhere, Side::kLeft,
              [&](std::size_t) { ++count; });
  return count_value(count);
}

Value replace_method(const Invocation& call) {
  return replace(call.runtime, self_text(call), call.text(0), call.text(1), call.integer(2, -1));
}

Value join_method(const Invocation& call) {
  const std::span<const Value> items = iterate(call.runtime, *call[0]);
  for (const Value& item : items)
    if (item.text() == nullptr) fail("join needs strings, found {}", type_name(item));
  return join(call.runtime, self_text(call), items);
}

Value splitlines_method(const Invocation& call) {
  return call.runtime.make(split_lines(call.runtime, self_text(call)));
}

bool is_uncased(char32_t c) { return !is_upper(c) && !is_lower(c); }

template <bool (*test)(char32_t)>
bool is_not(char32_t c) {
  return !test(c);
}

constexpr Builtin kTextMethods[] = {
    {"strip", strip_method<true, true>, {"chars"}},
    {"lstrip", strip_method<true, false>, {"chars"}},
    {"rstrip", strip_method<false, true>, {"chars"}},
    {"split", split_method<Side::kLeft>, {"sep", "maxsplit"}},
    {"rsplit", split_method<Side::kRight>, {"sep", "maxsplit"}},
    {"splitlines", splitlines_method},
    {"partition", partition_method<Side::kLeft>, {"sep"}, 1},
    {"rpartition", partition_method<Side::kRight>, {"sep"}, 1},
    {"startswith", affix_method<Side::kLeft>, {"affix"}, 1},
    {"endswith", affix_method<Side::kRight>, {"affix"}, 1},
    {"removeprefix", remove_affix_method<Side::kLeft>, {"affix"}, 1},
    {"removesuffix", remove_affix_method<Side::kRight>, {"affix"}, 1},
    {"find", find_method<Side::kLeft, false>, {"sub", "start", "end"}, 1},
    {"rfind", find_method<Side::kRight, false>, {"sub", "start", "end"}, 1},
    {"index", find_method<Side::kLeft, true>, {"sub", "start", "end"}, 1},
    {"rindex", find_method<Side::kRight, true>, {"sub", "start", "end"}, 1},
    {"count", count_method, {"sub"}, 1},
    {"replace", replace_method, {"old", "new", "count"}, 2},
    {"join", join_method, {"iterable"}, 1},
    {"upper", mapped<append_upper>},
    {"lower", mapped<append_lower>},
    {"capitalize", capitalized<append_title, never>},
    {"title", capitalized<append_title, is_uncased>},
    {"isspace", has_only<is_space, is_not<is_space>>},
    {"isdigit", has_only<is_digit, is_not<is_digit>>},
    {"isalpha", has_only<is_alpha, is_not<is_alpha>>},
    {"isupper", has_only<is_upper, is_lower>},
    {"islower", has_only<is_lower, is_upper>},
};

}  // namespace

std::span<const Builtin> text_methods() { return kTextMethods; }

Value strip(const Invocation& call) { return strip_method<true, true>(call); }

Text strip_spaces(Runtime& runtime, const Text& text) { return stripped(runtime, text, nullptr, true, true); }

Value replace(Runtime& runtime, const Text& text, const Text& old, const Text& replacement,
              std::int64_t count) {
  runtime.charge(text.memory());
  Text result;
  std::size_t copied = 0;
  const auto limit = static_cast<std::size_t>(count);  // none if it was negative
  find_places(runtime, text, old, limit, Side::kLeft, [&](std::size_t place) {
    runtime.charge(replacement.memory());
    result.append(text, copied, place);
    result.append(replacement);
    copied = place + old.size();
  });
  result.append(text, copied, text.size());
  return runtime.make(std::move(result));
}

std::vector<Value> split_lines(Runtime& runtime, const Text& text) {
  runtime.charge(2 * text.memory());
  const std::string_view bytes = text.bytes();
  std::vector<Value> lines;
  std::size_t begin = 0;
  for (const auto& [end, next, c] : Characters(bytes)) {
    if (!is_line_break(c)) continue;
    const bool is_second_half = c == U'\n' && end > 0 && bytes[end - 1] == '\r';
    if (!is_second_half) lines.push_back(runtime.make(text.slice(begin, end)));
    begin = next;
  }
  if (begin < bytes.size()) lines.push_back(runtime.make(text.slice(begin, bytes.size())));
  return lines;
}

Value join(Runtime& runtime, const Text& separator, std::span<const Value> items) {
  Text result;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Text& item = text_of(runtime, items[i]);
    runtime.charge(separator.memory());
    runtime.charge(item.memory());
    if (i > 0) result.append(separator);
    result.append(item);
  }
  return runtime.make(std::move(result));
}

}  // namespace quire::jinja
