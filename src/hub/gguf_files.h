#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire {

// ORG/NAME:FILE or ORG/NAME:Q4_K_M: what comes before the colon, and behind it; without one the latter is
// empty.
struct HubName {
  std::string id;
  std::string gguf;
};
HubName parse_hub_name(std::string_view text);

// Of a repository's files the GGUF file of that name, or the one whose name ends in that quantisation
// (Q4_K_M, in any case), as llama.cpp and Ollama have it; the parts of a split one in order. Empty: there is
// none. Error where there are several.
std::vector<std::string> choose_gguf(const std::vector<std::string>& files, const std::string& wanted);
// The parts that a file of such a name has in all; 1: it is not split.
std::size_t num_gguf_parts(const std::string& file);

}  // namespace quire
