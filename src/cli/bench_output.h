#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::cli {

// What the bench commands print alike.

// A bar on stderr, drawn when it grows, and now and then between.
void show_progress(std::size_t done, std::size_t total, std::string_view unit);

// A number with so many digits after the point; "-" for NaN, which was not measured.
std::string figure(double value, int digits);

// A line of the table.
void print_figure(std::string_view what, const std::string& value, const std::string& note);

}  // namespace quire::cli
