#include "backends/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cuda/ceiling.h"
#include "backends/cuda/kernels/attention.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

struct CudaGraph final : Graph {
  explicit CudaGraph(cudaGraphExec_t graph) : executable(graph, cudaGraphExecDestroy) {}
  std::shared_ptr<CUgraphExec_st> executable;
};

// The rest of a plan lies in the batch's workspace.
struct CudaAttentionPlan final : AttentionPlan {
  explicit CudaAttentionPlan(const AttentionShape& s) : shape(s) {}
  AttentionShape shape;
};

Tensor whole(const Buffer& buffer) {
  return Tensor(buffer.data(), DType::kU8, {static_cast<std::int64_t>(buffer.bytes())}, buffer.device());
}

// f of what kernels see of the weight, in its form.
template <typename F>
auto visit(const LinearWeights& weights, const F& f) {
  if (const auto* quantized = dynamic_cast<const QuantizedLinear*>(&weights)) return f(quantized->matrix());
  if (const auto* w8a8 = dynamic_cast<const W8a8Linear*>(&weights)) return f(w8a8->matrix());
  return f(dynamic_cast<const CudaLinear&>(weights).matrix());
}

// The experts' matrices, one below the other. Error that names a tensor where they cannot be one matrix.
struct ExpertMatrices {
  std::vector<WeightGroup> gate_up, down;
};

ExpertMatrices matrices_of(std::span<const ExpertParts> experts) {
  ExpertMatrices all;
  for (const ExpertParts& parts : experts) {
    all.gate_up.insert(all.gate_up.end(), {parts.gate, parts.up});
    all.down.push_back(parts.down);
  }
  const bool is_plain = all.down.front().format.is_plain();
  for (const std::vector<WeightGroup>& parts : {all.gate_up, all.down}) {
    const std::size_t alike = num_alike(parts);
    if (alike < parts.size() || parts.front().format.is_plain() != is_plain)
      fail("tensor {}: experts of one layer in different formats are not supported on CUDA",
           parts[alike % parts.size()].name());
    for (const WeightGroup& part : parts)
      if (!is_plain && part.rows % QuantizedLayout::kTileRows != 0)
        fail("tensor {}: quantised experts on CUDA need multiples of {} rows, not {}", part.name(),
             QuantizedLayout::kTileRows, part.rows);
  }
  return all;
}

}  // namespace

CudaBackend::CudaBackend(const ModuleOptions& options)
    : device_(options.device), deterministic_(options.deterministic) {
  check(cudaSetDevice(device_), "choosing the device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device_), "reading the device's properties");
  name_ = format_text("cuda ({})", properties.name);
  context_ = make_context(device_);
  check(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), "making a stream");
  for (CudaEvent& event : events_) event = make_event(cudaEventDisableTiming);
  library_workspace_ = allocate(LibraryMatmul::kWorkspaceBytes, MemoryKind::kDevice);
  library_ = std::make_unique<LibraryMatmul>(whole(library_workspace_));
}

CudaBackend::~CudaBackend() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(context_.stream);
  loader_.reset();
  library_.reset();
  cudaStreamDestroy(context_.stream);
}

const LaunchContext& CudaBackend::context(OpKind kind) const {
  check(cudaSetDevice(device_), "choosing the device");
  if (timer_ != nullptr) timer_->begin(kind);
  return context_;
}

CudaBackend::Memory CudaBackend::memory() const {
  Memory memory;
  check(cudaSetDevice(device_), "choosing the device");
  check(cudaMemGetInfo(&memory.free, &memory.total), "reading the device's memory");
  return memory;
}

Buffer CudaBackend::allocate(std::size_t bytes, MemoryKind kind) {
  const bool on_device = kind == MemoryKind::kDevice;
  check(cudaSetDevice(device_), "choosing the device");
  void* data = nullptr;
  const std::size_t taken = std::max<std::size_t>(bytes, 1);
  const cudaError_t status = on_device ? cudaMalloc(&data, taken) : cudaMallocHost(&data, taken);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // it is told here, not by the next call
    fail("not enough {} memory: {} MiB wanted, {} of {} MiB of the GPU free",
         on_device ? "GPU" : "pinned host", bytes >> 20, memory().free >> 20, memory().total >> 20);
  }
  check(status, "allocating memory");
  if (on_device) {
    check(cudaMemsetAsync(data, 0, bytes, context().stream), "clearing memory");
    return {std::shared_ptr<void>(data, [](void* p) { cudaFree(p); }), bytes, DeviceKind::kCuda};
  }
  std::memset(data, 0, bytes);
  return {std::shared_ptr<void>(data, [](void* p) { cudaFreeHost(p); }), bytes, DeviceKind::kCpu};
}

