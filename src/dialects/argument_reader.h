#pragma once

#include <string>
#include <utility>

#include "dialects/json_scanner.h"

namespace quire::dialects {

// Reads what holds a call's arguments byte by byte, and gives them as JSON.
class ArgumentReader {
 public:
  virtual ~ArgumentReader() = default;

  // kEnd: with this byte it has ended. kError: this byte cannot stand here.
  virtual JsonStatus push(char c) = 0;
  // What was read since the last call of this, so far as it is certain.
  virtual std::string take() = 0;
};

// JSON, as it stands.
class JsonReader final : public ArgumentReader {
 public:
  JsonStatus push(char c) override {
    const JsonStatus status = scanner_.push(c);
    if (status != JsonStatus::kError) text_ += c;
    return status;
  }
  std::string take() override { return std::exchange(text_, {}); }

 private:
  JsonScanner<> scanner_;
  std::string text_;
};

}  // namespace quire::dialects
