#pragma once

#include <memory>
#include <string_view>

#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/generation.h"
#include "server/text_requests.h"

namespace quire::server {

std::shared_ptr<Generation> make_generation(Generation::Context context, CompletionRequest request);
// prompt: its text, whose end says whether the output begins within reasoning.
std::shared_ptr<Generation> make_generation(Generation::Context context, ChatRequest request,
                                            std::string_view prompt);
std::shared_ptr<Generation> make_generation(Generation::Context context, EmbeddingsRequest request);

}  // namespace quire::server
