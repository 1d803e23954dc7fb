#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace quire {

// What a backend that is a module of its own, opened at run time, exports under the names below.

struct DeviceInfo {
  std::string name;
  std::string problem;           // why it cannot be used, or empty
  std::string architecture;      // as the vendor numbers it: "9.0"
  std::size_t total_memory = 0;  // bytes; 0: not asked for
  std::size_t free_memory = 0;
};

struct ModuleReport {
  std::vector<DeviceInfo> devices;
  std::vector<std::string> versions;  // "driver 13.0", one a component
  std::string problem;                // why no device can be used, or empty
};

struct ModuleOptions {
  int device = 0;              // index of the device
  bool deterministic = false;  // a row's bits depend on that row alone
};

// What is there; throws nothing. To read a device's memory takes some of it for as long as the process lives.
using ReportDevices = void (*)(ModuleReport& report, bool with_memory);
inline constexpr char kReportDevices[] = "quire_report_devices";
// Of a device that has no problem.
using OpenBackend = void (*)(const ModuleOptions& options, std::unique_ptr<Backend>& backend);
inline constexpr char kOpenBackend[] = "quire_open_backend";

}  // namespace quire
