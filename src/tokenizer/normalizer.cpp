#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::size_t kMaxNormalizedBytes = std::size_t{1} << 30;

void check_growth(std::size_t bytes) {
  if (bytes > kMaxNormalizedBytes)
    fail("the normalizer makes a text grow beyond {} bytes", kMaxNormalizedBytes);
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Decomposes, reorders and, if `options` ask for it, composes `text`. utf8proc's own reordering is quadratic
// in the number of combining marks in a row, so that step is done here.
void append_normalized(std::string& out, std::string_view text, utf8proc_option_t options,
                       std::vector<utf8proc_int32_t>& scratch) {
  scratch.clear();
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Step step = read_utf8(text, position);
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18 code points
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code_point), parts.data(),
                                               parts.size(), options, nullptr);
    QUIRE_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
    scratch.insert(scratch.end(), parts.begin(), parts.begin() + count);
    position += step.length;
  }
  for (auto mark = scratch.begin(); mark != scratch.end();) {
    mark = std::find_if(mark, scratch.end(), [](auto c) { return combining_class(c) != 0; });
    const auto end = std::find_if(mark, scratch.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(mark, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    mark = end;
  }
  const auto length =
      utf8proc_normalize_utf32(scratch.data(), static_cast<utf8proc_ssize_t>(scratch.size()), options);
  QUIRE_CHECK(length >= 0);
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(out, static_cast<char32_t>(scratch[i]));
}

}  // namespace

Regex pattern_from_json(const JsonView& config) {
  if (const auto text = config.find("String")) return Regex::literal(text->as_string(), text->where());
  const JsonView pattern = config.at("Regex");
  return Regex::from_oniguruma(pattern.as_string(), pattern.where());
}

Normalizer Normalizer::from_json(const JsonView& config) {
  Normalizer normalizer;
  normalizer.add_steps(config);
  return normalizer;
}

void Normalizer::add_steps(const JsonView& config) {
  const std::string& type = config.at("type").as_string();
  if (type == "Sequence") {
    for (const JsonView& step : config.at("normalizers").items()) add_steps(step);
  } else if (type == "NFC") {
    steps_.emplace_back(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    steps_.emplace_back(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(UnicodeForm::kNfkd);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Strip") {
    const Strip strip{config.at("strip_left").as_bool(), config.at("strip_right").as_bool()};
    if (strip.left || strip.right) steps_.emplace_back(strip);
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{pattern_from_json(config.at("pattern")), config.at("content").as_string()});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{config.at("prepend").as_string()});
  } else {
    fail(
        "{}: the normalizer {} is not supported; supported are NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
        "Replace, Prepend "
        "and Sequence",
        config.where(), type);
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer) const {
  for (const Step& step : steps_) {
    const bool unchanged =
        std::holds_alternative<UnicodeForm>(step) && std::all_of(text.begin(), text.end(), is_ascii);
    if (unchanged) continue;
    std::string next = std::visit([&](const auto& kind) { return run(kind, text); }, step);
    buffer = std::move(next);  // only now: `text` may lie in it
    text = buffer;
    check_growth(text.size());
  }
  return text;
}

// ASCII characters are their own forms and begin a new unit of reordering and composition.
std::string Normalizer::run(UnicodeForm form, std::string_view text) {
  constexpr std::array<int, 4> kOptions = {UTF8PROC_COMPOSE, UTF8PROC_DECOMPOSE,
                                           UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                           UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
  const auto options =
      static_cast<utf8proc_option_t>(kOptions[static_cast<std::size_t>(form)] | UTF8PROC_STABLE);
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> scratch;
  const char* rest = text.data();
  const char* const end = rest + text.size();
  while (rest != end) {
    const char* foreign = std::find_if_not(rest, end, is_ascii);
    const char* unit =
        foreign != rest && foreign != end ? foreign - 1 : foreign;  // marks may join the last ASCII character
    out.append(rest, unit);
    rest = std::find_if(foreign, end, is_ascii);
    append_normalized(out, {unit, rest}, options, scratch);
  }
  return out;
}

std::string Normalizer::run(Lowercase, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Step step = read_utf8(text, position);
    position += step.length;
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(step.code_point))));
    if (step.code_point == 0x130)
      append_utf8(out, 0x307);  // the one letter whose lower case is two code points
  }
  return out;
}

std::string Normalizer::run(const Strip& strip, std::string_view text) {
  std::size_t begin = text.size(), end = 0;  // of what is not white space
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Step step = read_utf8(text, position);
    const std::size_t next = position + step.length;
    if (!is_whitespace(step.code_point)) {
      begin = std::min(begin, position);
      end = next;
    }
    position = next;
  }
  if (begin > end) return {};
  if (!strip.left) begin = 0;
  if (!strip.right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

std::string Normalizer::run(const Replace& replace, std::string_view text) {
  RegexScanner scanner(replace.pattern);
  scanner.start(text);
  std::string out;
  std::size_t copied = 0;
  while (const auto match = scanner.next()) {
    out += text.substr(copied, match->begin - copied);
    out += replace.content;
    check_growth(out.size());
    copied = match->end;
  }
  out += text.substr(copied);
  return out;
}

std::string Normalizer::run(const Prepend& prepend, std::string_view text) {
  return text.empty() ? std::string() : prepend.text + std::string(text);
}

}  // namespace quire
