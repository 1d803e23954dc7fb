#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

utf8proc_category_t category_of(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

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

// What becomes of a character in the steps that look at each by itself.

void append_lowercase(std::string& out, char32_t c) {
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  if (c == 0x130) append_utf8(out, 0x307);  // the one letter whose lower case is two code points
}

void append_unless_mark(std::string& out, char32_t c) {
  const utf8proc_category_t category = category_of(c);
  const bool is_mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                       category == UTF8PROC_CATEGORY_ME;
  if (!is_mark) append_utf8(out, c);
}

void append_unless_nonspacing(std::string& out, char32_t c) {
  if (category_of(c) != UTF8PROC_CATEGORY_MN) append_utf8(out, c);
}

// SentencePiece's nmt rules: control characters go, and what looks like a space becomes one.
void append_as_nmt(std::string& out, char32_t c) {
  const bool is_control = (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
                          c == 0x8F || c == 0x9F;
  if (is_control) return;
  const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  append_utf8(out, is_space ? U' ' : c);
}

// BERT's cleaning: without control characters, and with plain spaces alone.
void append_clean(std::string& out, char32_t c) {
  const utf8proc_category_t category = category_of(c);
  const bool is_control = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                          category == UTF8PROC_CATEGORY_CO;
  if (c == '\t' || c == '\n' || c == '\r' || (is_whitespace(c) && !is_control)) {
    out.push_back(' ');
  } else if (!is_control && c != 0xFFFD) {
    append_utf8(out, c);
  }
}

void append_ideograph_apart(std::string& out, char32_t c) {
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  const bool is_ideograph = std::any_of(std::begin(kBlocks), std::end(kBlocks), [&](const auto& block) {
    return c >= block.first && c <= block.second;
  });
  if (is_ideograph) out.push_back(' ');
  append_utf8(out, c);
  if (is_ideograph) out.push_back(' ');
}

}  // namespace

Normalizer Normalizer::from_json(const JsonView& config) {
  Normalizer normalizer;
  normalizer.add_steps(config);
  return normalizer;
}

void Normalizer::add_steps(const JsonView& config) {
  const std::string& type = config.at("type").as_string();
  if (add_simple_step(type)) return;
  if (type == "Sequence") {
    for (const JsonView& step : config.at("normalizers").items()) add_steps(step);
  } else if (type == "Strip") {
    const Strip strip{config.at("strip_left").as_bool(), config.at("strip_right").as_bool()};
    if (strip.left || strip.right) steps_.emplace_back(strip);
  } else if (type == "Replace") {
    steps_.emplace_back(TextReplacer::from_json(config));
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{config.at("prepend").as_string()});
  } else if (type == "Precompiled") {
    steps_.emplace_back(PrecompiledCharsmap::from_json(config.at("precompiled_charsmap")));
  } else if (type == "BertNormalizer") {
    add_bert_steps(config);
  } else {
    fail(
        "{}: the normalizer {} is not supported; supported are NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
        "StripAccents, Nmt, Replace, Prepend, Precompiled, ByteLevel, BertNormalizer and Sequence",
        config.where(), type);
  }
}

// Those without settings.
bool Normalizer::add_simple_step(std::string_view type) {
  using Entry = std::pair<std::string_view, Step>;
  const std::array<Entry, 8> steps = {
      Entry{"NFC", UnicodeForm::kNfc},       Entry{"NFD", UnicodeForm::kNfd},
      Entry{"NFKC", UnicodeForm::kNfkc},     Entry{"NFKD", UnicodeForm::kNfkd},
      Entry{"Lowercase", &append_lowercase}, Entry{"StripAccents", &append_unless_mark},
      Entry{"Nmt", &append_as_nmt},          Entry{"ByteLevel", ToByteCharacters{}}};
  const auto entry =
      std::find_if(steps.begin(), steps.end(), [&](const Entry& e) { return e.first == type; });
  if (entry == steps.end()) return false;
  steps_.push_back(entry->second);
  return true;
}

void Normalizer::add_bert_steps(const JsonView& config) {
  const bool lowercase = config.flag("lowercase", true);
  if (config.flag("clean_text", true)) steps_.emplace_back(&append_clean);
  if (config.flag("handle_chinese_chars", true)) steps_.emplace_back(&append_ideograph_apart);
  if (config.flag("strip_accents", lowercase)) {
    steps_.emplace_back(UnicodeForm::kNfd);
    steps_.emplace_back(&append_unless_nonspacing);
  }
  if (lowercase) steps_.emplace_back(&append_lowercase);
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

std::string Normalizer::run(AppendCharacter append, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Step step = read_utf8(text, position);
    position += step.length;
    append(out, step.code_point);
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

std::string Normalizer::run(const TextReplacer& replacer, std::string_view text) {
  return replacer.apply(text);
}

std::string Normalizer::run(ToByteCharacters, std::string_view text) { return to_byte_characters(text); }

std::string Normalizer::run(const PrecompiledCharsmap& map, std::string_view text) { return map.apply(text); }

std::string Normalizer::run(const Prepend& prepend, std::string_view text) {
  return text.empty() ? std::string() : prepend.text + std::string(text);
}

}  // namespace quire
