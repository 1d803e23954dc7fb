#pragma once

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"

namespace quire {

// A request for the logits at every position of some tokens. The engine shares it: another one's error may
// end what asked for it before it has all.
class ForcedRun {
 public:
  static std::shared_ptr<ForcedRun> start(Engine& engine, std::vector<TokenId> tokens) {
    auto run = std::make_shared<ForcedRun>();
    run->num_left_ = std::min(kUnderWay, tokens.size());
    EngineRequest request;
    request.prompt = std::move(tokens);
    request.params.max_tokens = 1;
    request.params.ignore_eos = true;
    request.params.temperature = 0;
    request.prompt_logits = true;
    request.on_update = [run](const RequestUpdate& update) { run->take(update); };
    engine.submit(std::move(request));
    return run;
  }

  void wait_until_under_way() { begun_.get_future().wait(); }
  // [tokens, vocab]; waits for them.
  const std::vector<float>& logits() {
    if (const std::string error = done_.get_future().get(); !error.empty()) fail("{}", error);
    return logits_;
  }

 private:
  static constexpr std::size_t kUnderWay = 5;  // steps after which it counts as that, or all

  void take(const RequestUpdate& update) {
    logits_.insert(logits_.end(), update.logits.begin(), update.logits.end());
    if (num_left_ > 0 && (--num_left_ == 0 || update.finished)) {
      num_left_ = 0;
      begun_.set_value();
    }
    if (update.finished) done_.set_value(update.output.error);
  }

  std::size_t num_left_ = 0;  // updates until it counts as under way
  std::vector<float> logits_;
  std::promise<void> begun_;
  std::promise<std::string> done_;
};

}  // namespace quire
