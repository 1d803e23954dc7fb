#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dialects/argument_types.h"
#include "dialects/literal_reader.h"

namespace quire::dialects {

// Reads the value of an argument that stands between tags, up to and with the closing one, and gives JSON.
// Where the schema allows text alone, it is text as it comes. Else an object or array is given as it comes if
// text is not allowed, and all other values once they are whole: JSON, and Python's True, False and None, if
// the schema allows more than text and they are no string, and else text.
class ValueReader final : public ArgumentReader {
 public:
  // line: a line break before `closing` does not belong to the value.
  ValueReader(std::string_view closing, bool line, ArgumentTypes types);

  JsonStatus push(char c) override;
  std::string take() override { return std::exchange(json_, {}); }

 private:
  bool push_value(char c);
  JsonStatus end();

  std::string closing_;  // with the line break, where there is one
  const bool line_;
  const ArgumentTypes types_;
  std::string held_;   // may turn out to be the closing tag
  std::string whole_;  // of a value that is given at its end
  std::optional<LiteralReader> literal_;
  bool literal_ended_ = false;
  bool begun_ = false;
  std::string json_;
};

}  // namespace quire::dialects
