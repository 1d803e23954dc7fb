#pragma once

#include <memory>
#include <string>

#include "ops/backend.h"

namespace quire {

struct BackendOptions {
  std::string device = "auto";        // auto (the best there is), cpu
  std::string cpu_isa = "reference";  // reference, avx2, avx512, avx512_bf16, or auto: the best there is
  int cpu_threads = 0;                // 0: one for each core this process may use
};

// Error that lists the names on any other, and on an instruction set that this machine does not have.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

}  // namespace quire
