#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/json_text.h"

namespace quire::grammar {

// Types as bits; a number is an integer, or none.
inline constexpr unsigned kNullType = 1, kBooleanType = 2, kObjectType = 4, kArrayType = 8, kStringType = 16,
                          kIntegerType = 32, kFractionType = 64, kAllTypes = 127;

// Makes expressions of JSON Schemas (drafts 4 to 2020-12). What an instance must satisfy at one place is a
// set of schemas: those named there, what they refer to, and one alternative of each anyOf. Their keywords
// are looked at together, so that siblings and allOf need no merging, and each set is compiled once. `not`,
// conditions and oneOf that is not plainly exclusive are rewritten to schemas that say the opposite.
class SchemaCompiler {
 public:
  // `root` and `json` outlive this. at: where `root` stands, as errors say it.
  SchemaCompiler(Expressions& expressions, JsonText& json, const Source& source, const OrderedJson& root,
                 std::string at = "#");
  ~SchemaCompiler() { ex_.memory().give(made_bytes_); }
  SchemaCompiler(const SchemaCompiler&) = delete;
  SchemaCompiler& operator=(const SchemaCompiler&) = delete;

  // GrammarError with the JSON pointer of what is wrong, or cannot be enforced.
  ExprId compile() { return compile({root_}); }

 private:
  using Schema = const OrderedJson*;
  using Schemas = std::vector<Schema>;
  struct Choice {
    std::vector<Schemas> alternatives;
    Schemas path;
  };
  // All that holds at one place. A path is the schemas that one stands in without going deeper into the
  // instance.
  struct Place {
    Schemas schemas;  // in the order in which they name properties
    std::deque<Choice> choices;
    unsigned types = kAllTypes;
    bool impossible = false;
  };
  struct Member {
    std::string name;
    ExprId value = kNothing;
    bool required = false;
  };

  [[noreturn]] void fail_at(Schema schema, std::string_view keyword, std::string_view what) const;
  std::string pointer(Schema schema) const;
  // The schema at these keys of another.
  template <typename... Keys>
  Schema child(Schema parent, const Keys&... keys) {
    Schema found = parent;
    ((found = &found->at(keys)), ...);
    if (!parents_.contains(found))
      parents_.try_emplace(found, parent, (OrderedJson::json_pointer() / ... / keys).to_string());
    return found;
  }
  // Takes the memory of a schema that rewriting made; the destructor gives it back.
  void pay_for(const OrderedJson& schema);
  Schema made(OrderedJson schema, Schema at);
  OrderedJson reference_to(Schema schema);
  Schema resolve(Schema schema, const std::string& reference);
  void index_names(Schema schema, Schema document, bool by_name = false);

  ExprId compile(Schemas schemas);
  void add(Place& place, Schema schema, const Schemas& path);
  void add_keyword(Place& place, Schema schema, const std::string& key, const Schemas& path);
  void exclude_others(Choice& choice, Schema schema);
  void add_dependencies(Place& place, Schema schema, const std::string& key, const Schemas& path);
  void check_keyword(Schema schema, const std::string& key) const;
  void check_listed(Schema schema, std::string_view key, const OrderedJson& value) const;
  ExprId expand(Place& place, std::size_t choice);
  ExprId leaf(const Place& place);
  ExprId values(const Place& place, Schema of, std::string_view key);
  void check_beside_values(const Place& place) const;

  // json_schema_negation.cpp
  Schema negation(Schema schema);
  bool negate_bound(Schema schema, const std::string& key, OrderedJson& alternatives) const;
  void negate_keyword(Schema schema, const std::string& key, OrderedJson& alternatives);

  // json_schema_types.cpp
  ExprId type(const Place& place, unsigned type);
  ExprId string(const Place& place);
  std::optional<ExprId> pattern(Schema schema, std::string_view key, const std::string& text);
  ExprId number(const Place& place, ExprId syntax, ExprId free);
  ExprId array(const Place& place);
  ExprId list(const std::vector<ExprId>& first, ExprId rest, std::uint32_t min, std::uint32_t max);
  ExprId object(const Place& place);
  std::vector<Member> members(const Place& place, ExprId names);
  ExprId other_members(const Place& place, const std::vector<Member>& known, ExprId names);
  ExprId member_list(const Place& place, const std::vector<Member>& members, ExprId other);
  // The schemas of a place that have a keyword, and its value there.
  static std::vector<std::pair<Schema, const OrderedJson&>> having(const Place& place, std::string_view key);
  static std::uint32_t bound(const Place& place, std::string_view key, bool lowest);
  // What a member must be whose name schemas match with schemas of their own.
  ExprId member_value(const Place& place, const std::vector<std::pair<Schema, Schema>>& matched);
  ExprId member(ExprId key, ExprId value) { return ex_.concat({key, json_.colon(), value}); }

  Expressions& ex_;
  JsonText& json_;
  const Source& source_;
  Schema root_;
  const std::string at_;
  std::deque<OrderedJson> made_;  // schemas that rewriting made
  std::size_t made_bytes_ = 0;
  std::unordered_map<Schema, std::pair<Schema, std::string>> parents_;  // and the way there
  std::unordered_map<std::string, Schema> names_;  // of anchors and ids; null: of more than one
  std::unordered_map<Schema, Schema> documents_;   // that "#" means, where it is not the root
  std::unordered_map<Schema, Schema> negations_;
  Schemas references_;  // what kReference means, by number
  std::map<std::set<Schema>, Recursive> compiled_;
  std::size_t num_leaves_ = 0;
  bool has_old_ids_ = false;  // "id" names a schema, as in draft 4
};

// Keywords that rewriting makes, which no schema of a user can have: JSON text holds no such bytes.
inline constexpr std::string_view kNotEnum = "\xFFnotEnum", kNotPattern = "\xFFnotPattern",
                                  kNotType = "\xFFnotType", kNotMultiple = "\xFFnotMultiple",
                                  kReference = "\xFFreference";

// What one level of a schema weighs on the stack, beside one of an expression.
inline constexpr unsigned kSchemaWeight = 4;

unsigned type_bits(std::string_view name);  // 0: no such type

}  // namespace quire::grammar
