// Values as text: str(), repr(), JSON and the % operator.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/jinja_value.h"

namespace quire::jinja {
namespace {

// What the containers print between their items is part of no text of the template, so it is not trusted.
constexpr bool kStructure = false;

// The library takes an exponent where Python does, below 1e-4 and from 1e16 on.
std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  std::string text = format_text("{}", number);
  return text.find_first_of(".ei") == text.npos ? text + ".0" : text;  // "1e+16" and "inf" stay
}

std::string print_scalar(const Value& value, bool as_json) {
  if (value.is_none()) return as_json ? "null" : "None";
  if (const bool* flag = value.get<bool>())
    return as_json ? (*flag ? "true" : "false") : (*flag ? "True" : "False");
  if (const auto* integer = value.get<std::int64_t>()) return format_text("{}", *integer);
  if (const double* number = value.get<double>()) {
    if (std::isfinite(*number) || !as_json) return float_repr(*number);
    return std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity";
  }
  if (as_json) fail("Object of type {} is not JSON serializable", type_name(value));
  return value.is_undefined() ? "Undefined" : format_text("<{}>", type_name(value));
}

std::string escape_repr(std::string_view text, char quote) {
  std::string escaped;
  for (const auto& [begin, end, c] : Characters(text)) {
    const std::size_t control = std::u32string_view(U"\n\r\t").find(c);
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      escaped += '\\';
      append_utf8(escaped, c);
    } else if (control != std::u32string_view::npos) {
      escaped += {'\\', "nrt"[control]};
    } else if (is_printable(c)) {
      append_utf8(escaped, c);
    } else {
      const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
      const char letter = c < 0x100 ? 'x' : c < 0x10000 ? 'u' : 'U';
      escaped += format_text("\\{}{:0{}x}", letter, static_cast<unsigned>(c), digits);
    }
  }
  return escaped;
}

std::string escape_json(std::string_view text, bool ensure_ascii) {
  const std::string quoted = Json(text).dump(-1, ' ', ensure_ascii);
  return quoted.substr(1, quoted.size() - 2);
}

// The brackets of a printed list.
std::pair<std::string_view, std::string_view> brackets_of(const List& list) {
  static constexpr std::pair<std::string_view, std::string_view> kBrackets[] = {
      {"[", "]"}, {"(", ")"}, {}, {}, {"dict_keys([", "])"}, {"dict_values([", "])"}, {"dict_items([", "])"}};
  const auto& [open, close] = kBrackets[static_cast<std::size_t>(list.kind)];
  if (open.empty()) {
    fail("'{}' object has no printed form; the list filter makes it a list",
         list.kind == ListKind::kRange ? "range" : "generator");
  }
  return {open, list.kind == ListKind::kTuple && list.items.size() == 1 ? ",)" : close};
}

// Prints a value and all that it holds as JSON in a style, or as Python's repr.
class Printer {
 public:
  Printer(Runtime& runtime, const JsonStyle& style, bool as_json)
      : runtime_(runtime), style_(style), as_json_(as_json) {}

  Text print(const Value& value) {
    write(value);
    return std::move(out_);
  }

 private:
  void write(const Value& value) {
    const auto depth = runtime_.descend();
    runtime_.charge();
    if (const Text* text = value.text()) {
      write_text(*text);
    } else if (const List* list = as_json_ ? value.list_or_tuple() : value.list()) {
      const auto [open, close] =
          as_json_ ? std::pair<std::string_view, std::string_view>("[", "]") : brackets_of(*list);
      write_all(open, list->items, close, [&](const Value& item) { write(item); });
    } else if (const Dict* dict = value.dict()) {
      write_dict("{", dict->items, "}");
    } else if (const Namespace* space = value.pointer<Namespace>(); space != nullptr && !as_json_) {
      write_dict("<Namespace {", space->attributes, "}>");
    } else {
      out_.append(print_scalar(value, as_json_), value.trusted);
    }
  }

  void structure(std::string_view bytes) {
    runtime_.charge(bytes.size());
    out_.append(bytes, kStructure);
  }

  void write_text(const Text& text) {
    runtime_.charge(text.memory());
    const std::string_view bytes = text.bytes();
    const bool single = bytes.find('\'') == bytes.npos || bytes.find('"') != bytes.npos;
    const char quote = as_json_ || !single ? '"' : '\'';
    out_.append(std::string_view(&quote, 1), kStructure);
    text.for_each_run([&](std::string_view run, bool trusted) {
      out_.append(as_json_ ? escape_json(run, style_.ensure_ascii) : escape_repr(run, quote), trusted);
    });
    out_.append(std::string_view(&quote, 1), kStructure);
  }

