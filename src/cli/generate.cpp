#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "quire/llm.h"

namespace quire::cli {
namespace {

constexpr int kDefaultMaxTokens = 256;

std::vector<std::int32_t> parse_ids(const std::string& list) {
  std::vector<std::int32_t> ids;
  std::istringstream fields(list);
  for (std::string field; std::getline(fields, field, ',');) {
    const auto id = parse_number<std::int32_t>(field);
    if (!id) fail("--prompt-ids: {} is not a token id; give them as 1,2,3", in_quotes(field));
    ids.push_back(*id);
  }
  return ids;
}

OrderedJson to_json(const TokenLogprob& token) {
  return {{"token_id", token.token_id}, {"logprob", token.logprob}, {"rank", token.rank}};
}

OrderedJson to_json(const std::vector<PositionLogprobs>& positions) {
  OrderedJson list = OrderedJson::array();
  for (const PositionLogprobs& position : positions) {
    OrderedJson object = to_json(position.token);
    object["top"] = OrderedJson::array();
    for (const TokenLogprob& token : position.top) object["top"].push_back(to_json(token));
    list.push_back(std::move(object));
  }
  return list;
}

struct Generate : EngineOptions {
  SamplingOptions sampling;
  std::vector<std::string> texts;
  std::vector<std::string> id_lists;
  std::optional<double> timeout;
  bool chat = false;
  bool stream = false;
  bool json = false;
  std::string early_stopping = "false";

  void add_to(Flags flags) {
    EngineOptions::add_to(flags);
    add_default_options(flags, config);
    flags.list("-p,--prompt", texts, "a prompt (repeatable); -: each line of standard input");
    flags.list("--prompt-ids", id_lists, "a prompt as token ids, 1,2,3 (repeatable)");
    flags.on("--chat", chat, "each prompt is a user's message, put into the model's chat template");
    flags.on("--stream", stream, "print text as it comes (one prompt, one output)");
    flags.on("--json", json, "print one JSON object an output");
    flags.value("--timeout", timeout, "seconds after which what is unfinished ends as it is");
    add_sampling_options(flags, sampling);
    flags.shown("--n", sampling.given.n, "outputs of each prompt, which is computed once");
    flags.value("--best-of", sampling.given.best_of,
                "sample so many and print the --n most likely ones, the best one first");
    flags.value("--beam-width", sampling.given.beam_width,
                "beam search of that width, which samples nothing; prints the --n best texts");
    flags.shown("--length-penalty", sampling.given.length_penalty,
                "with --beam-width: a text's score is its log-probability / its tokens ^ this");
    flags.shown("--early-stopping", early_stopping,
                "when a search ends that has as many finished texts as --beam-width: true: at once; false: "
                "when the best beam scores no better; never: when none can become better",
                CLI::IsMember({"false", "true", "never"}));
    flags.value("--logprobs", sampling.given.logprobs,
                "with --json: log-probabilities of the tokens, and of that many most likely ones");
    flags.value("--prompt-logprobs", sampling.given.prompt_logprobs, "the same of the prompt's tokens");
    flags.value("--truncate-prompt-tokens", sampling.given.truncate_prompt_tokens,
                "use only that many last tokens of a prompt; -1: what fits beside --max-tokens");
    flags.off("--no-detokenize", sampling.given.detokenize, "token ids alone, no text");
  }
  int run() {
    check_flags();
    if (follows()) return 0;
    config.model = source.find(config.model);
    LLM llm(config);
    GenerateOptions options;
    options.progress = !stream;
    options.cancelled = &InterruptFlag::raised;
    options.timeout = timeout;
    if (stream)
      options.on_text = [](std::size_t, const CompletionOutput&, std::string_view text) {
        std::cout << text << std::flush;
      };
    const std::vector<Prompt> all = prompts(llm);
    const InterruptFlag interrupt;
    const std::vector<RequestOutput> requests = llm.generate(all, params(llm), options);
    int code = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (const CompletionOutput& output : requests[i].outputs) {
        const bool failed = output.finish_reason == FinishReason::kError;
        if (json || !failed) print(requests, i, output);
        if (!failed) continue;
        print_text(stderr, "quire: prompt {}: {}\n", i + 1, output.error);
        code = kUserMistake;
      }
    }
    return InterruptFlag::is_raised() ? kInterrupted : code;
  }

