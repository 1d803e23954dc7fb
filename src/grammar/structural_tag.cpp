#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/languages.h"
#include "grammar/regex.h"

namespace quire::grammar {
namespace {

// The keys of each format beside its type.
struct FormatKeys {
  std::string_view type;
  std::array<std::string_view, 5> keys;
};
constexpr FormatKeys kTag = {"tag", {"begin", "content", "end"}},
                     kAnyText = {"any_text", {"excludes", "max_chars"}};
constexpr std::array<FormatKeys, 14> kTagFormats = {
    {kAnyText,
     {"const_string", {"value"}},
     {"json_schema", {"json_schema", "any_order", "style", "pointer"}},
     {"grammar", {"grammar"}},
     {"regex", {"pattern"}},
     {"token", {"token"}},
     {"sequence", {"elements"}},
     {"or", {"elements"}},
     {"optional", {"content"}},
     {"plus", {"content"}},
     {"star", {"content"}},
     {"repeat", {"content", "min", "max"}},
     {"triggered_tags", {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}},
     {"tags_with_separator", {"tags", "separator", "at_least_one", "stop_after_first"}}}};
constexpr std::uint32_t kMostRepeats = 1u << 20;

// A value within a tag, and where it stands.
struct Part {
  const OrderedJson& value;
  std::string where;

  [[noreturn]] void fail(std::string_view what) const {
    throw GrammarError(format_text("structural tag at {}: {}", in_quotes("#" + where), what));
  }
  bool has(const char* key) const { return value.is_object() && value.contains(key); }
  Part operator[](const char* key) const {
    if (!has(key)) fail(format_text("the key {} is missing", key));
    return {value.at(key), where + "/" + key};
  }
  void check_keys(const FormatKeys& known) const {
    if (!value.is_object()) fail("must be an object");
    for (const auto& [key, of_key] : value.items())
      if (key.empty() || (key != "type" && std::ranges::find(known.keys, key) == known.keys.end()))
        Part{of_key, where + "/" + key}.fail("this key is not supported here");
  }
  std::string text() const {
    if (!value.is_string()) fail("must be a string");
    return value.get<std::string>();
  }
  std::vector<std::string> texts() const {
    const OrderedJson all = value.is_array() ? value : OrderedJson::array({value});
    if (all.empty() || !std::ranges::all_of(all, [](const auto& item) { return item.is_string(); }))
      fail("must be a string, or an array of strings");
    return all.get<std::vector<std::string>>();
  }
  std::vector<Part> items() const {
    if (!value.is_array() || value.empty()) fail("must be an array of at least one item");
    std::vector<Part> result;
    for (const auto& item : value) result.push_back({item, where + "/" + std::to_string(result.size())});
    return result;
  }
  bool flag(const char* key, bool otherwise = false) const {
    if (!has(key)) return otherwise;
    if (!value.at(key).is_boolean()) (*this)[key].fail("must be true or false");
    return value.at(key).get<bool>();
  }
  // -1 is no bound, as is a key that is missing.
  std::uint32_t count(const char* key, std::uint32_t otherwise) const {
    if (!has(key) || value.at(key) == -1) return otherwise;
    const Part found = (*this)[key];
    if (!found.value.is_number_unsigned() || found.value.get<std::uint64_t>() > kMostRepeats)
      found.fail("must be at most 2^20");
    return found.value.get<std::uint32_t>();
  }
};

class TagCompiler {
 public:
  TagCompiler(Expressions& expressions, JsonText& json, const Source& source, const Vocabulary& vocabulary)
      : ex_(expressions), json_(json), source_(source), vocabulary_(vocabulary) {
    text_ = ex_.repeat(utf8_character(ex_, CharacterSet::all()));
  }

