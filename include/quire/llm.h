#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/engine_config.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"

namespace quire {

// A prompt is text, in which special tokens are recognised, or token ids.
using Prompt = std::variant<std::string, std::vector<std::int32_t>>;

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

struct GenerateOptions {
  // Prefill and decode tokens/s on stderr, if that is a terminal.
  bool progress = false;
  // Called with each piece of new text of an output of the prompt of that index, in order, from another
  // thread. It must not call generate; what it throws ends all prompts and comes out of generate.
  std::function<void(std::size_t prompt, const CompletionOutput& so_far, std::string_view new_text)> on_text;
  // Polled; once true, what is unfinished is aborted.
  const std::atomic<bool>* cancelled = nullptr;
  // One each, lower first, under EngineConfig::scheduling_policy "priority"; empty: all 0.
  std::vector<int> priorities;
  // Only prompts of equal salt share cached prefixes.
  std::string cache_salt;
  // Seconds, over 0, until what is unfinished ends with FinishReason::kTimeout.
  std::optional<double> timeout;
};

// A loaded model that continues prompts. Everything a caller can get wrong throws a std::runtime_error with
// one line that says what, where and what would be right. Thread contract: usable from several threads at
// once.
class LLM {
 public:
  explicit LLM(const EngineConfig& config);
  ~LLM();
  LLM(LLM&&) noexcept;
  LLM& operator=(LLM&&) noexcept;

  // Continues every prompt, batched; outputs in the order of the prompts. A prompt that can never fit has
  // outputs with FinishReason::kError that say why, and so has one that finds the queue full; the others are
  // not affected.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts, const SamplingParams& params,
                                      const GenerateOptions& options = {});
  // The same with one SamplingParams each.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<SamplingParams>& params,
                                      const GenerateOptions& options = {});

  // A conversation as the model's chat template spells it, up to where the assistant answers. What stands in
  // a message never becomes a special token.
  std::vector<std::int32_t> apply_chat_template(const std::vector<ChatMessage>& messages) const;

  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const std::int32_t> token_ids) const;

  // The model author's, from generation_config.json, over the defaults of SamplingParams.
  SamplingParams default_sampling_params() const;
  // Throws what generate would throw for these parameters.
  void check(const SamplingParams& params) const;
  int max_model_len() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
