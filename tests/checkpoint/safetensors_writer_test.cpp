#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "temp_dir.h"

namespace quire {
namespace {

// Byte i of the tensor is i.
TensorToWrite counted(const std::string& name, const std::string& dtype, std::int64_t count,
                      std::size_t element) {
  return {name, dtype, {count}, count, element, [element](std::int64_t row, std::int64_t n, std::byte* out) {
            const auto first = static_cast<std::size_t>(row) * element;
            for (std::size_t i = 0; i < static_cast<std::size_t>(n) * element; ++i)
              out[i] = static_cast<std::byte>(first + i);
          }};
}

const std::vector<TensorToWrite> kTensors = {counted("a", "U8", 83, 1),     counted("b", "F32", 3, 4),
                                             counted("c", "BF16", 5, 2),    counted("d", "I64", 2, 8),
                                             counted("empty", "F32", 0, 4), counted("e", "F32", 1001, 4),
                                             counted("one", "F64", 1, 8)};

void expect_all(const Checkpoint& file) {
  for (const TensorToWrite& tensor : kTensors) {
    const SafetensorsEntry* entry = file.find_entry(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype_name, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_EQ(entry->offset % tensor.row_bytes, 0U) << tensor.name;
  }
}

TEST(SafetensorsWriterTest, TensorsAreWhatTheyAreAndAligned) {
  const TempDir dir;
  std::vector<std::size_t> done;
  write_safetensors(dir.path(), kTensors, 1 << 20, [&](std::size_t count) { done.push_back(count); });
  EXPECT_EQ(done.back(), kTensors.size());
  expect_all(Checkpoint(dir.path()));
  const SafetensorsFile file(dir.path() / "model.safetensors");
  std::vector<std::byte> bytes(4004);
  file.read("e", 0, bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], static_cast<std::byte>(i));
}

TEST(SafetensorsWriterTest, ShardsHoldAtMostSoManyBytesOrOneTensor) {
  const TempDir dir;
  write_safetensors(dir.path(), kTensors, 100, [](std::size_t) {});
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "model-00003-of-00003.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "model-00004-of-00003.safetensors"));
  expect_all(Checkpoint(dir.path()));
}

TEST(SafetensorsWriterTest, WhatATensorThrowsComesOut) {
  const TempDir dir;
  std::vector<TensorToWrite> tensors = kTensors;
  tensors[0].make = [](std::int64_t, std::int64_t, std::byte*) { throw std::runtime_error("not today"); };
  EXPECT_THROW(write_safetensors(dir.path(), tensors, 100, [](std::size_t) {}), std::runtime_error);
}

}  // namespace
}  // namespace quire
