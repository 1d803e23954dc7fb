#pragma once

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace quire::testing {

inline SamplingParams greedy(int max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

// What has come of the request when it ends.
inline std::vector<std::future<RequestOutput>> submit(Engine& engine, std::vector<EngineRequest> requests) {
  std::vector<std::future<RequestOutput>> outputs;
  for (EngineRequest& request : requests) {
    auto done = std::make_shared<std::promise<RequestOutput>>();
    outputs.push_back(done->get_future());
    request.on_update = [done = std::move(done)](const RequestUpdate& update) {
      if (update.finished) done->set_value(update.request);
    };
  }
  engine.submit(requests);
  return outputs;
}
inline std::future<RequestOutput> submit(Engine& engine, EngineRequest request) {
  return std::move(submit(engine, std::vector<EngineRequest>(1, std::move(request))).front());
}

// A greedy one, which ends by its length alone.
inline EngineRequest request_of(std::vector<TokenId> prompt) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0;
  request.params.max_tokens = 24;
  request.params.ignore_eos = true;
  return request;
}

// The last output to change of a request. The future breaks if the request ends without a word, as one whose
// callback throws does.
inline std::future<CompletionOutput> submit_output(Engine& engine, EngineRequest request,
                                                   RequestId* id = nullptr) {
  auto done = std::make_shared<std::promise<CompletionOutput>>();
  auto output = done->get_future();
  request.on_update = [done = std::move(done)](const RequestUpdate& update) {
    if (update.finished) done->set_value(update.output);
  };
  const RequestId given = engine.submit(std::move(request));
  if (id != nullptr) *id = given;
  return output;
}

}  // namespace quire::testing
