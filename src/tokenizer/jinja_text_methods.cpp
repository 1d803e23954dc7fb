#include "tokenizer/jinja_text_methods.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_format.h"

namespace quire::jinja {
namespace {

constexpr std::size_t kNowhere = std::string_view::npos;

bool holds(const Text* characters, char32_t code_point) {
  if (characters == nullptr) return is_space(code_point);
  for (std::size_t offset = 0; offset < characters->size();) {
    if (next_code_point(characters->bytes(), offset) == code_point) return true;
  }
  return false;
}

const Text* text_or_none(const Value* value) {
  return value == nullptr || value->is_none() ? nullptr : &require_text(*value);
}

const Text& self_text(const Invocation& call) { return *call.self.text(); }

Value make_list(Runtime& runtime, std::vector<Text> texts, ListKind kind = ListKind::kList) {
  std::vector<Value> items;
  for (Text& text : texts) items.push_back(runtime.make(std::move(text)));
  return runtime.make(std::move(items), kind);
}

// split(None): words between runs of spaces. With a limit one part is the unsplit rest, spaces at its
// outer end included.
std::vector<Text> split_words(Runtime& runtime, const Text& text, std::size_t limit, bool from_right) {
  runtime.charge_product(text.size(), 4);
  struct Word {
    std::size_t begin, end;
  };
  std::vector<Word> words;
  bool inside = false;
  for (std::size_t offset = 0; offset < text.size();) {
    const std::size_t begin = offset;
    const bool space = is_space(next_code_point(text.bytes(), offset));
    if (!space && !inside) words.push_back({begin, offset});
    if (!space) words.back().end = offset;
    inside = !space;
  }
  if (words.size() > limit && limit < kNowhere) {
    if (from_right) {
      const std::size_t merged = words.size() - limit;
      words[merged - 1].begin = 0;
      words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(merged - 1));
    } else {
      words[limit].end = text.size();
      words.resize(limit + 1);
    }
  }
  std::vector<Text> parts;
  for (const Word& word : words) parts.push_back(text.slice(word.begin, word.end));
  return parts;
}

std::vector<Text> split_by(Runtime& runtime, const Text& text, const Text& separator, std::size_t limit) {
  if (separator.empty()) fail("empty separator");
  runtime.charge_search(text, separator);
  std::vector<Text> parts;
  std::size_t begin = 0;
  for (std::size_t hit;
       parts.size() < limit && (hit = find_first(text.bytes(), separator.bytes(), begin)) != kNowhere;
       begin = hit + separator.size()) {
    runtime.charge(sizeof(Text));
    parts.push_back(text.slice(begin, hit));
  }
  parts.push_back(text.slice(begin, text.size()));
  return parts;
}

std::vector<Text> split_by_from_right(Runtime& runtime, const Text& text, const Text& separator,
                                      std::size_t limit) {
  if (separator.empty()) fail("empty separator");
  runtime.charge(2 * text.size());
  runtime.charge_search(text, separator);
  const std::string backwards(text.bytes().rbegin(), text.bytes().rend());
  const std::string separator_backwards(separator.bytes().rbegin(), separator.bytes().rend());
  std::vector<Text> parts;
  std::size_t end = text.size();
  while (parts.size() < limit) {
    const std::size_t hit = find_first(backwards, separator_backwards, text.size() - end);
    if (hit == kNowhere) break;
    runtime.charge(sizeof(Text));
    parts.push_back(text.slice(text.size() - hit, end));
    end = text.size() - hit - separator.size();
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split_method(const Invocation& call, bool from_right) {
  const auto args = bind(call, {"sep", "maxsplit"});
  const Text* separator = text_or_none(args[0]);
  const std::int64_t most = args[1] == nullptr ? -1 : require_integer(*args[1]);
  const std::size_t limit = most < 0 ? kNowhere : static_cast<std::size_t>(most);
  Runtime& runtime = call.runtime;
  if (separator == nullptr)
    return make_list(runtime, split_words(runtime, self_text(call), limit, from_right));
  if (from_right) return make_list(runtime, split_by_from_right(runtime, self_text(call), *separator, limit));
  return make_list(runtime, split_by(runtime, self_text(call), *separator, limit));
}

Value partition_method(const Invocation& call, bool from_right) {
  const auto args = bind(call, {"sep"}, 1);
  const Text& text = self_text(call);
  const Text& separator = require_text(*args[0]);
  if (separator.empty()) fail("empty separator");
  call.runtime.charge(2 * text.memory());
  call.runtime.charge_search(text, separator);
  const std::size_t hit =
      from_right ? find_last(text.bytes(), separator.bytes()) : find_first(text.bytes(), separator.bytes());
  std::vector<Text> parts(3);
  if (hit == kNowhere) {
    parts[from_right ? 2 : 0] = text;
  } else {
    const std::size_t after = hit + separator.size();
    parts = {text.slice(0, hit), text.slice(hit, after), text.slice(after, text.size())};
  }
  return make_list(call.runtime, std::move(parts), ListKind::kTuple);
}

Value strip_method(const Invocation& call, bool left, bool right) {
  const auto args = bind(call, {"chars"});
  return call.runtime.make(strip(call.runtime, self_text(call), text_or_none(args[0]), left, right));
}

bool matches_end(const Invocation& call, const Value& affix, bool at_start) {
  const std::string_view text = self_text(call).bytes(), part = require_text(affix).bytes();
  call.runtime.charge(part.size());
  return at_start ? text.starts_with(part) : text.ends_with(part);
}

Value affix_method(const Invocation& call, bool at_start) {
  const auto args = bind(call, {"affix"}, 1);
  const List* choices = args[0]->list();
  if (choices == nullptr || choices->kind != ListKind::kTuple) return {matches_end(call, *args[0], at_start)};
  const auto matches = [&](const Value& choice) { return matches_end(call, choice, at_start); };
  return {std::any_of(choices->items.begin(), choices->items.end(), matches)};
}

Value remove_affix_method(const Invocation& call, bool at_start) {
  const auto args = bind(call, {"affix"}, 1);
  if (!matches_end(call, *args[0], at_start)) return call.self;
  const Text& text = self_text(call);
  const std::size_t length = args[0]->text()->size();
  return call.runtime.make(at_start ? text.slice(length, text.size()) : text.slice(0, text.size() - length));
}

// find, rfind, index and rindex: where the part begins, in code points.
Value find_method(const Invocation& call, bool from_right, bool must_exist) {
  const auto args = bind(call, {"sub", "start", "end"}, 1);
  const Text& text = self_text(call);
  call.runtime.charge(2 * text.size());
  call.runtime.charge_search(text, require_text(*args[0]));
  const std::int64_t length = static_cast<std::int64_t>(count_code_points(text.bytes()));
  const auto bound = [&](const Value* value, std::int64_t absent) {
    if (value == nullptr || value->is_none()) return absent;
    const std::int64_t index = require_integer(*value);
    return std::clamp<std::int64_t>(index < 0 ? index + length : index, 0, length);
  };
  const std::int64_t start = bound(args[1], 0), end = bound(args[2], length);
  const std::size_t begin = byte_offset(text.bytes(), static_cast<std::size_t>(start));
  const std::size_t stop = byte_offset(text.bytes(), static_cast<std::size_t>(end));
  std::size_t hit = kNowhere;
  if (start <= end && !(args[1] != nullptr && !args[1]->is_none() && require_integer(*args[1]) > length)) {
    const std::string_view range = text.bytes().substr(begin, stop - begin);
    const std::string_view part = require_text(*args[0]).bytes();
    hit = from_right ? find_last(range, part) : find_first(range, part);
  }
  if (hit == kNowhere && must_exist) fail("substring not found");
  if (hit == kNowhere) return {std::int64_t{-1}, false};
  return {static_cast<std::int64_t>(count_code_points(text.bytes().substr(0, begin + hit))), false};
}

Value count_method(const Invocation& call) {
  const auto args = bind(call, {"sub"}, 1);
  const Text& text = self_text(call);
  const std::string_view part = require_text(*args[0]).bytes();
  call.runtime.charge_search(text, *args[0]->text());
  if (part.empty()) return {static_cast<std::int64_t>(count_code_points(text.bytes())) + 1, false};
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = find_first(text.bytes(), part, at)) != kNowhere; at += part.size()) ++count;
  return {count, false};
}

Value replace_method(const Invocation& call) {
  const auto args = bind(call, {"old", "new", "count"}, 2);
  const std::int64_t count = args[2] == nullptr ? -1 : require_integer(*args[2]);
  return call.runtime.make(
      replace(call.runtime, self_text(call), require_text(*args[0]), require_text(*args[1]), count));
}

Value join_method(const Invocation& call) {
  const auto args = bind(call, {"iterable"}, 1);
  const std::span<const Value> items = iterate(call.runtime, *args[0]);
  for (const Value& item : items) {
    if (item.text() == nullptr) fail("join needs strings, found {}", type_name(item));
  }
  return call.runtime.make(join(call.runtime, self_text(call), items));
}

Value splitlines_method(const Invocation& call) {
  bind(call, {});
  return make_list(call.runtime, split_lines(call.runtime, self_text(call)));
}

Value title_method(const Invocation& call) {
  bind(call, {});
  bool inside_word = false;
  return call.runtime.make(map_code_points(call.runtime, self_text(call), [&](std::string& out, char32_t c) {
    inside_word ? append_lower(out, c) : append_title(out, c);
    inside_word = is_upper(c) || is_lower(c);
  }));
}

template <Text (*transform)(Runtime&, const Text&)>
Value transform_method(const Invocation& call) {
  bind(call, {});
  return call.runtime.make(transform(call.runtime, self_text(call)));
}

template <bool (*test)(char32_t)>
Value all_method(const Invocation& call) {
  bind(call, {});
  const std::string_view text = self_text(call).bytes();
  call.runtime.charge(2 * text.size());
  for (std::size_t offset = 0; offset < text.size();) {
    if (!test(next_code_point(text, offset))) return {false};
  }
  return {!text.empty()};
}

template <bool (*test)(const Text&)>
Value case_method(const Invocation& call) {
  bind(call, {});
  call.runtime.charge(2 * self_text(call).size());
  return {test(self_text(call))};
}

bool is_all_cased(const Text& text, bool (*wanted)(char32_t), bool (*other)(char32_t)) {
  bool found = false;
  for (std::size_t offset = 0; offset < text.size();) {
    const char32_t c = next_code_point(text.bytes(), offset);
    if (other(c)) return false;
    found |= wanted(c);
  }
  return found;
}

constexpr std::array kTextMethods = {
    Builtin{"strip", [](const Invocation& call) { return strip_method(call, true, true); }},
    Builtin{"lstrip", [](const Invocation& call) { return strip_method(call, true, false); }},
    Builtin{"rstrip", [](const Invocation& call) { return strip_method(call, false, true); }},
    Builtin{"split", [](const Invocation& call) { return split_method(call, false); }},
    Builtin{"rsplit", [](const Invocation& call) { return split_method(call, true); }},
    Builtin{"splitlines", splitlines_method},
    Builtin{"partition", [](const Invocation& call) { return partition_method(call, false); }},
    Builtin{"rpartition", [](const Invocation& call) { return partition_method(call, true); }},
    Builtin{"startswith", [](const Invocation& call) { return affix_method(call, true); }},
    Builtin{"endswith", [](const Invocation& call) { return affix_method(call, false); }},
    Builtin{"removeprefix", [](const Invocation& call) { return remove_affix_method(call, true); }},
    Builtin{"removesuffix", [](const Invocation& call) { return remove_affix_method(call, false); }},
    Builtin{"find", [](const Invocation& call) { return find_method(call, false, false); }},
    Builtin{"rfind", [](const Invocation& call) { return find_method(call, true, false); }},
    Builtin{"index", [](const Invocation& call) { return find_method(call, false, true); }},
    Builtin{"rindex", [](const Invocation& call) { return find_method(call, true, true); }},
    Builtin{"count", count_method},
    Builtin{"replace", replace_method},
    Builtin{"join", join_method},
    Builtin{"upper", transform_method<upper>},
    Builtin{"lower", transform_method<lower>},
    Builtin{"capitalize", transform_method<capitalize>},
    Builtin{"title", title_method},
    Builtin{"isspace", all_method<is_space>},
    Builtin{"isdigit", all_method<is_digit>},
    Builtin{"isalpha", all_method<is_alpha>},
    Builtin{"isupper", case_method<is_all_upper>},
    Builtin{"islower", case_method<is_all_lower>},
};

}  // namespace

