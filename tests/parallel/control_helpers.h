#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "parallel/control_channel.h"

namespace quire::testing {

inline constexpr double kPatient =
    60;  // watchdog's seconds where nobody falls silent: the machine may be busy

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
inline std::string text_of(const ControlMessage& message) {
  return {reinterpret_cast<const char*>(message.body.data()), message.body.size()};
}
// The text of a message that must come.
inline std::string receive_text(ControlChannel& channel, int from) {
  const auto message = channel.receive(from);
  return message ? text_of(*message) : "(it has ended)";
}

}  // namespace quire::testing