 private:
  // Error where flags cannot stand together, before the model is loaded.
  void check_flags() const {
    const SamplingParams& given = sampling.given;
    check_number(texts.size() + id_lists.size());
    if (stream && given.n != 1) fail("--stream takes one output, not {}", given.n);
    if (stream && given.best_of) fail("--stream and --best-of exclude each other");
    if (stream && given.beam_width) fail("--stream and --beam-width exclude each other");
    if (stream && json) fail("--stream and --json exclude each other");
    if ((given.logprobs || given.prompt_logprobs) && !json)
      fail("--logprobs and --prompt-logprobs are printed with --json");
    if (!given.detokenize && !json) fail("--no-detokenize leaves nothing to print but with --json");
  }
  void check_number(std::size_t num_prompts) const {
    if (num_prompts == 0)
      fail("no prompt; give -p TEXT (- for lines of standard input) or --prompt-ids 1,2,3");
    if (stream && num_prompts != 1) fail("--stream takes one prompt, not {}", num_prompts);
  }

  std::vector<Prompt> prompts(const LLM& llm) const {
    std::vector<Prompt> result;
    const auto add = [&](const std::string& text) {
      result.push_back(chat ? Prompt(llm.apply_chat_template({{"user", text}})) : Prompt(text));
    };
    for (const std::string& text : texts) {
      if (text != "-") {
        add(text);
        continue;
      }
      for (std::string line; std::getline(std::cin, line);) add(line);
    }
    for (const std::string& list : id_lists) result.emplace_back(parse_ids(list));
    check_number(result.size());  // with the lines of standard input
    return result;
  }

  SamplingParams params(const LLM& llm) const {
    SamplingParams defaults = llm.default_sampling_params();
    defaults.max_tokens = std::max(defaults.max_tokens, kDefaultMaxTokens);
    SamplingParams params = sampling.over(defaults);
    params.early_stopping = early_stopping == "true"    ? EarlyStopping::kYes
                            : early_stopping == "never" ? EarlyStopping::kNever
                                                        : EarlyStopping::kNo;
    return params;
  }

  void print(const std::vector<RequestOutput>& requests, std::size_t prompt,
             const CompletionOutput& output) const {
    if (json) {
      OrderedJson object = {{"prompt", prompt},
                            {"index", output.index},
                            {"prompt_token_ids", requests[prompt].prompt_token_ids},
                            {"token_ids", output.token_ids},
                            {"text", output.text},
                            {"finish_reason", to_string(output.finish_reason)}};
      if (output.cumulative_logprob) object["cumulative_logprob"] = *output.cumulative_logprob;
      if (output.score) object["score"] = *output.score;
      if (sampling.given.logprobs) object["logprobs"] = to_json(output.logprobs);
      if (sampling.given.prompt_logprobs)
        object["prompt_logprobs"] = to_json(requests[prompt].prompt_logprobs);
      if (!output.error.empty()) object["error"] = output.error;
      std::cout << object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
      return;
    }
    if (requests[prompt].outputs.size() > 1)
      std::cout << "[" << prompt + 1 << "." << output.index + 1 << "] ";
    else if (requests.size() > 1)
      std::cout << "[" << prompt + 1 << "] ";
    if (!stream) std::cout << output.text;
    std::cout << "\n";
  }
};

}  // namespace

void add_generate(CLI::App& app, Command& chosen) {
  add_command<Generate>(app, chosen, "generate", "Continue prompts");
}

}  // namespace quire::cli
