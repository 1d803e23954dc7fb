#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <thread>
#include <vector>

#include "checkpoint/safetensors_builder.h"
#include "expect_error.h"
#include "temp_dir.h"

namespace quire {
namespace {

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"I8","shape":[3],"data_offsets":[16,19]}})";
constexpr std::string_view kData = "0123456789abcdefxyz";

class SafetensorsTest : public testing::Test {
 protected:
  std::filesystem::path write(std::string_view bytes) const { return dir_.write("m.safetensors", bytes); }
  // Opening a file of these bytes is an Error with the file's name and these parts.
  void expect_refused(std::string_view bytes, std::initializer_list<std::string_view> parts) const {
    const auto path = write(bytes);
    expect_error([&] { SafetensorsFile{path}; }, {"m.safetensors"});
    expect_error([&] { SafetensorsFile{path}; }, parts);
  }
  // The same of a header of one tensor "t", described by `info`, before 16 bytes of data.
  void expect_tensor_refused(std::string_view info, std::initializer_list<std::string_view> parts) const {
    SCOPED_TRACE(info);
    const std::string bytes = safetensors_bytes("{\"t\":" + std::string(info) + "}", std::string(16, 'x'));
    expect_refused(bytes, {"tensor \"t\""});
    expect_refused(bytes, parts);
  }

  TempDir dir_;
};

TEST_F(SafetensorsTest, DescribesItsTensors) {
  const SafetensorsFile file(write(safetensors_bytes(kHeader, kData)));
  ASSERT_EQ(file.tensors().size(), 2U);
  const SafetensorsEntry& a = file.tensor("a");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(a.offset, 8 + kHeader.size());
  EXPECT_EQ(a.bytes, 16U);
  EXPECT_EQ(file.tensor("b").dtype, DType::kI8);
  expect_error([&] { file.tensor("c"); }, {"m.safetensors: no tensor \"c\""});
}

TEST_F(SafetensorsTest, ReadsAnyRangeOfATensor) {
  const SafetensorsFile file(write(safetensors_bytes(kHeader, kData)));
  std::array<std::byte, 5> bytes{};
  file.read("a", 11, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "bcdef", 5), 0);
  file.read("b", 0, std::span(bytes).first(3));
  EXPECT_EQ(std::memcmp(bytes.data(), "xyzef", 5), 0);
  EXPECT_NO_THROW(file.read("b", 3, {}));
  EXPECT_THROW(file.read("a", 12, bytes), InternalError);
  EXPECT_THROW(file.read("b", 4, {}), InternalError);
}

TEST_F(SafetensorsTest, AcceptsUnusualButCorrectFiles) {
  for (const auto& [header, data] : std::vector<std::pair<std::string, std::string>>{
           {"{}", ""},
           {"{}   ", ""},
           {R"({"__metadata__":{}})", ""},
           {R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234"},
           {R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})", ""},
           {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"b":{"dtype":"U8","shape":[1],)"
            R"("data_offsets":[0,1]}})",
            "123"},
           {R"({"p":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "1"},
           {R"({"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", "12"}}) {
    EXPECT_NO_THROW(SafetensorsFile{write(safetensors_bytes(header, data))}) << header;
  }
}

TEST_F(SafetensorsTest, EmptyTensorsMayStandAtABorderButNotInsideAnother) {
  const auto with_empty_at = [](std::string_view offset) {
    return safetensors_bytes(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"z":{"dtype":"U8",)"
                             R"("shape":[0],"data_offsets":[)" +
                                 std::string(offset) + "," + std::string(offset) + "]}}",
                             "12345678");
  };
  EXPECT_NO_THROW(SafetensorsFile{write(with_empty_at("0"))});
  EXPECT_NO_THROW(SafetensorsFile{write(with_empty_at("8"))});
  expect_refused(with_empty_at("4"), {"tensor \"z\"", "overlap"});
}

TEST_F(SafetensorsTest, RefusesImpossibleHeaderLengths) {
  expect_refused("", {"0 bytes, too short"});
  expect_refused("1234567", {"7 bytes, too short"});
  std::string bytes = safetensors_bytes(kHeader, kData);
  for (const char high : {'\x01', '\x7F', '\x80', '\xFF'}) {
    bytes[7] = high;
    expect_refused(bytes, {"header of", "more than the limit of 100000000"});
  }
  expect_refused(safetensors_bytes("{}").substr(0, 8) + "{",
                 {"cut short: a header of 2 bytes in a file of 9"});
}

TEST_F(SafetensorsTest, RefusesAHeaderOverTheLimitThatIsReallyThere) {
  const auto path = write("");
  std::string length = safetensors_bytes("");
  const std::uint64_t bytes = 100'000'001;
  for (unsigned i = 0; i < 8; ++i) length[i] = static_cast<char>(bytes >> (8 * i) & 0xFFU);
  write(length);
  std::filesystem::resize_file(path, 8 + bytes);
  expect_error([&] { SafetensorsFile{path}; }, {"m.safetensors", "100000001", "limit of 100000000"});
}

TEST_F(SafetensorsTest, RefusesHeadersThatWouldFillTheMemory) {
  std::string header = R"({"a":[0)";
  for (int i = 0; i < 2'000'000; ++i) header += ",0";
  expect_refused(safetensors_bytes(header + "]}"), {"header: more than 2000000 JSON values"});
}

TEST_F(SafetensorsTest, RefusesHeadersThatAreNoJsonObject) {
  for (const char* header : {"", " {}", "[]", "null", "\"x\""}) {
    SCOPED_TRACE(header);
    expect_refused(safetensors_bytes(header), {"header must be a JSON object"});
  }
  expect_refused(safetensors_bytes("{"), {"header: not valid JSON"});
  expect_refused(safetensors_bytes("{}x"), {"header: not valid JSON"});
  expect_refused(safetensors_bytes(std::string("{}\0", 3)), {"header: not valid JSON"});
  expect_refused(safetensors_bytes("{\"\xFF\":{}}"), {"header: not valid JSON"});
  expect_refused(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[[]],"data_offsets":[0,16]}})"),
                 {"header: JSON nested deeper than 3"});
  expect_refused(safetensors_bytes(R"({"a":[[[1]]]})"), {"header: JSON nested deeper than 3"});
}

