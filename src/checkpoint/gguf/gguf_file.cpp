#include "checkpoint/gguf/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/gguf/gguf_name.h"

namespace quire {
namespace {

constexpr std::uint64_t kMaxHeaderSize = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxNameBytes = 4096;  // of a key or a tensor
constexpr std::uint64_t kMaxTextBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 23;  // of an array; a vocabulary has 2^22 at most
constexpr std::uint64_t kMaxTensorDims = 4;
constexpr int kDefaultAlignment = 32;

constexpr GgufBlock kTypes[] = {
    {GgufType::kF32, "F32", 1, 4},          {GgufType::kF16, "F16", 1, 2},
    {GgufType::kBF16, "BF16", 1, 2},        {GgufType::kQ4_0, "Q4_0", 32, 18},
    {GgufType::kQ4_1, "Q4_1", 32, 20},      {GgufType::kQ5_0, "Q5_0", 32, 22},
    {GgufType::kQ5_1, "Q5_1", 32, 24},      {GgufType::kQ8_0, "Q8_0", 32, 34},
    {GgufType::kQ2_K, "Q2_K", 256, 84},     {GgufType::kQ3_K, "Q3_K", 256, 110},
    {GgufType::kQ4_K, "Q4_K", 256, 144},    {GgufType::kQ5_K, "Q5_K", 256, 176},
    {GgufType::kQ6_K, "Q6_K", 256, 210},    {GgufType::kIq4Nl, "IQ4_NL", 32, 18},
    {GgufType::kIq4Xs, "IQ4_XS", 256, 136}, {GgufType::kMxfp4, "MXFP4", 32, 17},
};

// Names of other types, for errors.
constexpr std::pair<std::uint32_t, std::string_view> kOtherTypes[] = {
    {4, "Q4_2"},    {5, "Q4_3"},     {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"},
    {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},
    {24, "I8"},     {25, "I16"},     {26, "I32"},   {27, "I64"},   {28, "F64"},
    {29, "IQ1_M"},  {34, "TQ1_0"},   {35, "TQ2_0"}, {40, "NVFP4"}};

GgufType type_of(std::uint32_t id, const std::string& where) {
  const auto* const found = std::ranges::find(kTypes, static_cast<GgufType>(id), &GgufBlock::type);
  if (found != std::end(kTypes)) return found->type;
  const auto* const other =
      std::ranges::find_if(kOtherTypes, [&](const auto& entry) { return entry.first == id; });
  fail("{} has the type {}{}, which is not supported; supported are {}", where, id,
       other == std::end(kOtherTypes) ? "" : format_text(" ({})", other->second),
       join_text(std::views::transform(kTypes, &GgufBlock::name), ", "));
}

std::string tensor_text(const std::string& path, std::string_view name) {
  return format_text("{}: tensor {}", path, in_quotes(name));
}

// Sizes and place of a tensor whose type and shape are read; `data` is where the tensors' bytes begin.
void place_tensor(const std::string& where, std::uint64_t data, std::uint64_t alignment, GgufTensor& tensor) {
  const GgufBlock& block = block_of(tensor.type);
  if (tensor.shape.back() % block.elements != 0) {
    fail("{} has rows of {} elements, no whole blocks of {} of type {}", where, tensor.shape.back(),
         block.elements, block.name);
  }
  std::int64_t bytes = tensor.shape.back() / block.elements;
  bool overflows = __builtin_mul_overflow(bytes, block.bytes, &bytes);
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i)
    overflows = overflows || __builtin_mul_overflow(bytes, tensor.shape[i], &bytes);
  if (overflows) fail("{}: the product of its dimensions overflows", where);
  tensor.bytes = static_cast<std::uint64_t>(bytes);
  if (tensor.offset % alignment != 0)
    fail("{} begins at byte {} of the data, no multiple of general.alignment {}", where, tensor.offset,
         alignment);
  const std::uint64_t size = tensor.file->size();
  if (data > size || tensor.offset > size - data || tensor.bytes > size - data - tensor.offset) {
    fail("{}: {} bytes at byte {} of the data reach beyond the file's size of {} (is it truncated?)", where,
         tensor.bytes, tensor.offset, size);
  }
  tensor.offset += data;
}

}  // namespace

const GgufBlock& block_of(GgufType type) {
  const auto* const found = std::ranges::find(kTypes, type, &GgufBlock::type);
  QUIRE_CHECK(found != std::end(kTypes));
  return *found;
}

// Reads a file's header from the front, checking each number before anything is done with it.
class GgufHeader {
 public:
  explicit GgufHeader(const std::filesystem::path& path) : file_(std::make_shared<const ReadOnlyFile>(path)) {
    read_counts();
    for (std::uint64_t i = 0; i < num_keys_; ++i) read_key();
    keys_.emplace(std::make_shared<const Json>(std::move(values_)), file_->path());
    for (std::uint64_t i = 0; i < num_tensors_; ++i) read_tensor();
    const auto alignment = static_cast<std::uint64_t>(
        keys_->find_int("general.alignment", {.min = 1, .max = 1 << 20}).value_or(kDefaultAlignment));
    if ((alignment & (alignment - 1)) != 0)
      keys_->fail_at("general.alignment", format_text("is {}; it must be a power of two", alignment));
    const std::uint64_t data = (position_ + alignment - 1) / alignment * alignment;
    for (auto& [name, tensor] : tensors_)
      place_tensor(tensor_text(file_->path(), name), data, alignment, tensor);
  }