void CudaBackend::copy(const Tensor& dst, const Tensor& src) {
  QUIRE_CHECK(dst.contiguous() && src.contiguous() && dst.bytes() == src.bytes(), "{} from {}",
              dst.describe(), src.describe());
  check(cudaMemcpyAsync(dst.data(), src.data(), src.bytes(), cudaMemcpyDefault, context().stream), "copying");
}

Event CudaBackend::record() {
  check(cudaEventRecord(events_[++last_event_ % kEvents].get(), context().stream), "recording an event");
  return last_event_;
}

void CudaBackend::wait(Event event) {
  QUIRE_CHECK(event <= last_event_);
  // A mark that was reused since then stands for a later point of the same stream.
  const cudaEvent_t mark = events_[event % kEvents].get();
  if (watch_ != nullptr) return watch_->wait(mark);
  check(cudaEventSynchronize(mark), "running a step");
}

std::unique_ptr<Graph> CudaBackend::capture(const std::function<void()>& ops) {
  loader_.reset();
  check(cudaStreamBeginCapture(context().stream, cudaStreamCaptureModeThreadLocal), "beginning a graph");
  cudaGraph_t graph = nullptr;
  try {
    ops();
  } catch (...) {
    cudaStreamEndCapture(context().stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(context().stream, &graph), "ending a graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "making a graph");
  return std::make_unique<CudaGraph>(executable);
}

void CudaBackend::replay(const Graph& graph) {
  check(cudaGraphLaunch(dynamic_cast<const CudaGraph&>(graph).executable.get(), context().stream),
        "starting a graph");
}

std::optional<DeviceCeiling> CudaBackend::measure_ceiling() {
  return cuda::measure_ceiling(context(), *library_);
}

void CudaBackend::start_profile() { timer_ = std::make_unique<OpTimer>(context()); }

OpTimes CudaBackend::stop_profile() {
  QUIRE_CHECK(timer_ != nullptr);
  const OpTimes times = timer_->finish();
  timer_.reset();
  return times;
}

Tensor CudaBackend::load(const WeightTensor& rows, const Buffer& buffer, DType dtype) {
  if (loader_ == nullptr) loader_ = std::make_unique<WeightLoader>(context_.stream);
  const Tensor matrix(buffer.data(), dtype, {rows.rows(), rows.cols()}, DeviceKind::kCuda);
  loader_->load(rows, matrix);
  return matrix;
}

Buffer CudaBackend::load_codes(const WeightTensor& codes, std::span<const std::byte> tail) {
  const auto code_bytes = static_cast<std::size_t>(codes.rows() * codes.cols());
  Buffer buffer = allocate(code_bytes + tail.size(), MemoryKind::kDevice);
  load(codes, buffer, DType::kU8);
  check(cudaMemcpyAsync(static_cast<std::byte*>(buffer.data()) + code_bytes, tail.data(), tail.size(),
                        cudaMemcpyHostToDevice, context_.stream),
        "a copy of scales");
  check(cudaStreamSynchronize(context_.stream), "a copy of scales");
  return buffer;
}

std::size_t CudaBackend::linear_bytes(std::span<const WeightGroup> parts, DType dtype) const {
  const LinearFormat& format = parts.front().format;
  if (format.is_plain()) return Backend::linear_bytes(parts, dtype);
  return format.input.code != InputFormat::Code::kNone ? w8a8_bytes(w8a8_matrix(nullptr, parts))
                                                       : quantized_bytes(quantized_layout(parts));
}

std::unique_ptr<LinearWeights> CudaBackend::make_linear(std::span<const WeightGroup> parts, DType dtype) {
  const LinearFormat& format = parts.front().format;
  if (format.is_plain()) {
    const WeightTensorPtr rows = plain_rows(parts);
    Buffer buffer = allocate(linear_bytes(parts, dtype), MemoryKind::kDevice);
    const Tensor weight = load(*rows, buffer, dtype);
    return std::make_unique<CudaLinear>(std::move(buffer), weight, rows->rows(), rows->cols());
  }
  if (quantized_workspace_.bytes() == 0)
    quantized_workspace_ = allocate(kQuantizedWorkspaceBytes, MemoryKind::kDevice);
  const QuantizedRows rows = quantized_rows(parts);
  if (format.input.code != InputFormat::Code::kNone) {
    const W8a8Matrix layout = w8a8_matrix(nullptr, parts);
    const std::vector<float> scales = w8a8_scales(rows, layout);
    Buffer buffer = load_codes(*w8a8_codes(rows, layout), std::as_bytes(std::span(scales)));
    const W8a8Matrix matrix = w8a8_matrix(buffer.data(), parts);
    return std::make_unique<W8a8Linear>(std::move(buffer), matrix, matrix.rows, matrix.cols);
  }
  const QuantizedLayout layout = quantized_layout(parts);
  Buffer buffer = load_codes(*quantized_tiles(rows, layout), quantized_tail(rows, layout));
  const QuantizedMatrix matrix = quantized_matrix(buffer.data(), layout, rows.format);
  return std::make_unique<QuantizedLinear>(std::move(buffer), matrix, layout.rows, layout.cols);
}

void CudaBackend::linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                         const Tensor& bias) {
  if (x.dim(0) == 0) return;
  loader_.reset();
  LibraryMatmul* const library = deterministic_ ? nullptr : library_.get();
  visit(weights, [&](const auto& matrix) {
    cuda::linear(context(OpKind::kLinear), library, out, x, matrix, bias, whole(quantized_workspace_));
  });
}

void CudaBackend::embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids,
                            std::int64_t first_row, float scale) {
  loader_.reset();  // before any op waits for another rank: freeing pinned memory may wait for it
  visit(weights, [&](const auto& matrix) { cuda::embedding(context(), out, matrix, ids, first_row, scale); });
}