TEST_F(SafetensorsTest, RefusesDuplicateKeys) {
  constexpr std::string_view kTensor = R"("t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string twice = "{" + std::string(kTensor) + "," + std::string(kTensor) + "}";
  expect_refused(safetensors_bytes(twice, "1234"), {"\"t\" stands twice"});
  expect_refused(
      safetensors_bytes(R"({"t":{"dtype":"U8","dtype":"F32","shape":[4],"data_offsets":[0,4]}})", "1234"),
      {"\"dtype\" stands twice"});
}

TEST_F(SafetensorsTest, RefusesMetadataThatIsNotText) {
  expect_refused(safetensors_bytes(R"({"__metadata__":{"k":1}})"), {"__metadata__ key \"k\""});
  expect_refused(safetensors_bytes(R"({"__metadata__":{"k":{}}})"), {"__metadata__ key \"k\""});
  expect_refused(safetensors_bytes(R"({"__metadata__":[]})"), {"__metadata__ must be an object"});
}

TEST_F(SafetensorsTest, RefusesMalformedTensors) {
  for (const char* info :
       {"1", "[]", "{}", R"({"dtype":"F32","shape":[4]})", R"({"shape":[4],"data_offsets":[0,16]})",
        R"({"dtype":"F32","data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,16],"more":1})"}) {
    expect_tensor_refused(info, {"must be an object of dtype, shape and data_offsets"});
  }
  expect_tensor_refused(R"({"dtype":1,"shape":[4],"data_offsets":[0,16]})", {"dtype must be a string"});
  for (const char* dtype : {"f32", "F33", "", "F32 "}) {
    expect_tensor_refused(R"({"dtype":")" + std::string(dtype) + R"(","shape":[4],"data_offsets":[0,16]})",
                          {"unknown dtype \"" + std::string(dtype) + "\""});
  }
}

TEST_F(SafetensorsTest, RefusesImpossibleShapes) {
  const auto with_shape = [](std::string_view shape) {
    return R"({"dtype":"F32","shape":)" + std::string(shape) + R"(,"data_offsets":[0,16]})";
  };
  for (const char* shape : {"4", "{}", "\"4\"", "null"}) {
    expect_tensor_refused(with_shape(shape), {"shape must be an array"});
  }
  for (const char* shape : {"[-4]", "[4.0]", "[\"4\"]", "[null]", "[true]", "[281474976710656]",
                            "[18446744073709551620]", "[4e0]"}) {
    expect_tensor_refused(with_shape(shape), {"shape must hold whole numbers from 0 to 2^48"});
  }
}

TEST_F(SafetensorsTest, RefusesShapesWhoseProductOverflows) {
  // The product of the first is 4 modulo 2^64, with four bytes each just the 16 bytes of the file.
  for (const char* shape : {"[4194305,4194305,211106198978564]", "[65536,65536,65536,65536]",
                            "[0,140737488355328,140737488355328]", "[140737488355328,140737488355328,0]",
                            "[2147483648,1073741824]"}) {
    expect_tensor_refused(R"({"dtype":"F32","shape":)" + std::string(shape) + R"(,"data_offsets":[0,16]})",
                          {"product of its shape overflows"});
  }
}

TEST_F(SafetensorsTest, RefusesImpossibleOffsets) {
  const auto with_offsets = [](std::string_view offsets) {
    return R"({"dtype":"F32","shape":[4],"data_offsets":)" + std::string(offsets) + "}";
  };
  for (const char* offsets : {"16", "[]", "[0]", "[0,16,16]", "[-16,0]", "[0.0,16]", "[0,\"16\"]", "{}",
                              "[0,18446744073709551632]"}) {
    expect_tensor_refused(with_offsets(offsets), {"data_offsets must be two whole numbers"});
  }
  expect_tensor_refused(with_offsets("[16,0]"), {"[16, 0] end before they begin"});
  expect_tensor_refused(with_offsets("[18446744073709551600,0]"), {"end before they begin"});
  expect_tensor_refused(with_offsets("[4,20]"), {"[4, 20] reach beyond", "16 bytes of data"});
  expect_tensor_refused(with_offsets("[0,18446744073709551615]"), {"reach beyond"});
  expect_tensor_refused(with_offsets("[0,12]"), {"data_offsets of 12 bytes", "F32 need 16"});
}

