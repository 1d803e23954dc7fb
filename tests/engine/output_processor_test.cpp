#include "engine/output_processor.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tokenizer/tiny_tokenizer.h"

namespace quire {
namespace {

// Of an update that is an output's end: its index and reason, whether the request has finished, and how many
// outputs it has.
using EndUpdate = std::tuple<int, FinishReason, bool, std::size_t>;

// The first of two outputs reaches its length. Behind it the second one fails, and so does stopping it.
std::vector<EndUpdate> ends_where_an_output_is_given_up(const SamplingParams& params) {
  constexpr RequestId kId = 10;
  std::vector<EndUpdate> ends;
  const auto fault = [](EngineStage stage, SequenceId id) {
    if (stage == EngineStage::kDetokenize && id == kId + 1) throw std::runtime_error("no text");
  };
  EngineRequest request;
  request.params = params;
  request.on_update = [&ends](const RequestUpdate& update) {
    if (update.output.finished())
      ends.emplace_back(update.output.index, update.output.finish_reason, update.finished,
                        update.request.outputs.size());
  };
  std::vector<OutputProcessor::Addition> additions;
  additions.push_back({kId, std::move(request), std::make_shared<const std::vector<TokenId>>(3, 7)});
  std::vector<SequenceUpdate> updates(2);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    updates[i].id = kId + i;
    updates[i].token = 5;
  }
  updates[0].finish = FinishReason::kLength;
  {
    OutputProcessor outputs(nullptr, fault, [](SequenceId) { throw std::bad_alloc(); });
    outputs.add(std::move(additions));
    outputs.push(std::move(updates), TimePoint::clock::now());
  }  // all is delivered
  return ends;
}

TEST(OutputProcessorTest, ARequestThatIsGivenUpTellsTheEndThatWasNotToldYet) {
  SamplingParams params;
  params.n = 2;
  EXPECT_EQ(
      ends_where_an_output_is_given_up(params),
      (std::vector<EndUpdate>{{0, FinishReason::kLength, false, 2}, {1, FinishReason::kError, true, 2}}));
}

TEST(OutputProcessorTest, ARequestThatIsGivenUpHasAsManyOutputsAsItAsksFor) {
  SamplingParams params;
  params.best_of = 2;
  EXPECT_EQ(ends_where_an_output_is_given_up(params),
            (std::vector<EndUpdate>{{0, FinishReason::kLength, true, 1}}));
}

TEST(OutputProcessorTest, ATextGoesOnWithTheSpaceBetweenItAndItsPrompt) {
  const Json config = test::tiny_sentencepiece_json();
  const Tokenizer tokenizer = test::load(config);
  const TokenId a = config["model"]["vocab"]["a"], space = config["model"]["vocab"]["_"];
  std::string text;
  {
    OutputProcessor outputs(&tokenizer, {}, [](SequenceId) {});
    EngineRequest request;
    request.on_update = [&text](const RequestUpdate& update) { text += update.new_text; };
    std::vector<OutputProcessor::Addition> additions;
    additions.push_back({10, std::move(request), std::make_shared<const std::vector<TokenId>>(1, a)});
    outputs.add(std::move(additions));
    std::vector<SequenceUpdate> updates(2);
    updates[0].token = space;
    updates[1].token = a;
    updates[1].finish = FinishReason::kLength;
    for (SequenceUpdate& update : updates) update.id = 10;
    outputs.push(std::move(updates), TimePoint::clock::now());
  }  // all is delivered
  EXPECT_EQ(text, " a");
}

}  // namespace
}  // namespace quire
