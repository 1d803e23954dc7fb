// The bundled model answers questions in words that it was not trained on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iostream>

#include "base/json.h"
#include "quire/llm.h"

namespace quire {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// One of each list must stand in the answer.
bool answers(const std::string& answer, const nlohmann::json& must_contain) {
  return std::all_of(must_contain.begin(), must_contain.end(), [&](const nlohmann::json& words) {
    return std::any_of(words.begin(), words.end(), [&](const nlohmann::json& word) {
      return lower(answer).find(lower(word.get<std::string>())) != std::string::npos;
    });
  });
}

TEST(ToyModelTest, AnswersQuestionsInWordsItWasNotTrainedOn) {
  LLM llm{EngineConfig{}};
  std::vector<nlohmann::json> questions;
  std::vector<Prompt> prompts;
  std::ifstream file(QUIRE_SOURCE_DIR "/tools/toy_model/heldout.jsonl");
  for (std::string line; std::getline(file, line);) {
    questions.push_back(nlohmann::json::parse(line));
    prompts.emplace_back(
        llm.apply_chat_template({{"user", questions.back().at("question").get<std::string>()}}));
  }
  ASSERT_GE(questions.size(), 10U);
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.max_tokens = 200;
  const auto outputs = llm.generate(prompts, greedy);
  std::size_t right = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    EXPECT_EQ(outputs[i].outputs[0].finish_reason, FinishReason::kStop);
    if (answers(outputs[i].outputs[0].text, questions[i].at("must_contain"))) {
      ++right;
    } else {
      std::cout << "wrong: " << questions[i].at("question") << "\n       " << outputs[i].outputs[0].text
                << "\n";
    }
  }
  std::cout << right << " of " << questions.size() << " answers are right\n";
  EXPECT_GE(right * 10, questions.size() * 9);  // it is a toy
}

}  // namespace
}  // namespace quire
