// Structured outputs beside everything else that a request can ask for: tokens are those of a loop that runs
// one sequence alone, one token a request, with every token that the grammar takes named as allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/grammar/structured_sources.h"
#include "engine/submit.h"
#include "grammar/grammar.h"

namespace quire {
namespace {

using testing::Named;
using testing::prompt_of;
using testing::sources;
using testing::toy_config;

// What is asked, and what the engine is, beside a source.
struct Wish {
  std::string name;
  std::function<void(SamplingParams&, StructuredOutputs&)> ask = [](auto&, auto&) {};
  std::function<void(EngineConfig&, EngineHooks&)> set = [](auto&, auto&) {};
  int num_blocks = 0;  // of the cache; 0: enough
};
void PrintTo(const Wish& wish, std::ostream* out) { *out << wish.name; }

void ask_samples(SamplingParams& params, StructuredOutputs&) {
  params.temperature = 1.3F;
  params.seed = 5;
}

std::vector<Wish> wishes() {
  return {
      {.name = "greedy"},
      {.name = "sampled", .ask = ask_samples},
      {.name = "n",
       .ask =
           [](auto& params, auto& outputs) {
             ask_samples(params, outputs);
             params.n = 3;
           }},
      {.name = "logprobs", .ask = [](auto& params, auto&) { params.logprobs = 2; }},
      {.name = "penalties", .ask = [](auto& params, auto&) { params.repetition_penalty = 1.4F; }},
      {.name = "bias",
       .ask =
           [](auto& params, auto&) {
             params.logit_bias = {{66, 20.0F}, {99, 15.0F}};
           }},
      {.name = "stop",
       .ask =
           [](auto& params, auto&) {
             params.stop = {"e", ":"};
           }},
      {.name = "min_tokens", .ask = [](auto& params, auto&) { params.min_tokens = 2; }},
      {.name = "ignore_eos", .ask = [](auto& params, auto&) { params.ignore_eos = true; }},
      {.name = "reasoning", .ask = [](auto&, auto& outputs) { outputs.free_until = "what it says freely"; }},
      {.name = "no_jumps", .set = [](auto& config, auto&) { config.disable_jump_forward = true; }},
      {.name = "chunks",
       .set =
           [](auto& config, auto&) {
             config.max_num_batched_tokens = 9;
             config.long_prefill_token_threshold = 2;
           }},
      {.name = "preempted", .num_blocks = 14},
      {.name = "swapped",
       .set =
           [](auto& config, auto&) {
             config.swap_space = 1.0 / 64;
             config.preemption_mode = "swap";
           },
       .num_blocks = 14},
      {.name = "ranks", .set = [](auto& config, auto&) { config.tensor_parallel_size = 2; }},
      {.name = "pipelined", .ask = ask_samples, .set = [](auto&, auto& hooks) { hooks.pipelined = true; }},
      {.name = "pipelined_and_preempted",
       .set = [](auto&, auto& hooks) { hooks.pipelined = true; },
       .num_blocks = 14},
  };
}

// Runs requests of one token.
class Reference {
 public:
  Reference() : engine_(toy_config()) {
    const Tokenizer& tokenizer = engine_.tokenizer();
    std::vector<grammar::TokenText> tokens;
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
      tokens.push_back({tokenizer.token_bytes(id), tokenizer.is_special(id)});
    tokens.resize(static_cast<std::size_t>(engine_.config().spec.vocab_size));
    const auto eos = engine_.sampling_context().eos_token_ids;
    vocabulary_ =
        std::make_shared<grammar::Vocabulary>(std::move(tokens), std::vector<int>(eos.begin(), eos.end()));
  }

  Engine& engine() { return engine_; }

