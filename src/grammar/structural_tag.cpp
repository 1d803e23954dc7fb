#include "grammar/structural_tag.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/rules.h"

namespace quire::grammar {
namespace {

class TagCompiler {
 public:
  TagCompiler(Expressions& expressions, JsonText& json, const Source& source, const Vocabulary& vocabulary)
      : ex_(expressions), json_(json), source_(source), vocabulary_(vocabulary) {
    text_ = ex_.repeat(utf8_character(ex_, CharacterSet::all()), 0, kNoLimit);
  }

  ExprId compile(const OrderedJson& format, const std::string& where) {
    if (!format.is_object()) fail_at(where, "a format is an object");
    const std::string type = string(format, "type", where);
    if (type == "const_string") return marked(string(format, "value", where));
    if (type == "json_schema") return schema(get(format, "json_schema", where), where + "/json_schema");
    if (type == "grammar") return compile_rules(ex_, string(format, "grammar", where), vocabulary_);
    if (type == "regex") return regex(string(format, "pattern", where));
    if (type == "any_text") return any_text(format, where);
    if (type == "tag") return tag(format, where);
    if (type == "triggered_tags") return triggered(format, where);
    if (type == "tags_with_separator") return separated(format, where);
    if (type == "token") return token(get(format, "token", where), where);
    if (type == "sequence" || type == "or") {
      std::vector<ExprId> parts =
          all(format, "elements", where, [&](const auto& item, const auto& at) { return compile(item, at); });
      if (type == "or") return ex_.any_of(std::move(parts));
      ExprId result = kEmpty;
      for (std::size_t i = parts.size(); i-- > 0;) result = ex_.concat(parts[i], result);
      return result;
    }
    const bool is_repeat = type == "repeat";
    if (!is_repeat && type != "optional" && type != "plus" && type != "star")
      fail_at(where + "/type", format_text("the format {} is not supported", in_quotes(type)));
    const auto bound = [&](const char* key, std::uint32_t otherwise) {
      if (!is_repeat || !format.contains(key) || format.at(key) == -1) return otherwise;
      const OrderedJson& value = format.at(key);
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 1u << 20)
        fail_at(where + "/" + key, "must be at most 2^20");
      return value.get<std::uint32_t>();
    };
    return ex_.repeat(compile(get(format, "content", where), where + "/content"),
                      bound("min", type == "plus" ? 1 : 0), bound("max", type == "optional" ? 1 : kNoLimit));
  }

  // {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
  ExprId compile_structures(const OrderedJson& whole) {
    OrderedJson tags = OrderedJson::array();
    for (const auto& structure : array(whole, "structures", ""))
      tags.push_back(
          {{"begin", get(structure, "begin", "/structures")},
           {"content", {{"type", "json_schema"}, {"json_schema", get(structure, "schema", "/structures")}}},
           {"end", get(structure, "end", "/structures")}});
    return triggered({{"triggers", array(whole, "triggers", "")}, {"tags", std::move(tags)}}, "");
  }

 private:
  [[noreturn]] static void fail_at(const std::string& where, std::string_view what) {
    throw GrammarError(format_text("structural tag at {}: {}", in_quotes("#" + where), what));
  }
  static const OrderedJson& get(const OrderedJson& object, const char* key, const std::string& where) {
    if (!object.is_object() || !object.contains(key))
      fail_at(where, format_text("the key {} is missing", key));
    return object.at(key);
  }
  static std::string string(const OrderedJson& object, const char* key, const std::string& where) {
    const OrderedJson& value = get(object, key, where);
    if (!value.is_string()) fail_at(where + "/" + key, "must be a string");
    return value.get<std::string>();
  }
  static const OrderedJson& array(const OrderedJson& object, const char* key, const std::string& where) {
    const OrderedJson& value = get(object, key, where);
    if (!value.is_array() || value.empty())
      fail_at(where + "/" + key, "must be an array of at least one item");
    return value;
  }
  static bool flag(const OrderedJson& object, const char* key) {
    return object.contains(key) && object.at(key) == true;
  }
  template <typename F>
  static std::vector<ExprId> all(const OrderedJson& object, const char* key, const std::string& where,
                                 F&& compile_item) {
    std::vector<ExprId> result;
    for (const auto& item : array(object, key, where))
      result.push_back(compile_item(item, where + "/" + key + "/" + std::to_string(result.size())));
    return result;
  }

  ExprId schema(const OrderedJson& value, const std::string& where) {
    try {
      return SchemaCompiler(ex_, json_, source_, value).compile();
    } catch (const GrammarError& error) {
      fail_at(where, error.what());
    }
  }

  ExprId regex(std::string_view pattern) { return ex_.lexeme(utf8_regex(ex_, pattern)); }

  ExprId token(const OrderedJson& name, const std::string& where) {
    if (name.is_string()) return ex_.token(special_token(vocabulary_, name.get<std::string>()));
    if (!name.is_number_unsigned() ||
        name.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocabulary_.size()))
      fail_at(where + "/token", "must be a token's id, or a special token's name");
    return ex_.token(name.get<int>());
  }

  // A text, in which what spells a special token may also be that token.
  ExprId marked(std::string_view text) {
    ex_.check_time();
    std::vector<std::pair<std::string_view, int>> specials;
    for (int id = 0; id < vocabulary_.size(); ++id) {
      const TokenText& token = vocabulary_.token(id);
      if (token.special && !token.bytes.empty() && text.find(token.bytes) != std::string_view::npos)
        specials.emplace_back(token.bytes, id);
    }
    std::vector<ExprId> after(text.size() + 1, kEmpty);
    for (std::size_t at = text.size(); at-- > 0;) {
      std::vector<ExprId> parts = {ex_.concat(ex_.literal(text.substr(at, 1)), after[at + 1])};
      for (const auto& [bytes, id] : specials)
        if (text.substr(at).starts_with(bytes))
          parts.push_back(ex_.concat(ex_.token(id), after[at + bytes.size()]));
      after[at] = ex_.any_of(std::move(parts));
    }
    return after[0];
  }

