#pragma once

#include "base/json.h"
#include "engine/request.h"
#include "quire/engine_config.h"
#include "quire/sampling_params.h"

namespace quire::python {

// Each reads an object whose keys are the members' names. A member that is absent or null keeps its default.
// Error names a key of another type, one that does not fit, and one that nobody knows.
EngineConfig read_engine_config(const OrderedJson& object);
SamplingParams read_sampling_params(const OrderedJson& object);

// Beside the parameters of a request: priority, cache_salt, timeout, pooling ("last", "mean",
// "logits"), dimensions, normalise.
void read_request_options(const OrderedJson& object, EngineRequest& request);

// The parameters as read_sampling_params reads them, but those without a value of their own.
OrderedJson sampling_defaults_json(const SamplingParams& params);

}  // namespace quire::python
