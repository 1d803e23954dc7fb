#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quire::dialects {

// The row of a table that has a name, its own or one of its aliases. Error, with the names that there are.
template <typename Row>
const Row& named_row(const std::vector<Row>& rows, std::string_view name, std::string_view kind) {
  const std::string wanted = " " + std::string(name) + " ";
  for (const Row& row : rows) {
    const std::string names = " " + std::string(row.name) + " " + std::string(row.aliases) + " ";
    if (!name.empty() && name.find(' ') == name.npos && names.find(wanted) != names.npos) return row;
  }
  std::string known;
  for (const Row& row : rows) known += (known.empty() ? "" : ", ") + std::string(row.name);
  fail("no {} parser has the name {}; there are {}", kind, name, known);
}

}  // namespace quire::dialects
