#include <cuda_runtime.h>

#include "backends/cuda/architectures.h"
#include "backends/cuda/cuda_backend.h"
#include "base/error.h"
#include "ops/backend_module.h"

namespace quire::cuda {
namespace {

std::string version(int number) { return format_text("{}.{}", number / 1000, number % 1000 / 10); }

void describe_device(int index, DeviceInfo& device, bool with_memory) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "reading a device's properties");
  device.name = properties.name;
  device.architecture = format_text("{}.{}", properties.major, properties.minor);
  if (!runs_on(QUIRE_CUDA_ARCHITECTURES, properties.major, properties.minor)) {
    fail("{} has compute capability {}, and this build has kernels for {}", device.name, device.architecture,
         QUIRE_CUDA_ARCHITECTURES);
  }
  if (!with_memory) return;
  check(cudaSetDevice(index), "choosing a device");
  check(cudaMemGetInfo(&device.free_memory, &device.total_memory), "reading a device's memory");
}

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
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess)
    fail("no NVIDIA GPU can be used: {}", cudaGetErrorString(status));
  for (int i = 0; i < count; ++i) {
    DeviceInfo& device = report.devices.emplace_back();
    try {
      describe_device(i, device, with_memory);
    } catch (const Error& e) {
      device.problem = e.what();
    }
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
  backend = std::make_unique<quire::cuda::CudaBackend>(options);
}

}  // extern "C"
