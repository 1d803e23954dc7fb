#pragma once

#include <future>
#include <memory>
#include <utility>

#include "engine/engine.h"

namespace quire::testing {

// What has come of the request when it ends.
inline std::future<RequestOutput> submit(Engine& engine, EngineRequest request) {
  auto done = std::make_shared<std::promise<RequestOutput>>();
  auto output = done->get_future();
  request.on_update = [done = std::move(done)](const RequestUpdate& update) {
    if (update.finished) done->set_value(update.request);
  };
  engine.submit(std::move(request));
  return output;
}

}  // namespace quire::testing
