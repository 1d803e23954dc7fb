#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_builder.h"
#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

const fs::path kGolden = QUIRE_SOURCE_DIR "/tests/golden";

// A file of F32 tensors of one row of two values each.
std::string file_with(const std::vector<std::string>& names) {
  std::string header = "{";
  std::vector<float> values;
  for (const std::string& name : names) {
    const std::size_t begin = values.size() * sizeof(float);
    header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[)" +
              std::to_string(begin) + "," + std::to_string(begin + 8) + "]}";
    values.insert(values.end(), {static_cast<float>(values.size()), -1.5F});
  }
  return safetensors_bytes(header + "}", bytes_of(std::span<const float>(values)));
}

std::string index_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = R"({"metadata":{"total_size":1},"weight_map":{)";
  for (const auto& [tensor, file] : entries) {
    text += (text.back() == '{' ? "\"" : ",\"") + tensor + "\":\"" + file + "\"";
  }
  return text + "}}";
}

std::vector<float> read_floats(const WeightTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
  tensor.read_rows(0, Tensor(values.data(), DType::kF32, {tensor.rows(), tensor.cols()}));
  return values;
}

class CheckpointTest : public testing::Test {
 protected:
  void write_index(const std::vector<std::pair<std::string, std::string>>& entries) const {
    dir_.write("model.safetensors.index.json", index_of(entries));
  }
  void expect_refused(std::initializer_list<std::string_view> parts) const {
    expect_error([&] { Checkpoint{dir_.path()}; }, parts);
  }
  TempDir dir_;
};

TEST_F(CheckpointTest, TakesTensorsAndKnowsWhatIsLeft) {
  dir_.write("model.safetensors", file_with({"b", "a", "c"}));
  Checkpoint checkpoint(dir_.path());
  EXPECT_EQ(checkpoint.bytes(), 24U);
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("d"));
  EXPECT_EQ(checkpoint.unclaimed(), (std::vector<std::string>{"a", "b", "c"}));
  const WeightTensorPtr a = checkpoint.take("a", {2});
  EXPECT_EQ(a->name(), "a");
  EXPECT_EQ(a->dtype(), DType::kF32);
  EXPECT_EQ(a->rows(), 1);
  EXPECT_EQ(a->cols(), 2);
  EXPECT_EQ(read_floats(*a), (std::vector<float>{2.0F, -1.5F}));
  EXPECT_EQ(checkpoint.unclaimed(), (std::vector<std::string>{"b", "c"}));
}

TEST_F(CheckpointTest, RefusesAbsentTensorsAndWrongShapesAndTypes) {
  dir_.write("model.safetensors",
             safetensors_bytes(R"({"f8":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                               R"("ids":{"dtype":"I32","shape":[1],"data_offsets":[4,8]},)"
                               R"("w":{"dtype":"F16","shape":[2,1],"data_offsets":[8,12]}})",
                               "123456789012"));
  Checkpoint checkpoint(dir_.path());
  expect_error([&] { checkpoint.take("x.weight", {2}); }, {dir_.path().string(), "no tensor \"x.weight\""});
  for (const Shape& shape : {Shape{2}, Shape{1, 2}, Shape{2, 1, 1}, Shape{}}) {
    expect_error([&] { checkpoint.take("w", shape); }, {"model.safetensors", "\"w\" has shape [2, 1]"});
  }
  expect_error([&] { checkpoint.take("w", {3, 1}); }, {"asks for [3, 1]"});
  expect_error([&] { checkpoint.take("f8", {4}); }, {"model.safetensors", "\"f8\" has dtype F8_E4M3"});
  expect_error([&] { checkpoint.take("ids", {1}); }, {"\"ids\" has dtype I32", "F32, F16 or BF16"});
  EXPECT_EQ(checkpoint.unclaimed().size(), 3U);
}

