#include "dialects/tool_grammar.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "dialects/argument_reader.h"
#include "dialects/pattern.h"

namespace quire::dialects {
namespace {

using Kind = Element::Kind;

constexpr int kDeepest = 16;                 // schemas within each other, which are written out
constexpr std::size_t kMostValues = 20'000;  // of arguments, as often as they are written

OrderedJson format(std::string_view type, std::string_view key, OrderedJson value) {
  return {{"type", type}, {key, std::move(value)}};
}
OrderedJson optional(OrderedJson content) { return format("optional", "content", std::move(content)); }
OrderedJson star(OrderedJson content) { return format("star", "content", std::move(content)); }
OrderedJson regex(std::string_view pattern) { return format("regex", "pattern", pattern); }
OrderedJson either(OrderedJson elements) {
  return elements.size() == 1 ? elements[0] : format("or", "elements", std::move(elements));
}

// A sequence of formats; neighbouring texts are one.
class Sequence {
 public:
  void text(std::string_view text) {
    if (text.empty()) return;
    if (elements_.empty() || elements_.back()["type"] != "const_string")
      elements_.push_back(format("const_string", "value", ""));
    elements_.back()["value"].get_ref<std::string&>() += text;
  }
  void add(OrderedJson element) { elements_.push_back(std::move(element)); }
  // Any text up to `end`, and that.
  void text_until(std::string_view end) {
    add({{"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", end}});
  }
  OrderedJson take() { return format("sequence", "elements", std::move(elements_)); }

 private:
  OrderedJson elements_ = OrderedJson::array();
};

struct Tool {
  std::string name, pointer;  // of its schema
  OrderedJson schema;
  bool strict = false;
};

const OrderedJson* find(const OrderedJson& object, std::string_view key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? nullptr : &*found;
}

OrderedJson properties(const OrderedJson& schema) {
  const OrderedJson* found = find(schema, "properties");
  return found != nullptr && found->is_object() ? *found : OrderedJson::object();
}

bool is_required(const OrderedJson& schema, std::string_view key) {
  const OrderedJson* required = find(schema, "required");
  return required != nullptr && std::find(required->begin(), required->end(), key) != required->end();
}

// What a schema lists: its enum, or its const alone; empty where it has neither.
OrderedJson listed_values(const OrderedJson& schema) {
  const OrderedJson *values = find(schema, "enum"), *value = find(schema, "const");
  if (values != nullptr && values->is_array()) return *values;
  return value == nullptr ? OrderedJson::array() : OrderedJson::array({*value});
}

class ToolGrammar {
 public:
  ToolGrammar(const ToolDialect& dialect, const Tool& tool) : dialect_(dialect), tool_(tool) {}

  OrderedJson call() const {
    Sequence call;
    write(compile_pattern(dialect_.forms.front().call), call, false);
    return call.take();
  }

 private:
  // quoted: within an object.
  void write(const Pattern& pattern, Sequence& out, bool quoted) const {
    const std::string name = json_string(tool_.name);
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      const Kind kind = pattern[i].kind;
      if (kind == Kind::kOptional) {
        if (!pattern[i].written) i += pattern[i].size;
      } else if (kind == Kind::kName) {
        if (!quoted && !std::all_of(tool_.name.begin(), tool_.name.end(), is_name_byte))
          fail(
              "the tool's name {} cannot be written in this model's calls; it may have letters, digits and "
              "_-.:/",
              in_quotes(tool_.name));
        out.text(quoted ? std::string_view(name).substr(1, name.size() - 2) : tool_.name);
      } else if (kind == Kind::kIndex) {
        out.add(regex("[0-9]{1,3}"));
      } else if (kind == Kind::kObject) {
        write(compile_pattern(dialect_.object), out, true);
      } else if (kind == Kind::kJson) {
        out.add(format("json_schema", "json_schema", tool_.schema));
      } else if (kind == Kind::kPython || kind == Kind::kGemma) {
        write_arguments(tool_.schema, tool_.pointer, 0, out);
        out.text(kind == Kind::kGemma ? "}" : ")");
      } else if (kind == Kind::kParameters) {
        const OrderedJson all = properties(tool_.schema);
        for (const auto& [key, schema] : all.items()) {
          Sequence parameter;
          write_parameter(key, schema, parameter);
          out.add(is_required(tool_.schema, key) ? parameter.take() : optional(parameter.take()));
        }
      } else {
        out.text(pattern[i].text);
      }
    }
  }

