#include "checkpoint/safetensors.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::uint64_t kLengthBytes = 8;                // the header's length, little-endian
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;   // the reference reader's limit
constexpr std::size_t kMaxHeaderDepth = 3;               // the header, a tensor, its shape
constexpr std::size_t kMaxHeaderValues = 2'000'000;      // some 250,000 tensors
constexpr std::int64_t kMaxDim = std::int64_t{1} << 48;  // far above any tensor

struct Format {
  std::string_view name;
  unsigned bits;
  std::optional<DType> dtype;
};

constexpr std::nullopt_t kNone = std::nullopt;
constexpr Format kFormats[] = {  // all there are; kNone: Quire has no type for it
    {"F32", 32, DType::kF32},  {"F16", 16, DType::kF16}, {"BF16", 16, DType::kBF16},
    {"I64", 64, DType::kI64},  {"I32", 32, DType::kI32}, {"I16", 16, DType::kI16},
    {"I8", 8, DType::kI8},     {"U8", 8, DType::kU8},    {"BOOL", 8, DType::kBool},
    {"F64", 64, kNone},        {"U64", 64, kNone},       {"U32", 32, kNone},
    {"U16", 16, kNone},        {"C64", 64, kNone},       {"F8_E4M3", 8, kNone},
    {"F8_E5M2", 8, kNone},     {"F8_E8M0", 8, kNone},    {"F8_E4M3FNUZ", 8, kNone},
    {"F8_E5M2FNUZ", 8, kNone}, {"F6_E2M3", 6, kNone},    {"F6_E3M2", 6, kNone},
    {"F4", 4, kNone}};

// What follows reads the header's description of one tensor, which errors call `where`.

const Format& parse_format(const std::string& where, const Json& value) {
  if (!value.is_string()) fail("{}: dtype must be a string", where);
  const auto& name = value.get_ref<const std::string&>();
  const auto* found = std::ranges::find(kFormats, name, &Format::name);
  if (found == std::end(kFormats)) fail("{} has the unknown dtype {}", where, in_quotes(name));
  return *found;
}

std::vector<std::int64_t> parse_shape(const std::string& where, const Json& value) {
  if (!value.is_array()) fail("{}: shape must be an array", where);
  std::vector<std::int64_t> shape;
  shape.reserve(value.size());
  for (const Json& dim : value) {
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() >= std::uint64_t{kMaxDim})
      fail("{}: shape must hold whole numbers from 0 to 2^48, not {}", where, describe(dim));
    shape.push_back(dim.get<std::int64_t>());
  }
  return shape;
}

// data_bytes is what follows the header in the file.
std::pair<std::uint64_t, std::uint64_t> parse_offsets(const std::string& where, const Json& value,
                                                      std::uint64_t data_bytes) {
  if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() ||
      !value[1].is_number_unsigned()) {
    fail("{}: data_offsets must be two whole numbers", where);
  }
  const auto begin = value[0].get<std::uint64_t>();
  const auto end = value[1].get<std::uint64_t>();
  if (begin > end) fail("{}: data_offsets [{}, {}] end before they begin", where, begin, end);
  if (end > data_bytes) {
    fail("{}: data_offsets [{}, {}] reach beyond the file, which holds {} bytes of data (is it cut short?)",
         where, begin, end, data_bytes);
  }
  return {begin, end};
}

std::uint64_t bytes_of(const std::string& where, const std::vector<std::int64_t>& shape,
                       const Format& format) {
  // Zeros count as one while multiplying, so that the product of any part of the shape fits as well.
  std::uint64_t bits = format.bits;
  bool empty = false;
  for (const std::int64_t dim : shape) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(std::max<std::int64_t>(dim, 1)), &bits) ||
        bits > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail("{}: the product of its shape overflows", where);
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0)
    fail("{}: {} values of {} bits do not fill bytes", where, bits / format.bits, format.bits);
  return bits / 8;
}

// The offset of the result counts from the end of the header.
SafetensorsEntry parse_entry(const std::string& where, const Json& info, std::uint64_t data_bytes) {
  if (!info.is_object() || info.size() != 3 || !info.contains("dtype") || !info.contains("shape") ||
      !info.contains("data_offsets")) {
    fail("{} must be an object of dtype, shape and data_offsets", where);
  }
  const Format& format = parse_format(where, info["dtype"]);
  std::vector<std::int64_t> shape = parse_shape(where, info["shape"]);
  const auto [begin, end] = parse_offsets(where, info["data_offsets"], data_bytes);
  if (const std::uint64_t expected = bytes_of(where, shape, format); end - begin != expected) {
    fail("{} has data_offsets of {} bytes, its shape and dtype {} need {}", where, end - begin, format.name,
         expected);
  }
  return {std::string(format.name), format.dtype, std::move(shape), begin, end - begin};
}

