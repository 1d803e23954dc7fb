// The plan of paged decode attention, made on the device from the lengths there: once a step, by one block of
// threads, in the time of a few memory latencies (4 µs with 256 sequences on an H200).
#include <climits>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/decode_plan.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarpSize = 32;
constexpr int kMinShare = 8;   // tiles: a smaller share costs more in merging than it gains
constexpr int kItemTiles = 2;  // the end of an item costs a team as much as so many tiles
constexpr std::uint64_t kOneRow = std::uint64_t{1} << 32;

struct PlanInput {
  const int* query_starts;
  const int* seq_lens;
  const int* table_rows;
  int num_sequences;
  int kv_heads;
  int parts;
  int num_blocks;  // of threads
  int block_warps;
};

// Sum of `value` over the threads before this one; the sum over all goes to `total`.
__device__ std::uint64_t exclusive_sum(std::uint64_t value, std::uint64_t& total) {
  __shared__ std::uint64_t warp_sums[kThreads / kWarpSize];
  const unsigned lane = threadIdx.x % kWarpSize;
  std::uint64_t sum = value;
  for (unsigned step = 1; step < kWarpSize; step *= 2) {
    const std::uint64_t other = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarpSize - 1) warp_sums[threadIdx.x / kWarpSize] = sum;
  __syncthreads();
  std::uint64_t before = 0;
  total = 0;
  for (unsigned warp = 0; warp < kThreads / kWarpSize; ++warp) {
    if (warp == threadIdx.x / kWarpSize) before = total;
    total += warp_sums[warp];
  }
  __syncthreads();
  return before + sum - value;
}

// Length of sequence i, 0 if it takes no part.
__device__ int length_of(const PlanInput& input, int i) {
  const bool one_query = i < input.num_sequences && input.query_starts[i + 1] - input.query_starts[i] == 1;
  return one_query ? max(input.seq_lens[i], 0) : 0;
}

// How many sequences take part in the upper half, and in the lower half how many tiles the KV heads of all
// have.
__device__ std::uint64_t count_rows(const PlanInput& input) {
  std::uint64_t rows = 0;
  for (int base = 0; base < input.num_sequences; base += kThreads) {
    const int tiles = item_tiles(length_of(input, base + static_cast<int>(threadIdx.x)));
    std::uint64_t total = 0;
    exclusive_sum(tiles == 0 ? 0 : kOneRow + static_cast<unsigned>(tiles), total);
    rows += total;
  }
  return rows;
}

// Writes the sequences that take part one after the other; returns the length of the line.
__device__ int write_rows(const PlanInput& input, const DecodeHeader& header, DecodeRow* rows) {
  std::uint64_t before = 0;
  for (int base = 0; base < input.num_sequences; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const int length = length_of(input, i);
    const auto places = static_cast<unsigned>(header.line_length(item_tiles(length)));
    std::uint64_t total = 0;
    const std::uint64_t sum = before + exclusive_sum(length == 0 ? 0 : kOneRow + places, total);
    if (length != 0) {
      const int line_begin = static_cast<int>(sum & 0xFFFFFFFFU) * input.kv_heads * input.parts;
      rows[sum / kOneRow] = {length, input.table_rows[i], input.query_starts[i], line_begin};
    }
    before += total;
  }
  return static_cast<int>(before & 0xFFFFFFFFU) * input.kv_heads * input.parts;
}

// The fewest tiles a share, at least `least`, with which num_shares shares suffice when none holds more than
// one item.
__device__ int share_of_one_item(const PlanInput& input, int num_shares, int least) {
  __shared__ int best;
  if (threadIdx.x == 0) best = INT_MAX;
  __syncthreads();
  const int step = ceil_div(least, kThreads);
  const int share = least + static_cast<int>(threadIdx.x) * step;
  int needed = 0;
  for (int i = 0; i < input.num_sequences; ++i) needed += ceil_div(item_tiles(length_of(input, i)), share);
  if (needed * input.kv_heads * input.parts <= num_shares) atomicMin(&best, share);
  __syncthreads();
  return best;
}

struct Division {
  int team_warps;
  DecodeHeader header;
};