std::size_t CudaBackend::attention_workspace_bytes(const AttentionShape& shape) const {
  if (!has_fast_attention(DType::kBF16, shape.head_dim)) return 0;
  return static_cast<std::size_t>(prefill_start(shape)) +
         prefill_workspace_bytes(shape, context_.num_sms, prefill_of());
}

std::int64_t CudaBackend::prefill_start(const AttentionShape& shape) const {
  return deterministic_ ? 0 : static_cast<std::int64_t>(decode_workspace_bytes(shape, context_.num_sms));
}

Tensor CudaBackend::prefill_workspace(const Tensor& workspace, const AttentionShape& shape) const {
  const std::int64_t start = prefill_start(shape);
  return workspace.rows(start, workspace.dim(0) - start);
}

std::shared_ptr<const AttentionPlan> CudaBackend::plan_attention(const AttentionBatch& batch,
                                                                 const AttentionShape& shape) {
  auto plan = std::make_shared<const CudaAttentionPlan>(shape);
  if (!batch.workspace.defined()) return plan;
  if (!deterministic_)
    plan_decode(context(OpKind::kAttention), batch, shape, batch.workspace.rows(0, prefill_start(shape)));
  plan_prefill(context(), batch, shape, prefill_workspace(batch.workspace, shape), prefill_of());
  return plan;
}

void CudaBackend::attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache,
                            const AttentionBatch& batch, const AttentionScores& scores) {
  QUIRE_CHECK(batch.plan != nullptr);
  const AttentionShape& shape = dynamic_cast<const CudaAttentionPlan&>(*batch.plan).shape;
  QUIRE_CHECK(scores.window == shape.window, "a window of {}, planned for {}", scores.window, shape.window);
  AttentionCall call{out, q, cache, scores, {}};
  const auto head_dim = static_cast<int>(cache.keys.dim(3));
  const bool fast = has_fast_attention(q.dtype(), head_dim) && !scores.alibi_slopes.defined();
  if (!batch.workspace.defined() || !fast)
    return fixed_order_attention(context(OpKind::kAttention), call, batch, shape);
  if (!deterministic_) {
    call.workspace = batch.workspace.rows(0, prefill_start(shape));
    decode_attention(context(OpKind::kAttention), call, batch, shape);
  }
  call.workspace = prefill_workspace(batch.workspace, shape);
  prefill_attention(context(OpKind::kAttention), call, batch, shape, prefill_of());
}

