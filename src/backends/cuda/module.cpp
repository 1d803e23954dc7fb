#include <cuda_runtime.h>

#include "backends/cuda/cuda_backend.h"
#include "base/error.h"
#include "ops/backend_module.h"

namespace quire::cuda {
namespace {

// The first architecture the kernels are built for.
constexpr int kMinMajor = 8;

std::string version(int number) { return format_text("{}.{}", number / 1000, number % 1000 / 10); }

void describe_devices(ModuleReport& report, bool with_memory) {
  int driver = 0;
  int runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "reading the runtime's version");
  report.versions.push_back("CUDA runtime " + version(runtime));
  report.versions.push_back(format_text("cuBLASLt {}", cublasLtGetVersion()));
  check(cudaDriverGetVersion(&driver), "reading the driver's version");
  if (driver == 0) fail("no NVIDIA driver is installed");
  report.versions.push_back("driver for CUDA " + version(driver));
  if (driver / 1000 < runtime / 1000) {
    fail("the NVIDIA driver is too old: it serves CUDA {}, and {} is needed", version(driver),
         version(runtime));
  }
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    fail("no NVIDIA GPU can be used: {}", cudaGetErrorString(status));
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i), "reading a device's properties");
    DeviceInfo& device = report.devices.emplace_back();
    device.name = properties.name;
    device.architecture = format_text("{}.{}", properties.major, properties.minor);
    if (!with_memory) continue;
    check(cudaSetDevice(i), "choosing a device");
    check(cudaMemGetInfo(&device.free_memory, &device.total_memory), "reading a device's memory");
  }
}

void check_device(const ModuleReport& report, int index) {
  if (!report.problem.empty()) fail("{}", report.problem);
  if (index < 0 || index >= std::ssize(report.devices)) {
    fail("GPU {} is not there; this machine has {}", index, report.devices.size());
  }
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "compute capability");
  if (major < kMinMajor) {
    const DeviceInfo& device = report.devices[static_cast<std::size_t>(index)];
    fail("{} has compute capability {}; {}.0 or newer is needed", device.name, device.architecture,
         kMinMajor);
  }
}

}  // namespace
}  // namespace quire::cuda

extern "C" {

__attribute__((visibility("default"))) void quire_report_devices(quire::ModuleReport& report,
                                                                 bool with_memory) {
  try {
    quire::cuda::describe_devices(report, with_memory);
  } catch (const std::exception& e) {
    report.problem = e.what();
  }
}

__attribute__((visibility("default"))) void quire_open_backend(const quire::ModuleOptions& options,
                                                               std::unique_ptr<quire::Backend>& backend) {
  quire::ModuleReport report;
  quire_report_devices(report, false);
  quire::cuda::check_device(report, options.device);
  backend = std::make_unique<quire::cuda::CudaBackend>(options);
}

}  // extern "C"
