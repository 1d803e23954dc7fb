#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/weight_source.h"

namespace quire {

struct DecoderConfig;

// How the files of some families lie: sources that give what layers ask for.

// Of the names that layers ask for: 0, 1 or 2 for what belongs to q, k or v, their norms too; -1: none of
// them.
int qkv_part(std::string_view name);

// The text part of a model of several kinds of input: its names have language_model behind or before "model",
// or are those of a model of text.
std::unique_ptr<WeightSource> text_part(const DecoderConfig&, WeightSource& weights);

// A projection that a file has as `size` rows of a larger one.
struct FusedPart {
  std::string part, whole;  // the last component of their names
  std::int64_t begin, size, whole_size;
};

// Projections that a file has one below the other.
class FusedWeights final : public RenamedWeights {
 public:
  FusedWeights(WeightSource& inner, Renames renames, std::vector<FusedPart> parts);

  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override;
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override;

 private:
  const FusedPart* find(std::string_view prefix) const;

  std::vector<FusedPart> parts_;
};

// q and k of a file in which neighbouring dimensions of a head rotate together, in the order of
// Ops::rotate_and_store: of those that rotate the even ones, then the odd ones. Their products stay.
class NeighbourRotary final : public RenamedWeights {
 public:
  // The first rotary_dim of each head_dim dimensions rotate.
  NeighbourRotary(WeightSource& inner, int head_dim, int rotary_dim)
      : RenamedWeights(inner, {}), head_dim_(head_dim), rotary_dim_(rotary_dim) {}

  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override;
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override;

 private:
  std::vector<std::int64_t> order(std::int64_t rows) const;

  int head_dim_, rotary_dim_;
};

}  // namespace quire
