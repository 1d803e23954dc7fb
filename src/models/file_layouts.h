#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/weight_source.h"

namespace quire {

struct DecoderConfig;

// Components of a layer's name, and the file's. Names are renamed by whole components, such as
// "mlp.gate_proj", in one pass from left to right, so that no rename sees another's result.
using Renames = std::vector<std::pair<std::string, std::string>>;

// How the files of a family have what layers ask for.
struct FileLayout {
  Renames renames = {};
  std::string qkv = {};      // the projection that has the rows of q, then of k, then of v; or empty
  bool qkv_by_head = false;  // it has these rows of one head after the other
  std::string gate_up = {};  // the projection that has the rows of the gate, then of up; or empty
  bool transposed = false;   // projections lie transposed
  // Where a layer's experts are two tensors, experts.gate_up_proj and experts.down_proj, as long as the file
  // has these: each expert's rows of gate, then of up; or [experts, in, out], the columns of gate and up by
  // turns, with biases [experts, out] beside them.
  enum class Experts : std::uint8_t { kApart, kByRows, kByTurns } experts = Experts::kApart;
  bool delta_net_by_head = false;  // Gated DeltaNet's projections have one key head after the other
  bool neighbour_rotary = false;   // neighbouring dimensions of a head rotate together
  // The family is a part of models of several kinds of input: its names have language_model behind or before
  // "model", or are those of a model of text. What concerns the other kinds is left out.
  bool text_part = false;
  std::vector<std::string> left_out = {};  // beginnings of names of further parts that are
  std::vector<std::string> unneeded = {};  // endings of names of tensors that nobody needs to claim
};

// A source of what layers ask for; refers to `file`. Of neighbours that rotate together, it has the even
// dimensions before the odd ones, in q and in k, as Backend::rotate_and_store wants them: products stay.
std::unique_ptr<WeightSource> read_layout(const FileLayout& layout, const DecoderConfig& config,
                                          WeightSource& file);

}  // namespace quire
