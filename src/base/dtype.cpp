#include "base/dtype.h"

#include <cstring>

#include "base/error.h"

namespace quire {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
      return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI64:
      return "int64";
    case DType::kI32:
      return "int32";
    case DType::kI16:
      return "int16";
    case DType::kI8:
      return "int8";
    case DType::kU8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

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