  GgufKeys& keys() { return *keys_; }
  GgufModel::Tensors& tensors() { return tensors_; }

 private:
  [[noreturn]] void fail_at(std::string_view key, std::string_view problem) const {
    fail("{}: \"{}\" {}", file_->path(), key, problem);
  }
  struct ValueType {
    std::uint64_t bytes;  // at least
    Json (GgufHeader::*read)(const std::string& key);
  };

  void read_counts() {
    char magic[4];
    if (file_->size() < sizeof(magic)) fail("{}: {} bytes, no GGUF file", file_->path(), file_->size());
    read_bytes(magic, sizeof(magic), "the magic");
    if (std::memcmp(magic, "GGUF", sizeof(magic)) != 0)
      fail("{}: it does not begin with the magic \"GGUF\"; no GGUF file", file_->path());
    const auto version = number<std::uint32_t>("the version");
    if (version != 2 && version != 3)
      fail("{}: GGUF version {}{}; supported are 2 and 3", file_->path(), version,
           (version & 0xFFFFU) == 0 ? " (a big-endian file?)" : "");
    num_tensors_ = count("tensors", 24);
    num_keys_ = count("keys", 13);
  }

  // A number of things that take at least so many bytes each.
  std::uint64_t count(std::string_view what, std::uint64_t least_bytes) {
    const auto value = number<std::uint64_t>(what);
    if (value > (file_->size() - position_) / least_bytes)
      fail("{}: a count of {} {}, which reach beyond the file's size of {}", file_->path(), value, what,
           file_->size());
    return value;
  }

  void read_bytes(void* out, std::uint64_t bytes, std::string_view what) {
    if (bytes > file_->size() - position_)
      fail("{}: truncated: {} at byte {} reaches beyond the file's size of {}", file_->path(), what,
           position_, file_->size());
    if (position_ + bytes > kMaxHeaderSize)
      fail("{}: a header of more than {} bytes", file_->path(), kMaxHeaderSize);
    auto* to = static_cast<std::byte*>(out);
    while (bytes > 0) {
      if (buffer_at_ == buffer_.size()) refill();
      const std::size_t n = std::min<std::size_t>(bytes, buffer_.size() - buffer_at_);
      std::memcpy(to, &buffer_[buffer_at_], n);
      buffer_at_ += n;
      position_ += n;
      to += n;
      bytes -= n;
    }
  }

  void refill() {
    constexpr std::uint64_t kBufferBytes = 1 << 16;
    buffer_.resize(std::min(kBufferBytes, file_->size() - position_));
    file_->read(position_, buffer_, "the header");
    buffer_at_ = 0;
  }

  template <typename T>
  T number(std::string_view what) {
    T value;
    read_bytes(&value, sizeof(value), what);
    return value;
  }

  std::string text(const std::string& what, std::uint64_t limit) {
    const auto length = number<std::uint64_t>(what);
    if (length > limit || length > file_->size() - position_)
      fail("{}: {} has a length of {} bytes at byte {}; the limit is {}, and the file has {}", file_->path(),
           what, length, position_, limit, file_->size());
    std::string value(length, '\0');
    read_bytes(value.data(), length, what);
    return value;
  }

  void read_key() {
    const std::string key = text(format_text("the string of key {}", values_.size()), kMaxNameBytes);
    const auto id = number<std::uint32_t>(key);
    const ValueType* const type = value_type(id);
    if (type == nullptr) fail_at(key, format_text("has the unknown type {}", id));
    Json value = (this->*type->read)(key);
    if (!values_.emplace(key, std::move(value)).second) fail_at(key, "stands twice");
  }

  template <typename T>
  Json number_of(const std::string& key) {
    const T value = number<T>(key);
    if constexpr (std::is_floating_point_v<T>) {
      return double{value};
    } else {
      if (!std::in_range<std::int64_t>(value)) fail_at(key, format_text("is {}, which is too large", value));
      return static_cast<std::int64_t>(value);
    }
  }
  Json truth(const std::string& key) { return number<std::uint8_t>(key) != 0; }
  Json string(const std::string& key) { return text("the string of key " + in_quotes(key), kMaxTextBytes); }

  // nullptr: there is none of this number.
  static const ValueType* value_type(std::uint32_t id) {
    static constexpr ValueType kValueTypes[] = {{1, &GgufHeader::number_of<std::uint8_t>},
                                                {1, &GgufHeader::number_of<std::int8_t>},
                                                {2, &GgufHeader::number_of<std::uint16_t>},
                                                {2, &GgufHeader::number_of<std::int16_t>},
                                                {4, &GgufHeader::number_of<std::uint32_t>},
                                                {4, &GgufHeader::number_of<std::int32_t>},
                                                {4, &GgufHeader::number_of<float>},
                                                {1, &GgufHeader::truth},
                                                {8, &GgufHeader::string},
                                                {12, &GgufHeader::array},
                                                {8, &GgufHeader::number_of<std::uint64_t>},
                                                {8, &GgufHeader::number_of<std::int64_t>},
                                                {8, &GgufHeader::number_of<double>}};
    return id < std::size(kValueTypes) ? &kValueTypes[id] : nullptr;
  }

