#include "record/recording.h"

#include <xxhash.h>

#include <algorithm>

#include "base/json.h"

namespace quire {
namespace {

constexpr std::size_t kMostHeaderBytes = 1 << 20;
constexpr std::size_t kMostBytes = std::size_t{1} << 36;
constexpr std::int64_t kMostBlocks = 1 << 28;
constexpr int kMostInFlight = 64;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Calls f with the key and the member of each number of a configuration.
template <typename Config, typename F>
void for_each_number(Config& config, const F& f) {
  f("max_num_seqs", config.max_num_seqs);
  f("max_num_batched_tokens", config.max_num_batched_tokens);
  f("max_span", config.max_span);
  f("max_model_len", config.max_model_len);
  f("block_size", config.layout.block_size);
  f("state_interval", config.layout.state_interval);
  f("num_blocks", config.num_blocks);
  f("num_host_blocks", config.num_host_blocks);
  f("num_state_slots", config.num_state_slots);
  f("num_host_state_slots", config.num_host_state_slots);
  f("block_copied", config.preemption.block_copied);
  f("token", config.preemption.token);
  f("pair", config.preemption.pair);
  f("blocks_of_states", config.preemption.blocks_of_states);
}

template <typename T>
T to_value(const Json& value, const char* key) {
  constexpr bool kIsWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  if ((kIsWhole && !value.is_number_integer()) ||
      (std::is_same_v<T, int> && (value < 0 || value > kMostBlocks)))
    fail("{} is {}", key, describe(value));
  try {
    return value.get<T>();
  } catch (const Json::exception&) {
    fail("{} is {}", key, describe(value));
  }
}

template <typename T>
T member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) fail("{} is missing", key);
  return to_value<T>(*found, key);
}

}  // namespace

SchedulerConfig read_scheduler_config(const Json& object) {
  if (!object.is_object()) fail("scheduler is {}; expected an object", describe(object));
  SchedulerConfig config;
  for_each_number(config, [&]<typename T>(const char* key, T& value) { value = member<T>(object, key); });
  config.layout.windows.clear();
  for (const Json& window : member<Json::array_t>(object, "windows"))
    config.layout.windows.push_back(to_value<int>(window, "a window"));
  if (config.layout.windows.empty()) fail("windows is an empty list");
  const auto& [block_size, windows, interval] = config.layout;
  if (block_size == 0 || (config.num_state_slots > 0 && (interval == 0 || interval % block_size != 0)))
    fail("block_size is {}, and state_interval {}", block_size, interval);
  config.policy = member<bool>(object, "priorities") ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  config.enable_prefix_caching = member<bool>(object, "prefix_caching");
  return config;
}

OrderedJson to_json(const SchedulerConfig& config) {
  OrderedJson scheduler = OrderedJson::object();
  for_each_number(config, [&](const char* key, auto value) { scheduler[key] = value; });
  scheduler["windows"] = config.layout.windows;
  scheduler["priorities"] = config.policy == SchedulingPolicy::kPriority;
  scheduler["prefix_caching"] = config.enable_prefix_caching;
  return scheduler;
}

std::vector<std::byte> write_header(const RecordingInfo& info) {
  const std::string text = OrderedJson({{"version", kRecordingVersion},
                                        {"model", info.model},
                                        {"device", info.device},
                                        {"dtype", info.dtype},
                                        {"started", info.started},
                                        {"with_tokens", info.with_tokens},
                                        {"from_start", info.from_start},
                                        {"num_in_flight", info.num_in_flight},
                                        {"scheduler", to_json(info.scheduler)}})
                               .dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  ByteWriter out;
  out.append(bytes_of(kRecordingMagic));
  out.fixed(static_cast<std::uint32_t>(text.size()));
  out.append(bytes_of(text));
  return std::move(out.bytes);
}

std::vector<std::byte> frame_chunk(std::span<const std::byte> chunk) {
  ByteWriter out;
  out.fixed(static_cast<std::uint32_t>(chunk.size()));
  out.fixed(static_cast<std::uint32_t>(XXH32(chunk.data(), chunk.size(), 0)));
  out.append(chunk);
  return std::move(out.bytes);
}

Recording::Recording(const std::filesystem::path& path)
    : Recording(read_text_file(path, kMostBytes), path.string()) {}

Recording::Recording(std::string bytes, const std::string& where) : bytes_(std::move(bytes)), where_(where) {
  try {
    if (!bytes_.starts_with(kRecordingMagic)) fail("no recording; `--record FILE` makes one");
    ByteReader in(bytes_of(bytes_));
    in.take(kRecordingMagic.size());
    const auto header = in.take(std::min<std::size_t>(in.fixed<std::uint32_t>(), kMostHeaderBytes));
    first_chunk_ = bytes_.size() - in.num_left();
    const Json object =
        parse_json({reinterpret_cast<const char*>(header.data()), header.size()}, "the header");
    if (const int version = member<int>(object, "version"); version != kRecordingVersion)
      fail("of version {}; this program reads version {}", version, kRecordingVersion);
    info_ = {.model = member<std::string>(object, "model"),
             .device = member<std::string>(object, "device"),
             .dtype = member<std::string>(object, "dtype"),
             .started = member<std::int64_t>(object, "started"),
             .with_tokens = member<bool>(object, "with_tokens"),
             .from_start = member<bool>(object, "from_start"),
             .num_in_flight = object.contains("num_in_flight") ? member<int>(object, "num_in_flight") : 0,
             .scheduler = read_scheduler_config(member<Json>(object, "scheduler"))};
    const int block_size = info_.scheduler.layout.block_size;
    if (block_size < 8 || block_size > 256) fail("block_size is {}", block_size);
    if (info_.num_in_flight < 0 || info_.num_in_flight > kMostInFlight)
      fail("num_in_flight is {}", info_.num_in_flight);
  } catch (const Error& e) {
    fail("{}: {}", where_, e.what());
  }
}

bool Recording::read(SchedulerObserver& to) const {
  RecordingReader reader(*this);
  while (reader.next(to)) {
  }
  return reader.ended();
}

std::span<const std::byte> RecordingReader::next_chunk() {
  ByteReader in(bytes_of(recording_.bytes_).subspan(at_));
  if (in.num_left() < 2 * sizeof(std::uint32_t)) return {};
  const auto size = in.fixed<std::uint32_t>(), checksum = in.fixed<std::uint32_t>();
  if (size > in.num_left()) return {};
  const auto chunk = in.take(size);
  if (XXH32(chunk.data(), chunk.size(), 0) != checksum)
    fail("the chunk at byte {} is not what was written", at_);
  at_ = recording_.bytes_.size() - in.num_left();
  return chunk;
}

bool RecordingReader::next(SchedulerObserver& to) try {
  while (in_.num_left() == 0) {
    const auto chunk = next_chunk();
    if (chunk.empty()) return false;
    in_ = ByteReader(chunk);
    time_ = in_.next_number();
  }
  read_event(to);
  return true;
} catch (const Error& e) {
  fail("{}: in what ends at byte {}: {}", recording_.where_, at_, e.what());
}

}  // namespace quire