  void line_break() {
    if (!style_.indent) return;
    runtime_.charge_product(level_, style_.indent->size());
    std::string line = "\n";
    for (std::size_t i = 0; i < level_; ++i) line += *style_.indent;
    out_.append(line, kStructure);
  }

  // The items between their brackets, each on a line of its own where there is an indent.
  template <typename Sequence, typename Write>
  void write_all(std::string_view open, const Sequence& items, std::string_view close,
                 const Write& write_item) {
    out_.append(open, kStructure);
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) structure(style_.item_separator);
      line_break();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) line_break();
    out_.append(close, kStructure);
  }

  void write_dict(std::string_view open, const Items& items, std::string_view close) {
    std::vector<const Items::value_type*> order;
    for (const auto& item : items) order.push_back(&item);
    if (style_.sort_keys) {
      std::ranges::stable_sort(
          order, [&](const auto* a, const auto* b) { return less(runtime_, a->first, b->first); });
    }
    write_all(open, order, close, [&](const auto* item) {
      as_json_ && item->first.text() == nullptr ? write_key(item->first) : write(item->first);
      structure(style_.key_separator);
      write(item->second);
    });
  }

  // JSON's keys are strings.
  void write_key(const Value& key) {
    if (!key.is_none() && !as_number(key))
      fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    out_.append("\"" + print_scalar(key, true) + "\"", kStructure);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  const bool as_json_;
  std::size_t level_ = 0;
  Text out_;
};

}  // namespace

const Text& text_of(Runtime& runtime, const Value& value) {
  static const Text kNothing;
  if (value.is_undefined()) return kNothing;
  return value.text() != nullptr ? *value.text() : *runtime.make(to_repr(runtime, value)).text();
}

Text to_repr(Runtime& runtime, const Value& value) {
  static const JsonStyle kPlain;
  return Printer(runtime, kPlain, false).print(value);
}

Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  return Printer(runtime, style, true).print(value);
}

Text percent_format(Runtime& runtime, const Text& format, const Value& value) {
  const List* list = value.list();
  const bool is_tuple = list != nullptr && list->kind == ListKind::kTuple;
  const std::span<const Value> values = is_tuple ? std::span<const Value>(list->items) : std::span(&value, 1);
  runtime.charge(format.memory());
  const std::string_view bytes = format.bytes();
  std::size_t used = 0, copied = 0;
  Text result;
  for (std::size_t at; (at = bytes.find('%', copied)) != std::string_view::npos;) {
    result.append(format, copied, at);
    std::size_t end = at + 1;
    unsigned precision = 6;
    if (bytes.substr(end).starts_with('.')) {
      precision = 0;  // also without digits
      const auto parsed = std::from_chars(bytes.data() + end + 1, bytes.data() + bytes.size(), precision);
      end = static_cast<std::size_t>(parsed.ptr - bytes.data());
      if (precision > 99 || parsed.ec == std::errc::result_out_of_range)
        fail("a format asks for more than 99 digits");
    }
    const char kind = end < bytes.size() ? bytes[end] : '\0';
    const bool known = kind == 'f' || (end == at + 1 && std::string_view("%srdi").find(kind) != bytes.npos);
    if (!known) fail("only %s, %r, %d, %i, %f, %.Nf and %% are supported in formats");
    copied = end + 1;
    if (kind == '%') {
      result.append(format, at, end);
      continue;
    }
    if (used == values.size()) fail("not enough arguments for format string");
    const Value& next = values[used++];
    if (kind == 's' || kind == 'r') {
      const Text& text = text_of(runtime, kind == 's' ? next : runtime.make(to_repr(runtime, next)));
      runtime.charge(text.memory());
      result.append(text);
      continue;
    }
    const std::optional<double> number = as_number(next);
    if (!number) fail("%{} format: a number is required, not {}", kind, type_name(next));
    if (kind != 'f' && !(std::abs(*number) < 0x1p63)) fail_range();
    const std::string digits =
        kind == 'f' ? format_text("{:.{}f}", *number, precision)
                    : format_text("{}", as_integer(next).value_or(static_cast<std::int64_t>(*number)));
    runtime.charge(digits.size());
    result.append(digits, next.trusted);
  }
  result.append(format, copied, bytes.size());
  if (used < values.size() && (is_tuple || (value.dict() == nullptr && value.sequence() == nullptr)))
    fail("not all arguments converted during string formatting");
  return result;
}

}  // namespace quire::jinja
