// Structured outputs beside everything else that a request can ask for: tokens are those of a loop that runs
// one sequence alone, one token a request, with every token that the grammar takes named as allowed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"
#include "grammar/grammar.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = StructuredOutputs::Kind;

struct Named {
  std::string name;
  StructuredOutputs outputs;
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

std::vector<Named> sources() {
  return {{"schema",
           {.kind = Kind::kJsonSchema,
            .source = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                          "additionalProperties": false})"}},
          {"regex", {.kind = Kind::kRegex, .source = "[a-e ]{60,90}"}},
          {"grammar", {.kind = Kind::kGrammar, .source = R"(root ::= "yes" | ("no" | "maybe") " " [0-9]+)"}},
          {"choice", {.kind = Kind::kChoice, .source = R"(["red", "green and blue", "green"])"}}};
}

EngineConfig toy_config() {
  EngineConfig config;
  config.model = QUIRE_SOURCE_DIR "/models/toy";
  const char* device = std::getenv("QUIRE_TEST_DEVICE");
  config.device = device == nullptr ? "cpu" : device;
  config.dtype = "float32";
  config.block_size = 8;
  config.max_num_seqs = 8;
  config.deterministic = true;
  return config;
}

std::vector<TokenId> prompt_of(int which) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < 30 + 5 * which; ++i) prompt.push_back((i * 37 + which * 101 + i * i % 11) % 4000);
  return prompt;
}

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
    grammar::Source source;
    source.kind = static_cast<grammar::Source::Kind>(outputs.kind);
    source.text = outputs.source;
    return grammar = grammar::compile(source, vocabulary_);
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

EngineRequest request_of(const StructuredOutputs& outputs) {
  EngineRequest request;
  request.prompt = prompt_of(0);
  request.params = params_of(outputs, {});
  return request;
}

CompletionOutput output_of(Engine& engine, EngineRequest request) {
  return testing::submit(engine, std::move(request)).get().outputs.at(0);
}

const StructuredOutputs kChoice{.kind = Kind::kChoice, .source = R"(["red", "green"])"};
const StructuredOutputs kOtherChoice{.kind = Kind::kChoice, .source = R"(["blue", "grey"])"};

TEST(StructuredOutputsEngineTest, WhatIsForcedTakesFewerSteps) {
  const StructuredOutputs spelled{.kind = Kind::kRegex, .source = "[q]{20,20}"};
  std::map<bool, int> num_steps;
  std::map<bool, std::vector<TokenId>> tokens;
  for (const bool jumps : {true, false}) {
    EngineConfig config = toy_config();
    config.disable_jump_forward = !jumps;
    Engine engine(config);
    engine.observe_steps([&](const StepRecord&) { ++num_steps[jumps]; });
    tokens[jumps] = output_of(engine, request_of(spelled)).token_ids;
  }
  EXPECT_EQ(tokens[true], tokens[false]);
  EXPECT_GT(tokens[true].size(), 3U);
  EXPECT_LT(num_steps[true], num_steps[false]);
}