TEST_F(CheckpointTest, ItsTypeIsThatOfMostBytes) {
  const auto type_of = [&](std::string_view header, std::size_t bytes) {
    dir_.write("model.safetensors", safetensors_bytes(header, std::string(bytes, 'x')));
    return Checkpoint(dir_.path()).dtype();
  };
  EXPECT_EQ(type_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},
                        "b":{"dtype":"BF16","shape":[8],"data_offsets":[12,28]},
                        "c":{"dtype":"U8","shape":[99],"data_offsets":[28,127]}})",
                    127),
            DType::kBF16);
  EXPECT_EQ(type_of(R"({"c":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 9), std::nullopt);
}

TEST_F(CheckpointTest, FindsTensorsWithAndWithoutAnOuterPrefix) {
  dir_.write("model.safetensors", file_with({"layers.0.w", "model.norm", "h.0", "both", "model.both"}));
  Checkpoint checkpoint(dir_.path());
  EXPECT_EQ(checkpoint.take("model.layers.0.w", {2})->name(), "layers.0.w");
  EXPECT_EQ(checkpoint.take("norm", {2})->name(), "model.norm");
  EXPECT_EQ(checkpoint.take("transformer.h.0", {2})->name(), "h.0");
  EXPECT_EQ(checkpoint.take("both", {2})->name(), "both");
  EXPECT_FALSE(checkpoint.contains("model.other"));
  EXPECT_EQ(checkpoint.unclaimed(), std::vector<std::string>{"model.both"});
}

TEST_F(CheckpointTest, OpensShards) {
  dir_.write("1.safetensors", file_with({"a", "not-in-the-index"}));
  dir_.write("2.safetensors", file_with({"b"}));
  write_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  Checkpoint checkpoint(dir_.path());
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_TRUE(checkpoint.contains("not-in-the-index"));
  EXPECT_EQ(read_floats(*checkpoint.take("b", {2})), (std::vector<float>{0.0F, -1.5F}));
  EXPECT_EQ(checkpoint.bytes(), 24U);
}

TEST_F(CheckpointTest, PrefersTheSingleFile) {
  dir_.write("model.safetensors", file_with({"single"}));
  write_index({{"a", "missing.safetensors"}});
  EXPECT_TRUE(Checkpoint(dir_.path()).contains("single"));
}

TEST_F(CheckpointTest, RefusesShardNamesWithAPathInThem) {
  dir_.write("ok.safetensors", file_with({"t"}));
  for (const char* name : {"../ok.safetensors", "/etc/passwd", "./ok.safetensors", "sub/ok.safetensors", "..",
                           ".", "", "a\\\\b", "ok.safetensors\\u0000/x"}) {
    SCOPED_TRACE(name);
    write_index({{"t", name}});
    expect_refused({"model.safetensors.index.json", "tensor \"t\" must lie in a file of the same folder"});
  }
}

TEST_F(CheckpointTest, RefusesAnIndexThatIsNone) {
  for (const char* text : {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":null})"}) {
    dir_.write("model.safetensors.index.json", text);
    expect_refused({"model.safetensors.index.json", "needs a \"weight_map\""});
  }
  dir_.write("model.safetensors.index.json", R"({"weight_map":{"t":1}})");
  expect_refused({"tensor \"t\"", "not in 1"});
  dir_.write("model.safetensors.index.json", R"({"weight_map":{"t":"a","t":"b"}})");
  expect_refused({"model.safetensors.index.json", "\"t\" stands twice"});
  dir_.write("model.safetensors.index.json", R"({"weight_map":)");
  expect_refused({"model.safetensors.index.json", "not valid JSON"});
}

TEST_F(CheckpointTest, RefusesMissingShardsAndTensors) {
  dir_.write("1.safetensors", file_with({"a"}));
  dir_.write("2.safetensors", file_with({"b"}));
  write_index({{"a", "1.safetensors"}, {"t", "3.safetensors"}});
  expect_refused({"3.safetensors: no such file", "tensor \"t\""});
  write_index({{"a", "1.safetensors"}, {"t", std::string(5000, 'x')}});
  expect_refused({"no such file", "tensor \"t\""});
  write_index({{"a", "1.safetensors"}, {"t", "2.safetensors"}});
  expect_refused({"2.safetensors: no tensor \"t\"", "index.json"});
  write_index({{"a", "2.safetensors"}, {"b", "1.safetensors"}});
  expect_refused({"2.safetensors: no tensor \"a\""});
}

TEST_F(CheckpointTest, RefusesATensorInTwoShards) {
  dir_.write("1.safetensors", file_with({"a", "t"}));
  dir_.write("2.safetensors", file_with({"t"}));
  write_index({{"a", "1.safetensors"}, {"t", "2.safetensors"}});
  expect_refused({"2.safetensors: tensor \"t\" is also in", "1.safetensors"});
}

TEST_F(CheckpointTest, NamesTheMalformedShard) {
  dir_.write("1.safetensors", file_with({"a"}));
  dir_.write("2.safetensors", file_with({"b"}) + "x");
  write_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  expect_refused({"2.safetensors", "trailing bytes"});
}

TEST_F(CheckpointTest, FollowsTheLinksOfADownloadCache) {
  fs::create_directories(dir_.path() / "blobs");
  fs::create_directories(dir_.path() / "snapshots/rev");
  dir_.write("blobs/abc", file_with({"a"}));
  fs::create_symlink("../../blobs/abc", dir_.path() / "snapshots/rev/model.safetensors");
  EXPECT_TRUE(Checkpoint(dir_.path() / "snapshots/rev").contains("a"));
}

TEST_F(CheckpointTest, RefusesLinksToWhatIsNoRegularFile) {
  fs::create_symlink("/dev/zero", dir_.path() / "model.safetensors");
  expect_refused({"model.safetensors: not a regular file"});
  fs::remove(dir_.path() / "model.safetensors");
  fs::create_symlink("model.safetensors", dir_.path() / "model.safetensors");
  expect_refused({dir_.path().string(), "neither model.safetensors nor"});
}

TEST_F(CheckpointTest, SaysWhatIsMissing) {
  expect_error([&] { Checkpoint{dir_.path() / "none"}; }, {"none: no such folder"});
  expect_refused({dir_.path().string(), "neither model.safetensors nor model.safetensors.index.json"});
  dir_.write("pytorch_model.bin", "PK");
  expect_refused({"only safetensors is read", "\"pytorch_model.bin\""});
}

TEST_F(CheckpointTest, TensorsOutliveTheCheckpoint) {
  dir_.write("model.safetensors", file_with({"a"}));
  const WeightTensorPtr tensor = Checkpoint(dir_.path()).take("a", {2});
  EXPECT_EQ(read_floats(*tensor), (std::vector<float>{0.0F, -1.5F}));
}

// Every pair of float types, over more rows than fit the reader's scratch buffer.
TEST_F(CheckpointTest, ConvertsWhileReading) {
  constexpr std::int64_t kRows = 301;
  constexpr std::int64_t kCols = 257;
  std::vector<float> values(static_cast<std::size_t>(kRows * kCols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1e-3F * static_cast<float>(i) - 30.0F;
  for (const auto& [dtype, name] :
       {std::pair{DType::kF32, "F32"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"}}) {
    std::string data(values.size() * size_of(dtype), '\0');
    convert(DType::kF32, values.data(), dtype, data.data(), values.size());
    dir_.write("model.safetensors", safetensors_bytes(R"({"w":{"dtype":")" + std::string(name) +
                                                          R"(","shape":[301,257],"data_offsets":[0,)" +
                                                          std::to_string(data.size()) + "]}}",
                                                      data));
    const WeightTensorPtr tensor = Checkpoint(dir_.path()).take("w", {kRows, kCols});
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const auto& [row, count] :
           {std::pair<std::int64_t, std::int64_t>{0, kRows}, {7, 290}, {300, 1}, {5, 0}}) {
        const auto n = static_cast<std::size_t>(count * kCols);
        std::string expected(n * size_of(to), '\0');
        convert(dtype, data.data() + static_cast<std::size_t>(row * kCols) * size_of(dtype), to,
                expected.data(), n);
        std::string actual(n * size_of(to), 'x');
        tensor->read_rows(row, Tensor(actual.data(), to, {count, kCols}));
        EXPECT_TRUE(actual == expected)
            << name << " to " << to_string(to) << ", rows " << row << " + " << count;
      }
    }
  }
}

TEST_F(CheckpointTest, AShardCutShortWhileLoadingIsAnError) {
  const auto path = dir_.write("model.safetensors", file_with({"a"}));
  const WeightTensorPtr tensor = Checkpoint(dir_.path()).take("a", {2});
  fs::resize_file(path, fs::file_size(path) - 1);
  expect_error([&] { read_floats(*tensor); }, {"model.safetensors: cut short while reading \"a\""});
}

TEST(WeightViewTest, SlicesRowsColumnsAndPads) {
  const TempDir dir;
  std::vector<float> values(12);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  dir.write("model.safetensors",
            safetensors_bytes(R"({"v":{"dtype":"F32","shape":[4],"data_offsets":[48,64]},)"
                              R"("w":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}})",
                              bytes_of(std::span<const float>(values)) +
                                  bytes_of(std::span<const float>(values).first(4))));
  Checkpoint checkpoint(dir.path());
  const WeightTensorPtr w = checkpoint.take("w", {3, 4});
  const WeightTensorPtr v = checkpoint.take("v", {4});

  EXPECT_EQ(read_floats(*slice_rows(w, 1, 2)), (std::vector<float>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(slice_rows(w, 1, 2)->shape(), (Shape{2, 4}));
  EXPECT_EQ(read_floats(*slice_cols(w, 1, 2)), (std::vector<float>{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(read_floats(*slice_cols(v, 2, 2)), (std::vector<float>{2, 3}));
  EXPECT_EQ(read_floats(*pad_rows(w, 4)),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0, 0}));
  EXPECT_EQ(read_floats(*slice_cols(slice_rows(pad_rows(w, 6), 2, 2), 3, 1)), (std::vector<float>{11, 0}));
  EXPECT_EQ(read_floats(*slice_rows(pad_rows(w, 6), 4, 1)), std::vector<float>(4, 0.0F));
  EXPECT_EQ(slice_rows(w, 0, 1)->name(), "w");

  EXPECT_THROW(slice_rows(w, 2, 2), InternalError);
  EXPECT_THROW(slice_cols(w, 3, 2), InternalError);
  EXPECT_THROW(slice_rows(v, 0, 1), InternalError);
  EXPECT_THROW(pad_rows(w, 2), InternalError);
  std::array<float, 8> out{};
  EXPECT_THROW(w->read_rows(2, Tensor(out.data(), DType::kF32, {2, 4})), InternalError);
  EXPECT_THROW(w->read_rows(0, Tensor(out.data(), DType::kF32, {2, 3})), InternalError);
}

// As the threads that pack a matrix do, and those that compare it with another.
TEST(WeightViewTest, ThreadsMayReadATransposedTensorInDifferentTypes) {
  constexpr std::int64_t kRows = 257, kCols = 64;
  const TempDir dir;
  std::vector<float> values(kRows * kCols);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 2048);  // exact in F16
  dir.write("model.safetensors",
            safetensors_bytes(R"({"w":{"dtype":"F32","shape":[257,64],"data_offsets":[0,65792]}})",
                              bytes_of(std::span<const float>(values))));
  Checkpoint checkpoint(dir.path());
  for (int round = 0; round < 20; ++round) {
    const WeightTensorPtr turned = transpose(checkpoint.take("w", {kRows, kCols}));
    const auto read = [&]<typename T>(DType dtype, T) {
      std::vector<T> out(kRows);
      for (std::int64_t col = 0; col < kCols; ++col) {
        turned->read_rows(col, Tensor(out.data(), dtype, {1, kRows}));
        for (std::size_t row = 0; row < out.size(); ++row)
          if (to_float(out[row]) != values[row * kCols + static_cast<std::size_t>(col)]) return false;
      }
      return true;
    };
    auto halves = std::async(std::launch::async, [&] { return read(DType::kF16, Float16{}); });
    EXPECT_TRUE(read(DType::kF32, 0.0F));
    EXPECT_TRUE(halves.get());
  }
}

TEST(WeightViewTest, TransposesAndTakesPartsOfInterleavedRows) {
  const TempDir dir;
  std::vector<float> values(16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  dir.write("model.safetensors",
            safetensors_bytes(R"({"h.0.v":{"dtype":"F32","shape":[8],"data_offsets":[64,96]},)"
                              R"("h.0.w":{"dtype":"F32","shape":[8,2],"data_offsets":[0,64]}})",
                              bytes_of(std::span<const float>(values)) +
                                  bytes_of(std::span<const float>(values).first(8))));
  Checkpoint checkpoint(dir.path());
  const WeightTensorPtr w = checkpoint.take("h.0.w", {8, 2});
  const WeightTensorPtr v = checkpoint.take("h.0.v", {8});

  EXPECT_EQ(transpose(w)->shape(), (Shape{2, 8}));
  EXPECT_EQ(read_floats(*slice_rows(transpose(w), 1, 1)), (std::vector<float>{1, 3, 5, 7, 9, 11, 13, 15}));
  std::array<Float16, 8> halves{};
  const WeightTensorPtr transposed = transpose(w);
  read_floats(*transposed);
  transposed->read_rows(0, Tensor(halves.data(), DType::kF16, {1, 8}));  // of another type than before
  EXPECT_EQ(to_float(halves[7]), 14.0F);

  EXPECT_EQ(pick_rows(w, by_turns(4, 2, 0))->shape(), (Shape{4, 2}));
  EXPECT_EQ(read_floats(*pick_rows(w, by_turns(4, 2, 0))), (std::vector<float>{0, 1, 4, 5, 8, 9, 12, 13}));
  EXPECT_EQ(read_floats(*pick_rows(w, {0, 1, 4, 5})), (std::vector<float>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(read_floats(*slice_rows(pick_rows(w, {2, 3, 6, 7}), 1, 2)), (std::vector<float>{6, 7, 12, 13}));
  EXPECT_EQ(read_floats(*pick_rows(v, by_turns(4, 2, 1))), (std::vector<float>{1, 3, 5, 7}));
  EXPECT_EQ(read_floats(*slice_cols(pick_rows(v, {4, 5, 6, 7}), 1, 2)), (std::vector<float>{5, 6}));
  EXPECT_THROW(transpose(v), InternalError);
  EXPECT_THROW(pick_rows(w, by_turns(3, 3, 2)), InternalError);
  expect_error([&] { checkpoint.take("h.1.w", {8, 2}); }, {"\"h.1.w\""});
  EXPECT_TRUE(checkpoint.unclaimed().empty());
}

TEST(WeightViewTest, SlicesColumnsOfMoreRowsThanOneReadHolds) {
  const TempDir dir;
  constexpr std::int64_t kRows = 700;
  constexpr std::int64_t kCols = 1000;
  std::vector<float> values(static_cast<std::size_t>(kRows * kCols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  dir.write("model.safetensors",
            safetensors_bytes(R"({"w":{"dtype":"F32","shape":[700,1000],"data_offsets":[0,)" +
                                  std::to_string(values.size() * 4) + "]}}",
                              bytes_of(std::span<const float>(values))));
  const WeightTensorPtr slice = slice_cols(Checkpoint(dir.path()).take("w", {kRows, kCols}), 10, 3);
  const std::vector<float> actual = read_floats(*slice);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t col = 0; col < 3; ++col) {
      ASSERT_EQ(actual[static_cast<std::size_t>(row * 3 + col)], static_cast<float>(row * kCols + 10 + col));
    }
  }
}

TEST(GoldenCheckpointTest, ShardedAndSingleFilesHoldTheSameTensors) {
  const Checkpoint names(kGolden / "qwen3");
  Checkpoint single(kGolden / "qwen3");
  Checkpoint sharded(kGolden / "qwen3-hub");
  const SafetensorsFile file(kGolden / "qwen3/model.safetensors");
  ASSERT_EQ(names.unclaimed().size(), 35U);
  for (const std::string& name : names.unclaimed()) {
    const Shape& shape = file.tensor(name).shape;
    EXPECT_EQ(read_floats(*single.take(name, shape)), read_floats(*sharded.take(name, shape))) << name;
  }
  EXPECT_TRUE(single.unclaimed().empty());
  EXPECT_EQ(sharded.unclaimed(), std::vector<std::string>{"lm_head.weight"});
}

TEST(GoldenCheckpointTest, ReadsSixteenBitWeights) {
  Checkpoint checkpoint(kGolden / "qwen3-bf16-file");
  const WeightTensorPtr tensor = checkpoint.take("model.embed_tokens.weight", {512, 64});
  EXPECT_EQ(tensor->dtype(), DType::kBF16);
  for (const float value : read_floats(*tensor)) {
    EXPECT_EQ(value, to_float(from_float<BFloat16>(value)));
    EXPECT_LT(std::abs(value), 2.0F);
  }
}

}  // namespace
}  // namespace quire
