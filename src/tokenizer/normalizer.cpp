#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "tokenizer/byte_tokens.h"
#include "tokenizer/text_steps.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Decomposes, reorders and, if `options` ask for it, composes `text`. utf8proc's own reordering is quadratic
// in the number of combining marks in a row, so that step is done here.
void append_normalized(std::string& out, std::string_view text, utf8proc_option_t options,
                       std::vector<utf8proc_int32_t>& scratch) {
  scratch.clear();
  for (const auto& [begin, end, c] : Characters(text)) {
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18 code points
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                               options, nullptr);
    QUIRE_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
    scratch.insert(scratch.end(), parts.begin(), parts.begin() + count);
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

// ASCII characters are their own forms and begin a new unit of reordering and composition.
std::string to_form(int form, std::string_view text) {
  const auto options = static_cast<utf8proc_option_t>(form | UTF8PROC_STABLE);
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

// What becomes of a character in the steps that look at each by itself.
using AppendCharacter = void (*)(std::string& out, char32_t code_point);

void append_lowercase(std::string& out, char32_t c) {
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  if (c == 0x130) append_utf8(out, 0x307);  // the one letter whose lower case is two code points
}

void append_unless_mark(std::string& out, char32_t c) {
  const int category = category_of(c);
  const bool is_mark = category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
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
  const int category = category_of(c);
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
  const bool is_ideograph =
      std::ranges::any_of(kBlocks, [&](const auto& block) { return c >= block.first && c <= block.second; });
  if (is_ideograph) out.push_back(' ');
  append_utf8(out, c);
  if (is_ideograph) out.push_back(' ');
}

constexpr std::size_t kUnitBytes = 4;
constexpr std::size_t kMaxGraphemeBytes = 5;  // of one that is looked up whole

std::string decode_base64(const JsonView& value) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view text = value.as_string();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) fail("{}: is not base64", value.where());
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes.push_back(static_cast<char>(bits >> (count -= 8) & 0xFF));
  }
  return bytes;
}

// The fields of a unit of the trie.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFF; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FF; }
std::uint32_t offset_of(std::uint32_t unit) { return unit >> 10 << ((unit >> 9 & 1) * 8); }

// The normalisation rules that SentencePiece compiles into a model: a double-array trie (darts-clone's
// format) from text to its replacement. Immutable, usable from any thread.
class PrecompiledCharsmap {
 public:
  // The base64 text of the rules: the bytes of the trie as a 32-bit number, the trie's 32-bit units, and the
  // replacements, each with a zero behind it; all little-endian.
  explicit PrecompiledCharsmap(const JsonView& base64) {
    static_assert(std::endian::native == std::endian::little);
    const std::string bytes = decode_base64(base64);
    const std::string_view rest = std::string_view(bytes).substr(std::min(bytes.size(), kUnitBytes));
    std::uint32_t trie_bytes = 0;
    bytes.copy(reinterpret_cast<char*>(&trie_bytes), kUnitBytes);
    const std::size_t units = trie_bytes / kUnitBytes;
    if (units == 0 || units > rest.size() / kUnitBytes)
      fail("{}: must hold a trie of the size that it gives", base64.where());
    units_.resize(units);
    rest.copy(reinterpret_cast<char*>(units_.data()), units * kUnitBytes);
    replacements_ = rest.substr(units * kUnitBytes);
    if (!is_valid_utf8(replacements_)) fail("{}: the replacements must be valid UTF-8", base64.where());
  }

