#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "engine/gguf_model.h"

namespace quire::cli {
namespace {

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

// What both commands share.
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
    return Tokenizer::from_file(std::filesystem::is_directory(found) ? found + "/tokenizer.json" : found);
  }
};

struct Tokenize : TokenizerOptions {
  bool no_special_tokens = false;

  int run() const {
    const Tokenizer tokenizer = load();
    return for_each_line([&](const Json& text, const std::string& where) {
      if (!text.is_string()) fail("{}: is {}; it must be a JSON string", where, describe(text));
      std::cout << Json(tokenizer.encode(text.get<std::string>(), !no_special_tokens)).dump();
    });
  }
};

struct Detokenize : TokenizerOptions {
  bool skip_special_tokens = false;

  int run() const {
    const Tokenizer tokenizer = load();
    return for_each_line([&](const Json& array, const std::string& where) {
      const auto is_id = [&](const Json& id) {
        return id.is_number_integer() && id >= 0 && id < tokenizer.vocab_size();
      };
      if (!array.is_array() || !std::ranges::all_of(array, is_id))
        fail("{}: must be a JSON array of token ids from 0 to {}", where, tokenizer.vocab_size() - 1);
      std::cout << Json(tokenizer.decode(array.get<std::vector<TokenId>>(), skip_special_tokens)).dump();
    });
  }
};

}  // namespace

void add_tokenize(CLI::App& app, Command& chosen) {
  auto [flags, tokenize] = add_command<Tokenize>(
      app, chosen, "tokenize", "A JSON string a line in, a JSON array of token ids a line out");
  tokenize.add_to(flags);
  flags.on("--no-special-tokens", tokenize.no_special_tokens,
           "add no special tokens, such as a BOS, around the text");
}

void add_detokenize(CLI::App& app, Command& chosen) {
  auto [flags, detokenize] = add_command<Detokenize>(
      app, chosen, "detokenize", "A JSON array of token ids a line in, a JSON string a line out");
  detokenize.add_to(flags);
  flags.on("--skip-special-tokens", detokenize.skip_special_tokens, "leave special tokens out of the text");
}

}  // namespace quire::cli
