#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/rules.h"

namespace quire::grammar {
namespace {

// The keys of each format beside its type.
struct FormatKeys {
  std::string_view type;
  std::array<std::string_view, 5> keys;
};
constexpr std::array<FormatKeys, 14> kTagFormats = {
    {{"const_string", {"value"}},
     {"json_schema", {"json_schema", "any_order", "style", "pointer"}},
     {"grammar", {"grammar"}},
     {"regex", {"pattern"}},
     {"any_text", {"excludes", "max_chars"}},
     {"token", {"token"}},
     {"sequence", {"elements"}},
     {"or", {"elements"}},
     {"optional", {"content"}},
     {"plus", {"content"}},
     {"star", {"content"}},
     {"repeat", {"content", "min", "max"}},
     {"triggered_tags", {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}},
     {"tags_with_separator", {"tags", "separator", "at_least_one", "stop_after_first"}}}};
constexpr FormatKeys kTagKeys = {"tag", {"begin", "content", "end"}};
constexpr std::uint32_t kMostRepeats = 1u << 20;

class TagCompiler {
 public:
  TagCompiler(Expressions& expressions, JsonText& json, const Source& source, const Vocabulary& vocabulary)
      : ex_(expressions), json_(json), source_(source), vocabulary_(vocabulary) {
    text_ = ex_.repeat(utf8_character(ex_, CharacterSet::all()), 0, kNoLimit);
  }

  ExprId compile(const OrderedJson& format, const std::string& where) {
    if (!format.is_object()) fail_at(where, "a format is an object");
    const Expressions::Depth deeper(ex_, kSchemaWeight);
    const std::string type = string(format, "type", where);
    if (type == "tag") return tag(format, where);
    if (type == "structural_tag") return compile_whole(format, where);
    const auto* const known = std::ranges::find(kTagFormats, type, &FormatKeys::type);
    if (known == kTagFormats.end())
      fail_at(where + "/type", format_text("the format {} is not supported", in_quotes(type)));
    check_keys(format, *known, where);
    if (type == "const_string") return marked(string(format, "value", where));
    if (type == "json_schema") return schema(format, where);
    if (type == "grammar") return compile_rules(ex_, string(format, "grammar", where), vocabulary_);
    if (type == "regex") return regex(string(format, "pattern", where));
    if (type == "any_text")
      return ex_.lexeme(ex_.all_of({text_of(format, where), without(excludes(format, where))}));
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
    return ex_.repeat(compile(get(format, "content", where), where + "/content"),
                      count(format, "min", type == "plus" ? 1 : 0, where),
                      count(format, "max", type == "optional" ? 1 : kNoLimit, where));
  }

  // {"format": {...}}, or {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
  ExprId compile_whole(const OrderedJson& whole, const std::string& where) {
    if (!whole.contains("structures")) {
      check_keys(whole, {"", {"format"}}, where);
      return compile(get(whole, "format", where), where + "/format");
    }
    check_keys(whole, {"", {"structures", "triggers"}}, where);
    OrderedJson tags = OrderedJson::array();
    for (const auto& structure : array(whole, "structures", where)) {
      const std::string at = where + "/structures";
      check_keys(structure, {"", {"begin", "schema", "end"}}, at);
      tags.push_back({{"begin", get(structure, "begin", at)},
                      {"content", {{"type", "json_schema"}, {"json_schema", get(structure, "schema", at)}}},
                      {"end", get(structure, "end", at)}});
    }
    return triggered({{"triggers", array(whole, "triggers", where)}, {"tags", std::move(tags)}}, where);
  }

