#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/json_fwd.h"

namespace quire::cli {

// What several commands print alike.

// On one line of stdout; NaN, which was not measured, becomes null.
void print_json_line(const OrderedJson& object);

// A number with so many digits after the point; "-" for NaN, which was not measured.
std::string figure(double value, int digits);

// A line of a table of figures.
void print_figure(std::string_view what, const std::string& value, const std::string& note);

// Error where a file that a flag names cannot be written. What is in it stays.
void check_writable(const char* flag, const std::string& path);

// Makes a file that a flag names of this text. Error where it cannot be written.
void write_file(const char* flag, const std::string& path, std::string_view text);

// [####    ]
std::string bar(std::uint64_t done, std::uint64_t total);

// Draws a bar on stderr when it grows, and now and then between; nothing where stderr is no terminal. Its
// line ends when the bar is full, or with the last copy of the function.
std::function<void(std::size_t done, std::size_t total)> progress_bar(std::string_view unit);

}  // namespace quire::cli
