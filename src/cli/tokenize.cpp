#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_source.h"
#include "tokenizer/tokenizer.h"

namespace quire::cli {
namespace {

struct Arguments {
  std::string path;
  ModelSource source;
  bool flag = false;

  Tokenizer load() const {
    const std::string found = source.find(path, ModelParts::kText);
    return Tokenizer::from_file(std::filesystem::is_directory(found) ? found + "/tokenizer.json" : found);
  }
};

// Calls f with the JSON of each line of standard input and its name for errors.
template <typename F>
int for_each_line(F f) {
  int number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const std::string where = format_text("standard input, line {}", ++number);
    f(parse_json(line, where), where);
    std::cout << "\n";
  }
  return 0;
}

int tokenize(const Tokenizer& tokenizer, bool add_special_tokens) {
  return for_each_line([&](const Json& text, const std::string& where) {
    if (!text.is_string()) fail("{}: is {}; it must be a JSON string", where, describe(text));
    std::cout << Json(tokenizer.encode(text.get<std::string>(), add_special_tokens)).dump();
  });
}

int detokenize(const Tokenizer& tokenizer, bool skip_special_tokens) {
  return for_each_line([&](const Json& array, const std::string& where) {
    const auto is_id = [&](const Json& id) {
      return id.is_number_integer() && id >= 0 && id < tokenizer.vocab_size();
    };
    if (!array.is_array() || !std::all_of(array.begin(), array.end(), is_id)) {
      fail("{}: must be a JSON array of token ids from 0 to {}", where, tokenizer.vocab_size() - 1);
    }
    std::cout << Json(tokenizer.decode(array.get<std::vector<TokenId>>(), skip_special_tokens)).dump();
  });
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& what,
                      const std::shared_ptr<Arguments>& arguments) {
  CLI::App* command = app.add_subcommand(name, what);
  command->add_option("PATH", arguments->path, "a model directory, a hub id or a tokenizer.json")->required();
  add_source_options(*command, arguments->source);
  return command;
}

}  // namespace

void add_tokenize(CLI::App& app, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = add_command(app, "tokenize",
                                  "A JSON string a line in, a JSON array of token ids a line out", arguments);
  command->add_flag("--no-special-tokens", arguments->flag,
                    "add no special tokens, such as a BOS, around the text");
  on_chosen(*command, chosen, [arguments] { return tokenize(arguments->load(), !arguments->flag); });
}

void add_detokenize(CLI::App& app, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = add_command(app, "detokenize",
                                  "A JSON array of token ids a line in, a JSON string a line out", arguments);
  command->add_flag("--skip-special-tokens", arguments->flag, "leave special tokens out of the text");
  on_chosen(*command, chosen, [arguments] { return detokenize(arguments->load(), arguments->flag); });
}

}  // namespace quire::cli
