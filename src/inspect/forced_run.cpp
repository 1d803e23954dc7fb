#include "inspect/forced_run.h"

#include <algorithm>

#include "base/error.h"

namespace quire {

std::shared_ptr<ForcedRun> ForcedRun::start(Engine& engine, std::vector<TokenId> tokens) {
  auto run = std::make_shared<ForcedRun>();
  run->num_left_ = std::min<std::size_t>(5, tokens.size());
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

const std::vector<float>& ForcedRun::logits() {
  if (const std::string error = done_.get_future().get(); !error.empty()) fail("{}", error);
  return logits_;
}

void ForcedRun::take(const RequestUpdate& update) {
  logits_.insert(logits_.end(), update.logits.begin(), update.logits.end());
  if (num_left_ > 0 && (--num_left_ == 0 || update.finished)) {
    num_left_ = 0;
    begun_.set_value();
  }
  if (update.finished) done_.set_value(update.output.error);
}

}  // namespace quire