  Json array(const std::string& key) {
    const auto id = number<std::uint32_t>(key);
    const ValueType* const type = value_type(id);
    if (type == nullptr || type->read == &GgufHeader::array)
      fail_at(key, format_text("is an array of the type {}, which is not supported", id));
    const std::uint64_t size = count(format_text("elements of key {}", in_quotes(key)), type->bytes);
    if (size > kMaxElements)
      fail_at(key, format_text("has {} elements; the limit is {}", size, kMaxElements));
    Json values = Json::array();
    for (std::uint64_t i = 0; i < size; ++i) values.push_back((this->*type->read)(key));
    return values;
  }

  void read_tensor() {
    const std::string name = text(format_text("the name of tensor {}", tensors_.size()), kMaxNameBytes);
    const std::string what = "tensor " + in_quotes(name);
    const std::string where = tensor_text(file_->path(), name);
    GgufTensor tensor;
    tensor.file = file_;
    const auto num_dims = number<std::uint32_t>(what);
    if (num_dims < 1 || num_dims > kMaxTensorDims)
      fail("{} has n_dims {}; it must be from 1 to {}", where, num_dims, kMaxTensorDims);
    constexpr std::uint64_t kMaxDimension = std::uint64_t{1} << 40;
    for (std::uint32_t i = 0; i < num_dims; ++i) {
      const auto dim = number<std::uint64_t>(what);
      if (dim == 0 || dim > kMaxDimension)
        fail("{} has a dimension of {}; it must be from 1 to 2^40", where, dim);
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(dim));
    }
    tensor.type = type_of(number<std::uint32_t>(what), where);
    tensor.offset = number<std::uint64_t>(what);
    if (!tensors_.emplace(name, std::move(tensor)).second) fail("{} stands twice", where);
  }

  std::shared_ptr<const ReadOnlyFile> file_;
  std::uint64_t position_ = 0;     // of the next byte
  std::vector<std::byte> buffer_;  // bytes of the file up to the next to be fetched
  std::size_t buffer_at_ = 0;      // of the next byte in it
  std::uint64_t num_tensors_ = 0, num_keys_ = 0;
  Json values_ = Json::object();  // of the keys, until all are read
  std::optional<GgufKeys> keys_;
  GgufModel::Tensors tensors_;
};

std::optional<int> GgufKeys::find_int(const ConfigKey& key, IntRange range) const {
  const auto [name, value] = find(key);
  if (value == nullptr || !value->is_array() || value->empty()) return ConfigObject::find_int(key, range);
  const Json& first = value->front();
  if (std::ranges::any_of(*value, [&](const Json& other) { return other != first; }))
    fail_at(name, "differs by layer, which is not supported");
  return to_int(name, first, range);
}

std::vector<int> GgufKeys::get_layer_ints(const ConfigKey& key, int num_layers, IntRange range) const {
  const auto [name, value] = find(key);
  std::vector<int> numbers;
  if (value == nullptr) return numbers;
  for (const Json& item : value->is_array() ? *value : Json::array({*value}))
    numbers.push_back(
        to_int(name, item.is_boolean() ? Json(static_cast<int>(item.get<bool>())) : item, range));
  if (!value->is_array()) numbers.resize(num_layers, numbers.front());
  if (std::ssize(numbers) != num_layers)
    fail_at(name, format_text("has {} numbers for {} layers", numbers.size(), num_layers));
  return numbers;
}

GgufModel::GgufModel(const std::filesystem::path& path) {
  const std::string text = path.string();
  const GgufName name = parse_gguf_name(text);
  const auto part = [&](int i) {
    return name.count == 0 ? text : format_text("{}-{:05}-of-{:05}.gguf", name.stem, i, name.count);
  };
  path_ = part(1);
  for (int i = 1; i <= std::max(1, name.count); ++i) open_part(part(i), i, std::max(1, name.count));
}

void GgufModel::open_part(const std::filesystem::path& path, int index, int count) {
  GgufHeader header(path);
  const int number = header.keys().find_int("split.no", {.min = 0}).value_or(0);
  const int parts = header.keys().find_int("split.count", {.min = 0}).value_or(0);
  if (number != index - 1 || std::max(1, parts) != count)
    header.keys().fail_at("split.no", format_text("and split.count say {} of {}, its name says {} of {}",
                                                  number + 1, parts, index, count));
  for (auto& [name, tensor] : header.tensors()) {
    const auto [position, added] = tensors_.emplace(name, std::move(tensor));
    if (!added) fail("{} is also in {}", tensor_text(path.string(), name), position->second.file->path());
  }
  if (index == 1) keys_ = std::move(header.keys());
}

const GgufTensor* GgufModel::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace quire
