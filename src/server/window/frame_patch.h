#pragma once

#include <string>

#include "record/recording.h"
#include "server/window.h"
#include "server/window/window_frame.h"

namespace quire::server {

// What turns the JSON of one frame into that of another, as a JSON merge patch (RFC 7386). before: null for
// the patch of an empty object, which is the frame's JSON itself. docs/window.md says what is in it.
std::string frame_patch(const WindowFrame* before, const WindowFrame& now);

// A frame's "about", which does not change: {"about":{...}}. num_steps: of a recording; 0: it is live.
// difference: why a recording cannot be shown to its end; empty: it can.
std::string about_patch(const SchedulerConfig& config, const WindowOptions& options, std::uint64_t num_steps,
                        double seconds);

}  // namespace quire::server