  // {"format": {...}}, or {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
  ExprId compile_whole(const Part& whole) {
    if (!whole.has("structures")) {
      whole.check_keys({"", {"format"}});
      return compile(whole["format"]);
    }
    whole.check_keys({"", {"structures", "triggers"}});
    OrderedJson tags = OrderedJson::array();
    for (const Part& structure : whole["structures"].items()) {
      structure.check_keys({"", {"begin", "schema", "end"}});
      tags.push_back({{"begin", structure["begin"].value},
                      {"content", {{"type", "json_schema"}, {"json_schema", structure["schema"].value}}},
                      {"end", structure["end"].value}});
    }
    const OrderedJson format = {{"triggers", whole["triggers"].value}, {"tags", std::move(tags)}};
    return triggered({format, whole.where});
  }

 private:
  ExprId compile(const Part& format) {
    const Expressions::Depth deeper(ex_, kSchemaWeight);
    const std::string type = format["type"].text();
    if (type == "tag") return tag(format);
    if (type == "structural_tag") return compile_whole(format);
    const auto* const known = std::ranges::find(kTagFormats, type, &FormatKeys::type);
    if (known == kTagFormats.end())
      format["type"].fail(format_text("the format {} is not supported", in_quotes(type)));
    format.check_keys(*known);
    if (type == "const_string") return marked(format["value"].text());
    if (type == "json_schema") return schema(format);
    if (type == "grammar") return compile_rules(ex_, format["grammar"].text(), vocabulary_);
    if (type == "regex") return ex_.lexeme(utf8_regex(ex_, format["pattern"].text()));
    if (type == "any_text") return ex_.lexeme(ex_.all_of({text_of(format), without(marks_of(format))}));
    if (type == "triggered_tags") return triggered(format);
    if (type == "tags_with_separator") return separated(format);
    if (type == "token") return token(format["token"]);
    if (type == "sequence" || type == "or") {
      std::vector<ExprId> parts;
      for (const Part& element : format["elements"].items()) parts.push_back(compile(element));
      return type == "or" ? ex_.any_of(std::move(parts)) : ex_.concat(parts);
    }
    return ex_.repeat(compile(format["content"]), format.count("min", type == "plus" ? 1 : 0),
                      format.count("max", type == "optional" ? 1 : kNoLimit));
  }

  ExprId schema(const Part& format) {
    if (format.has("style") && format.value.at("style") != "json")
      format["style"].fail("only the style json is supported");
    Source source = source_;
    source.any_order = format.flag("any_order", source.any_order);
    const Part root = format["json_schema"];
    std::string at = format.has("pointer") ? format["pointer"].text() : "#" + root.where;
    return SchemaCompiler(ex_, json_, source, root.value, std::move(at)).compile();
  }

  ExprId token(const Part& name) {
    if (name.value.is_string()) return ex_.token(special_token(vocabulary_, name.text()));
    if (!name.value.is_number_unsigned() ||
        name.value.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocabulary_.size()))
      name.fail("must be a token's id, or a special token's name");
    return ex_.token(name.value.get<int>());
  }

