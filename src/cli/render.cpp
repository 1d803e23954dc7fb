#include <ctime>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "engine/gguf_model.h"

namespace quire::cli {
namespace {

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

CheckpointChatTemplate load(const std::string& path) {
  if (const auto gguf = find_gguf(path); !gguf.empty()) {
    auto found = open_gguf(gguf).load_chat_template(nullptr);
    if (!found) fail("{}: no key tokenizer.chat_template", gguf.string());
    return std::move(*found);
  }
  if (!std::filesystem::is_directory(path)) {
    return {ChatTemplate::compile(read_text_file(path, kMaxTemplateBytes), path), {}, OrderedJson::object()};
  }
  auto found = load_chat_template(path);
  if (!found) fail("{}: no chat template in chat_template.jinja or tokenizer_config.json", path);
  return std::move(*found);
}

struct Render {
  std::string path;
  ModelSource source;
  std::string now;

  int run() const;
};

int Render::run() const {
  const std::tm time = parse_time(now);
  const CheckpointChatTemplate chat_template = load(source.find(path, /*with_weights=*/false));
  int number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    OrderedJson context = parse_ordered_json(line, format_text("standard input, line {}", ++number));
    OrderedJson result;
    // As transformers has it: templates tell "none" from "undefined".
    if (context.is_object() && !context.contains("tools")) context["tools"] = nullptr;
    try {
      result = join_pieces(chat_template.render(std::move(context), {time}));
    } catch (const Error& e) {
      result = {{"error", e.what()}};
    }
    std::cout << result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  }
  return 0;
}

}  // namespace

void add_render(CLI::App& app, Command& chosen) {
  auto [flags, render] =
      add_command<Render>(app, chosen, "render",
                          "A JSON context of a chat template a line in, a JSON string a line out; a context "
                          "without tools gets null for them, as in transformers");
  flags.value("PATH", render.path, "a model directory, a hub id or a .jinja file")->required();
  add_source_options(flags, render.source);
  flags.value("--now", render.now, "what strftime_now sees, as 2026-01-02T03:04:05 (default: the time)");
}

}  // namespace quire::cli
