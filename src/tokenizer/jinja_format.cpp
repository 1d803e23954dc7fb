#include "tokenizer/jinja_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja_unicode.h"

namespace quire::jinja {
namespace {

// What the containers print between their items is part of no text of the template, so it is not trusted.
constexpr bool kStructure = false;

void append_text_repr(const Text& text, Text& out) {
  const std::string_view bytes = text.bytes();
  const bool single = bytes.find('\'') == std::string_view::npos || bytes.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  out.append(std::string_view(&quote, 1), kStructure);
  text.for_each_run([&](std::string_view run, bool trusted) {
    std::string escaped;
    for (std::size_t offset = 0; offset < run.size();) {
      const char32_t c = next_code_point(run, offset);
      if (c == U'\\' || c == static_cast<char32_t>(quote)) {
        escaped += '\\';
        append_utf8(escaped, c);
      } else if (c == U'\n') {
        escaped += "\\n";
      } else if (c == U'\r') {
        escaped += "\\r";
      } else if (c == U'\t') {
        escaped += "\\t";
      } else if (is_printable(c)) {
        append_utf8(escaped, c);
      } else if (c < 0x100) {
        escaped += format_text("\\x{:02x}", static_cast<unsigned>(c));
      } else if (c < 0x10000) {
        escaped += format_text("\\u{:04x}", static_cast<unsigned>(c));
      } else {
        escaped += format_text("\\U{:08x}", static_cast<unsigned>(c));
      }
    }
    out.append(escaped, trusted);
  });
  out.append(std::string_view(&quote, 1), kStructure);
}

std::string scalar_text(const Value& value) {
  if (value.is_none()) return "None";
  if (const bool* flag = value.get<bool>()) return *flag ? "True" : "False";
  if (const auto* integer = value.get<std::int64_t>()) return format_text("{}", *integer);
  if (const double* number = value.get<double>()) return float_repr(*number);
  if (value.is_undefined()) return "Undefined";
  return format_text("<{}>", type_name(value));
}

class Printer {
 public:
  explicit Printer(Runtime& runtime) : runtime_(runtime) {}

  void repr(const Value& value) {
    const Runtime::Depth depth(runtime_);
    runtime_.charge();
    if (const Text* text = value.text()) {
      runtime_.charge(text->memory());
      append_text_repr(*text, out_);
    } else if (const List* list = value.list()) {
      repr_list(*list);
    } else if (const Dict* dict = value.dict()) {
      repr_pairs("{", dict->items, "}");
    } else if (const Namespace* object = value.pointer<Namespace>()) {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [name, attribute] : object->attributes) {
        items.emplace_back(runtime_.make(name, kStructure), attribute);
      }
      repr_pairs("<Namespace {", items, "}>");
    } else {
      out_.append(scalar_text(value), value.trusted);
    }
  }

  Text take() { return std::move(out_); }

 private:
  void structure(std::string_view bytes) { out_.append(bytes, kStructure); }

  void repr_list(const List& list) {
    switch (list.kind) {
      case ListKind::kList:
        return repr_items("[", list.items, "]");
      case ListKind::kTuple:
        return repr_items("(", list.items, list.items.size() == 1 ? ",)" : ")");
      case ListKind::kKeys:
        return repr_items("dict_keys([", list.items, "])");
      case ListKind::kValues:
        return repr_items("dict_values([", list.items, "])");
      case ListKind::kItems:
        return repr_items("dict_items([", list.items, "])");
      case ListKind::kRange:
      case ListKind::kGenerator:
        fail("'{}' object has no printed form; the list filter makes it a list",
             list.kind == ListKind::kRange ? "range" : "generator");
    }
  }

  void repr_items(std::string_view open, const std::vector<Value>& items, std::string_view close) {
    repr_all(open, items, close, [&](const Value& item) { repr(item); });
  }

  void repr_pairs(std::string_view open, const std::vector<std::pair<Value, Value>>& items,
                  std::string_view close) {
    repr_all(open, items, close, [&](const auto& item) {
      repr(item.first);
      structure(": ");
      repr(item.second);
    });
  }

