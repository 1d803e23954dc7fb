// A step of one token of many sequences through what Gated DeltaNet does between its products, bit for bit as
// delta_step.cu has it. There a block waits between reading a part of a state and writing it, and memory with
// it. Here a block of threads stays on its multiprocessor and takes one value head of a sequence after the
// other. Three whole states lie in shared memory: one is computed in place, while the next comes and the one
// before goes. The value heads of a key head follow each other in one block, the last of which keeps the
// convolution's inputs of queries and keys: nobody else reads them.
//
// Bytes: each state of 128 x 128 read and written once, 128 KiB; beside them 6 KiB of the convolution's
// inputs and 1 KiB of the token. At an even share of 2.9 TB/s a block has 6 us for them, which hides what it
// computes.
#include "backends/cuda/kernels/delta_step.cuh"
#include "backends/cuda/kernels/hopper.cuh"

namespace quire::cuda {
namespace {

constexpr int kDim = 128;                     // rows and columns of a state
constexpr int kParts = kDim / kBlockColumns;  // whose columns delta_step.cu's blocks have
constexpr int kPartThreads = 32 * kDeltaWarps;
constexpr int kThreads = kParts * kPartThreads;
constexpr int kStates = 3;

struct Shared {
  float states[kStates][kDim * kDim];
  float mixed[3][kDim];  // a query, a key, and a value
  float results[kDim];
  DeltaSums<kWidth> sums_of[kParts][kDeltaWarps][kColumnLanes];
  std::uint64_t arrived[kStates];
};

// A value head of a sequence. from: -1 of a sequence that begins; to: -1 of none.
struct Turn {
  int sequence, key_head, head, from, to;
  bool is_last;  // of the key head
};

// This block's turns, in order.
template <typename T>
struct Turns {
  const StepArgs<T>& args;
  int group = args.num_value_heads / args.num_key_heads;
  int all = args.num_sequences * args.num_key_heads;
  int count = (all - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
              static_cast<int>(gridDim.x) * group;

  __device__ Turn operator[](int turn) const {
    if (turn >= count) return {.to = -1};
    const int item = static_cast<int>(blockIdx.x) + turn / group * static_cast<int>(gridDim.x);
    const int sequence = item / args.num_key_heads, key_head = item % args.num_key_heads, of = turn % group;
    return {sequence,          key_head,       key_head * group + of, args.from[sequence],
            args.to[sequence], of + 1 == group};
  }
};

template <typename T>
__device__ float* state_of(const StepArgs<T>& args, int slot, int head) {
  return args.state[slot] + std::int64_t{head} * kDim * kDim;
}

// Brings the state of a turn; of one that has none nothing, at once.
template <typename T>
__device__ void load_state(const StepArgs<T>& args, Shared& shared, const Turn& turn, int place) {
  if (turn.to < 0 || turn.from < 0) return hopper::arrive(&shared.arrived[place]);
  hopper::arrive_expecting(&shared.arrived[place], sizeof(shared.states[place]));
  hopper::copy_bytes(shared.states[place], state_of(args, turn.from, turn.head), sizeof(shared.states[place]),
                     &shared.arrived[place]);
}

// A thread's share of a turn's inputs, on their way: three quarters of the threads have a channel of the
// convolution each, the others an element of the gate.
template <typename T>
struct TurnInputs {
  Channel<T> channel;
  T gate = {}, a, b;
  float a_log, dt_bias;