__device__ Division choose(const PlanInput& input, std::uint64_t counted) {
  const int items_per_row = input.kv_heads * input.parts;
  const int items = static_cast<int>(counted / kOneRow) * items_per_row;
  const int tiles = static_cast<int>(counted & 0xFFFFFFFFU) * items_per_row;
  const int large_teams = input.num_blocks;
  const int small_teams = input.num_blocks * (input.block_warps / kSmallTeam);
  // Few items: latency counts, and a share that holds the end of one and the beginning of another takes
  // longer.
  if (items <= large_teams / 4) {
    const int share = share_of_one_item(input, large_teams, max(kMinShare, ceil_div(tiles, large_teams)));
    return {input.block_warps, {share, 0, share}};
  }
  // Many items end often, and then fewer warps should wait for each other.
  const int teams = items < small_teams ? large_teams : small_teams;
  const int share = max(kMinShare, ceil_div(tiles + items * kItemTiles, teams));
  return {teams == large_teams ? input.block_warps : kSmallTeam, {share, kItemTiles, 1}};
}

// The tile at `place` of the line; negative in front of an item's first.
__device__ DecodePosition position_at(const PlanInput& input, const DecodeHeader& header,
                                      const DecodeRow* rows, int num_rows, int place) {
  int low = 0;
  int high = num_rows - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (rows[middle].line_begin <= place) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int length = header.line_length(item_tiles(rows[low].seq_len));
  const int offset = place - rows[low].line_begin;
  return {low, offset / length / input.parts, offset / length % input.parts,
          offset % length - header.item_lead};
}

// The share of the line [begin, end), where `begin` < `end`.
__device__ DecodeShare share_of(const PlanInput& input, const DecodeHeader& header, const DecodeRow* rows,
                                int num_rows, int begin, int end) {
  DecodePosition first = position_at(input, header, rows, num_rows, begin);
  first.tile = max(first.tile, 0);
  DecodePosition last = position_at(input, header, rows, num_rows, end - 1);
  if (++last.tile <= 0) {  // the end of the item before
    last.tile = INT_MAX;
    if (--last.part < 0) {
      last.part = input.parts - 1;
      if (--last.kv_head < 0) {
        last.kv_head = input.kv_heads - 1;
        --last.row;
      }
    }
  }
  last.tile = min(last.tile, item_tiles(rows[last.row].seq_len));
  const int items = ((last.row - first.row) * input.kv_heads + last.kv_head - first.kv_head) * input.parts +
                    last.part - first.part;
  return {first, last, rows[last.row], items + 1, 0, 0};
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const PlanInput input, const DecodePlan plan) {
  admit_next_kernel();
  wait_for_kernels();
  const std::uint64_t counted = count_rows(input);
  const auto [team_warps, header] = choose(input, counted);
  const int line = write_rows(input, header, plan.rows);
  const auto num_rows = static_cast<int>(counted / kOneRow);
  if (threadIdx.x == 0) *plan.header = header;
  __syncthreads();  // all rows are written
  const int block_teams = input.block_warps / team_warps;
  for (int i = static_cast<int>(threadIdx.x); i < input.num_blocks * block_teams; i += kThreads) {
    const std::int64_t begin = std::int64_t{i} * header.share_tiles;
    DecodeShare share{};
    if (begin < line) {
      share = share_of(input, header, plan.rows, num_rows, static_cast<int>(begin),
                       static_cast<int>(min(begin + header.share_tiles, std::int64_t{line})));
    }
    share.index = i;
    share.team_shift = __ffs(team_warps) - 1;
    // The first shares go to different blocks of threads.
    DecodeShare* warps =
        plan.shares + i % input.num_blocks * input.block_warps + i / input.num_blocks * team_warps;
    for (int warp = 0; warp < team_warps; ++warp) warps[warp] = share;
  }
}

}  // namespace

std::size_t decode_workspace_bytes(const AttentionShape& shape, int num_sms) {
  std::size_t bytes = 0;
  lay_out_plan(0, shape, num_sms, bytes);
  return bytes;
}

void plan_decode(const LaunchContext& context, const AttentionBatch& batch, const AttentionShape& shape,
                 const Tensor& workspace) {
  const PlanInput input{.query_starts = batch.query_starts.data_as<const int>(),
                        .seq_lens = batch.seq_lens.data_as<const int>(),
                        .table_rows = batch.table_rows.data_as<const int>(),
                        .num_sequences = batch.num_sequences,
                        .kv_heads = shape.num_kv_heads,
                        .parts = HeadSplit(shape).parts,
                        .num_blocks = kBlocksPerSm * context.num_sms,
                        .block_warps = warps_per_block(shape.head_dim)};
  std::size_t bytes = 0;
  const DecodePlan plan =
      lay_out_plan(reinterpret_cast<std::uintptr_t>(workspace.data()), shape, context.num_sms, bytes);
  check(bytes <= workspace.bytes() ? cudaSuccess : cudaErrorInvalidValue, "decode attention: workspace");
  launch(context, "decode attention plan", plan_kernel, dim3(1), dim3(kThreads), 0, input, plan);
}

}  // namespace quire::cuda
