#include "engine/invariant_checks.h"

#include <charconv>
#include <exception>
#include <new>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace quire {
namespace {

constexpr std::int64_t kAuto = -1;
constexpr int kRarer = 2000;  // a check takes at most one in so many parts of the time

// By the number that docs/invariants.md has for it, with which its message begins.
bool mixes_contents(std::string_view what) {
  constexpr std::string_view kBefore = " is false: ";
  const std::size_t at = what.find(kBefore);
  int number = 0;
  if (at != std::string_view::npos)
    std::from_chars(what.data() + at + kBefore.size(), what.data() + what.size(), number);
  return (number >= 1 && number <= 6) || number == 16 || (number >= 18 && number <= 20);
}

}  // namespace

InvariantChecks::InvariantChecks(std::int64_t every) : every_(every) {
  if (every < kAuto)
    fail(
        "check-invariants is {}; it must be a number of steps, 0 for never, or -1 for as often as costs "
        "little",
        every);
}

bool InvariantChecks::is_due(TimePoint now) {
  if (every_ == kAuto) return now >= next_;
  if (every_ == 0 || ++steps_ < every_) return false;
  steps_ = 0;
  return true;
}

BrokenInvariant InvariantChecks::check(const std::function<void()>& check) {
  BrokenInvariant broken;
  const auto begin = TimePoint::clock::now();
  try {
    check();
  } catch (const std::bad_alloc&) {  // of the check itself, which comes again
  } catch (const std::exception& e) {
    ++num_broken_;
    broken = {.what = format_text("an invariant is broken: {}", e.what()),
              .mixes_contents = mixes_contents(e.what())};
    log_error("{}; {}", broken.what, broken.mixes_contents ? "contents may be mixed" : "the engine goes on");
  }
  const auto end = TimePoint::clock::now();
  next_ = end + kRarer * (end - begin);
  return broken;
}

}  // namespace quire
