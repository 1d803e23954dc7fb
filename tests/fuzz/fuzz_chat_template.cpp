// Input: a template, a zero byte, a context in JSON.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  const std::string_view source = input.substr(0, zero);
  const std::string_view context = zero == input.npos ? "{}" : input.substr(zero + 1);
  // Low enough that an input that spends them all takes some milliseconds.
  const quire::ChatTemplateLimits limits{
      .max_source_bytes = 1 << 16, .max_steps = 20'000, .max_output_bytes = 1 << 16};
  std::tm now = {};
  now.tm_mday = 1;
  try {
    const quire::ChatTemplate chat(source, "template", limits);
    const auto pieces = chat.render(quire::parse_ordered_json(context, "context"), {now});
    for (std::size_t i = 1; i < pieces.size(); ++i) {
      if (pieces[i].trusted == pieces[i - 1].trusted) __builtin_trap();
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
