#include "tokenizer/chat_template.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "tokenizer/jinja_render.h"

namespace quire {
namespace {

using jinja::Runtime;
using jinja::Value;

Value text_value(Runtime& runtime, const std::string& text, bool trusted) {
  if (!is_valid_utf8(text)) fail("the context of a chat template holds a string that is no valid UTF-8");
  return runtime.make(text, trusted);
}

// Some templates make a special token of a message's role, as in "<|" + role + "|>". So these are trusted.
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "observation"};

bool is_role(const std::string& key, const OrderedJson& value) {
  return key == "role" && value.is_string() &&
         std::ranges::find(kRoles, value.get_ref<const std::string&>()) != std::end(kRoles);
}

Value context_value(Runtime& runtime, const OrderedJson& json, std::size_t depth) {
  constexpr bool kTrusted = false;
  if (depth > Runtime::kMaxValueDepth)
    fail("the context of a chat template is nested deeper than {}", Runtime::kMaxValueDepth);
  if (json.is_null()) return {jinja::None{}, kTrusted};
  if (json.is_boolean()) return {json.get<bool>(), kTrusted};
  if (json.is_number_float()) return {json.get<double>(), kTrusted};
  if (json.is_string()) return text_value(runtime, json.get_ref<const std::string&>(), kTrusted);
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    fail("the context of a chat template holds {}, beyond 64 bits", json.get<std::uint64_t>());
  if (json.is_number_integer()) return {json.get<std::int64_t>(), kTrusted};
  if (json.is_array()) {
    std::vector<Value> items;
    for (const OrderedJson& item : json) items.push_back(context_value(runtime, item, depth + 1));
    return runtime.make(std::move(items));
  }
  if (!json.is_object()) fail("the context of a chat template holds a value that JSON has not");
  jinja::Items items;
  for (const auto& [key, item] : json.items()) {
    const Value name = text_value(runtime, key, kTrusted);
    const bool trusted = depth == 2 && is_role(key, item);  // as in messages[0]
    items.emplace_back(name, trusted ? text_value(runtime, item.get_ref<const std::string&>(), trusted)
                                     : context_value(runtime, item, depth + 1));
  }
  return runtime.make(std::move(items));
}

// Everything the template mentions and the globals or the context define.
std::vector<std::optional<Value>> context_variables(const jinja::Template& source, Runtime& runtime,
                                                    const OrderedJson& context) {
  std::vector<std::optional<Value>> variables(source.names.size());
  for (std::size_t id = 0; id < source.names.size(); ++id) {
    const std::string& name = source.names[id];
    runtime.charge(context.size() * 16);
    if (const auto found = context.find(name); found != context.end()) {
      const bool is_token = found->is_string() && name.ends_with("_token");
      variables[id] = is_token ? text_value(runtime, found->get_ref<const std::string&>(), true)
                               : context_value(runtime, *found, 1);
    } else if (const jinja::Builtin* global = jinja::find_global(name)) {
      variables[id] = runtime.make(jinja::Callable{.builtin = global});
    }
  }
  return variables;
}

constexpr std::size_t kMaxConfigBytes = std::size_t{64} << 20;  // of tokenizer_config.json
constexpr std::size_t kMaxSourceBytes = ChatTemplateLimits().max_source_bytes;

// A token is a string, or an object that holds it as content.
OrderedJson special_tokens_of(const Json& config) {
  OrderedJson tokens = OrderedJson::object();
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const Json& content = value.is_object() && value.contains("content") ? value["content"] : value;
    if (content.is_string()) tokens[key] = content.get<std::string>();
  }
  return tokens;
}

// The list form of tokenizer_config.json's chat_template.
std::string named_template(const Json& list, std::string_view name, const std::string& where) {
  for (const Json& entry : list) {
    const bool well_formed = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                             entry.contains("template") && entry["template"].is_string();
    if (!well_formed)
      fail("{}: every entry of chat_template must have a name and a template, both strings", where);
    if (entry["name"] == name) return entry["template"].get<std::string>();
  }
  return {};
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string_view where, const ChatTemplateLimits& limits)
    : source_(source),
      template_(std::make_shared<const jinja::Template>(jinja::parse_template(source, where, limits))),
      limits_(limits) {}

std::vector<TextPiece> ChatTemplate::render(const OrderedJson& context, const RenderOptions& options) const {
  if (!context.is_object()) fail("{}: the context must be an object", template_->where);
  jinja::Render run(*template_, limits_, options);
  const jinja::Text text = run.run(context_variables(*template_, run, context));
  std::vector<TextPiece> pieces;
  text.for_each_run([&](std::string_view bytes, bool trusted) {
    pieces.push_back({std::string(bytes), trusted});
  });
  return pieces;
}