 private:
  [[noreturn]] static void fail_at(const std::string& where, std::string_view what) {
    throw GrammarError(format_text("structural tag at {}: {}", in_quotes("#" + where), what));
  }
  static void check_keys(const OrderedJson& object, const FormatKeys& known, const std::string& where) {
    if (!object.is_object()) fail_at(where, "must be an object");
    for (const auto& [key, value] : object.items())
      if (key != "type" && std::ranges::find(known.keys, key) == known.keys.end())
        fail_at(where + "/" + key, "this key is not supported here");
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
  static bool flag(const OrderedJson& object, const char* key, const std::string& where,
                   bool otherwise = false) {
    if (!object.contains(key)) return otherwise;
    if (!object.at(key).is_boolean()) fail_at(where + "/" + key, "must be true or false");
    return object.at(key).get<bool>();
  }
  // -1 is no bound, as is a key that is missing.
  static std::uint32_t count(const OrderedJson& object, const char* key, std::uint32_t otherwise,
                             const std::string& where) {
    if (!object.contains(key) || object.at(key) == -1) return otherwise;
    const OrderedJson& value = object.at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMostRepeats)
      fail_at(where + "/" + key, "must be at most 2^20");
    return value.get<std::uint32_t>();
  }
  // One string, or an array of them.
  static std::vector<std::string> strings(const OrderedJson& object, const char* key,
                                          const std::string& where) {
    const OrderedJson& value = get(object, key, where);
    std::vector<std::string> result;
    for (const auto& item : value.is_array() ? array(object, key, where) : OrderedJson::array({value})) {
      if (!item.is_string()) fail_at(where + "/" + key, "must be strings");
      result.push_back(item.get<std::string>());
    }
    return result;
  }
  template <typename F>
  static std::vector<ExprId> all(const OrderedJson& object, const char* key, const std::string& where,
                                 F&& compile_item) {
    std::vector<ExprId> result;
    for (const auto& item : array(object, key, where))
      result.push_back(compile_item(item, where + "/" + key + "/" + std::to_string(result.size())));
    return result;
  }

  ExprId schema(const OrderedJson& format, const std::string& where) {
    if (format.contains("style") && format.at("style") != "json")
      fail_at(where + "/style", "only the style json is supported");
    Source source = source_;
    source.any_order = flag(format, "any_order", where, source.any_order);
    std::string at = format_text("#{}/json_schema", where);
    if (format.contains("pointer")) at = string(format, "pointer", where);
    return SchemaCompiler(ex_, json_, source, get(format, "json_schema", where), std::move(at)).compile();
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
    std::vector<std::pair<std::string_view, int>> specials;
    ex_.check_time();
    for (int id = 0; id < vocabulary_.size(); ++id) {
      const TokenText& token = vocabulary_.token(id);
      if (!token.special || token.bytes.empty()) continue;
      ex_.step(1 + text.size() / 8);
      if (text.find(token.bytes) != std::string_view::npos) specials.emplace_back(token.bytes, id);
    }
    std::vector<ExprId> after(text.size() + 1, kEmpty);
    for (std::size_t at = text.size(); at-- > 0;) {
      std::vector<ExprId> parts = {ex_.concat(ex_.literal(text.substr(at, 1)), after[at + 1])};
      ex_.step(specials.size());
      for (const auto& [bytes, id] : specials)
        if (text.substr(at).starts_with(bytes))
          parts.push_back(ex_.concat(ex_.token(id), after[at + bytes.size()]));
      after[at] = ex_.any_of(std::move(parts));
    }
    return after[0];
  }

  static std::vector<std::string> excludes(const OrderedJson& format, const std::string& where) {
    return format.contains("excludes") ? strings(format, "excludes", where) : std::vector<std::string>();
  }

  ExprId text_of(const OrderedJson& format, const std::string& where) {
    return ex_.repeat(utf8_character(ex_, CharacterSet::all()), 0,
                      count(format, "max_chars", kNoLimit, where));
  }

  ExprId without(const std::vector<std::string>& marks) {
    if (marks.empty()) return text_;
    const ExprId any = ex_.literals({marks.begin(), marks.end()});
    return ex_.all_of({text_, ex_.complement(ex_.concat({kAnything, any, kAnything}))});
  }

