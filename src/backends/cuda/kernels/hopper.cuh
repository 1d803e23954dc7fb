#pragma once

#include <cuda.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "backends/cuda/kernels/mma.cuh"

// Hopper's warpgroup matrix instructions, its copies of whole boxes of a tensor, and the barriers in shared
// memory between them. For code compiled for sm_90a alone, but for what says otherwise.
namespace quire::cuda::hopper {

// --- Barriers in shared memory: a phase ends with its last arrival and its last expected byte. ---

__device__ inline void init_barrier(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
__device__ inline void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void arrive_expecting(std::uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Returns when the phase of that parity has ended; the phase before the first has parity 1.
__device__ inline void wait(std::uint64_t* barrier, unsigned parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}
// Makes initialised barriers, and what this thread stored to shared memory, visible to copies and matrix
// instructions.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- Copies of a box of a tensor to shared memory, counted in bytes by `barrier`. ---

__device__ inline void copy_box(void* to, const CUtensorMap& map, int x, int y, int z,
                                std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void copy_box(void* to, const CUtensorMap& map, int x, int y, int z, int w,
                                std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}

// Of `bytes` neighbouring bytes, a multiple of 16.
__device__ inline void copy_bytes(void* to, const void* from, unsigned bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The same the other way: from shared memory, after publish_stores() by all who stored there. A thread
// commits its copies in groups and waits for them: until what all but the last kPending groups read may be
// overwritten, or until all are done.
__device__ inline void copy_bytes_out(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ inline void commit_copies_out() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_for_reads_of_copies() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
__device__ inline void wait_for_copies_out() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// --- Blocks of threads of one cluster. For sm_90 and newer. ---

// A barrier of all threads of the cluster, in halves: what they stored before, to shared memory too, is then
// seen by all of them, but for what those stored that arrived relaxed.
__device__ inline void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void arrive_relaxed_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}
// Stores where block `rank` of the cluster has what is `to` here.
__device__ inline void store_to_block(const float4* to, unsigned rank, const float (&values)[4]) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.v4.f32 [remote], {%2, %3, %4, %5};\n}\n" ::"r"(shared_address(to)),
      "r"(rank), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
      : "memory");
}

// --- Registers of a warpgroup. ---

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- Matrix products of a warpgroup. Operands lie in shared memory in rows of 128 bytes whose 16-byte chunks
// are swizzled by row % 8, as copies with CU_TENSOR_MAP_SWIZZLE_128B leave them. ---

// Describes an operand from `address` on: rows are the outer dimension of the product, their 64 values the
// inner; what follows them lies elsewhere and has a descriptor of its own.
__device__ inline std::uint64_t by_rows(std::uint32_t address) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | ((address & 0x3FFFF) >> 4);
}
// Describes an operand whose rows are the inner dimension, their 64 values part of the outer; the next 64 lie
// `stride` bytes on.
__device__ inline std::uint64_t by_columns(std::uint32_t address, std::uint32_t stride) {
  return by_rows(address) | (std::uint64_t{stride >> 4} << 16);
}
// A descriptor of what lies `bytes` further on.
__device__ inline std::uint64_t advance(std::uint64_t descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}

// Before the first product after registers of one were written.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads or writes of a product's registers over this point.
template <int kBlocks>
__device__ inline void pin(float (&sums)[kBlocks][4]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[b][i])::"memory");
  }
}

// clang-format off
#define QUIRE_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_REGISTERS_48 QUIRE_REGISTERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define QUIRE_REGISTERS_64 QUIRE_REGISTERS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_REGISTERS_96 \
  QUIRE_REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define QUIRE_REGISTERS_128 \
  QUIRE_REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_BLOCK(b) "+f"(sums[b][0]), "+f"(sums[b][1]), "+f"(sums[b][2]), "+f"(sums[b][3])
#define QUIRE_BLOCKS_32(b) QUIRE_BLOCK(b), QUIRE_BLOCK((b) + 1), QUIRE_BLOCK((b) + 2), QUIRE_BLOCK((b) + 3)
#define QUIRE_BLOCKS_48(b) QUIRE_BLOCKS_32(b), QUIRE_BLOCK((b) + 4), QUIRE_BLOCK((b) + 5)
#define QUIRE_BLOCKS_64(b) QUIRE_BLOCKS_32(b), QUIRE_BLOCKS_32((b) + 4)
#define QUIRE_BLOCKS_96(b) QUIRE_BLOCKS_64(b), QUIRE_BLOCKS_32((b) + 8)
#define QUIRE_BLOCKS_128(b) QUIRE_BLOCKS_64(b), QUIRE_BLOCKS_64((b) + 8)

// sums (=, or += where add) a · bᵀ by blocks of 8 columns, the layout of mma.cuh: a [64, 16] by_rows, b [N, 16] by_rows.
// Of codes of 8 bits [64, 32] and [N, 32].
#define QUIRE_PRODUCT(N, TYPES, ORDERS, A, B, P, ...)                                                   \
  asm volatile(                                                                                         \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %" P ", 0;\n"                                               \
      "wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" QUIRE_REGISTERS_##N "}, "                       \
      A ", %" B ", add, 1, 1" ORDERS ";\n}\n"                                                           \
      : QUIRE_BLOCKS_##N(0) : __VA_ARGS__, "l"(b), "r"(static_cast<int>(add)))
