// Adds up the pieces in which prefill attention took a tile's keys: out = sum of sums * 2^(top - highest top)
// over sum of totals * the same, sinks included (Dao et al., Flash-Decoding, 2023).
//
// A block of threads has 16 rows of a (tile, head tile), a thread 8 dimensions of a row at a time. Bytes: 4 *
// head_dim a (row, piece) out of L2, where the pieces' kernel has just left them.
#include "backends/cuda/kernels/prefill_rows.cuh"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 16;

template <typename T>
__global__ __launch_bounds__(kThreads) void merge_prefill_kernel(const PrefillParams p, int head_dim) {
  admit_next_kernel();
  wait_for_kernels();
  const int work = blockIdx.x;
  if (work >= p.plan->num_tiles * p.head_tiles) return;
  const PrefillTile tile = reinterpret_cast<const PrefillTile*>(p.plan + 1)[work / p.head_tiles];
  const int vectors = head_dim / 8, first_row = static_cast<int>(blockIdx.y) * kRows;
  const int rows = min(kRows, tile.tokens * p.packed_heads - first_row);
  for (int i = threadIdx.x; i < rows * vectors; i += kThreads) {
    const int row = first_row + i / vectors, column = i % vectors * 8;
    const int head = work % p.head_tiles * p.packed_heads + row % p.packed_heads;
    float top = -INFINITY;  // a row sees its own key, so that some piece has a score
    for (int piece = 0; piece < p.pieces; ++piece)
      top = fmaxf(top, part_of(p, work * p.pieces + piece, head_dim).tops[row]);
    float total = sink_weight(p.scores.sinks, head, top), sums[8] = {};
    for (int piece = 0; piece < p.pieces; ++piece) {
      const PrefillPart part = part_of(p, work * p.pieces + piece, head_dim);
      const float factor = exp2_approx(part.tops[row] - top);
      if (part.totals[row] == 0) continue;  // no keys that the row sees, and perhaps no sums
      total = fmaf(part.totals[row], factor, total);
      const Vec<float, 8> values = load_vec<8>(part.sums + row * head_dim + column);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j] = fmaf(values.values[j], factor, sums[j]);
    }
    const float inverse = __fdividef(1.0F, total);
    Vec<std::uint32_t, 4> packed;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      packed.values[j] = pack(sums[2 * j] * inverse, sums[2 * j + 1] * inverse, T());
    T* out = static_cast<T*>(p.out) + (tile.row + row / p.packed_heads) * p.out_stride +
             static_cast<std::int64_t>(head) * head_dim + column;
    store_vec(reinterpret_cast<std::uint32_t*>(out), packed);
  }
}

}  // namespace

void merge_prefill(const LaunchContext& context, const PrefillParams& params, const AttentionBatch& batch,
                   const AttentionShape& shape, DType dtype) {
  const dim3 grid(max_prefill_work(batch, params), kTileRows / kRows);
  dispatch_operand(dtype, [&]<typename T>() {
    launch(context, "merge_prefill", merge_prefill_kernel<T>, grid, kThreads, 0, params, shape.head_dim);
  });
}

}  // namespace quire::cuda
