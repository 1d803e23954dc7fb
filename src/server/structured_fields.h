#pragma once

#include <memory>

#include "quire/sampling_params.h"
#include "server/json_fields.h"

namespace quire::server {

// What a request's text must be, in the words of OpenAI (response_format), vLLM (structured_outputs, and
// guided_json and the like before), llama.cpp (grammar, json_schema) and SGLang (regex, ebnf,
// structural_tag); null: nothing. ApiError that names the field. What a source says is looked at when it is
// compiled.
std::shared_ptr<const StructuredOutputs> read_structured_outputs(const JsonFields& fields);

}  // namespace quire::server
