#include "dialects/tool_grammar.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "dialects/argument_reader.h"
#include "dialects/pattern.h"

namespace quire::dialects {
namespace {

using Kind = Element::Kind;

constexpr int kDeepest = 16;                 // schemas within each other, which are written out
constexpr std::size_t kMostBytes = 1 << 20;  // of all tools' text: what the engine takes of a source
constexpr std::size_t kValueBytes = 20;      // that each value counts for, however short
constexpr double kMostItems = 1 << 16;       // or characters, where a schema bounds them
constexpr std::string_view kAskNothing =
    " $defs definitions $schema $comment title description default examples deprecated readOnly writeOnly ";
// Keywords that are held to where values are no JSON, or ask nothing of the type that is written.
constexpr std::string_view kHeld =
    " type properties required additionalProperties items minItems maxItems minLength maxLength ";

OrderedJson format(std::string_view type, std::string_view key, OrderedJson value) {
  return {{"type", type}, {key, std::move(value)}};
}
OrderedJson optional(OrderedJson content) { return format("optional", "content", std::move(content)); }
OrderedJson regex(std::string_view pattern) { return format("regex", "pattern", pattern); }
// Of those that are null, none; null where all are.
OrderedJson either(OrderedJson elements) {
  elements.erase(std::remove(elements.begin(), elements.end(), nullptr), elements.end());
  if (elements.empty()) return nullptr;
  return elements.size() == 1 ? elements[0] : format("or", "elements", std::move(elements));
}
std::string structural_tag(OrderedJson content) {
  return format("structural_tag", "format", std::move(content)).dump();
}

// A sequence of formats; neighbouring texts are one.
class Sequence {
 public:
  Sequence& text(std::string_view text) {
    if (text.empty()) return *this;
    if (elements_.empty() || elements_.back()["type"] != "const_string")
      elements_.push_back(format("const_string", "value", ""));
    elements_.back()["value"].get_ref<std::string&>() += text;
    return *this;
  }
  Sequence& add(OrderedJson element) {
    elements_.push_back(std::move(element));
    return *this;
  }
  // Any text up to `end`, and that.
  Sequence& text_until(std::string_view end) {
    return add({{"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", end}});
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

// What a schema lists: its enum, or its const alone; empty where it has neither.
OrderedJson listed_values(const OrderedJson& schema) {
  const OrderedJson *values = member(&schema, "enum"), *value = member(&schema, "const");
  if (values != nullptr && values->is_array()) return *values;
  return value == nullptr ? OrderedJson::array() : OrderedJson::array({*value});
}

// Points references to a tool's schema, but for its definitions, to where parts of it have that, and says
// whether there are any.
bool point_to_whole(OrderedJson& schema) {
  bool any = false;
  for (const auto& [key, part] : schema.items()) {
    if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;  // values
    if (part.is_structured()) any |= point_to_whole(part);
    const std::string to = key == "$ref" && part.is_string() ? part.get<std::string>() + "/" : "";
    if (!to.starts_with("#/") || to.starts_with("#/$defs/") || to.starts_with("#/definitions/")) continue;
    part = "#/parameters" + part.get<std::string>().substr(1);
    any = true;
  }
  return any;
}

class ToolGrammar {
 public:
  // written: bytes, by all tools.
  ToolGrammar(const ToolDialect& dialect, const Tool& tool, std::size_t& written)
      : dialect_(dialect), tool_(tool), written_(written) {
    OrderedJson whole = tool.schema;
    const bool is_needed = point_to_whole(whole);
    if (whole.is_object()) erase_key(whole, "$id");  // it is no document of its own there
    for (const char* key : {"$defs", "definitions"})
      if (whole.contains(key)) definitions_[key] = std::exchange(whole[key], nullptr);
    if (is_needed) definitions_["parameters"] = std::move(whole);
  }

  OrderedJson call() {
    Sequence call;
    write(compile_pattern(dialect_.forms.front().call), call, false);
    return call.take();
  }

 private:
  // quoted: within an object.
  void write(const Pattern& pattern, Sequence& out, bool quoted) {
    const std::string name = json_string(tool_.name);
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      const Kind kind = pattern[i].kind;
      if (kind == Kind::kOptional) {
        if (!pattern[i].written) i += pattern[i].size;
      } else if (kind == Kind::kName) {
        if (!quoted && !std::ranges::all_of(tool_.name, is_name_byte))
          fail("the tool's name {} cannot be written; it may have letters, digits and _-.:/",
               in_quotes(tool_.name));
        out.text(quoted ? std::string_view(name).substr(1, name.size() - 2) : tool_.name);
      } else if (kind == Kind::kIndex) {
        out.add(regex("[0-9]{1,3}"));
      } else if (kind == Kind::kObject) {
        write(compile_pattern(dialect_.object), out, true);
      } else if (kind == Kind::kJson) {
        out.add(json_value(tool_.schema, tool_.pointer));
      } else if (kind == Kind::kPython || kind == Kind::kGemma) {
        write_arguments(referred(tool_.schema, tool_.pointer), tool_.pointer, 0, out);
        out.text(kind == Kind::kGemma ? "}" : ")");
      } else if (kind == Kind::kParameters) {
        const OrderedJson& schema = referred(tool_.schema, tool_.pointer);
        check_held(schema, tool_.pointer);
        const auto [all, required] = properties_of(schema, tool_.pointer);
        for (const auto& [key, argument] : all.items()) {
          OrderedJson one = parameter(key, argument);
          out.add(required.contains(key) ? std::move(one) : optional(std::move(one)));
        }
      } else {
        out.text(pattern[i].text);
      }
    }
  }

  // What a schema refers to, or itself.
  const OrderedJson& referred(const OrderedJson& given, const std::string& pointer) const {
    const OrderedJson* schema = resolve(tool_.schema, given);
    if (schema == nullptr) fail("{}/$ref points to no schema within the tool's parameters", pointer);
    if (schema != &given) check_held(given, pointer, &given == &tool_.schema ? " type $ref " : " $ref ");
    return *schema;
  }

  // One argument between tags. Where these say whether it is text, each way is written alone.
  OrderedJson parameter(std::string_view key, const OrderedJson& schema) {
    const ArgumentTypes types = argument_types(&tool_.schema, key), text = types & kTypeText;
    const std::string pointer = format_text("{}/properties/{}", tool_.pointer, key);
    const auto written_as = [&](ArgumentTypes allowed) -> OrderedJson {
      types_ = allowed;
      count(key.size(), tool_.pointer);
      std::string parts[2];  // before the value, and behind it
      bool behind = false;
      for (const Element& element : compile_pattern(dialect_.parameter)) {
        const std::string_view typed = (allowed & kTypeText) != 0 ? "true" : "false";
        const bool is_key = element.kind == Kind::kKey, is_typed = element.kind == Kind::kTyped;
        parts[behind] += is_key ? key : is_typed ? typed : element.text;
        behind = behind || element.kind == Kind::kValue;
      }
      OrderedJson made = any_value(schema, pointer, 0, parts[1]);
      return made.is_null() ? made : Sequence().text(parts[0]).add(std::move(made)).take();
    };
    check_key(key, "<>\"\n");
    const bool both = dialect_.parameter.find("$T") != std::string_view::npos && text != 0 && text != types;
    OrderedJson made = both ? either({written_as(text), written_as(types & ~text)}) : written_as(types);
    if (made.is_null()) fail_unwritable(pointer);
    return made;
  }

  static void check_key(std::string_view key, std::string_view unwritable) {
    if (key.empty() || key.find_first_of(unwritable) != key.npos || trimmed(key) != key)
      fail("the argument's name {} cannot be written in this model's calls", in_quotes(key));
  }
  // held: the keywords that are, between spaces.
  void check_held(const OrderedJson& schema, const std::string& pointer,
                  std::string_view held = kHeld) const {
    if (!tool_.strict || !schema.is_object()) return;
    const std::string known = format_text("{}{}", kAskNothing, held);
    for (const auto& [key, value] : schema.items())
      if (known.find(format_text(" {} ", key)) == known.npos)
        fail("{}/{} is not enforced in how this model writes its calls; leave it out, or strict", pointer,
             key);
  }

  // The least and the most. of: Items, or Length.
  static std::pair<std::uint64_t, std::optional<std::uint64_t>> bounds(const OrderedJson& schema,
                                                                       const std::string& pointer,
                                                                       std::string_view of) {
    const auto bound = [&](const std::string& key, double highest) -> std::optional<std::uint64_t> {
      const OrderedJson* found = member(&schema, key);
      if (found == nullptr) return {};
      const double count = found->is_number() ? found->get<double>() : -1;
      if (count < 0 || count > highest || count != std::floor(count))
        fail("{}/{} must be an integer of at least 0 and at most {}", pointer, key, highest);
      return static_cast<std::uint64_t>(std::min(count, kMostItems));
    };
    const auto least = bound(format_text("min{}", of), kMostItems),
               most = bound(format_text("max{}", of), 1e9);
    if (least && most && *least > *most) fail("{}: min{} is above max{}", pointer, of, of);
    return {least.value_or(0), most};
  }

  // A string without quotes, up to and with `end`.
  void write_text(const OrderedJson& schema, const std::string& pointer, std::string_view end,
                  Sequence& out) const {
    const std::size_t first = end.find_first_not_of('\n'), last = end.find_last_not_of('\n') + 1;
    const std::string_view mark = end.substr(first, last - first);
    const auto [least, most] = bounds(schema, pointer, "Length");
    std::vector<TextBeginning> begins = {{"", 0}};
    if (types_ != kTypeText) begins = text_beginnings(types_, mark.front());
    if (least > 0 || most) {
      std::string pattern;
      for (const auto& [begin, size, whole] : begins) {
        if ((most && size > *most) || (whole && size < least)) continue;
        pattern += (pattern.empty() ? "" : "|") + begin;
        if (!whole)
          pattern += format_text("[^{}]{{{},{}}}", mark.front(), std::max(least, size) - size,
                                 most ? std::to_string(*most - size) : "");
      }
      out.add(regex(pattern)).text(end);
      return;
    }
    const std::string_view behind = end.substr(last);  // a line break before the mark may be absent, too
    if (types_ == kTypeText) {
      out.text_until(mark).text(behind);
      return;
    }
    std::string whole, begun = format_text("{}[^{}{}]", mark[0], mark[0], mark[1]);
    for (const TextBeginning& one : begins) (one.whole ? whole : begun) += "|" + one.pattern;
    OrderedJson begins_so = Sequence().add(regex(format_text("\\s*(?:{})", begun))).text_until(mark).take();
    OrderedJson is_so = Sequence().add(regex(format_text("\\s*(?:{})", whole))).text(mark).take();
    out.add(either({std::move(begins_so), std::move(is_so)})).text(behind);
  }

  void count(std::size_t bytes, std::string_view pointer) {
    if ((written_ += bytes) > kMostBytes)
      fail("{}: with all before it more than can be written out", pointer);
  }
  // What is written, whose bytes are counted.
  OrderedJson counted(OrderedJson made, std::string_view pointer) {
    count(made.dump().size(), pointer);
    return made;
  }

  // With what its references point to.
  OrderedJson json_value(OrderedJson schema, std::string_view pointer) {
    if (pointer != tool_.pointer && schema.dump().find("\"$ref\"") != std::string::npos) {
      point_to_whole(schema);
      schema.update(definitions_);
    }
    OrderedJson made = format("json_schema", "json_schema", std::move(schema));
    made["pointer"] = pointer;
    return counted(std::move(made), pointer);
  }

  // Python's and Gemma's, with commas: each but the first that is there has one before it.
  void write_arguments(const OrderedJson& schema, const std::string& pointer, int depth, Sequence& out) {
    const bool gemma = !dialect_.quote.empty();
    check_held(schema, pointer);
    OrderedJson choices = OrderedJson::array();
    bool none = true;  // all that came so far may be absent
    const auto [all, required] = properties_of(schema, pointer);
    for (auto first = all.begin(); first != all.end() && none; ++first) {
      Sequence choice;
      for (auto at = first; at != all.end(); ++at) {
        check_key(at.key(), "()[]{},:='\"<> \t\r\n");
        count(at.key().size(), pointer);
        Sequence one;
        one.text(format_text("{}{}{}", at == first ? "" : gemma ? "," : ", ", at.key(), gemma ? ":" : "="));
        one.add(value(at.value(), pointer + "/properties/" + at.key(), depth + 1));
        const bool present = at == first || required.contains(at.key());
        choice.add(present ? one.take() : optional(one.take()));
      }
      choices.push_back(choice.take());
      none = !required.contains(first.key());
    }
    if (choices.empty()) return;
    OrderedJson one = either(std::move(choices));
    out.add(none ? optional(std::move(one)) : std::move(one));
  }

  [[noreturn]] static void fail_unwritable(const std::string& pointer) {
    fail("{}: no value of it can be written in this model's calls", pointer);
  }
  OrderedJson value(const OrderedJson& given, const std::string& pointer, int depth) {
    OrderedJson made = any_value(given, pointer, depth, "");
    if (made.is_null()) fail_unwritable(pointer);
    return made;
  }

  // `behind` ends it, where it stands between tags; null: it has no way of writing one of `types_`.
  OrderedJson any_value(const OrderedJson& given, const std::string& pointer, int depth,
                        const std::string& behind) {
    count(kValueBytes, pointer);
    const bool gemma = !dialect_.quote.empty();
    if (!gemma && behind.empty())
      return given == OrderedJson{{"type", "boolean"}} ? regex("True|False") : json_value(given, pointer);
    const OrderedJson& schema = referred(given, pointer);
    const OrderedJson* type = member(&schema, "type");
    if (schema == false) return nullptr;
    if (schema != true && !schema.is_object()) fail("{} must be a schema: an object, true or false", pointer);
    if (depth > kDeepest) fail("{}: the schema refers to itself, or nests deeper than {}", pointer, kDeepest);
    OrderedJson choices = OrderedJson::array();
    if (const OrderedJson listed = listed_values(schema); !listed.empty()) {
      check_held(schema, pointer, schema.contains("enum") ? " type enum " : " type const ");
      const ArgumentTypes named = type == nullptr ? kAnyType : named_types(*type);
      for (const OrderedJson& one : listed)
        if ((types_of(one) & named) != 0 && (gemma || (types_of(one) & types_) != 0))
          choices.push_back(counted(constant(one, pointer, behind), pointer));
      return either(std::move(choices));
    }
    const bool one_type = type != nullptr && (*type == "object" || *type == "array");  // of all choices
    for (const char* key : {"anyOf", "oneOf"}) {
      const OrderedJson* list = member(&schema, key);
      if (list == nullptr || !list->is_array() || one_type) continue;
      check_held(schema, pointer, format_text(" {} ", key));
      for (const OrderedJson& one : *list) choices.push_back(any_value(one, pointer, depth + 1, behind));
      return either(std::move(choices));
    }
    if (type == nullptr || type->is_array()) {
      OrderedJson any = {"string", "number", "boolean", "null"};
      if (!gemma) any.insert(any.end(), {"array", "object"});
      std::set<std::string> names;
      for (const OrderedJson& name : type == nullptr ? any : *type) {
        if (!name.is_string() || !names.insert(name.get<std::string>()).second)
          fail("{}/type must be the name of a type, or a list of some that differ", pointer);
        choices.push_back(value_of_type(name.get<std::string>(), schema, pointer, depth + 1, behind));
      }
      return either(std::move(choices));
    }
    return value_of_type(type->is_string() ? type->get<std::string>() : "", schema, pointer, depth, behind);
  }

  OrderedJson value_of_type(std::string_view type, const OrderedJson& schema, const std::string& pointer,
                            int depth, const std::string& behind) {
    Sequence out;
    if (!behind.empty() && (types_ & (type == "string" ? kTypeText : ~kTypeText)) == 0) return nullptr;
    if (type == "string") {
      check_held(schema, pointer);
      write_text(schema, pointer, behind.empty() ? dialect_.quote : behind, out.text(dialect_.quote));
      return counted(out.take(), pointer);
    } else if (type == "object" && behind.empty()) {
      write_arguments(schema, pointer, depth, out.text("{"));
      out.text("}");
    } else if (type == "array" && behind.empty()) {
      check_held(schema, pointer);
      write_list(schema, pointer, depth, out.text("["));
      out.text("]");
    } else {
      OrderedJson one = schema.is_object() ? schema : OrderedJson::object();
      if (!type.empty()) one["type"] = type;
      out.add(json_value(std::move(one), pointer)).text(behind);
    }
    return out.take();
  }

  OrderedJson constant(const OrderedJson& value, const std::string& pointer, std::string_view behind) const {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    const std::string_view quote = value.is_string() ? dialect_.quote : "";
    const bool misread =
        value.is_string() && !behind.empty() && (types_read(text) & types_ & ~kTypeText) != 0;
    if (misread || text.find(quote.empty() ? "</" : quote) != text.npos ||
        (value.is_structured() && behind.empty()))
      fail("{}: the value {} cannot be written in this model's calls", pointer, in_quotes(text));
    return Sequence().text(format_text("{}{}{}{}", quote, text, quote, behind)).take();
  }

  // Gemma's.
  void write_list(const OrderedJson& schema, const std::string& pointer, int depth, Sequence& out) {
    const OrderedJson* items = member(&schema, "items");
    const bool is_tuple =
        member(&schema, "prefixItems") != nullptr || (items != nullptr && items->is_array());
    if (is_tuple && !tool_.strict) items = nullptr;
    const auto [least, most] = bounds(schema, pointer, "Items");
    if (most == 0U) return;
    const OrderedJson one =
        value(items == nullptr ? OrderedJson::object() : *items, pointer + "/items", depth + 1);
    OrderedJson more = format("repeat", "content", Sequence().text(",").add(counted(one, pointer)).take());
    more["min"] = least > 0 ? least - 1 : 0;
    if (most) more["max"] = *most - 1;
    OrderedJson all = Sequence().add(one).add(std::move(more)).take();
    out.add(least > 0 ? std::move(all) : optional(std::move(all)));
  }

  const ToolDialect& dialect_;
  const Tool& tool_;
  ArgumentTypes types_ = kTypeText;  // of the argument that is written between tags
  std::size_t& written_;
  OrderedJson definitions_ = OrderedJson::object();
};

std::vector<Tool> callable(const OrderedJson& tools, const std::string& name) {
  std::vector<Tool> all;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& function = tools[i].at("function");
    Tool tool{.name = function.at("name").get<std::string>(),
              .pointer = format_text("/tools/{}/function/parameters", i),
              .schema = {{"additionalProperties", false}}};
    if (const OrderedJson* schema = member(&function, "parameters"); schema != nullptr && schema->is_object())
      tool.schema = *schema;
    const OrderedJson* strict = member(&function, "strict");
    tool.strict = strict != nullptr && *strict == true;
    if (const OrderedJson* type = member(&tool.schema, "type"); tool.strict && type != nullptr)
      if (*type != "object" && std::count(type->begin(), type->end(), "object") == 0)
        fail("{}/type must be \"object\", which arguments are", tool.pointer);
    tool.schema["type"] = "object";
    // What a schema does not name is not written, unless it speaks of that in some way.
    constexpr const char* kOthers[] = {
        "allOf", "anyOf", "oneOf", "$ref", "if", "not", "patternProperties", "unevaluatedProperties"};
    const auto has = [&](const char* key) { return tool.schema.contains(key); };
    if (has("properties") && std::ranges::none_of(kOthers, has))
      if (tool.schema.emplace("additionalProperties", false).second)
        tool.schema["properties"] = properties_of(tool.schema, tool.pointer).all;
    drop_keywords(tool.schema, tool.strict);
    if (name.empty() || name == tool.name) all.push_back(std::move(tool));
  }
  if (all.empty()) fail("no tool has the name {}", in_quotes(name));
  return all;
}

// What a model writes rather than calls.
OrderedJson in_tags(const ReasoningDialect* reasoning, OrderedJson answer) {
  Sequence all;
  if (reasoning != nullptr) all.text(reasoning->answer);
  all.add(std::move(answer));
  if (reasoning != nullptr) all.text(reasoning->answer_end);
  return all.take();
}

// Any text that is not read as a call; where calls come at the start alone, it begins otherwise.
OrderedJson free_text(const CompiledDialect& dialect) {
  OrderedJson text = format("any_text", "excludes", OrderedJson::array());
  std::string first;  // of calls at the start
  for (const CompiledForm& form : dialect.forms) {
    const Element& begin = form.parts[form.parts[CompiledForm::kBegin].empty()].front();
    const std::size_t end = form.trigger.find_first_of(">]");  // of a tag, which may be a special token
    if (form.at_start()) first += "\\" + (begin.kind == Kind::kLiteral ? begin.text : "{");
    if (!form.at_start())
      text["excludes"].push_back(form.trigger.substr(0, end + (end != std::string::npos)));
  }
  if (text["excludes"].empty()) erase_key(text, "excludes");
  if (first.empty()) return text;
  const OrderedJson begun = regex(format_text("\\s*[^\\s{}]", first));
  return optional(Sequence().add(begun).add(std::move(text)).take());
}

}  // namespace

std::string tool_grammar(const ToolDialect& dialect, const OrderedJson& tools,
                         const ToolGrammarOptions& options) {
  const ToolForm& form = dialect.forms.front();
  OrderedJson run = format("tags_with_separator", "tags", OrderedJson::array());
  run["separator"] = form.separator;
  run["at_least_one"] = true;
  run["stop_after_first"] = !options.parallel;
  std::size_t written = 0;
  for (const Tool& tool : callable(tools, options.name))
    run["tags"].push_back(
        {{"begin", ""}, {"content", ToolGrammar(dialect, tool, written).call()}, {"end", ""}});
  OrderedJson calls =
      Sequence().add(optional(regex("\\n{1,2}"))).text(form.begin).add(std::move(run)).text(form.end).take();
  if (options.required) return structural_tag(std::move(calls));
  const CompiledDialect& parts = compiled(dialect);
  const bool tagged = options.reasoning != nullptr && !options.reasoning->answer.empty();
  if (options.answer.is_null() && !tagged && !parts.forms.front().at_start())
    return structural_tag(Sequence().add(free_text(parts)).add(optional(std::move(calls))).take());
  OrderedJson answer = options.answer.is_null() ? free_text(parts) : options.answer;
  return structural_tag(either({std::move(calls), in_tags(options.reasoning, std::move(answer))}));
}

std::string answer_grammar(const ReasoningDialect& reasoning, OrderedJson answer) {
  return structural_tag(in_tags(&reasoning, std::move(answer)));
}

}  // namespace quire::dialects