TEST(StructuredOutputsEngineTest, ASourceThatIsWrongIsTheFaultOfItsRequestAlone) {
  Engine engine(toy_config());
  auto beside = testing::submit(engine, request_of(kChoice));
  const CompletionOutput wrong = output_of(
      engine,
      request_of({.kind = Kind::kJsonSchema, .source = R"({"properties": {"a": {"$ref": "http://x/y"}}})"}));
  EXPECT_EQ(wrong.finish_reason, FinishReason::kError);
  EXPECT_TRUE(wrong.is_request_at_fault);
  EXPECT_THAT(wrong.error, StartsWith("structured_outputs is refused: "));
  EXPECT_THAT(wrong.error, HasSubstr("/properties/a"));
  EXPECT_EQ(beside.get().outputs[0].finish_reason, FinishReason::kStop);
}

TEST(StructuredOutputsEngineTest, MinTokensBehindTheEndOfTheTextAreTheFaultOfTheRequest) {
  Engine engine(toy_config());
  EngineRequest request = request_of(kChoice);
  request.params.min_tokens = 20;
  const CompletionOutput output = output_of(engine, std::move(request));
  EXPECT_EQ(output.finish_reason, FinishReason::kError);
  EXPECT_TRUE(output.is_request_at_fault);
  EXPECT_THAT(output.error, HasSubstr("min_tokens and structured_outputs leave no token"));
}

TEST(StructuredOutputsEngineTest, WhatCannotBeTogetherIsRefusedByName) {
  Engine engine(toy_config());
  const auto refusal = [&](const auto& change) -> std::string {
    EngineRequest request = request_of(kChoice);
    change(request);
    try {
      engine.validate(request);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  if (QUIRE_HAS_BEAMS) {
    EXPECT_THAT(refusal([](EngineRequest& r) { r.params.beam_width = 2; }),
                HasSubstr("structured_outputs and beam_width exclude each other"));
  }
  EXPECT_THAT(refusal([](EngineRequest& r) { r.pooling = Pooling::kLast; }),
              HasSubstr("pooling and structured_outputs exclude each other"));
  EXPECT_THAT(refusal([](EngineRequest& r) {
                r.params.structured_outputs = std::make_shared<const StructuredOutputs>(
                    StructuredOutputs{.kind = Kind::kRegex, .source = std::string((1 << 20) + 1, 'a')});
              }),
              HasSubstr("1048577 bytes; at most 1048576"));
}

TEST(StructuredOutputsEngineTest, LogprobsOfThePromptAreThereWhateverIsForced) {
  Engine engine(toy_config());
  EngineRequest request = request_of({.kind = Kind::kRegex, .source = "[q]{20,20}"});
  request.params.prompt_logprobs = 0;
  request.params.max_tokens = 1;  // which is forced, so that it ends before the prompt is computed
  const std::size_t num_prompt = request.prompt.size();
  // The first token has none.
  EXPECT_EQ(testing::submit(engine, std::move(request)).get().prompt_logprobs.size(), num_prompt - 1);
}

// Whatever the model prefers.
TEST(StructuredOutputsEngineTest, NothingEndsWhatIsFreeBeforeItIsHeld) {
  Engine engine(toy_config());
  EngineRequest request = request_of(kChoice);
  StructuredOutputs outputs = kChoice;
  outputs.free_until = "said by nobody";
  request.params.structured_outputs = std::make_shared<const StructuredOutputs>(outputs);
  for (const TokenId end : engine.sampling_context().eos_token_ids) request.params.logit_bias[end] = 100;
  const CompletionOutput output = output_of(engine, std::move(request));
  EXPECT_EQ(output.finish_reason, FinishReason::kLength);
  EXPECT_EQ(output.token_ids.size(), 30U);
}

TEST(StructuredOutputsEngineTest, AStepIsBookedBeforeItsTokensAreTold) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCollect) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  };
  Engine engine(toy_config(), open_model(toy_config().model), std::move(hooks));
  EngineRequest request = request_of({.kind = Kind::kRegex, .source = "[q]{20,20}"});
  request.params.max_tokens = 1;  // which is forced
  const std::size_t num_prompt = request.prompt.size();
  std::promise<std::uint64_t> booked;
  request.on_update = [&](const RequestUpdate& update) {
    if (update.finished) booked.set_value(engine.stats().prefill_tokens);
  };
  engine.submit(std::move(request));
  EXPECT_EQ(booked.get_future().get(), num_prompt);
}

TEST(StructuredOutputsEngineTest, WhatFailsInTheCompilerIsNotTheRequestsFault) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCompile) throw std::bad_alloc();
  };
  Engine engine(toy_config(), open_model(toy_config().model), std::move(hooks));
  const CompletionOutput output = output_of(engine, request_of(kChoice));
  EXPECT_EQ(output.finish_reason, FinishReason::kError);
  EXPECT_FALSE(output.is_request_at_fault);
  EXPECT_THAT(output.error, StartsWith("structured_outputs could not be compiled: "));
}

// An engine whose first compilation goes on when it is told to.
class SlowCompilationTest : public ::testing::Test {
 protected:
  EngineHooks hooks() {
    EngineHooks hooks;
    hooks.fault = [this, go_on = go_on_.get_future().share()](EngineStage stage, SequenceId) {
      if (stage == EngineStage::kCompile && num_compiled_++ == 0) go_on.wait();
    };
    return hooks;
  }