  // One argument between tags.
  void write_parameter(std::string_view key, const OrderedJson& schema, Sequence& out) const {
    const Pattern pattern = compile_pattern(dialect_.parameter);
    const bool text = argument_types(&tool_.schema, key).text;
    check_key(key, "<>\"\n");
    std::string before, behind;
    bool behind_value = false;
    for (const Element& element : pattern) {
      const std::string_view written = element.kind == Kind::kKey     ? key
                                       : element.kind == Kind::kTyped ? (text ? "true" : "false")
                                                                      : std::string_view(element.text);
      (behind_value ? behind : before) += written;
      behind_value = behind_value || element.kind == Kind::kValue;
    }
    out.text(before);
    const std::string pointer = format_text("{}/properties/{}", tool_.pointer, key);
    if (!text || !write_text(schema, pointer, behind, out)) {
      if (!text) out.add(json_value(schema));
      out.text(behind);
    }
  }

  static void check_key(std::string_view key, std::string_view unwritable) {
    if (key.empty() || key.find_first_of(unwritable) != key.npos)
      fail("the argument's name {} cannot be written in this model's calls", in_quotes(key));
  }

  // A string without quotes, up to and with `end`; false, and without that, for one of a list.
  bool write_text(const OrderedJson& schema, const std::string& pointer, std::string_view end,
                  Sequence& out) const {
    if (write_listed(schema, "", out)) return false;
    for (const char* key : {"pattern", "minLength", "maxLength", "format"})
      if (tool_.strict && find(schema, key) != nullptr)
        fail("{}/{} is not enforced in how this model writes its calls; leave it out, or strict", pointer,
             key);
    const std::size_t first = end.find_first_not_of('\n'), last = end.find_last_not_of('\n') + 1;
    out.text_until(end.substr(first, last - first));  // a line break before it may be absent, too
    out.text(end.substr(last));
    return true;
  }

  bool write_listed(const OrderedJson& schema, std::string_view quote, Sequence& out) const {
    const OrderedJson* resolved = resolve(tool_.schema, schema);
    OrderedJson choices = OrderedJson::array();
    for (const OrderedJson& value : listed_values(resolved == nullptr ? schema : *resolved)) {
      Sequence one;
      one.text(value.is_string() ? format_text("{}{}{}", quote, value.get<std::string>(), quote)
                                 : value.dump());
      choices.push_back(one.take());
    }
    if (!choices.empty()) out.add(either(choices));
    return !choices.empty();
  }

  // With what its references point to.
  OrderedJson json_value(OrderedJson schema) const {
    for (const char* key : {"$defs", "definitions"})
      if (const OrderedJson* found = find(tool_.schema, key); found != nullptr && schema.is_object())
        schema[key] = *found;
    return format("json_schema", "json_schema", std::move(schema));
  }

  // Python's and Gemma's, with commas: each but the first that is there has one before it.
  void write_arguments(const OrderedJson& schema, const std::string& pointer, int depth,
                       Sequence& out) const {
    const bool gemma = !dialect_.quote.empty();
    OrderedJson choices = OrderedJson::array();
    bool none = true;  // all that came so far may be absent
    const OrderedJson all = properties(schema);
    for (auto first = all.begin(); first != all.end() && none; ++first) {
      Sequence choice;
      for (auto at = first; at != all.end(); ++at) {
        Sequence one;
        check_key(at.key(), "()[]{},:='\"<> \t\r\n");
        one.text(format_text("{}{}{}", at == first ? "" : gemma ? "," : ", ", at.key(), gemma ? ":" : "="));
        one.add(write_value(at.value(), pointer + "/properties/" + at.key(), depth + 1));
        const bool present = at == first || is_required(schema, at.key());
        choice.add(present ? one.take() : optional(one.take()));
      }
      choices.push_back(choice.take());
      none = !is_required(schema, first.key());
    }
    if (choices.empty()) return;
    out.add(none ? optional(either(choices)) : either(choices));
  }