  struct Text {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;
    bool was_held = false;  // to the grammar, at some time
  };
  // Output `index` of a request.
  Text run(const std::vector<TokenId>& prompt, const SamplingParams& params, int index) {
    const StructuredOutputs& outputs = *params.structured_outputs;
    grammar::Matcher matcher(compiled(outputs));
    bool free = !outputs.free_until.empty();
    std::string text;
    Text result;
    while (static_cast<int>(result.tokens.size()) < params.max_tokens) {
      EngineRequest request;
      request.prompt = prompt;
      request.prompt.insert(request.prompt.end(), result.tokens.begin(), result.tokens.end());
      SamplingParams& one = request.params = params;
      one.structured_outputs = nullptr;
      one.n = one.max_tokens = 1;
      one.min_tokens = 0;
      one.ignore_eos = false;
      one.stop.clear();
      if (one.seed) *one.seed += static_cast<std::uint64_t>(index);
      one.allowed_token_ids =
          free ? not_ends() : allowed(matcher, params.min_tokens > std::ssize(result.tokens));
      const CompletionOutput output = testing::submit(engine_, std::move(request)).get().outputs[0];
      const TokenId token = output.token_ids.at(0);
      result.tokens.push_back(token);
      if (!output.logprobs.empty()) result.logprobs.push_back(output.logprobs[0].token.logprob);
      if (output.finish_reason == FinishReason::kStop) break;
      const std::string bytes = vocabulary_->token(token).bytes;
      text += bytes;
      EXPECT_TRUE(free || matcher.accept(token));
      result.was_held |= !free;
      free = free && text.find(outputs.free_until) == std::string::npos;
      const auto has = [&](const std::string& stop) { return text.find(stop) != std::string::npos; };
      if (std::any_of(params.stop.begin(), params.stop.end(), has)) break;
    }
    return result;
  }

  // Whether an output of the engine, which ended by itself, is all of a text of the grammar.
  bool is_complete(const StructuredOutputs& outputs, const std::vector<TokenId>& tokens) {
    grammar::Matcher matcher(compiled(outputs));
    for (const TokenId token : tokens)
      if (!matcher.accept(token)) return false;
    return matcher.ended();
  }

 private:
  std::shared_ptr<const grammar::Grammar> compiled(const StructuredOutputs& outputs) {
    auto& grammar = grammars_[outputs.source];
    if (grammar) return grammar;
    return grammar = grammar::compile({.kind = outputs.kind, .source = outputs.source}, vocabulary_);
  }

  std::vector<TokenId> not_ends() const {
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < vocabulary_->size(); ++id)
      if (!vocabulary_->is_end(id)) ids.push_back(id);
    return ids;
  }
  // Every token is tried.
  std::vector<TokenId> allowed(const grammar::Matcher& matcher, bool without_end) const {
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < vocabulary_->size(); ++id) {
      grammar::Matcher tried = matcher;
      if (tried.accept(id) && !(without_end && vocabulary_->is_end(id))) ids.push_back(id);
    }
    return ids;
  }

  Engine engine_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  std::map<std::string, std::shared_ptr<const grammar::Grammar>> grammars_;
};

Reference& reference() {
  static auto* const made = new Reference;  // as long as the program, whose tests share it
  return *made;
}

// What the model says in the middle of its answer to the first prompt, if it may say anything.
std::string said_freely(const SamplingParams& params) {
  EngineRequest request;
  request.prompt = prompt_of(0);
  request.params = params;
  request.params.n = 1;
  request.params.ignore_eos = true;
  Engine& engine = reference().engine();
  const RequestOutput output = testing::submit(engine, std::move(request)).get();
  return engine.tokenizer().token_bytes(output.outputs[0].token_ids.at(4));
}

SamplingParams params_of(const StructuredOutputs& outputs, const Wish& wish) {
  StructuredOutputs wanted = outputs;
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 30;
  wish.ask(params, wanted);
  if (!wanted.free_until.empty()) wanted.free_until = said_freely(params);
  params.structured_outputs = std::make_shared<const StructuredOutputs>(wanted);
  return params;
}

class StructuredOutputsTest : public ::testing::TestWithParam<std::tuple<Named, Wish>> {};