  std::promise<void> go_on_;
  std::atomic<int> num_compiled_ = 0;
  Engine engine_{toy_config(), open_model(toy_config().model), hooks()};
};

TEST_F(SlowCompilationTest, HoldsUpNobodyElse) {
  auto slow = testing::submit(engine_, request_of(kChoice));
  auto same = testing::submit(engine_, request_of(kChoice));
  while (num_compiled_ == 0) std::this_thread::yield();
  EXPECT_EQ(output_of(engine_, request_of(kOtherChoice)).finish_reason, FinishReason::kStop);
  EngineRequest plain = request_of(kChoice);
  plain.params.structured_outputs = nullptr;
  EXPECT_EQ(output_of(engine_, std::move(plain)).finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine_.stats().scheduler.num_waiting, 2);
  EXPECT_EQ(engine_.stats().scheduler.num_queued_requests, 2);
  go_on_.set_value();
  EXPECT_EQ(slow.get().outputs[0].token_ids, same.get().outputs[0].token_ids);
  EXPECT_EQ(num_compiled_, 2) << "what was asked for twice is compiled once";
}

TEST_F(SlowCompilationTest, CanBeAborted) {
  auto done = std::make_shared<std::promise<CompletionOutput>>();
  auto output = done->get_future();
  EngineRequest request = request_of(kChoice);
  request.on_update = [done](const RequestUpdate& update) {
    if (update.finished) done->set_value(update.output);
  };
  const RequestId id = engine_.submit(std::move(request));
  while (num_compiled_ == 0) std::this_thread::yield();
  engine_.abort(id);
  EXPECT_EQ(output.get().finish_reason, FinishReason::kAbort);
  EXPECT_EQ(output_of(engine_, request_of(kOtherChoice)).finish_reason, FinishReason::kStop);
  EXPECT_EQ(engine_.stats().scheduler.num_waiting, 0);
  go_on_.set_value();
  EXPECT_EQ(output_of(engine_, request_of(kChoice)).finish_reason, FinishReason::kStop);
}

TEST_F(SlowCompilationTest, TimesOut) {
  EngineRequest request = request_of(kChoice);
  request.timeout = 0.05;
  request.params.temperature = 1;
  request.params.n = 2;
  for (const CompletionOutput& output : testing::submit(engine_, std::move(request)).get().outputs) {
    EXPECT_EQ(output.finish_reason, FinishReason::kTimeout);
    EXPECT_EQ(output.error, "its timeout has passed");
  }
  go_on_.set_value();
}

TEST(StructuredOutputsEngineTest, AnEngineEndsWhileItCompiles) {
  EngineHooks hooks;
  hooks.fault = [](EngineStage stage, SequenceId) {
    if (stage == EngineStage::kCompile) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  std::future<RequestOutput> output;
  {
    Engine engine(toy_config(), open_model(toy_config().model), std::move(hooks));
    output = testing::submit(engine, request_of(kChoice));
  }
  EXPECT_EQ(output.get().outputs[0].finish_reason, FinishReason::kAbort);
}

TEST(StructuredOutputsEngineTest, WhatFailsInAStepIsComputedAgain) {
  Engine whole(toy_config());
  for (const int ranks : {1, 2}) {
    std::atomic<int> num_steps = 0;
    EngineHooks hooks;
    hooks.pipelined = ranks == 1;
    hooks.fault = [&](EngineStage stage, SequenceId) {
      const bool may_fail = ranks > 1 ? stage == EngineStage::kRank
                                      : stage == EngineStage::kSubmit || stage == EngineStage::kCollect;
      if (may_fail && ++num_steps % 7 == 0) fail("injected");
    };
    EngineConfig config = toy_config();
    config.tensor_parallel_size = ranks;
    Engine engine(config, open_model(config.model), std::move(hooks));
    for (const Named& source : sources())
      EXPECT_EQ(output_of(engine, request_of(source.outputs)).token_ids,
                output_of(whole, request_of(source.outputs)).token_ids)
          << source.name << " with " << ranks << " ranks";
    EXPECT_GT(num_steps, 7);
  }
}

}  // namespace
}  // namespace quire
