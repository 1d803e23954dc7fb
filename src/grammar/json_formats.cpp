// The formats of JSON Schema that are enforced, as regular expressions.
#include <algorithm>
#include <array>

#include "grammar/json_text.h"
#include "grammar/regex.h"

namespace quire::grammar {
namespace {

#define QUIRE_DATE                                                                                        \
  "((\\d{3}[1-9]|\\d\\d[1-9]\\d|\\d[1-9]\\d\\d|[1-9]\\d{3})-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[" \
  "469]|11)-(0[1-9]|[12]\\d|30)|"                                                                         \
  "02-(0[1-9]|1\\d|2[0-8]))|"                                                                             \
  "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
#define QUIRE_TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define QUIRE_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define QUIRE_HOST QUIRE_LABEL "(\\." QUIRE_LABEL ")*"
#define QUIRE_BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define QUIRE_IPV4 QUIRE_BYTE "(\\." QUIRE_BYTE "){3}"
#define QUIRE_H16 "[0-9a-fA-F]{1,4}"
#define QUIRE_LS32 "(" QUIRE_H16 ":" QUIRE_H16 "|" QUIRE_IPV4 ")"
#define QUIRE_IPV6                                                                                          \
  "((" QUIRE_H16 ":){6}" QUIRE_LS32 "|::(" QUIRE_H16 ":){5}" QUIRE_LS32 "|(" QUIRE_H16 ")?::(" QUIRE_H16    \
  ":){4}" QUIRE_LS32 "|((" QUIRE_H16 ":){0,1}" QUIRE_H16 ")?::(" QUIRE_H16 ":){3}" QUIRE_LS32               \
  "|((" QUIRE_H16 ":){0,2}" QUIRE_H16 ")?::(" QUIRE_H16 ":){2}" QUIRE_LS32 "|((" QUIRE_H16                  \
  ":){0,3}" QUIRE_H16 ")?::" QUIRE_H16 ":" QUIRE_LS32 "|((" QUIRE_H16 ":){0,4}" QUIRE_H16 ")?::" QUIRE_LS32 \
  "|((" QUIRE_H16 ":){0,5}" QUIRE_H16 ")?::" QUIRE_H16 "|((" QUIRE_H16 ":){0,6}" QUIRE_H16 ")?::)"
#define QUIRE_PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define QUIRE_PATH "(/" QUIRE_PCHAR "*)*"
#define QUIRE_AUTHORITY                                                 \
  "//(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?(\\[" QUIRE_IPV6 \
  "\\]|([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*)(:\\d*)?" QUIRE_PATH
#define QUIRE_AFTER_PATH "(\\?(" QUIRE_PCHAR "|[/?])*)?(#(" QUIRE_PCHAR "|[/?])*)?"
#define QUIRE_URI                                                                                \
  "[A-Za-z][A-Za-z0-9+.-]*:(" QUIRE_AUTHORITY "|/(" QUIRE_PCHAR "+" QUIRE_PATH ")?|" QUIRE_PCHAR \
  "+" QUIRE_PATH ")" QUIRE_AFTER_PATH
#define QUIRE_POINTER "(/([^/~]|~[01])*)*"
#define QUIRE_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

struct Format {
  std::string_view name, regex;
};

constexpr std::array kFormats = {
    Format{"date-time", QUIRE_DATE "[Tt]" QUIRE_TIME},
    Format{"date", QUIRE_DATE},
    Format{"time", QUIRE_TIME},
    Format{"duration",
           "P((\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))?|"
           "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)|\\d+W)"},
    Format{"email", QUIRE_ATOM "(\\." QUIRE_ATOM ")*@" QUIRE_HOST},
    Format{"hostname", QUIRE_HOST},
    Format{"ipv4", QUIRE_IPV4},
    Format{"ipv6", QUIRE_IPV6},
    Format{"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    Format{"uri", QUIRE_URI},
    Format{"iri", QUIRE_URI},
    Format{"uri-reference",
           "(" QUIRE_URI "|(" QUIRE_AUTHORITY "|/(" QUIRE_PCHAR "+" QUIRE_PATH ")?|"
           "([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+" QUIRE_PATH ")?" QUIRE_AFTER_PATH ")"},
    Format{"json-pointer", QUIRE_POINTER},
    Format{"relative-json-pointer", "(0|[1-9]\\d*)(#|" QUIRE_POINTER ")"},
};

constexpr std::uint32_t kMaxHostname = 253;  // characters: RFC 1123
constexpr std::array<std::string_view, 5> kRefused = {"idn-email", "idn-hostname", "iri-reference",
                                                      "uri-template", "regex"};

}  // namespace

std::optional<ExprId> JsonText::format(std::string_view name) const {
  if (std::ranges::find(kRefused, name) != kRefused.end())
    throw GrammarError(format_text("the format {} is not supported; a pattern would do", name));
  const auto found = std::ranges::find(kFormats, name, &Format::name);
  if (found == kFormats.end()) return std::nullopt;
  const ExprId texts = regex_expression(
      ex_, found->regex, [&](const CharacterSet& set) { return canonical_character(set); }, false);
  if (name != "hostname") return texts;
  // "--" behind two characters marks names in Punycode (RFC 5891), which are not checked, and left out.
  const ExprId byte = ex_.bytes(all_bytes()), label = ex_.optional(ex_.concat(kAnything, ex_.literal(".")));
  const ExprId marked = ex_.concat({label, byte, byte, ex_.literal("--"), kAnything});
  return ex_.all_of({texts, ex_.repeat(character_, 0, kMaxHostname), ex_.complement(marked)});
}

}  // namespace quire::grammar
