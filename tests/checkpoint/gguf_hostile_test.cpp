// Numbers of a GGUF file at the bounds of their types.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "checkpoint/gguf_builder.h"
#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

class GgufBoundsTest : public ::testing::Test {
 protected:
  void expect_refused(const std::string& bytes, std::initializer_list<std::string_view> parts) const {
    const auto path = folder_.write("model.gguf", bytes);
    expect_error([&] { GgufModel{path}; }, parts);
  }
  // The bytes with another number, as the file has it, before the text or so far behind its end.
  static std::string changed(std::string bytes, std::string_view text, std::uint64_t number,
                             std::ptrdiff_t behind = 0) {
    const auto begin = static_cast<std::ptrdiff_t>(bytes.find(text));
    const auto at = behind == 0 ? begin - std::ptrdiff_t{sizeof number} : begin + std::ssize(text) + behind;
    std::memcpy(&bytes[static_cast<std::size_t>(at)], &number, sizeof number);
    return bytes;
  }

  TempDir folder_;
};

// Of each type the largest product of dimensions and bytes, and the next one.
TEST_F(GgufBoundsTest, AProductOfDimensionsAndBytesThatOverflowsIsRefused) {
  for (const GgufType type :
       {GgufType::kF32, GgufType::kF16, GgufType::kBF16, GgufType::kQ4_0, GgufType::kQ8_0, GgufType::kQ2_K,
        GgufType::kQ6_K, GgufType::kIq4Xs, GgufType::kMxfp4}) {
    const GgufBlock& block = block_of(type);
    SCOPED_TRACE(block.name);
    constexpr std::int64_t kDim = std::int64_t{1} << 22;
    const std::int64_t most = std::numeric_limits<std::int64_t>::max() / (kDim * kDim * block.bytes);
    const auto of_rows = [&](std::int64_t rows) {
      return GgufBuilder().tensor("t", {kDim, rows, kDim, block.elements}, type, "").bytes();
    };
    expect_refused(of_rows(most), {"\"t\"", "beyond the file's size"});
    expect_refused(of_rows(most + 1), {"\"t\"", "overflows"});
    const std::int64_t longest = (std::int64_t{1} << 40) / block.elements * block.elements;
    expect_refused(GgufBuilder().tensor("t", {longest}, type, "").bytes(), {"beyond the file's size"});
    expect_refused(GgufBuilder().tensor("t", {longest, longest, longest, longest}, type, "").bytes(),
                   {"overflows"});
  }
  for (const std::int64_t dim : {std::int64_t{0}, (std::int64_t{1} << 40) + 1, std::int64_t{-1},
                                 std::numeric_limits<std::int64_t>::min()})
    expect_refused(GgufBuilder().tensor("t", {1, dim, 1}, GgufType::kF32, "").bytes(),
                   {"\"t\"", "dimension"});
}

// An offset and a size whose sum, with the place of the data, wraps around to what lies in the file.
TEST_F(GgufBoundsTest, AnOffsetWhoseSumOverflowsIsRefused) {
  const std::string whole =
      GgufBuilder().tensor("the tensor", {8}, GgufType::kF32, std::string(32, 'x')).bytes();
  const std::uint64_t data = whole.size() - 32;
  const std::ptrdiff_t to_offset = 4 + 8 + 4;  // behind the number of dimensions, one of them, and the type
  EXPECT_NO_THROW(GgufModel(folder_.write("model.gguf", changed(whole, "the tensor", 0, to_offset))));
  for (const std::uint64_t offset :
       {std::uint64_t{32}, std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 63, kMost - 31,
        kMost - 63, kMost - data + 1, kMost - data - 31})
    expect_refused(changed(whole, "the tensor", offset, to_offset), {"the tensor", "beyond the file's size"});
  const std::int64_t rows = (std::int64_t{1} << 23) - 1;  // 2^63 bytes and 2^40 less
  const std::string large =
      GgufBuilder().tensor("t.t", {rows, std::int64_t{1} << 38}, GgufType::kF32, "").bytes();
  expect_refused(changed(large, "t.t", (std::uint64_t{1} << 63) + (std::uint64_t{1} << 40), 4 + 16 + 4),
                 {"t.t", "beyond the file's size"});
}

// A file that says so of its texts and lists, and is short: a length that was cut to 32 bits, or whose
// product with the size of an element was cut to 64, would fit.
TEST_F(GgufBoundsTest, LengthsBeyondTheirTypesAreRefused) {
  GgufBuilder builder;
  builder.add("the.key", "the text").add("a.list", std::vector<std::string>{"first", "second"});
  builder.add("floats", std::vector<float>{1, 2}).add("ints", std::vector<std::int32_t>{1, 2});
  const std::string whole = builder.tensor("the tensor", {8}, GgufType::kF32, std::string(32, 'x')).bytes();
  EXPECT_NO_THROW(GgufModel(folder_.write("model.gguf", whole)));
  for (const std::string_view text : {"the.key", "the text", "first", "second", "the tensor"}) {
    for (const std::uint64_t more :
         {std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 63, kMost - text.size()}) {
      SCOPED_TRACE(std::string(text) + " and " + std::to_string(more));
      expect_refused(changed(whole, text, text.size() + more), {"has a length of", "bytes"});
    }
  }
  const std::ptrdiff_t to_count = 4 + 4;  // behind the types of the value and of its elements
  for (const std::string_view list : {"a.list", "floats", "ints"}) {
    for (const int bits : {30, 31, 32, 60, 61, 62, 63})
      expect_refused(changed(whole, list, (std::uint64_t{1} << bits) + 2, to_count), {list, "a count of"});
    expect_refused(changed(whole, list, kMost, to_count), {list, "a count of"});
  }
  for (const std::size_t count : {8, 16})  // of tensors and of keys
    for (const std::uint64_t number : {std::uint64_t{1} << 32, std::uint64_t{1} << 63, kMost}) {
      std::string bytes = whole;
      std::memcpy(&bytes[count], &number, sizeof number);
      expect_refused(bytes, {"a count of"});
    }
}

}  // namespace
}  // namespace quire
