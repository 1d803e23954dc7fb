#include "base/dtype.h"

#include <cstring>

#include "base/error.h"

namespace quire {

namespace {

struct Format {
  std::string_view name;
  std::size_t bytes;
};
constexpr Format kFormats[] = {  // by DType
    {"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int64", 8}, {"int32", 4},
    {"int16", 2},   {"int8", 1},    {"uint8", 1},    {"bool", 1}};

}  // namespace

std::size_t size_of(DType dtype) { return kFormats[static_cast<std::size_t>(dtype)].bytes; }

std::string_view to_string(DType dtype) { return kFormats[static_cast<std::size_t>(dtype)].name; }

void convert(DType from, const void* src, DType to, void* dst, std::size_t n) {
  QUIRE_CHECK(is_float(from) && is_float(to), "from {} to {}", to_string(from), to_string(to));
  if (n == 0) return;  // the pointers may be null
  if (from == to) {
    std::memcpy(dst, src, n * size_of(from));
    return;
  }
  dispatch_float(from, [&]<typename From>() {
    dispatch_float(to, [&]<typename To>() {
      const auto* in = static_cast<const From*>(src);
      auto* out = static_cast<To*>(dst);
      for (std::size_t i = 0; i < n; ++i) out[i] = from_float<To>(to_float(in[i]));
    });
  });
}

}  // namespace quire
