#pragma once

#include <vector>

#include "engine/classifier.h"
#include "server/pooling_request.h"

namespace quire::server {

// The tokens of a pair's prompt. Where it must be shorter the document is cut, and nothing else. ApiError
// where it does not fit.
std::vector<TokenId> tokenize_pair(const Classifier& classifier, const ScoreRequest& request,
                                   std::size_t document, const ServedModel& model);

}  // namespace quire::server
