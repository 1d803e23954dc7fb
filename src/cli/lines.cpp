// Commands that make a line of each line of standard input.
#include <ctime>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "engine/model_files.h"

namespace quire::cli {
namespace {

// Calls f with each line of standard input and its name for errors. What it returns is a line of the output.
template <typename F>
int for_each_line(const F& f) {
  int number = 0;
  for (std::string line; std::getline(std::cin, line);)
    std::cout << f(line, format_text("standard input, line {}", ++number)) << "\n";
  return 0;
}

// What tokenize and detokenize share.
struct TokenizerOptions {
  std::string path;
  ModelSource source;

  void add_to(Flags flags) {
    flags.value("PATH", path, "a model directory, a hub id, a .gguf file or a tokenizer.json")->required();
    add_source_options(flags, source);
  }
  Tokenizer load() const {
    const std::string found = source.find(path, /*with_weights=*/false);
    if (const auto gguf = find_gguf(found); !gguf.empty()) {
      ModelFiles model = open_gguf(gguf);
      if (!model.tokenizer) fail("{}: it has no tokenizer", gguf.string());
      return std::move(*model.tokenizer);
    }
    return std::filesystem::is_directory(found) ? Tokenizer::from_folder(found) : Tokenizer::from_file(found);
  }
};

struct Tokenize : TokenizerOptions {
  bool add_special_tokens = true;

  void add_to(Flags flags) {
    TokenizerOptions::add_to(flags);
    flags.off("--no-special-tokens", add_special_tokens,
              "add no special tokens, such as a BOS, around the text");
  }
  int run() const {
    const Tokenizer tokenizer = load();
    return for_each_line([&](const std::string& line, const std::string& where) {
      const Json text = parse_json(line, where);
      if (!text.is_string()) fail("{}: is {}; it must be a JSON string", where, describe(text));
      return Json(tokenizer.encode(text.get<std::string>(), add_special_tokens)).dump();
    });
  }
};

struct Detokenize : TokenizerOptions {
  bool skip_special_tokens = false;

  void add_to(Flags flags) {
    TokenizerOptions::add_to(flags);
    flags.on("--skip-special-tokens", skip_special_tokens, "leave special tokens out of the text");
  }
  int run() const {
    const Tokenizer tokenizer = load();
    return for_each_line([&](const std::string& line, const std::string& where) {
      const Json array = parse_json(line, where);
      const auto is_id = [&](const Json& id) {
        return id.is_number_integer() && id >= 0 && id < tokenizer.vocab_size();
      };
      if (!array.is_array() || !std::ranges::all_of(array, is_id))
        fail("{}: must be a JSON array of token ids from 0 to {}", where, tokenizer.vocab_size() - 1);
      return Json(tokenizer.decode(array.get<std::vector<TokenId>>(), skip_special_tokens)).dump();
    });
  }
};

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

std::tm parse_time(const std::string& text) {
  if (text.empty()) return local_time();
  std::tm time{};
  std::istringstream stream(text);
  stream >> std::get_time(&time, "%Y-%m-%dT%H:%M:%S");
  if (stream.fail() || stream.peek() != std::istringstream::traits_type::eof())
    fail("--now: {} is no time; give it as 2026-01-02T03:04:05", in_quotes(text));
  time.tm_isdst = -1;
  std::tm normalized = time;
  std::mktime(&normalized);  // fills in the day of the week and of the year
  time.tm_wday = normalized.tm_wday;
  time.tm_yday = normalized.tm_yday;
  return time;
}

CheckpointChatTemplate load_template(const std::string& path) {
  if (const auto gguf = find_gguf(path); !gguf.empty()) {
    auto found = open_gguf(gguf).load_chat_template(nullptr);
    if (!found) fail("{}: no key tokenizer.chat_template", gguf.string());
    return std::move(*found);
  }
  if (!std::filesystem::is_directory(path))
    return {ChatTemplate(read_text_file(path, kMaxTemplateBytes), path), {}, OrderedJson::object()};
  auto found = load_chat_template(path);
  if (!found) fail("{}: no chat template in chat_template.jinja or tokenizer_config.json", path);
  return std::move(*found);
}

struct Render {
  std::string path;
  ModelSource source;
  std::string now;

  void add_to(Flags flags) {
    flags.value("PATH", path, "a model directory, a hub id or a .jinja file")->required();
    add_source_options(flags, source);
    flags.value("--now", now, "what strftime_now sees, as 2026-01-02T03:04:05 (default: the time)");
  }
  int run() const {
    const std::tm time = parse_time(now);
    const CheckpointChatTemplate chat_template = load_template(source.find(path, /*with_weights=*/false));
    return for_each_line([&](const std::string& line, const std::string& where) {
      OrderedJson context = parse_ordered_json(line, where);
      OrderedJson result;
      // As transformers has it: templates tell "none" from "undefined".
      if (context.is_object() && !context.contains("tools")) context["tools"] = nullptr;
      try {
        result = join_pieces(chat_template.render(std::move(context), {time}));
      } catch (const Error& e) {
        result = {{"error", e.what()}};
      }
      return result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    });
  }
};

}  // namespace

void add_line_commands(CLI::App& app, Command& chosen) {
  add_command<Tokenize>(app, chosen, "tokenize",
                        "A JSON string a line in, a JSON array of token ids a line out");
  add_command<Detokenize>(app, chosen, "detokenize",
                          "A JSON array of token ids a line in, a JSON string a line out");
  add_command<Render>(app, chosen, "render",
                      "A JSON context of a chat template a line in, a JSON string a line out; a context "
                      "without tools gets null for them, as in transformers");
}

}  // namespace quire::cli
