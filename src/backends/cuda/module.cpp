#include <cuda_runtime.h>

#include "backends/cuda/cuda_backend.h"
#include "base/error.h"
#include "ops/backend_module.h"

namespace quire::cuda {
namespace {

// The first architecture the kernels are built for.
constexpr int kMinMajor = 8;

std::string version(int number) { return format_text("{}.{}", number / 1000, number % 1000 / 10); }

void describe_devices(ModuleReport& report) {
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
    check(cudaSetDevice(i), "choosing a device");
    check(cudaMemGetInfo(&device.free_memory, &device.total_memory), "reading a device's memory");
    if (properties.major < kMinMajor) {
      fail("{} has compute capability {}; {}.0 or newer is needed", device.name, device.architecture,
           kMinMajor);
    }
  }
}

}  // namespace
}  // namespace quire::cuda

extern "C" {

__attribute__((visibility("default"))) void quire_report_devices(quire::ModuleReport& report) {
  try {
    quire::cuda::describe_devices(report);
  } catch (const std::exception& e) {
    report.problem = e.what();
  }
}

__attribute__((visibility("default"))) void quire_open_backend(const quire::ModuleOptions& options,
                                                               std::unique_ptr<quire::Backend>& backend) {
  quire::ModuleReport report;
  quire_report_devices(report);
  if (!report.problem.empty()) quire::fail("{}", report.problem);
  if (options.device < 0 || options.device >= std::ssize(report.devices)) {
    quire::fail("GPU {} is not there; this machine has {}", options.device, report.devices.size());
  }
  backend = std::make_unique<quire::cuda::CudaBackend>(options);
}

}  // extern "C"