  // `text`, which is valid UTF-8, in its normalised form.
  std::string operator()(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    utf8proc_int32_t state = 0;
    char32_t last = 0;
    std::size_t begin = 0;  // of the grapheme
    for (const auto& [position, end, c] : Characters(text)) {
      const bool ends =
          position > 0 && utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                                           static_cast<utf8proc_int32_t>(c), &state);
      if (ends) {
        append_grapheme(text.substr(begin, position - begin), out);
        begin = position;
      }
      last = c;
    }
    append_grapheme(text.substr(begin), out);
    return out;
  }

 private:
  // That of the shortest rule that `text` begins with counts for all of it, as in the library.
  std::optional<std::string_view> replacement_of(std::string_view text) const {
    std::size_t node = offset_of(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) return std::nullopt;
      const std::uint32_t unit = units_[node];
      node ^= offset_of(unit);
      if (!has_leaf(unit)) continue;
      if (node >= units_.size()) return std::nullopt;
      const std::size_t begin = value_of(units_[node]);
      const bool in_character = begin < replacements_.size() && is_continuation(replacements_[begin]);
      if (begin > replacements_.size() || in_character) return std::nullopt;
      const std::string_view rest = std::string_view(replacements_).substr(begin);
      return rest.substr(0, rest.find('\0'));
    }
    return std::nullopt;
  }

  void append_grapheme(std::string_view grapheme, std::string& out) const {
    if (grapheme.size() <= kMaxGraphemeBytes) {
      if (const auto replacement = replacement_of(grapheme)) {
        out += *replacement;
        return check_growth(out.size());
      }
    }
    for (const auto& [begin, end, c] : Characters(grapheme)) {
      const std::string_view character = grapheme.substr(begin, end - begin);
      out += replacement_of(character).value_or(character);
      check_growth(out.size());
    }
  }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

using NormalizerSteps = std::vector<Normalizer::Step>;

template <int kForm>
void add_form(NormalizerSteps& steps, const JsonView&) {
  steps.push_back([](std::string_view text) { return to_form(kForm, text); });
}

template <AppendCharacter kAppend>
void add_each(NormalizerSteps& steps, const JsonView&) {
  steps.push_back([](std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (const Character& character : Characters(text)) kAppend(out, character.code_point);
    return out;
  });
}

void add_strip(NormalizerSteps& steps, const JsonView& config) {
  const bool left = config.at("strip_left").as_bool(), right = config.at("strip_right").as_bool();
  if (!left && !right) return;
  steps.push_back([left, right](std::string_view text) {
    if (left) text = strip_left(text, is_whitespace);
    if (right) text = strip_right(text, is_whitespace);
    return std::string(text);
  });
}

void add_prepend(NormalizerSteps& steps, const JsonView& config) {
  steps.push_back([prefix = config.at("prepend").as_string()](std::string_view text) {
    return text.empty() ? std::string() : prefix + std::string(text);
  });
}

void add_bert_steps(NormalizerSteps& steps, const JsonView& config) {
  const bool lowercase = config.flag("lowercase", true);
  if (config.flag("clean_text", true)) add_each<append_clean>(steps, config);
  if (config.flag("handle_chinese_chars", true)) add_each<append_ideograph_apart>(steps, config);
  if (config.flag("strip_accents", lowercase)) {
    add_form<UTF8PROC_DECOMPOSE>(steps, config);
    add_each<append_unless_nonspacing>(steps, config);
  }
  if (lowercase) add_each<append_lowercase>(steps, config);
}

constexpr StepKind<NormalizerSteps> kNormalizers[] = {
    {"NFC", add_form<UTF8PROC_COMPOSE>},
    {"NFD", add_form<UTF8PROC_DECOMPOSE>},
    {"NFKC", add_form<UTF8PROC_COMPOSE | UTF8PROC_COMPAT>},
    {"NFKD", add_form<UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT>},
    {"Lowercase", add_each<append_lowercase>},
    {"Strip", add_strip},
    {"StripAccents", add_each<append_unless_mark>},
    {"Nmt", add_each<append_as_nmt>},
    {"Replace", [](NormalizerSteps& steps, const JsonView& c) { steps.push_back(TextReplacer(c)); }},
    {"Prepend", add_prepend},
    {"Precompiled",
     [](NormalizerSteps& steps, const JsonView& c) {
       steps.push_back(PrecompiledCharsmap(c.at("precompiled_charsmap")));
     }},
    {"ByteLevel", [](NormalizerSteps& steps, const JsonView&) { steps.push_back(to_byte_characters); }},
    {"BertNormalizer", add_bert_steps}};

}  // namespace

Normalizer::Normalizer(const JsonView& config) {
  add_steps(steps_, config, "normalizer", "normalizers", kNormalizers);
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer) const {
  for (const Step& step : steps_) {
    std::string next = step(text);
    buffer = std::move(next);  // only now: `text` may lie in it
    text = buffer;
    check_growth(text.size());
  }
  return text;
}

}  // namespace quire
