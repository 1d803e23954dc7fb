#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace quire::test {

// Holds FOLDER/NAME.json to FOLDER/NAME.cases.json, whose fields tools/make_tokenizer_cases.py describes.
inline void expect_cases(const std::filesystem::path& folder, const std::string& name) {
  const Tokenizer tokenizer = Tokenizer::from_file(folder / (name + ".json"));
  const Json cases = read_json_file(folder / (name + ".cases.json"));
  for (const Json& c : cases) {
    const auto ids = c.at("ids").get<std::vector<TokenId>>();
    auto plain = ids;
    if (c.contains("text")) {
      const std::string text = c["text"];
      plain = c.at("ids_plain").get<std::vector<TokenId>>();
      EXPECT_EQ(tokenizer.encode(text), ids) << c["text"];
      EXPECT_EQ(tokenizer.encode(text, false), plain) << c["text"];
    }
    EXPECT_EQ(tokenizer.decode(plain, false), c.at("decoded").get<std::string>()) << c["ids"];
    EXPECT_EQ(tokenizer.decode(ids, true), c.at("decoded_skip").get<std::string>()) << c["ids"];
  }
  std::cout << name << ": " << cases.size() << " cases\n";
  EXPECT_GT(cases.size(), 100u);
}

}  // namespace quire::test
