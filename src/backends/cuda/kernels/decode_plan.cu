// The plan of paged decode attention, made on the device from the lengths there: once a step, by one block of
// threads, in the time of a few memory latencies (on an H200 3.4 µs with one sequence, 4.3 µs with 256).
#include <climits>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/decode_plan.cuh"
#include "backends/cuda/kernels/scan.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kMinShare = 8;  // tiles: a smaller share costs more in merging than it gains

struct PlanInput {
  SequenceArgs sequences;
  int window;
  int kv_heads;
  int parts;
  int item_lead;  // the end of an item costs as much as so many tiles
  int num_shares;

  __device__ int tiles_of(const DecodeRow& row) const { return item_tiles(row.seq_len, window); }
};

// Writes the sequences that take part one after the other, with the tiles before them, of one item each, as
// their line_begin; returns how many they are and how many tiles.
__device__ int2 write_rows(const PlanInput& input, DecodeRow* rows) {
  // Rows above, tiles below: both are summed at once.
  constexpr auto kOneRow = std::uint64_t{1} << 32;
  std::uint64_t before = 0;
  const SequenceArgs& sequences = input.sequences;
  for (int base = 0; base < sequences.num_sequences; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    int length = 0;
    if (i < sequences.num_sequences && sequences.query_starts[i + 1] - sequences.query_starts[i] == 1)
      length = max(sequences.seq_lens[i], 0);
    std::uint64_t total = 0;
    const std::uint64_t sum =
        before +
        exclusive_sum_of_block(
            length == 0 ? 0 : kOneRow + static_cast<unsigned>(item_tiles(length, input.window)), total);
    if (length != 0) {
      rows[sum / kOneRow] = {length, sequences.table_rows[i], sequences.query_starts[i],
                             static_cast<int>(sum % kOneRow)};
    }
    before += total;
  }
  __syncthreads();
  return {static_cast<int>(before / kOneRow), static_cast<int>(before % kOneRow)};
}

// The fewest tiles a share, at least `least`, with which the shares suffice when none holds more than one
// item.
__device__ int share_of_one_item(const PlanInput& input, const DecodeRow* rows, int num_rows, int least) {
  __shared__ int best;
  if (threadIdx.x == 0) best = INT_MAX;
  __syncthreads();
  const int share = least + static_cast<int>(threadIdx.x) * ceil_div(least, kThreads);
  int needed = 0;
  for (int i = 0; i < num_rows; ++i) needed += ceil_div(input.tiles_of(rows[i]), share);
  if (needed * input.kv_heads * input.parts <= input.num_shares) atomicMin(&best, share);
  __syncthreads();
  return best;
}

__device__ DecodeHeader divide(const PlanInput& input, const DecodeRow* rows, int num_rows, int row_tiles) {
  const int items = num_rows * input.kv_heads * input.parts;
  const int tiles = row_tiles * input.kv_heads * input.parts;
  // Few items: latency counts, and a share that holds the end of one and the beginning of another takes
  // longer.
  if (items <= input.num_shares / 4) {
    const int least = max(kMinShare, ceil_div(tiles, input.num_shares));
    const int share = share_of_one_item(input, rows, num_rows, least);
    return {share, 0, share};
  }
  const int least = max(kMinShare, input.item_lead + 1);  // a share must hold a tile
  return {max(least, ceil_div(tiles + items * input.item_lead, input.num_shares)), input.item_lead, 1};
}

// Puts the items on the line; returns its length.
__device__ int place_rows(const PlanInput& input, const DecodeHeader& header, DecodeRow* rows, int num_rows) {
  const int items_per_row = input.kv_heads * input.parts;
  for (int i = static_cast<int>(threadIdx.x); i < num_rows; i += kThreads) {
    int before = rows[i].line_begin + i * header.item_lead;
    if (header.item_align > 1) {  // then rows are few
      before = 0;
      for (int j = 0; j < i; ++j) before += header.line_length(input.tiles_of(rows[j]));
    }
    rows[i].line_begin = before * items_per_row;
  }
  __syncthreads();
  if (num_rows == 0) return 0;
  const DecodeRow& last = rows[num_rows - 1];
  return last.line_begin + items_per_row * header.line_length(input.tiles_of(last));
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
  const int length = header.line_length(input.tiles_of(rows[low]));
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
  last.tile = min(last.tile, input.tiles_of(rows[last.row]));
  const int items = ((last.row - first.row) * input.kv_heads + last.kv_head - first.kv_head) * input.parts +
                    last.part - first.part;
  return {first, last, rows[last.row], items + 1};
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const PlanInput input, const DecodePlan plan) {
  admit_next_kernel();
  wait_for_kernels();
  const auto [num_rows, row_tiles] = write_rows(input, plan.rows);
  const DecodeHeader header = divide(input, plan.rows, num_rows, row_tiles);
  const int line = place_rows(input, header, plan.rows, num_rows);
  if (threadIdx.x == 0) *plan.header = header;
  for (int i = static_cast<int>(threadIdx.x); i < input.num_shares; i += kThreads) {
    const std::int64_t begin = std::int64_t{i} * header.share_tiles;
    if (begin < line) {
      const std::int64_t end = min(begin + header.share_tiles, std::int64_t{line});
      plan.shares[i] =
          share_of(input, header, plan.rows, num_rows, static_cast<int>(begin), static_cast<int>(end));
    } else {
      plan.shares[i].num_pieces = 0;
    }
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
  const bool of_codes = shape.code != CacheCode::kNone;  // whose tiles take half the time
  const PlanInput input{.sequences = SequenceArgs(batch),
                        .window = window_of(shape),
                        .kv_heads = shape.num_kv_heads,
                        .parts = HeadSplit(shape).parts,
                        .item_lead = (2 + HeadSplit(shape).heads_per_item) * (of_codes ? 2 : 1),
                        .num_shares = num_shares_of(shape, context.num_sms)};
  std::size_t bytes = 0;
  const DecodePlan plan =
      lay_out_plan(reinterpret_cast<std::uintptr_t>(workspace.data()), shape, context.num_sms, bytes);
  require(bytes <= workspace.bytes(), "decode attention: workspace");
  launch(context, "decode attention plan", plan_kernel, 1, kThreads, 0, input, plan);
}

}  // namespace quire::cuda