void CudaBackend::self_attention(const Tensor& out, const AttentionInput& input, const KvCacheLayer& cache,
                                 const AttentionBatch& batch, const AttentionScores& scores) {
  if (deterministic_ || !cluster_attention_supports(context_, input, cache, batch, scores))
    return Backend::self_attention(out, input, cache, batch, scores);
  cluster_attention(context(OpKind::kAttention), out, input, cache, batch, scores);
}

void CudaBackend::gated_linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                               const Tensor& gate_up, Activation activation) {
  const auto fuse = [&](const auto& matrix) {
    return fused_gated_linear(context(OpKind::kLinear), out, x, matrix, activation,
                              deterministic_ ? SumOrder::kFixed : SumOrder::kFree,
                              whole(quantized_workspace_));
  };
  const bool has_kernels = activation == Activation::kSilu || activation == Activation::kGelu;
  if (!has_kernels || !visit(weights, fuse)) Backend::gated_linear(out, x, weights, gate_up, activation);
}

void CudaBackend::routing_linear(const ExpertRouting& out, const Tensor& x, const LinearWeights& router,
                                 const RouterOptions& options, const Tensor& logits) {
  const auto* plain = dynamic_cast<const CudaLinear*>(&router);
  if (deterministic_ || plain == nullptr || !routing_linear_supports(x, plain->matrix()))
    return Backend::routing_linear(out, x, router, options, logits);
  cuda::routing_linear(context(OpKind::kLinear), out, x, plain->matrix(), options);
}

std::unique_ptr<ExpertWeights> CudaBackend::make_experts(std::span<const ExpertParts> experts,
                                                         const ExpertShape& shape, DType dtype) {
  QUIRE_CHECK(std::ssize(experts) == shape.num_experts, "{} of {} experts", experts.size(),
              shape.num_experts);
  if (shape.num_experts > kMaxExperts || shape.top_k > kMaxTopK) {
    fail("{} of {} experts a token: the CUDA backend takes up to {} of {}", shape.top_k, shape.num_experts,
         kMaxTopK, kMaxExperts);
  }
  constexpr std::array kGates = {Activation::kSilu, Activation::kGelu, Activation::kSwigluOai};
  if (std::ranges::find(kGates, shape.activation) == kGates.end())
    fail("the CUDA backend has routed experts of SiLU, GELU and gpt-oss's gate alone");
  const ExpertMatrices all = matrices_of(experts);
  return std::make_unique<CudaExperts>(shape, make_linear(all.gate_up, dtype), make_linear(all.down, dtype));
}

std::size_t CudaBackend::expert_bytes(std::span<const ExpertParts> experts, DType dtype) const {
  const ExpertMatrices all = matrices_of(experts);
  return linear_bytes(all.gate_up, dtype) + linear_bytes(all.down, dtype);
}

void CudaBackend::experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights,
                          const ExpertRouting& routing, const Tensor& workspace) {
  loader_.reset();
  const auto& own = dynamic_cast<const CudaExperts&>(weights);
  ExpertCall call{out, x, {}, {}, routing, workspace, nullptr, weights.biases()};
  ExpertCodes codes;
  if (const auto* gate_up = dynamic_cast<const QuantizedLinear*>(own.gate_up.get())) {
    codes = {gate_up->matrix(), dynamic_cast<const QuantizedLinear&>(*own.down).matrix(),
             whole(quantized_workspace_)};
    call.codes = &codes;
  } else {
    call.gate_up = dynamic_cast<const CudaLinear&>(*own.gate_up).matrix();
    call.down = dynamic_cast<const CudaLinear&>(*own.down).matrix();
  }
  cuda::experts(context(OpKind::kLinear), call, own.shape(), deterministic_);
}

}  // namespace quire::cuda
