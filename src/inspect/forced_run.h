#pragma once

#include <future>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace quire {

// A request for the logits at every position of some tokens. The engine shares it: another one's error may
// end what asked for it before it has all.
class ForcedRun {
 public:
  static std::shared_ptr<ForcedRun> start(Engine& engine, std::vector<TokenId> tokens);

  // Until some tokens are computed: in steps of one token, 5.
  void wait_until_under_way() { begun_.get_future().wait(); }
  // [tokens, vocab]; waits for them. Error where the engine has one.
  const std::vector<float>& logits();

 private:
  void take(const RequestUpdate& update);

  std::size_t num_left_ = 0;  // updates until it counts as under way
  std::vector<float> logits_;
  std::promise<void> begun_;
  std::promise<std::string> done_;
};

}  // namespace quire
