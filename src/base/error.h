#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/format.h"

namespace quire {

// Something a user caused: a bad file, flag or request. The message is one line that says what was wrong,
// where (file, key, tensor) and what would be right. Commands turn it into exit code 2, the server into HTTP
// 4xx.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bug of ours, found by QUIRE_CHECK. Never reachable from user input.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Thrown where the caller asked to stop.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped"; }
};

// What an exception says, in words also where there was no memory.
inline const char* what_of(const std::exception& e) {
  return dynamic_cast<const std::bad_alloc*>(&e) != nullptr ? "there is no memory left for it" : e.what();
}

// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(format_text(format, std::forward<Args>(args)...));
}

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace detail

}  // namespace quire

// Holds in every build type; throws InternalError with file, line and a formatted message.
#define QUIRE_CHECK(condition, ...)                                                                        \
  do {                                                                                                     \
    if (!(condition)) [[unlikely]]                                                                         \
      ::quire::detail::check_failed(__FILE__, __LINE__, #condition, ::quire::format_text("" __VA_ARGS__)); \
  } while (false)