  OrderedJson write_value(const OrderedJson& given, const std::string& pointer, int depth) const {
    if (++written_ > kMostValues) fail("{}: with all before it more than can be written out", pointer);
    const OrderedJson* resolved = resolve(tool_.schema, given);
    const OrderedJson& schema = resolved == nullptr ? given : *resolved;
    const OrderedJson* type = find(schema, "type");
    if (dialect_.quote.empty())
      return type != nullptr && *type == "boolean" ? regex("True|False") : json_value(given);
    if (depth > kDeepest) fail("{}: the schema refers to itself, or nests deeper than {}", pointer, kDeepest);
    Sequence out;
    if (write_listed(schema, dialect_.quote, out)) return out.take();
    OrderedJson choices = OrderedJson::array();
    const auto choose = [&](const OrderedJson& one) {
      choices.push_back(write_value(one, pointer, depth + 1));
    };
    for (const char* key : {"anyOf", "oneOf"})
      if (const OrderedJson* list = find(schema, key)) std::for_each(list->begin(), list->end(), choose);
    if (choices.empty() && (type == nullptr || type->is_array())) {
      const OrderedJson scalars = {"string", "number", "boolean", "null"};
      OrderedJson one = schema.is_object() ? schema : OrderedJson::object();
      for (const OrderedJson& name : type == nullptr ? scalars : *type) {
        one["type"] = name;
        choose(one);
      }
    }
    if (!choices.empty()) return either(choices);
    if (*type == "string") {
      out.text(dialect_.quote);
      write_text(schema, pointer, dialect_.quote, out);
    } else if (*type == "object") {
      out.text("{");
      write_arguments(schema, pointer, depth, out);
      out.text("}");
    } else if (*type == "array") {
      const OrderedJson* items = find(schema, "items");
      const OrderedJson value =
          write_value(items == nullptr ? OrderedJson::object() : *items, pointer + "/items", depth + 1);
      Sequence all, next;
      next.text(",");
      next.add(value);
      all.add(value);
      all.add(star(next.take()));
      out.text("[");
      const OrderedJson* least = find(schema, "minItems");
      out.add(least != nullptr && least->is_number() && *least > 0 ? all.take() : optional(all.take()));
      out.text("]");
    } else {
      return json_value(schema);
    }
    return out.take();
  }

  const ToolDialect& dialect_;
  const Tool& tool_;
  mutable std::size_t written_ = 0;  // values
};

std::vector<Tool> callable(const OrderedJson& tools, const std::string& name) {
  std::vector<Tool> all;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& function = tools[i].at("function");
    Tool tool{.name = function.at("name").get<std::string>(),
              .pointer = format_text("/tools/{}/function/parameters", i),
              .schema = {{"type", "object"}}};
    if (const OrderedJson* schema = find(function, "parameters"); schema != nullptr && schema->is_object())
      tool.schema = *schema;
    const OrderedJson* strict = find(function, "strict");
    tool.strict = strict != nullptr && *strict == true;
    if (name.empty() || name == tool.name) all.push_back(std::move(tool));
  }
  if (all.empty()) fail("no tool has the name {}", in_quotes(name));
  return all;
}

}  // namespace

std::string tool_grammar(const ToolDialect& dialect, const OrderedJson& tools,
                         const ToolGrammarOptions& options) {
  const ToolForm& form = dialect.forms.front();
  OrderedJson calls = OrderedJson::array();
  for (const Tool& tool : callable(tools, options.name)) calls.push_back(ToolGrammar(dialect, tool).call());
  const OrderedJson call = either(std::move(calls));
  Sequence all, lead, next;
  all.add(optional(regex("\\n{1,2}")));
  lead.text(dialect.lead);
  if (!dialect.lead.empty()) all.add(optional(lead.take()));
  all.text(form.begin);
  all.add(call);
  next.text(form.separator);
  next.add(call);
  if (options.parallel) all.add(star(next.take()));
  all.text(form.end);
  return OrderedJson({{"type", "structural_tag"}, {"format", all.take()}}).dump();
}

}  // namespace quire::dialects
