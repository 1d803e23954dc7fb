#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inspect/agent_bench.h"
#include "inspect/workload.h"
#include "load/answer_reader.h"
#include "tokenizer/token_id.h"

namespace quire {

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

struct LoadTarget {
  std::string url;  // of completions or chat completions
  std::string api_key;
  RequestForm form;
};

struct LoadOptions {
  double requests_per_s = std::numeric_limits<double>::infinity();  // infinite: all at once
  std::size_t max_concurrency = std::numeric_limits<std::size_t>::max();
  std::uint64_t seed = 0;                                                // of the arrivals
  std::function<void(std::size_t done, std::size_t total)> on_progress;  // requests
  std::function<bool()>
      interrupted;  // asked often; true: nothing more is sent, and what is under way cancelled
};

struct LoadResult {
  std::vector<RequestTimeline> timelines;  // one a request
  double seconds = 0;                      // until the last answer
};

// Sends the requests to a server, each when its time has come and fewer than max_concurrency are under way,
// and notes when the answers come.
LoadResult run_load(HttpClient& client, const LoadTarget& target, const std::vector<LoadRequest>& requests,
                    const LoadOptions& options);

// Turns as completions with prompts of token ids, streamed.
std::unique_ptr<TurnRunner> server_turns(LoadTarget target);

// What a load came to. As in vLLM's benchmark, requests that failed or were cancelled count in no figure but
// their own; a latency that no request had is an empty list.
struct LoadFigures {
  std::int64_t num_done = 0;
  std::size_t num_failed = 0;
  std::size_t num_cancelled = 0;      // under way when the load was interrupted
  std::size_t num_without_usage = 0;  // of those done: the tokens are a guess
  std::size_t peak_concurrency = 0;
  std::string first_error;
  double seconds = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::vector<double> ttft_ms;  // from sending a request to its first chunk
  std::vector<double> tpot_ms;  // of a request: from the first to the last chunk, by its tokens but the first
  std::vector<double> itl_ms;   // between two chunks
  std::vector<double> e2e_ms;   // from sending a request to its last chunk

  double per_s(std::int64_t amount) const;  // of requests or tokens; NaN of none
};

LoadFigures load_figures(const LoadResult& result);

double mean(const std::vector<double>& values);  // NaN of none

// The id of the first model that a server lists. `url` is the server's, without a path.
std::string first_model(const std::string& url, const std::string& api_key);

}  // namespace quire
