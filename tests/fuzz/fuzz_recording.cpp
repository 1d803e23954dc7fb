// A recording from arbitrary bytes: the first byte says whether tokens are in it, and whether what follows is
// a whole file or a chunk of one; what it says is done again in a small cache.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "record/recording.h"
#include "record/replayer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  quire::SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 200;
  config.layout.block_size = 8;
  config.num_blocks = 20;
  config.num_host_blocks = 4;
  quire::Replayer replayer(config);
  try {
    if ((data[0] & 2) != 0) {
      quire::Recording({data + 1, data + size}, "file").read(replayer);
      return 0;
    }
    quire::RecordingInfo info;
    info.with_tokens = (data[0] & 1) != 0;
    info.scheduler = config;
    std::string file;
    for (const auto& part : {quire::write_header(info), quire::frame_chunk(bytes)})
      file.append(reinterpret_cast<const char*>(part.data()), part.size());
    const quire::Recording recording(std::move(file), "file");
    quire::RecordingReader reader(recording);
    while (reader.next(replayer) && !replayer.difference()) {
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