TEST_P(StructuredOutputsTest, HaveTheTokensOfASequenceAlone) {
  const auto& [source, wish] = GetParam();
  const SamplingParams params = params_of(source.outputs, wish);
  EngineConfig config = toy_config();
  EngineHooks hooks;
  wish.set(config, hooks);
  const int ranks = config.tensor_parallel_size;
  if (!testing::has_devices(config)) GTEST_SKIP() << "no " << ranks << " GPUs here";
  if (wish.num_blocks > 0)
    config.kv_cache_memory =
        static_cast<std::size_t>(wish.num_blocks / ranks) * reference().engine().config().block_bytes();
  std::promise<void> all_there;
  hooks.fault = [ready = all_there.get_future().share()](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kSubmit) ready.wait();
  };
  Engine engine(config, open_model(config.model), hooks);
  std::vector<std::future<RequestOutput>> outputs;
  const auto submit_one = [&](int which) {
    EngineRequest request;
    request.prompt = prompt_of(which);
    request.params = params;
    outputs.push_back(testing::submit(engine, std::move(request)));
  };
  for (int i = 0; i < 3; ++i) submit_one(i);
  all_there.set_value();
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    if (i == 3) submit_one(0);  // which finds the first one's prompt
    const RequestOutput request = outputs[static_cast<std::size_t>(i)].get();
    ASSERT_EQ(std::ssize(request.outputs), params.n);
    for (const CompletionOutput& output : request.outputs) {
      ASSERT_EQ(output.error, "");
      const Reference::Text expected = reference().run(prompt_of(i % 3), params, output.index);
      const bool was_free = !params.structured_outputs->free_until.empty();
      EXPECT_TRUE(expected.was_held || (was_free && (i % 3 != 0 || output.index > 0)));
      EXPECT_EQ(output.token_ids, expected.tokens) << output.text;
      ASSERT_EQ(output.logprobs.size(), expected.logprobs.size());
      for (std::size_t k = 0; k < expected.logprobs.size(); ++k)  // ranks add up in another order
        EXPECT_NEAR(output.logprobs[k].token.logprob, expected.logprobs[k], ranks > 1 ? 1e-4 : 0);
      if (output.finish_reason == FinishReason::kStop && params.stop.empty() && !was_free) {
        EXPECT_TRUE(reference().is_complete(*params.structured_outputs, output.token_ids)) << output.text;
      }
    }
  }
  const SchedulerStats stats = engine.stats().scheduler;
  if (wish.num_blocks > 0 && source.name == "regex" && params.structured_outputs->free_until.empty()) {
    EXPECT_GT(stats.num_preemptions, 0U);
    EXPECT_EQ(stats.num_restored_blocks > 0, config.swap_space > 0);
  }
  if (wish.num_blocks == 0) {
    EXPECT_GT(stats.prefix_cache_hits, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StructuredOutputsTest,
                         ::testing::Combine(::testing::ValuesIn(sources()), ::testing::ValuesIn(wishes())),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + std::get<1>(test.param).name;
                         });

// Two of them at once.
std::vector<Wish> pairs_of_wishes() {
  const std::vector<std::string> names = {"n",         "logprobs", "penalties", "reasoning",
                                          "preempted", "ranks",    "pipelined"};
  std::vector<Wish> chosen, pairs;
  for (const Wish& wish : wishes())
    if (std::ranges::find(names, wish.name) != names.end()) chosen.push_back(wish);
  for (auto a = chosen.begin(); a != chosen.end(); ++a)
    for (auto b = std::next(a); b != chosen.end(); ++b)
      pairs.push_back({.name = a->name + "_and_" + b->name,
                       .ask =
                           [a = *a, b = *b](auto& params, auto& outputs) {
                             a.ask(params, outputs);
                             b.ask(params, outputs);
                           },
                       .set =
                           [a = *a, b = *b](auto& config, auto& hooks) {
                             a.set(config, hooks);
                             b.set(config, hooks);
                           },
                       .num_blocks = std::max(a->num_blocks, b->num_blocks)});
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Pairs, StructuredOutputsTest,
                         ::testing::Combine(::testing::Values(sources()[0], sources()[1], sources()[2]),
                                            ::testing::ValuesIn(pairs_of_wishes())),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + std::get<1>(test.param).name;
                         });

}  // namespace
}  // namespace quire
