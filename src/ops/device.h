#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "base/tensor.h"

namespace quire {

// Memory of a device; freed with its owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<void> data, std::size_t bytes, DeviceKind device)
      : data_(std::move(data)), bytes_(bytes), device_(device) {}

  void* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  DeviceKind device() const { return device_; }

 private:
  std::shared_ptr<void> data_;
  std::size_t bytes_ = 0;
  DeviceKind device_ = DeviceKind::kCpu;
};

enum class MemoryKind : std::uint8_t {
  kDevice,  // where ops read and write
  kHost,    // readable by the host, and copied to and from the device without a stop (pinned)
};

// A point in the device's queue; what was queued before it is done once it has passed.
using Event = std::uint64_t;

// Ops recorded once, to be queued again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
};

// What a device can do at best, measured.
struct DeviceCeiling {
  double read_gb_per_s = 0;
  double matrix_gflop_per_s = 0;  // bfloat16
};

enum class OpKind : std::uint8_t { kLinear, kAttention, kSampling, kOther };
inline constexpr std::size_t kNumOpKinds = 4;
// Seconds the ops of each kind took.
using OpTimes = std::array<double, kNumOpKinds>;

// How ranks on devices are connected.
struct RankOptions {
  double watchdog = 5;                     // seconds until a rank that is waited for in one operation is lost
  bool disable_custom_all_reduce = false;  // only by the vendor's library, not by kernels of ours
};

class Communicator;

// Memory and a queue. What is queued runs in that order; tensors must live until then. Thread contract: one
// thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;
  virtual DeviceKind device() const = 0;
  virtual bool asynchronous() const { return false; }  // ops return before they have run

  virtual std::size_t total_memory() const = 0;  // bytes of memory the device has
  // Bytes of it that somebody holds now; 0 where the system lends memory as it is touched.
  virtual std::size_t used_memory() const { return 0; }

  // Memory, 64-byte aligned, zeroed. Error when there is not enough.
  virtual Buffer allocate(std::size_t bytes, MemoryKind kind) = 0;
  // Copies src to dst, contiguous and of equal bytes; either may be host memory of this device.
  virtual void copy(const Tensor& dst, const Tensor& src) = 0;
  virtual Event record() { return 0; }  // marks the end of what is queued so far
  virtual void wait(Event) {}           // blocks until the event has passed

  virtual bool has_graphs() const { return false; }
  // Records what `ops` queues, with the tensors it names, and queues none of it. Nothing may be allocated or
  // waited for meanwhile, and every op must have run with these shapes before. For devices that have graphs.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& /*ops*/) { return nullptr; }
  virtual void replay(const Graph&) {}

  // The communicator for tensors on this device, of the ranks that `host` connects for tensors in host
  // memory. All ranks call it at the same time. It may not outlive this device. Error, on every rank, where
  // they cannot be connected.
  virtual std::unique_ptr<Communicator> connect(std::unique_ptr<Communicator> host,
                                                const RankOptions& options);

  // Bytes of device memory that connect takes for itself, where so many ranks reach each other's memory.
  virtual std::size_t connection_bytes(int /*num_ranks*/) const { return 0; }

  // Measured now, on a device with nothing else to do; none where the host can measure it as well.
  virtual std::optional<DeviceCeiling> measure_ceiling() { return {}; }
  // Between the two, ops are timed one by one, without gaps between them; graphs are not. stop_profile waits
  // for them. For devices that have graphs.
  virtual void start_profile() {}
  virtual OpTimes stop_profile() { return {}; }
};

}  // namespace quire