std::string join_pieces(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  return text;
}

bool cut_after(std::vector<TextPiece>& pieces, std::string_view text) {
  const std::string all = join_pieces(pieces);
  std::size_t end = all.size();
  for (auto last = pieces.rbegin(); last != pieces.rend() && last->trusted; ++last) end -= last->text.size();
  const std::string_view kept = text.substr(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  const std::string_view bare = kept.substr(0, kept.find_last_not_of(kWhiteSpace) + 1);
  const std::size_t begin = std::string_view(all).substr(0, end).rfind(bare);
  if (bare.empty() || begin == std::string_view::npos) return false;
  const bool keeps_space = std::string_view(all).substr(begin).starts_with(kept);
  std::size_t length = begin + (keeps_space ? kept : bare).size();
  for (TextPiece& piece : pieces) {
    piece.text.resize(std::min(piece.text.size(), length));
    length -= piece.text.size();
  }
  return true;
}

std::tm local_time() {
  const std::time_t time = std::time(nullptr);
  std::tm now{};
  localtime_r(&time, &now);
  return now;
}

std::vector<TextPiece> CheckpointChatTemplate::render(OrderedJson context,
                                                      const RenderOptions& options) const {
  if (!context.is_object()) fail("the context of a chat template must be an object");
  for (const auto& [name, token] : special_tokens.items()) context[name] = token;
  const auto tools = context.find("tools");
  const bool has_tools = tools != context.end() && !tools->is_null();
  return (has_tools && tool_use ? *tool_use : standard).render(context, options);
}

std::optional<CheckpointChatTemplate> load_chat_template(const std::filesystem::path& folder,
                                                         const ChatTemplate* given) {
  std::filesystem::path config_path = folder / "tokenizer_config.json";
  const std::filesystem::path jinja_path = folder / "chat_template.jinja";
  Json config = Json::object();
  const auto read_config = [&] {
    if (std::filesystem::exists(config_path))
      config = read_json_file(config_path, {.max_bytes = kMaxConfigBytes});
    if (!config.is_object()) fail("{}: must be a JSON object", config_path.string());
  };
  read_config();
  const OrderedJson tokens = special_tokens_of(config);

  const auto compiled = [&](const std::string& source, const std::string& where) {
    return CheckpointChatTemplate{ChatTemplate(source, where), std::nullopt, tokens};
  };
  if (given != nullptr) return CheckpointChatTemplate{*given, std::nullopt, tokens};
  if (std::filesystem::exists(jinja_path)) {
    CheckpointChatTemplate result =
        compiled(read_text_file(jinja_path, kMaxSourceBytes), jinja_path.string());
    const std::filesystem::path tool_path = folder / "additional_chat_templates" / "tool_use.jinja";
    if (std::filesystem::exists(tool_path))
      result.tool_use = ChatTemplate(read_text_file(tool_path, kMaxSourceBytes), tool_path.string());
    return result;
  }
  if (config.value("chat_template", Json()).is_null()) {  // an older multimodal model's processor may have it
    config_path = folder / "chat_template.json";
    read_config();
  }
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  const std::string where = config_path.string() + ": chat_template";
  if (found->is_string()) return compiled(found->get<std::string>(), where);
  if (!found->is_array()) fail("{} must be a string or a list of named templates", where);
  const std::string standard = named_template(*found, "default", where);
  const std::string tool_use = named_template(*found, "tool_use", where);
  if (standard.empty()) fail("{} has no template named 'default'", where);
  CheckpointChatTemplate result = compiled(standard, where + " 'default'");
  if (!tool_use.empty()) result.tool_use = ChatTemplate(tool_use, where + " 'tool_use'");
  return result;
}

ChatTemplate read_chat_template(const std::string& file_or_text) {
  const bool is_text = file_or_text.find_first_of("{}\n") != std::string::npos;
  if (std::error_code ec; !is_text || std::filesystem::exists(file_or_text, ec)) {
    return ChatTemplate(read_text_file(file_or_text, kMaxSourceBytes), "chat_template " + file_or_text);
  }
  constexpr std::string_view kEscapes = "nt\\'\"", kMeant = "\n\t\\'\"";
  std::string text;
  for (std::size_t i = 0; i < file_or_text.size(); ++i) {
    const std::size_t escape = file_or_text[i] == '\\' && i + 1 < file_or_text.size()
                                   ? kEscapes.find(file_or_text[i + 1])
                                   : std::string_view::npos;
    const bool is_escape = escape != std::string_view::npos;
    text += is_escape ? kMeant[escape] : file_or_text[i];
    if (is_escape) ++i;
  }
  return ChatTemplate(text, "the text of chat_template");
}

}  // namespace quire
