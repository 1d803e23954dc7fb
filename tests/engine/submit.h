#pragma once

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace quire::testing {

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

}  // namespace quire::testing