  // Text, which holds none of the marks, up to the end of the first one, which is each of `wanted` in turn,
  // or the token of that name.
  std::vector<ExprId> up_to(ExprId text, const std::vector<std::string>& wanted,
                            const std::vector<std::string>& marks) {
    const ExprId before = without(marks), byte = ex_.bytes(ByteSet::all());
    const ExprId no_more =
        ex_.complement(ex_.concat({kAnything, ex_.literals({marks.begin(), marks.end()}), byte, kAnything}));
    std::vector<ExprId> result;
    for (const std::string& mark : wanted) {
      ex_.check_time();
      ExprId spelt = ex_.lexeme(ex_.all_of({ex_.concat(text, ex_.literal(mark)), no_more}));
      for (int id = 0; id < vocabulary_.size(); ++id)
        if (vocabulary_.token(id).special && vocabulary_.token(id).bytes == mark)
          spelt = ex_.any_of({spelt, ex_.concat(ex_.lexeme(ex_.all_of({text, before})), ex_.token(id))});
      result.push_back(spelt);
    }
    return result;
  }

  // What follows a tag's first bytes, which the caller has matched.
  ExprId tag(const OrderedJson& tag, const std::string& where, std::size_t matched = 0) {
    check_keys(tag, kTagKeys, where);
    const std::string begin = string(tag, "begin", where);
    const OrderedJson& content = get(tag, "content", where);
    const std::vector<std::string> ends = strings(tag, "end", where);
    const ExprId opening = marked(std::string_view(begin).substr(matched));
    // Any text ends with the first end that it comes to.
    if (content.is_object() && content.contains("type") && content.at("type") == "any_text" &&
        std::ranges::find(ends, "") == ends.end()) {
      const std::string at = where + "/content";
      check_keys(content, *std::ranges::find(kTagFormats, "any_text", &FormatKeys::type), at);
      std::vector<std::string> marks = excludes(content, at);
      marks.insert(marks.end(), ends.begin(), ends.end());
      return ex_.concat(opening, ex_.any_of(up_to(text_of(content, at), ends, marks)));
    }
    const ExprId inside = compile(content, where + "/content");
    std::vector<ExprId> parts;
    for (const std::string& end : ends) parts.push_back(ex_.concat(inside, marked(end)));
    return ex_.concat(opening, ex_.any_of(std::move(parts)));
  }

  ExprId triggered(const OrderedJson& format, const std::string& where) {
    const std::vector<std::string> triggers = strings(format, "triggers", where);
    if (std::ranges::find(triggers, "") != triggers.end())
      fail_at(where + "/triggers", "a trigger is a string that is not empty");
    std::vector<std::string> marks = excludes(format, where);
    marks.insert(marks.end(), triggers.begin(), triggers.end());
    std::vector<std::vector<ExprId>> begun(triggers.size());
    const OrderedJson& tags = array(format, "tags", where);
    for (std::size_t i = 0; i < tags.size(); ++i) {
      const std::string at = where + "/tags/" + std::to_string(i), begin = string(tags[i], "begin", at);
      bool has_trigger = false;
      ex_.check_time();
      for (std::size_t j = 0; j < triggers.size(); ++j) {
        if (!begin.starts_with(triggers[j])) continue;
        has_trigger = true;
        begun[j].push_back(tag(tags[i], at, triggers[j].size()));
      }
      if (!has_trigger) fail_at(at + "/begin", "must begin with a trigger");
    }
    std::vector<ExprId> parts = up_to(text_, triggers, marks);
    for (std::size_t j = 0; j < parts.size(); ++j)
      parts[j] = ex_.concat(parts[j], ex_.any_of(std::move(begun[j])));
    const ExprId one = ex_.any_of(std::move(parts)), rest = ex_.lexeme(without(marks));
    const bool at_least_one = flag(format, "at_least_one", where);
    if (flag(format, "stop_after_first", where)) return at_least_one ? one : ex_.any_of({one, rest});
    return ex_.concat(ex_.repeat(one, at_least_one ? 1 : 0, kNoLimit), rest);
  }

  ExprId separated(const OrderedJson& format, const std::string& where) {
    const ExprId one = ex_.any_of(
        all(format, "tags", where, [&](const auto& item, const auto& at) { return tag(item, at); }));
    const ExprId more = ex_.concat(marked(string(format, "separator", where)), one);
    const ExprId list =
        flag(format, "stop_after_first", where) ? one : ex_.concat(one, ex_.repeat(more, 0, kNoLimit));
    return flag(format, "at_least_one", where) ? list : ex_.optional(list);
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
  return TagCompiler(expressions, json, source, vocabulary).compile_whole(tag, "");
}

}  // namespace quire::grammar