Native find_text_method(std::string_view name) { return find_builtin(kTextMethods, name); }

Text upper(Runtime& runtime, const Text& text) { return map_code_points(runtime, text, append_upper); }
Text lower(Runtime& runtime, const Text& text) { return map_code_points(runtime, text, append_lower); }

Text capitalize(Runtime& runtime, const Text& text) {
  bool first = true;
  return map_code_points(runtime, text, [&](std::string& out, char32_t c) {
    std::exchange(first, false) ? append_title(out, c) : append_lower(out, c);
  });
}

Text strip(Runtime& runtime, const Text& text, const Text* characters, bool left, bool right) {
  const std::string_view bytes = text.bytes();
  runtime.charge_product(text.memory(), characters == nullptr ? 2 : 2 + characters->size());
  std::size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    std::size_t next = begin;
    if (!holds(characters, next_code_point(bytes, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    const std::size_t last = character_begin(bytes, end - 1);
    std::size_t next = last;
    if (!holds(characters, next_code_point(bytes, next))) break;
    end = last;
  }
  return text.slice(begin, end);
}

Text replace(Runtime& runtime, const Text& text, const Text& old, const Text& replacement,
             std::int64_t count) {
  runtime.charge(text.memory());
  runtime.charge_search(text, old);
  const std::string_view bytes = text.bytes();
  Text result;
  std::size_t copied = 0;
  std::size_t at = 0;
  while (count != 0) {
    const std::size_t hit = find_first(bytes, old.bytes(), at);
    if (hit == kNowhere) break;
    runtime.charge(replacement.memory());
    result.append(text, copied, hit);
    result.append(replacement);
    copied = at = hit + old.size();
    --count;
    if (old.empty()) {  // stands before every code point and at the end
      if (at == bytes.size()) break;
      next_code_point(bytes, at);
    }
  }
  result.append(text, copied, bytes.size());
  return result;
}

std::vector<Text> split_lines(Runtime& runtime, const Text& text) {
  runtime.charge(2 * text.memory());
  const std::string_view bytes = text.bytes();
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::size_t end = offset;
    const char32_t c = next_code_point(bytes, offset);
    if (!is_line_break(c)) continue;
    if (c == U'\r' && offset < bytes.size() && bytes[offset] == '\n') ++offset;
    runtime.charge(sizeof(Text));
    lines.push_back(text.slice(begin, end));
    begin = offset;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

Text join(Runtime& runtime, const Text& separator, std::span<const Value> items) {
  Text result;
  for (std::size_t i = 0; i < items.size(); ++i) {
    runtime.charge(separator.memory());
    if (i > 0) result.append(separator);
    result.append(to_text(runtime, items[i]));
  }
  return result;
}

bool is_all_upper(const Text& text) { return is_all_cased(text, is_upper, is_lower); }
bool is_all_lower(const Text& text) { return is_all_cased(text, is_lower, is_upper); }

}  // namespace quire::jinja
