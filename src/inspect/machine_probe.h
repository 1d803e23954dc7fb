#pragma once

namespace quire {

// What this machine's CPU can do at best, measured; what a speed is compared with.
struct MachineCeiling {
  double read_gb_per_s = 0;
  double matrix_gflop_per_s = 0;
};

// Best of eight each, on all CPUs this process may use. Reading: 1.2 GB once, one contiguous stream a thread.
// Matrix: products of bfloat16 pairs in registers where the CPU has an instruction for them (AVX512-BF16),
// else fused multiply-adds of float32. Takes about a second.
MachineCeiling probe_machine();

}  // namespace quire
