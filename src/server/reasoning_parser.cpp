#include "server/reasoning_parser.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "server/tag_matcher.h"

namespace quire::server {
namespace {

constexpr std::string_view kBegin = "<think>";
constexpr std::string_view kEnd = "</think>";
constexpr std::string_view kSpace = " \t\n\r";

// What an output begins as that does not begin with the tag.
enum class Beginning { kContent, kEither, kReasoning };

// kContent: nor is the tag looked for.
Beginning beginning_of(ReasoningFormat format, std::string_view prompt) {
  prompt = prompt.substr(0, prompt.find_last_not_of(kSpace) + 1);
  if (prompt.ends_with(kEnd)) return Beginning::kContent;
  const bool begun = format == ReasoningFormat::kDeepSeekR1 || prompt.ends_with(kBegin);
  return begun ? Beginning::kReasoning : Beginning::kEither;
}

class ReasoningParser : public OutputParser {
 public:
  ReasoningParser(ReasoningFormat format, std::string_view prompt) {
    const Beginning beginning = beginning_of(format, prompt);
    if (beginning == Beginning::kContent) state_ = State::kContent;
    if (beginning == Beginning::kReasoning) untagged_ = State::kReasoning;
  }

  OutputDelta parse(std::string_view new_text) override {
    for (std::size_t i = 0; i < new_text.size(); ++i) {
      if (state_ == State::kContent) {
        delta_.content += new_text.substr(i);
        break;
      }
      push(new_text[i]);
    }
    return std::exchange(delta_, {});
  }

  OutputDelta finish() override {
    if (state_ == State::kStart) state_ = untagged_;
    (state_ == State::kReasoning ? delta_.reasoning : delta_.content) += std::exchange(held_, {});
    return std::exchange(delta_, {});
  }

 private:
  enum class State { kStart, kReasoning, kContent };

  void push(char c) {
    if (state_ == State::kStart) return push_start(c);
    if (state_ == State::kContent) {
      delta_.content += c;
      return;
    }
    held_ += c;
    if (!end_.push(c).empty()) {
      held_.clear();
      state_ = State::kContent;
      return;
    }
    const std::size_t passed = held_.size() - end_.held();
    delta_.reasoning.append(held_, 0, passed);
    held_.erase(0, passed);
  }

  void push_start(char c) {
    held_ += c;
    const std::size_t before = begin_.held();
    if (!begin_.push(c).empty()) {
      held_.clear();
      state_ = State::kReasoning;
      return;
    }
    if (begin_.held() > before) return;
    if (before == 0 && kSpace.find(c) != kSpace.npos) return;
    state_ = untagged_;
    for (const char again : std::exchange(held_, {})) push(again);
  }

  State state_ = State::kStart;
  State untagged_ = State::kContent;  // what an output is that does not begin with the tag
  OutputDelta delta_;
  std::string held_;  // read and not given out
  TagMatcher begin_{{kBegin}};
  TagMatcher end_{{kEnd}};
};

}  // namespace

std::string_view name(ReasoningFormat format) {
  return format == ReasoningFormat::kQwen3 ? "qwen3" : "deepseek_r1";
}

ReasoningFormat parse_reasoning_format(std::string_view name) {
  if (name == "qwen3") return ReasoningFormat::kQwen3;
  if (name == "deepseek_r1") return ReasoningFormat::kDeepSeekR1;
  fail("no reasoning parser has the name {}; there are qwen3 and deepseek_r1", name);
}

std::unique_ptr<OutputParser> make_reasoning_parser(ReasoningFormat format, std::string_view prompt) {
  return std::make_unique<ReasoningParser>(format, prompt);
}

void hold_behind_reasoning(ReasoningFormat format, std::string_view prompt, StructuredOutputs& outputs) {
  const Beginning beginning = beginning_of(format, prompt);
  if (beginning == Beginning::kContent) return;
  outputs.free_until = kEnd;
  if (beginning == Beginning::kEither) outputs.free_after = kBegin;
}

}  // namespace quire::server