void check_metadata(const std::string& path, const Json& metadata) {
  if (!metadata.is_object()) fail("{}: __metadata__ must be an object", path);
  for (const auto& [key, value] : metadata.items())
    if (!value.is_string()) fail("{}: __metadata__ key {} must hold a string", path, in_quotes(key));
}

// The tensors in the order of their bytes must follow one another without a hole, from 0 to data_bytes. An
// empty tensor may stand at any border.
void check_coverage(const std::string& path, const SafetensorsFile::Entries& tensors,
                    std::uint64_t data_bytes) {
  std::vector<SafetensorsFile::Entries::const_pointer> order;
  order.reserve(tensors.size());
  for (const auto& item : tensors) order.push_back(&item);
  std::ranges::sort(order, [](const auto* a, const auto* b) {
    return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
  });
  std::uint64_t end = 0;
  for (const auto* item : order) {
    const SafetensorsEntry& entry = item->second;
    if (entry.offset != end) {
      fail("{}: tensor {} begins at byte {} of the data, the one before it ends at {}: tensors must not {}",
           path, in_quotes(item->first), entry.offset, end, entry.offset < end ? "overlap" : "leave holes");
    }
    end += entry.bytes;
  }
  if (end != data_bytes) {
    fail("{}: {} bytes of data, but its tensors end at {}: the file has trailing bytes", path, data_bytes,
         end);
  }
}

// Pickled checkpoints are zip archives or begin with the pickle protocol's mark.
bool looks_like_pickle(std::string_view begin) {
  return begin.starts_with("PK\x03\x04") || (begin.size() > 2 && begin[0] == '\x80' && begin[1] <= '\x05');
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::uint64_t file_bytes = file_.size();
  const std::string text = read_header(file_bytes);
  const std::uint64_t data_begin = kLengthBytes + text.size();
  const std::uint64_t data_bytes = file_bytes - data_begin;
  const Json header = parse_json(
      text, file_.path() + ": header",
      {.max_depth = kMaxHeaderDepth, .max_bytes = kMaxHeaderBytes, .max_values = kMaxHeaderValues});
  for (const auto& [name, info] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(file_.path(), info);
    } else {
      const std::string where = format_text("{}: tensor {}", file_.path(), in_quotes(name));
      tensors_.emplace(name, parse_entry(where, info, data_bytes));
    }
  }
  check_coverage(file_.path(), tensors_, data_bytes);
  for (auto& item : tensors_) item.second.offset += data_begin;
}

std::string SafetensorsFile::read_header(std::uint64_t file_bytes) const {
  if (file_bytes < kLengthBytes) fail("{}: {} bytes, too short for a safetensors file", path(), file_bytes);
  std::uint64_t header_bytes = 0;  // little-endian, as this machine is
  file_.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)), "header");
  // A header's length may begin with the same bytes.
  if (header_bytes > file_bytes - kLengthBytes &&
      looks_like_pickle({reinterpret_cast<const char*>(&header_bytes), kLengthBytes})) {
    fail("{}: a pickled PyTorch file; only safetensors is read", path());
  }
  if (header_bytes > kMaxHeaderBytes) {
    fail("{}: a header of {} bytes, more than the limit of {}; not a safetensors file?", path(), header_bytes,
         kMaxHeaderBytes);
  }
  if (header_bytes > file_bytes - kLengthBytes)
    fail("{}: cut short: a header of {} bytes in a file of {}", path(), header_bytes, file_bytes);
  std::string header(header_bytes, '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(header)), "header");
  if (!header.starts_with('{')) fail("{}: the header must be a JSON object", path());
  return header;
}

const SafetensorsEntry& SafetensorsFile::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail("{}: no tensor {}", path(), in_quotes(name));
  return found->second;
}

void SafetensorsFile::read(std::string_view name, std::uint64_t begin, std::span<std::byte> dst) const {
  const SafetensorsEntry& entry = tensor(name);
  QUIRE_CHECK(begin <= entry.bytes && dst.size() <= entry.bytes - begin, "bytes {} + {} of {}", begin,
              dst.size(), name);
  file_.read(entry.offset + begin, dst, name);
}

}  // namespace quire