  template <typename Items, typename Print>
  void repr_all(std::string_view open, const Items& items, std::string_view close, const Print& print) {
    structure(open);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) structure(", ");
      print(items[i]);
    }
    structure(close);
  }

  Runtime& runtime_;
  Text out_;
};

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value) {
    const Runtime::Depth depth(runtime_);
    runtime_.charge();
    if (const Text* text = value.text()) {
      write_text(*text);
    } else if (const List* list = value.list();
               list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple)) {
      write_all("[]", list->items, [&](const Value& item) { write(item); });
    } else if (const Dict* dict = value.dict()) {
      write_dict(dict->items);
    } else {
      out_.append(scalar(value), value.trusted);
    }
  }

  Text take() { return std::move(out_); }

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* flag = value.get<bool>()) return *flag ? "true" : "false";
    if (const double* number = value.get<double>(); number != nullptr && !std::isfinite(*number)) {
      return std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity";
    }
    if (!as_number(value)) fail("Object of type {} is not JSON serializable", type_name(value));
    return scalar_text(value);
  }

  void write_text(const Text& text) {
    runtime_.charge(text.memory());
    out_.append("\"", kStructure);
    text.for_each_run([&](std::string_view run, bool trusted) {
      std::string escaped;
      for (std::size_t offset = 0; offset < run.size();)
        append_escaped(escaped, next_code_point(run, offset));
      out_.append(escaped, trusted);
    });
    out_.append("\"", kStructure);
  }

  void append_escaped(std::string& out, char32_t c) const {
    static constexpr std::u32string_view kEscaped = U"\"\\\n\r\t\f\b";
    static constexpr std::string_view kLetters = "\"\\nrtfb";
    if (const std::size_t at = kEscaped.find(c); at != std::u32string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii)) {
      append_utf8(out, c);
    } else if (c < 0x10000) {
      out += format_text("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      const unsigned offset = static_cast<unsigned>(c) - 0x10000;
      out += format_text("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
    }
  }

  void line_break() {
    if (!style_.indent) return;
    runtime_.charge_product(level_, style_.indent->size());
    std::string line = "\n";
    for (std::size_t i = 0; i < level_; ++i) line += *style_.indent;
    out_.append(line, kStructure);
  }

  // The items between the two brackets, each on a line of its own where there is an indent.
  template <typename Items, typename Write>
  void write_all(std::string_view brackets, const Items& items, const Write& write_item) {
    if (items.empty()) return out_.append(brackets, kStructure);
    out_.append(brackets.substr(0, 1), kStructure);
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) separator(style_.item_separator);
      line_break();
      write_item(items[i]);
    }
    --level_;
    line_break();
    out_.append(brackets.substr(1), kStructure);
  }

  void write_dict(const std::vector<std::pair<Value, Value>>& items) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& item : items) order.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(),
                       [&](const auto* a, const auto* b) { return less(runtime_, a->first, b->first); });
    }
    write_all("{}", order, [&](const auto* item) {
      write_key(item->first);
      separator(style_.key_separator);
      write(item->second);
    });
  }

  void write_key(const Value& key) {
    if (const Text* text = key.text()) return write_text(*text);
    if (!key.is_none() && !as_number(key)) {
      fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
    out_.append("\"" + scalar(key) + "\"", kStructure);
  }

  void separator(const std::string& bytes) {
    runtime_.charge(bytes.size());
    out_.append(bytes, kStructure);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::size_t level_ = 0;
  Text out_;
};

}  // namespace

// The library takes an exponent where Python does, below 1e-4 and from 1e16 on.
std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  std::string text = format_text("{}", number);
  return text.find_first_of(".ei") == text.npos ? text + ".0" : text;  // "1e+16" and "inf" stay
}

Text to_text(Runtime& runtime, const Value& value) {
  if (const Text* text = value.text()) {
    runtime.charge(text->memory());
    return *text;
  }
  if (value.is_undefined()) return {};
  return to_repr(runtime, value);
}

Text to_repr(Runtime& runtime, const Value& value) {
  Printer printer(runtime);
  printer.repr(value);
  return printer.take();
}

Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value);
  return writer.take();
}

Text percent_format(Runtime& runtime, const Text& format, const Value& value) {
  const List* tuple = value.list();
  if (tuple != nullptr && tuple->kind != ListKind::kTuple) tuple = nullptr;
  const std::span<const Value> values =
      tuple != nullptr ? std::span<const Value>(tuple->items) : std::span(&value, 1);
  runtime.charge(format.memory());
  const std::string_view bytes = format.bytes();
  std::size_t used = 0, copied = 0;
  Text result;
  for (std::size_t at; (at = bytes.find('%', copied)) != std::string_view::npos;) {
    result.append(format, copied, at);
    if (bytes.substr(at + 1).starts_with('%')) {
      result.append(format, at, at + 1);
      copied = at + 2;
      continue;
    }
    std::size_t end = at + 1;
    int precision = 6;
    if (end < bytes.size() && bytes[end] == '.') {
      const auto parsed = std::from_chars(bytes.data() + end + 1, bytes.data() + bytes.size(), precision);
      end = static_cast<std::size_t>(parsed.ptr - bytes.data());
      if (precision > 99) fail("a format asks for more than 99 digits");
    }
    const std::string_view kind = bytes.substr(std::min(end, bytes.size()), 1);
    const bool known =
        kind == "f" || (end == at + 1 && (kind == "s" || kind == "r" || kind == "d" || kind == "i"));
    if (!known) fail("only %s, %r, %d, %i, %f, %.Nf and %% are supported in formats");
    if (used == values.size()) fail("not enough arguments for format string");
    const Value& next = values[used++];
    copied = end + 1;
    if (kind == "s" || kind == "r") {
      result.append(kind == "s" ? to_text(runtime, next) : to_repr(runtime, next));
      continue;
    }
    const std::optional<double> number = as_number(next);
    if (!number) fail("%{} format: a number is required, not {}", kind, type_name(next));
    if (kind == "f") {
      result.append(format_text("{:.{}f}", *number, precision), next.trusted);
    } else {
      if (!(std::abs(*number) < 0x1p63)) fail("an integer leaves the range of 64 bits");
      result.append(format_text("{}", as_integer(next).value_or(static_cast<std::int64_t>(*number))),
                    next.trusted);
    }
  }
  result.append(format, copied, bytes.size());
  if (used < values.size() && (tuple != nullptr || value.dict() == nullptr)) {
    fail("not all arguments converted during string formatting");
  }
  return result;
}

}  // namespace quire::jinja
