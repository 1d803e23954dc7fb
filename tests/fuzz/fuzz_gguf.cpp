// A GGUF file of arbitrary bytes: opened with its configuration, tokenizer and chat template, and when it
// opens its tensors are read, as they are and by the names that layers ask for.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/gguf/gguf_weights.h"
#include "engine/model_files.h"

namespace {

// A file in memory, reached by a path as any other.
std::string file_of(const std::uint8_t* data, std::size_t size) {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, 0) != 0) std::abort();
  if (::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  return "/proc/self/fd/" + std::to_string(fd);
}

template <typename F>
void try_to(const F& f) {
  try {
    f();
  } catch (const quire::Error&) {
  }
}

void read(const quire::WeightTensor& tensor) {
  std::vector<float> row(static_cast<std::size_t>(tensor.cols()));
  for (const std::int64_t i : {std::int64_t{0}, tensor.rows() - 1})
    tensor.read_rows(i, quire::Tensor(row.data(), quire::DType::kF32, {1, tensor.cols()}));
}

void read_tensors(const std::string& path, std::size_t size) {
  const auto model = std::make_shared<const quire::GgufModel>(path);
  for (const auto& [name, tensor] : model->tensors()) {
    if (tensor.bytes > size) std::abort();  // a tensor larger than its file was accepted
    try_to([&, &name = name, &tensor = tensor] {
      read(*quire::dequantized(quire::open_gguf_tensor(name, tensor)));
    });
  }
  quire::GgufWeights weights(model, quire::read_gguf_config(*model).layout);
  for (const char* prefix : {"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts.1.down_proj"}) {
    try_to([&] { read(*quire::dequantized(weights.take_linear(prefix, 32, 32))); });
    try_to([&] { read(*weights.take(std::string(prefix) + ".bias", {32})); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = file_of(data, size);
  try_to([&] { read_tensors(path, size); });
  try_to([&] {
    const quire::ModelFiles model = quire::open_gguf(path);
    if (model.tokenizer) model.tokenizer->decode(model.tokenizer->encode("Hi \u00e9<s>"), false);
    model.load_chat_template(nullptr);
  });
  return 0;
}