#define QUIRE_PRODUCT_OF_SHARED(N, A, B, P)                                                             \
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {                                                     \
    QUIRE_PRODUCT(N, "k32.f32.e4m3.e4m3", "", "%" A, B, P, "l"(a));                                     \
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {                                              \
    QUIRE_PRODUCT(N, "k16.f32.bf16.bf16", ", 0, 0", "%" A, B, P, "l"(a));                               \
  } else {                                                                                              \
    QUIRE_PRODUCT(N, "k16.f32.f16.f16", ", 0, 0", "%" A, B, P, "l"(a));                                 \
  }
// With a [64, 16] in registers.
#define QUIRE_PRODUCT_OF_REGISTERS_AND_ROWS(TYPES)                                                      \
  QUIRE_PRODUCT(64, TYPES, ", 0", "{%32, %33, %34, %35}", "36", "37",                                   \
                "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))
// The sums of columns from 8 * kFirst on += a · b: a [64, 16] in registers, b [16, N] by_columns.
#define QUIRE_PRODUCT_OF_REGISTERS(N, A, B)                                                             \
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {                                                     \
    QUIRE_TYPED_PRODUCT_OF_REGISTERS(N, "bf16", A, B);                                                  \
  } else {                                                                                              \
    QUIRE_TYPED_PRODUCT_OF_REGISTERS(N, "f16", A, B);                                                   \
  }
#define QUIRE_TYPED_PRODUCT_OF_REGISTERS(N, TYPE, A, B)                                                 \
  asm volatile(                                                                                         \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" QUIRE_REGISTERS_##N "}, "    \
      A ", %" B ", 1, 1, 1, 1;\n"                                                                       \
      : QUIRE_BLOCKS_##N(kFirst) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// clang-format on

template <typename T, int kBlocks>
__device__ inline void multiply_shared(float (&sums)[kBlocks][4], std::uint64_t a, std::uint64_t b,
                                       bool add) {
  if constexpr (kBlocks == 4) {
    QUIRE_PRODUCT_OF_SHARED(32, "16", "17", "18");
  } else if constexpr (kBlocks == 6) {
    QUIRE_PRODUCT_OF_SHARED(48, "24", "25", "26");
  } else if constexpr (kBlocks == 8) {
    QUIRE_PRODUCT_OF_SHARED(64, "32", "33", "34");
  } else if constexpr (kBlocks == 12) {
    QUIRE_PRODUCT_OF_SHARED(96, "48", "49", "50");
  } else {
    static_assert(kBlocks == 16);
    QUIRE_PRODUCT_OF_SHARED(128, "64", "65", "66");
  }
}

// Starts what multiplies whole rows of both, 128 bytes.
template <typename T, int kBlocks>
__device__ inline void multiply_rows(float (&sums)[kBlocks][4], std::uint64_t a, std::uint64_t b, bool add) {
  constexpr int kRowBytes = 128, kStepBytes = 32;
  pin(sums);
  begin_products();
#pragma unroll
  for (int step = 0; step < kRowBytes; step += kStepBytes)
    multiply_shared<T>(sums, advance(a, step), advance(b, step), add || step > 0);
  commit_products();
}

// kColumns of the sums, from block kFirst on.
template <typename T, int kColumns, int kFirst, int kBlocks>
__device__ inline void multiply_registers(float (&sums)[kBlocks][4], const std::uint32_t (&a)[4],
                                          std::uint64_t b) {
  if constexpr (kColumns == 64) {
    QUIRE_PRODUCT_OF_REGISTERS(64, "{%32, %33, %34, %35}", "36");
  } else if constexpr (kColumns == 96) {
    QUIRE_PRODUCT_OF_REGISTERS(96, "{%48, %49, %50, %51}", "52");
  } else {
    static_assert(kColumns == 128);
    QUIRE_PRODUCT_OF_REGISTERS(128, "{%64, %65, %66, %67}", "68");
  }
}

template <typename T>
__device__ inline void multiply_registers_and_rows(float (&sums)[8][4], const std::uint32_t (&a)[4],
                                                   std::uint64_t b, bool add) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    QUIRE_PRODUCT_OF_REGISTERS_AND_ROWS("k16.f32.bf16.bf16");
  } else {
    QUIRE_PRODUCT_OF_REGISTERS_AND_ROWS("k16.f32.f16.f16");
  }
}

#undef QUIRE_PRODUCT_OF_REGISTERS_AND_ROWS
#undef QUIRE_TYPED_PRODUCT_OF_REGISTERS
#undef QUIRE_PRODUCT_OF_REGISTERS
#undef QUIRE_PRODUCT_OF_SHARED
#undef QUIRE_PRODUCT
#undef QUIRE_BLOCKS_128
#undef QUIRE_BLOCKS_96
#undef QUIRE_BLOCKS_64
#undef QUIRE_BLOCKS_48
#undef QUIRE_BLOCKS_32
#undef QUIRE_BLOCK
#undef QUIRE_REGISTERS_128
#undef QUIRE_REGISTERS_96
#undef QUIRE_REGISTERS_64
#undef QUIRE_REGISTERS_48
#undef QUIRE_REGISTERS_32

}  // namespace quire::cuda::hopper
