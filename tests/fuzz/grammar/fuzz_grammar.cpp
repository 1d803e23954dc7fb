// Schemas, regular expressions, rules, choices and structural tags from arbitrary bytes: the first byte
// chooses which, the second where a walk begins. Each mask on the walk must be the naive one, of every token
// tried, also once a token was taken back; a token is forced exactly if it is the only one.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "grammar/grammar_helpers.h"

namespace {

namespace grammar = quire::grammar;

void walk(const grammar::Source& source, unsigned seed) {
  const grammar::Limits limits{.source_bytes = 1 << 16,
                               .memory_bytes = 4 << 20,
                               .compile_time = std::chrono::milliseconds(300),
                               .mask_time = std::chrono::milliseconds(300)};
  std::mt19937 random(seed);
  grammar::Matcher matcher(grammar::compile(source, grammar::test::vocabulary(), limits));
  for (int step = 0; step < 4 && !matcher.ended(); ++step) {
    const auto mask = grammar::test::mask_of(matcher);
    if (mask != grammar::test::naive_mask(matcher)) std::abort();
    int num_allowed = 0;
    for (const std::uint32_t word : mask) num_allowed += std::popcount(word);
    const std::optional<int> forced = matcher.forced();
    if (forced.has_value() != (num_allowed == 1)) std::abort();
    const int token = grammar::test::random_token(mask, random);
    if (forced.value_or(token) != token || !matcher.accept(token)) std::abort();
    matcher.roll_back(1);
    if (grammar::test::mask_of(matcher) != mask || !matcher.accept(token)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    walk({.kind = static_cast<grammar::Source::Kind>(data[0] % 6),
          .source = text,
          .any_order = data[1] % 2 == 0},
         data[1]);
  } catch (const grammar::GrammarError&) {
  }
  return 0;
}