  // A text, in which what spells a special token may also be that token.
  ExprId marked(std::string_view text) {
    std::vector<std::pair<std::string_view, int>> specials;
    ex_.check_time();
    for (const int id : vocabulary_.special_ids()) {
      const std::string_view bytes = vocabulary_.token(id).bytes;
      ex_.step(1 + text.size() / 8);
      if (!bytes.empty() && text.find(bytes) != std::string_view::npos) specials.emplace_back(bytes, id);
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

  // What a text must not hold: what its format excludes, and what ends it.
  static std::vector<std::string> marks_of(const Part& format, std::vector<std::string> ends = {}) {
    if (format.has("excludes")) std::ranges::move(format["excludes"].texts(), std::back_inserter(ends));
    return ends;
  }

  ExprId text_of(const Part& format) {
    return ex_.repeat(utf8_character(ex_, CharacterSet::all()), 0, format.count("max_chars", kNoLimit));
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
    const ExprId before = without(marks), byte = ex_.bytes(all_bytes());
    const ExprId no_more =
        ex_.complement(ex_.concat({kAnything, ex_.literals({marks.begin(), marks.end()}), byte, kAnything}));
    std::vector<ExprId> result;
    for (const std::string& mark : wanted) {
      ex_.check_time();
      ExprId spelt = ex_.lexeme(ex_.all_of({ex_.concat(text, ex_.literal(mark)), no_more}));
      for (const int id : vocabulary_.special_ids())
        if (vocabulary_.token(id).bytes == mark)
          spelt = ex_.any_of({spelt, ex_.concat(ex_.lexeme(ex_.all_of({text, before})), ex_.token(id))});
      result.push_back(spelt);
    }
    return result;
  }

  // What follows a tag's first bytes, which the caller has matched.
  ExprId tag(const Part& tag, std::size_t matched = 0) {
    tag.check_keys(kTag);
    const std::string begin = tag["begin"].text();
    const Part content = tag["content"];
    const std::vector<std::string> ends = tag["end"].texts();
    const ExprId opening = marked(std::string_view(begin).substr(matched));
    // Any text ends with the first end that it comes to.
    if (content.has("type") && content.value.at("type") == "any_text" &&
        std::ranges::find(ends, "") == ends.end()) {
      content.check_keys(kAnyText);
      return ex_.concat(opening, ex_.any_of(up_to(text_of(content), ends, marks_of(content, ends))));
    }
    std::vector<ExprId> closings;
    for (const std::string& end : ends) closings.push_back(marked(end));
    return ex_.concat({opening, compile(content), ex_.any_of(std::move(closings))});
  }

  ExprId triggered(const Part& format) {
    const std::vector<std::string> triggers = format["triggers"].texts();
    if (std::ranges::find(triggers, "") != triggers.end())
      format["triggers"].fail("a trigger is a string that is not empty");
    for (const std::string& excluded : marks_of(format)) {
      ex_.check_time();
      for (const std::string_view trigger : triggers)
        if (trigger.substr(0, trigger.size() - 1).find(excluded) != trigger.npos)
          format["excludes"].fail(
              format_text("{} is a part of the trigger {}, to whose end no text would come",
                          in_quotes(excluded), in_quotes(trigger)));
    }
    const std::vector<std::string> marks = marks_of(format, triggers);
    std::vector<std::vector<ExprId>> begun(triggers.size());
    for (const Part& of : format["tags"].items()) {
      const std::string begin = of["begin"].text();
      bool has_trigger = false;
      ex_.check_time();
      for (std::size_t j = 0; j < triggers.size(); ++j) {
        if (!begin.starts_with(triggers[j])) continue;
        has_trigger = true;
        begun[j].push_back(tag(of, triggers[j].size()));
      }
      if (!has_trigger) of["begin"].fail("must begin with a trigger");
    }
    std::vector<ExprId> parts = up_to(text_, triggers, marks);
    for (std::size_t j = 0; j < parts.size(); ++j)
      parts[j] = ex_.concat(parts[j], ex_.any_of(std::move(begun[j])));
    const ExprId one = ex_.any_of(std::move(parts)), rest = ex_.lexeme(without(marks));
    const bool at_least_one = format.flag("at_least_one");
    if (format.flag("stop_after_first")) return at_least_one ? one : ex_.any_of({one, rest});
    return ex_.concat(ex_.repeat(one, at_least_one ? 1 : 0, kNoLimit), rest);
  }

  ExprId separated(const Part& format) {
    std::vector<ExprId> tags;
    for (const Part& of : format["tags"].items()) tags.push_back(tag(of));
    const ExprId one = ex_.any_of(std::move(tags));
    const ExprId separator = marked(format["separator"].text());
    const ExprId list = format.flag("stop_after_first") ? one : ex_.separated(one, separator);
    return format.flag("at_least_one") ? list : ex_.optional(list);
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
  return TagCompiler(expressions, json, source, vocabulary).compile_whole({tag, ""});
}

}  // namespace quire::grammar