TEST_F(SafetensorsTest, RefusesPartialBytes) {
  expect_tensor_refused(R"({"dtype":"F4","shape":[31],"data_offsets":[0,16]})", {"31 values of 4 bits"});
}

TEST_F(SafetensorsTest, RefusesOverlapsHolesAndTrailingBytes) {
  const auto two = [](std::string_view first, std::string_view second) {
    return safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(first) +
                                 R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(second) +
                                 "}}",
                             "12345678");
  };
  EXPECT_NO_THROW(SafetensorsFile{write(two("[4,8]", "[0,4]"))});
  expect_refused(two("[0,4]", "[3,7]"), {"tensor \"b\" begins at byte 3", "ends at 4", "overlap"});
  expect_refused(two("[0,4]", "[0,4]"), {"tensor \"b\"", "overlap"});
  EXPECT_NO_THROW(SafetensorsFile{write(two("[0,4]", "[4,8]"))});
  expect_refused(safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", "12345"),
                 {"tensor \"a\" begins at byte 1", "leave holes"});
  expect_refused(two("[0,4]", "[4,8]") + "9", {"9 bytes of data", "end at 8", "trailing bytes"});
}

TEST_F(SafetensorsTest, RefusesAFileCutShortAnywhere) {
  const std::string whole = safetensors_bytes(kHeader, kData);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    SCOPED_TRACE(length);
    expect_refused(std::string_view(whole).substr(0, length), {"m.safetensors"});
  }
  EXPECT_NO_THROW(SafetensorsFile{write(whole)});
}

TEST_F(SafetensorsTest, AnyChangedHeaderByteIsRefusedOrHarmless) {
  const std::string whole = safetensors_bytes(kHeader, kData);
  for (std::size_t i = 0; i < 8 + kHeader.size(); ++i) {
    for (const char value : {'\0', ' ', '"', '9', '-', '\xFF'}) {
      std::string bytes = whole;
      bytes[i] = value;
      try {
        const SafetensorsFile file(write(bytes));
        for (const auto& [name, entry] : file.tensors()) {
          std::vector<std::byte> contents(entry.bytes);
          file.read(name, 0, contents);
        }
      } catch (const Error&) {
      }
    }
  }
}

TEST_F(SafetensorsTest, AFileCutShortWhileInUseIsAnError) {
  const auto path = write(safetensors_bytes(kHeader, kData));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, 8 + kHeader.size() + 10);
  std::array<std::byte, 16> bytes{};
  EXPECT_NO_THROW(file.read("a", 0, std::span(bytes).first(10)));
  expect_error([&] { file.read("a", 0, bytes); },
               {"m.safetensors: cut short while reading \"a\"", std::to_string(8 + kHeader.size() + 10)});
}

TEST_F(SafetensorsTest, RefusesPicklesByTheirContent) {
  for (const std::string& begin :
       {std::string("PK\x03\x04\x14\x00\x08\x08", 8), std::string("\x80\x02}q\0X..", 8)}) {
    expect_refused(begin + std::string(100, 'x'), {"pickled PyTorch file; only safetensors is read"});
  }
}

// 0x0280 as the length of a header begins like a pickle of protocol 2.
TEST_F(SafetensorsTest, ReadsAHeaderWhoseLengthLooksLikeAPickle) {
  const std::string header = std::string(kHeader) + std::string(0x0280 - kHeader.size(), ' ');
  EXPECT_EQ(SafetensorsFile(write(safetensors_bytes(header, kData))).tensors().size(), 2U);
}

TEST_F(SafetensorsTest, RefusesWhatIsNoRegularFile) {
  expect_error([&] { SafetensorsFile{dir_.path() / "none"}; }, {"none: cannot open"});
  expect_error([&] { SafetensorsFile{dir_.path()}; }, {"not a regular file"});
  const std::string fifo = (dir_.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error([&] { SafetensorsFile{fifo}; }, {"fifo: not a regular file"});
  expect_error([&] { SafetensorsFile{"/dev/zero"}; }, {"/dev/zero: not a regular file"});
}

TEST_F(SafetensorsTest, NamesFromTheFileCannotBreakTheMessage) {
  expect_refused(safetensors_bytes(R"({"a\n\u001b[31m":{}})"), {R"(tensor "a\n\u001b[31m")"});
}

TEST_F(SafetensorsTest, SeveralThreadsMayRead) {
  const SafetensorsFile file(write(safetensors_bytes(kHeader, kData)));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&file] {
      for (int i = 0; i < 1000; ++i) {
        std::array<std::byte, 3> bytes{};
        file.read("b", 0, bytes);
        ASSERT_EQ(std::memcmp(bytes.data(), "xyz", 3), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace quire
