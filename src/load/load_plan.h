#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "inspect/workload.h"
#include "tokenizer/token_id.h"

namespace quire {

// What a load generator sends to a server, and when.

struct LoadRequest {
  RequestSize size;  // prompt_tokens 0: as many as the text has
  std::string text;  // of the prompt, unless it has token ids
  std::vector<TokenId> token_ids;
};

std::vector<LoadRequest> random_requests(const RandomSizes& sizes, std::uint64_t seed);

// A file of lines {"prompt": TEXT, "output_len": TOKENS} or {"input_len": TOKENS, "output_len": TOKENS}.
std::vector<LoadRequest> read_dataset(const std::filesystem::path& file);

// Gives the requests that have a length alone a prompt: token ids from 256, below which some vocabularies
// keep special tokens, up to vocab_size; or, where the server takes text alone, about as many common words.
void fill_prompts(std::vector<LoadRequest>& requests, bool as_text, int vocab_size, std::uint64_t seed);

struct RequestForm {
  std::string model;
  bool chat = false;  // or a completion
  bool stream = true;
  bool ignore_eos = false;
  std::optional<double> temperature = {};  // unset: the server's default
  std::string extra_body = "{}";           // a JSON object, whose fields go before those above
};
// Error where extra_body is none.
std::string request_body(const LoadRequest& request, const RequestForm& form);

}  // namespace quire