  // Text that holds none of the marks.
  ExprId text_without(const std::vector<std::string>& marks) {
    if (marks.empty()) return ex_.lexeme(text_);
    const ExprId any = ex_.literals({marks.begin(), marks.end()});
    return ex_.lexeme(ex_.all_of({text_, ex_.complement(ex_.concat({kAnything, any, kAnything}))}));
  }

  // Text up to the end of the first mark, which is `mark`, or the token of that name.
  ExprId text_up_to(const std::string& mark, const std::vector<std::string>& marks) {
    const ExprId any = ex_.literals({marks.begin(), marks.end()}), byte = ex_.bytes(ByteSet::all());
    const ExprId spelt =
        ex_.lexeme(ex_.all_of({ex_.concat(text_, ex_.literal(mark)),
                               ex_.complement(ex_.concat({kAnything, any, byte, kAnything}))}));
    for (int id = 0; id < vocabulary_.size(); ++id)
      if (vocabulary_.token(id).special && vocabulary_.token(id).bytes == mark)
        return ex_.any_of({spelt, ex_.concat(text_without(marks), ex_.token(id))});
    return spelt;
  }

  ExprId any_text(const OrderedJson& format, const std::string& where) {
    for (const auto& [key, value] : format.items())
      if (key != "type" && key != "excludes") fail_at(where + "/" + key, "is not supported");
    std::vector<std::string> marks;
    if (format.contains("excludes"))
      for (const auto& mark : array(format, "excludes", where)) marks.push_back(mark.get<std::string>());
    return text_without(marks);
  }

  // What follows a tag's first bytes, which the caller has matched.
  ExprId tag(const OrderedJson& tag, const std::string& where, std::size_t matched = 0) {
    const std::string begin = string(tag, "begin", where);
    const OrderedJson& content = get(tag, "content", where);
    std::vector<std::string> ends;
    if (tag.contains("end") && tag.at("end").is_array())
      for (const auto& end : array(tag, "end", where)) ends.push_back(end.get<std::string>());
    else
      ends.push_back(string(tag, "end", where));
    const ExprId opening = marked(std::string_view(begin).substr(matched));
    std::vector<ExprId> parts;
    const bool until_end = content.is_object() && content.contains("type") &&
                           content.at("type") == "any_text" && std::ranges::find(ends, "") == ends.end();
    const ExprId inside = until_end ? kEmpty : compile(content, where + "/content");
    for (const std::string& end : ends)
      parts.push_back(until_end ? text_up_to(end, ends) : ex_.concat(inside, marked(end)));
    return ex_.concat(opening, ex_.any_of(std::move(parts)));
  }

  ExprId triggered(const OrderedJson& format, const std::string& where) {
    std::vector<std::string> triggers;
    for (const auto& trigger : array(format, "triggers", where)) {
      if (!trigger.is_string() || trigger == "")
        fail_at(where + "/triggers", "a trigger is a string that is not empty");
      triggers.push_back(trigger.get<std::string>());
    }
    std::vector<ExprId> parts;
    const OrderedJson& tags = array(format, "tags", where);
    for (const std::string& trigger : triggers) {
      std::vector<ExprId> begun;
      for (std::size_t i = 0; i < tags.size(); ++i) {
        const std::string at = where + "/tags/" + std::to_string(i);
        const std::string begin = string(tags[i], "begin", at);
        if (std::ranges::none_of(triggers, [&](const auto& other) { return begin.starts_with(other); }))
          fail_at(at + "/begin", "must begin with a trigger");
        if (begin.starts_with(trigger)) begun.push_back(tag(tags[i], at, trigger.size()));
      }
      if (!begun.empty())
        parts.push_back(ex_.concat(text_up_to(trigger, triggers), ex_.any_of(std::move(begun))));
    }
    const ExprId one = ex_.any_of(std::move(parts)), rest = text_without(triggers);
    const bool at_least_one = flag(format, "at_least_one");
    if (flag(format, "stop_after_first")) return at_least_one ? one : ex_.any_of({one, rest});
    return ex_.concat(ex_.repeat(one, at_least_one ? 1 : 0, kNoLimit), rest);
  }

  ExprId separated(const OrderedJson& format, const std::string& where) {
    const ExprId one = ex_.any_of(
        all(format, "tags", where, [&](const auto& item, const auto& at) { return tag(item, at); }));
    const ExprId more = ex_.concat(marked(string(format, "separator", where)), one);
    const ExprId list =
        flag(format, "stop_after_first") ? one : ex_.concat(one, ex_.repeat(more, 0, kNoLimit));
    return flag(format, "at_least_one") ? list : ex_.optional(list);
  }

  Expressions& ex_;
  JsonText& json_;
  const Source& source_;
  const Vocabulary& vocabulary_;
  ExprId text_;
};

}  // namespace

ExprId compile_structural_tag(Expressions& expressions, JsonText& json, const Source& source,
                              const OrderedJson& tag, const Vocabulary& vocabulary) {
  if (!tag.is_object() || !tag.contains("type") || tag.at("type") != "structural_tag")
    throw GrammarError("a structural tag is an object of type structural_tag");
  TagCompiler compiler(expressions, json, source, vocabulary);
  if (tag.contains("structures")) return compiler.compile_structures(tag);
  if (!tag.contains("format")) throw GrammarError("structural tag: the key format is missing");
  return compiler.compile(tag.at("format"), "/format");
}

}  // namespace quire::grammar