  __device__ TurnInputs(const StepArgs<T>& args, const Turn& turn)
      : channel(args, index_of(args, turn), turn.to >= 0 && part() < 3, turn.from) {
    if (turn.to < 0) return;
    const T* x = args.x[turn.sequence];
    channel.read(x);
    const T* behind = x + args.channels;
    if (part() == 3) gate = behind[turn.head * kDim + static_cast<int>(threadIdx.x) % kDim];
    const T* rates = behind + args.num_value_heads * kDim + turn.head;
    a = rates[args.num_value_heads];
    b = *rates;
    a_log = args.a_log[turn.head];
    dt_bias = args.dt_bias[turn.head];
  }
  __device__ static int part() { return static_cast<int>(threadIdx.x) / kDim; }
  __device__ static int index_of(const StepArgs<T>& args, const Turn& turn) {
    const int head = part() * args.num_key_heads + (part() < 2 ? turn.key_head : turn.head);
    return head * kDim + static_cast<int>(threadIdx.x) % kDim;
  }
};

// The state of a turn, in place, becomes that behind the token; the results go to shared memory.
template <typename T>
__device__ void take_turn(Shared& shared, float* states, const TurnInputs<T>& inputs, bool begins) {
  constexpr int kRows = kDim / kRowStep;  // of a thread
  const auto thread = static_cast<int>(threadIdx.x);
  const int part = thread / kPartThreads, row = thread % kPartThreads / kColumnLanes;
  const int column = part * kBlockColumns + thread % kColumnLanes * kWidth;
  Vec<float, kWidth> state[kRows] = {};
  DeltaToken<kRows, kWidth> token;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (!begins) state[i] = load_vec<kWidth>(states + (row + i * kRowStep) * kDim + column);
    token.q[i] = shared.mixed[0][row + i * kRowStep];
    token.k[i] = shared.mixed[1][row + i * kRowStep];
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) token.v[j] = shared.mixed[2][column + j];
  token.a = widen(inputs.a);
  token.b = widen(inputs.b);
  const DeltaSums<kWidth> sums = sum_rows(state, token, shared.sums_of[part]);
  const Vec<float, kWidth> results =
      take_turn(state, token, sums, DeltaHead(inputs.a_log, inputs.dt_bias, kDim));
  if (row == 0) store_vec(shared.results + column, results);
#pragma unroll
  for (int i = 0; i < kRows; ++i) store_vec(states + (row + i * kRowStep) * kDim + column, state[i]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) delta_stream_kernel(const StepArgs<T> args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char stream_memory[];
  auto& shared = *reinterpret_cast<Shared*>(stream_memory);
  admit_next_kernel();
  const auto thread = static_cast<int>(threadIdx.x);
  const Turns<T> turns{args};
  Turn turn = turns[0], next = turns[1];
  if (thread == 0) {
    for (std::uint64_t& barrier : shared.arrived) hopper::init_barrier(&barrier, 1);
    hopper::publish_barriers();
    load_state(args, shared, turn, 0);
    load_state(args, shared, next, 1);
  }
  const float weight = args.norm_weight[thread % kDim];
  wait_for_kernels();
  TurnInputs<T> inputs(args, turn);
  for (int i = 0; i < turns.count; ++i) {
    const int place = i % kStates;
    const Turn later = turns[i + 2];
    const TurnInputs<T> now = inputs;
    if (turn.to >= 0 && TurnInputs<T>::part() < 3) {
      Channel<T> channel = now.channel;
      channel.sum_history();
      shared.mixed[TurnInputs<T>::part()][thread % kDim] = channel.value();
      if (TurnInputs<T>::part() == 2 || turn.is_last) channel.keep(args.kept[turn.to]);
    }
    inputs = TurnInputs<T>(args, next);
    __syncthreads();
    if (turn.to >= 0) {
      hopper::wait(&shared.arrived[place], static_cast<unsigned>(i / kStates % 2));
      take_turn(shared, shared.states[place], now, turn.from < 0);
      hopper::publish_stores();
      __syncthreads();
      if (TurnInputs<T>::part() == 3) {
        const float inverse = inverse_rms(shared.results, kDim, args.eps);
        const int value = thread % kDim;
        args.out[turn.sequence][turn.head * kDim + value] =
            gated_normed<T>(shared.results[value], inverse, weight, widen(now.gate));
      }
    }
    if (thread == 0) {
      if (turn.to >= 0)
        hopper::copy_bytes_out(state_of(args, turn.to, turn.head), shared.states[place],
                               sizeof(shared.states[place]));
      hopper::commit_copies_out();
      if (i + 2 < turns.count) {  // where the turn before had its state
        hopper::wait_for_reads_of_copies<1>();
        load_state(args, shared, later, (i + 2) % kStates);
      }
    }
    turn = next;
    next = later;
  }
  if (thread == 0) hopper::wait_for_copies_out();
#endif
}

}  // namespace

bool streams_delta_step(const LaunchContext& context, const DeltaNet& net, const StateBatch& batch) {
  return net.state.dim(2) == kDim && net.state.dim(3) == kDim &&
         context.shared_bytes >= static_cast<int>(sizeof(Shared)) &&
         batch.num_sequences * net.rule.num_key_heads >= context.num_sms;
}

template <typename T>
void stream_delta_step(const LaunchContext& context, const StepArgs<T>& args) {
  allow_shared_bytes<delta_stream_kernel<T>>(sizeof(Shared));
  launch(context, "delta_stream", delta_stream_kernel<T>, context.num_sms, kThreads, sizeof(Shared), args);
}
template void stream_delta_step(const LaunchContext&, const StepArgs<float>&);
template void stream_delta_step(const LaunchContext&, const StepArgs<BFloat16>&);
template void stream_delta_step(const LaunchContext&, const StepArgs<Float16>&);

}  // namespace quire::cuda
