// How many grammars there may be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/structured_outputs.h"
#include "sanitized.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using Compiled = GrammarCompiler::Result;

class GrammarCompilerTest : public ::testing::Test {
 protected:
  std::unique_ptr<GrammarCompiler> compiler(CompilerLimits limits) {
    const auto count = [this](EngineStage, SequenceId) { ++num_compiled_; };
    return make_grammar_compiler(
        context(), [] {}, count, limits);
  }
  SamplingContext context() const {
    return {.vocab_size = tokenizer_.vocab_size(),
            .max_logprobs = 0,
            .eos_token_ids = eos_,
            .tokenizer = &tokenizer_};
  }
  static std::shared_ptr<const StructuredOutputs> regex(const std::string& source) {
    return std::make_shared<const StructuredOutputs>(
        StructuredOutputs{.kind = StructuredOutputs::Kind::kRegex, .source = source});
  }
  template <typename Condition>
  static void wait_until(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) ASSERT_LT(std::chrono::steady_clock::now(), end);
  }
  static Compiled result_of(const GrammarCompiler::Compilation& compilation) {
    wait_until([&] { return compilation.result().has_value(); });
    return compilation.result().value_or(Compiled{});
  }
  static Compiled result_of(GrammarCompiler& compiler, const std::string& source) {
    return result_of(*compiler.compile(regex(source)));
  }

  const ModelFiles model_ = open_model(QUIRE_SOURCE_DIR "/models/toy");
  const Tokenizer& tokenizer_ = *model_.tokenizer;
  const std::vector<TokenId> eos_ = {0};
  std::atomic<int> num_compiled_ = 0;
};

TEST_F(GrammarCompilerTest, KeepsWhatNobodyHasAsFarAsThereIsRoom) {
  const auto roomy = compiler({}), narrow = compiler({.kept_bytes = 1});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(result_of(*roomy, "a").make);
  EXPECT_EQ(num_compiled_, 1);
  // Whoever has compiled it lets go of it a moment after the result.
  wait_until([&] { return result_of(*narrow, "a").make && num_compiled_ >= 3; });
  const Compiled held = result_of(*narrow, "a");
  const int before = num_compiled_;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(result_of(*narrow, "a").make);
  EXPECT_EQ(num_compiled_, before) << "a request has it";
}

TEST_F(GrammarCompilerTest, CountsWhatGrammarsAndTheirMasksTake) {
  const auto pool = compiler({.kept_bytes = 1});
  EXPECT_EQ(pool->bytes(), 0U);
  {
    const Compiled held = result_of(*pool, "(ab|cd){1,20}");
    const std::size_t compiled = pool->bytes();
    EXPECT_GT(compiled, 0U);
    const auto constraint = held.make();
    std::vector<std::uint32_t> mask((tokenizer_.vocab_size() + 31) / 32);
    ASSERT_TRUE(constraint->fill_mask({}, mask));
    EXPECT_GT(pool->bytes(), compiled);
  }
  wait_until([&] { return pool->bytes() < 4096; });  // what lexemes of any grammar share stays
}

// 10^5 where the soak asks for them.
TEST_F(GrammarCompilerTest, MemoryDoesNotGrowWithTheNumberOfSchemas) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer has the heap";
  const char* wanted = std::getenv("QUIRE_GRAMMAR_SCHEMAS");
  const int number = wanted != nullptr ? std::atoi(wanted) : 2000;
  const auto pool = compiler({.kept_bytes = std::size_t{1} << 20});
  const auto bytes = [] {
    const struct mallinfo2 heap = ::mallinfo2();
    return static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
  };
  std::int64_t before = 0;
  for (int i = 0; i < number; ++i) {
    const std::string key = "\"k" + std::to_string(i) + "\"";
    const StructuredOutputs source{.kind = StructuredOutputs::Kind::kJsonSchema,
                                   .source = R"({"type": "object", "properties": {)" + key +
                                             R"(: {"type": "integer"}}, "required": [)" + key + "]}"};
    ASSERT_TRUE(result_of(*pool->compile(std::make_shared<const StructuredOutputs>(source))).make);
    if (i == number / 4) before = bytes();
  }
  EXPECT_EQ(num_compiled_, number);
  EXPECT_LT(bytes() - before, std::int64_t{1} << 20) << "of " << number;
}

TEST_F(GrammarCompilerTest, ManyLongSourcesDelayNoShortOne) {
  std::promise<void> release;
  std::atomic<bool> holds_up = true;
  const auto hold_up = [&, released = release.get_future().share()](EngineStage, SequenceId) {
    if (holds_up) released.wait();
  };
  const auto pool = make_grammar_compiler(
      context(), [] {}, hold_up);
  std::vector<std::shared_ptr<const GrammarCompiler::Compilation>> held;
  for (int i = 0; i < 12; ++i)
    held.push_back(pool->compile(regex(std::string(20000, 'a') + std::to_string(i))));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for every thread that takes one to have it
  holds_up = false;
  EXPECT_TRUE(result_of(*pool, "a").make);
  for (const auto& one : held) EXPECT_FALSE(one->result());
  release.set_value();
  for (const auto& one : held) EXPECT_TRUE(result_of(*one).make);
}

TEST_F(GrammarCompilerTest, RefusesMoreWhereThoseOfRequestsAreTooLarge) {
  const auto full = compiler({.kept_bytes = 1, .bytes = 1});
  {
    const Compiled held = result_of(*full, "a");
    ASSERT_TRUE(held.make);
    const Compiled refused = result_of(*full, "b");
    EXPECT_FALSE(refused.make);
    EXPECT_FALSE(refused.is_request_at_fault);
    EXPECT_THAT(refused.error, HasSubstr("try again later"));
  }
  wait_until([&] { return bool{result_of(*full, "b").make}; });
}

}  // namespace
}  // namespace quire
