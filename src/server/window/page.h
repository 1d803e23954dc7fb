#pragma once

#include "server/exchange.h"

namespace quire::server {

// The path of what the page shows, which follows /window.
inline constexpr std::string_view kWindowState = "/state";

// Answers a request for the page or for one of its files. ApiError where there is no such file.
void answer_page(Exchange& exchange);

// The path behind /window.
std::string_view window_path(const Exchange& exchange);

}  // namespace quire::server
