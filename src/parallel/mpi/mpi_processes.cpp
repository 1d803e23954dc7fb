// The module lib/quire/libquire_mpi.so: processes and their CPU collectives over MPI.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "parallel/processes.h"
#include "parallel/rank_sum.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Of each rank, that one MPI call moves: bounds the scratch memory, and MPI counts in int.
constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

// How a wait goes on: MPI makes progress only while it is asked, but a peer may need this core.
constexpr auto kSpin = 50us;
constexpr auto kYield = 500us;
constexpr auto kLongestSleep = 100us;
constexpr auto kCheckPeriod = 1ms;

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("MPI failed in {}: {}", what, std::string(text, static_cast<std::size_t>(length)));
}

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, std::function<void()> check_alive)
      : comm_(comm), check_alive_(std::move(check_alive)) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  // MPI_Comm_free is left to MPI_Finalize: all ranks would have to be there for it.
  ~MpiCommunicator() override {
    if (under_way_) new auto(std::move(scratch_));  // kept: MPI may still write there
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(const Tensor& tensor) override {
    QUIRE_CHECK(tensor.contiguous(), "{}", tensor.describe());
    const std::size_t element = size_of(tensor.dtype());
    const auto per_chunk = static_cast<std::int64_t>(kChunkBytes / element);
    std::vector<const std::byte*> parts(static_cast<std::size_t>(size_));
    for (std::int64_t begin = 0; begin < tensor.numel(); begin += per_chunk) {
      const std::int64_t count = std::min(per_chunk, tensor.numel() - begin);
      const Tensor chunk(tensor.data_as<std::byte>() + static_cast<std::size_t>(begin) * element,
                         tensor.dtype(), {count});
      gather(chunk.data(), chunk.bytes());
      for (std::size_t r = 0; r < parts.size(); ++r) parts[r] = received(r, chunk.bytes());
      add_in_order(chunk, parts, 0, count);
    }
  }

  void all_gather(const Tensor& out, const Tensor& in) override {
    QUIRE_CHECK(in.num_dims() == 2 && out.num_dims() == 2 && out.dim(0) == in.dim(0) &&
                    out.dim(1) == size_ * in.dim(1) && out.dtype() == in.dtype(),
                "{} into {}", in.describe(), out.describe());
    const std::size_t row_bytes = static_cast<std::size_t>(in.dim(1)) * size_of(in.dtype());
    if (row_bytes == 0) return;
    const auto per_chunk = static_cast<std::int64_t>(std::max<std::size_t>(kChunkBytes / row_bytes, 1));
    for (std::int64_t begin = 0; begin < in.dim(0); begin += per_chunk) {
      const std::int64_t count = std::min(per_chunk, in.dim(0) - begin);
      gather_rows(out.rows(begin, count), in.rows(begin, count), row_bytes);
    }
  }

  void check_ranks() override { check_alive_(); }

 private:
  // What rank r sent to the last gather of `bytes`.
  const std::byte* received(std::size_t r, std::size_t bytes) const { return scratch_.data() + r * bytes; }

  // Every rank's `bytes` at data, to be found by received().
  void gather(const void* data, std::size_t bytes) {
    scratch_.resize(std::max(scratch_.size(), bytes * static_cast<std::size_t>(size_)));
    QUIRE_CHECK(bytes <= INT_MAX);
    const auto count = static_cast<int>(bytes);
    wait("an all-gather", [&](MPI_Request* request) {
      return MPI_Iallgather(data, count, MPI_BYTE, scratch_.data(), count, MPI_BYTE, comm_, request);
    });
  }

  void gather_rows(const Tensor& out, const Tensor& in, std::size_t row_bytes) {
    const auto rows = static_cast<std::size_t>(in.dim(0));
    const void* data = in.data();
    if (!in.contiguous()) {
      packed_.resize(rows * row_bytes);
      for (std::size_t row = 0; row < rows; ++row)
        std::memcpy(packed_.data() + row * row_bytes, row_of(in, row), row_bytes);
      data = packed_.data();
    }
    gather(data, rows * row_bytes);
    for (std::size_t r = 0; r < static_cast<std::size_t>(size_); ++r) {
      for (std::size_t row = 0; row < rows; ++row) {
        std::memcpy(row_of(out, row) + r * row_bytes, received(r, rows * row_bytes) + row * row_bytes,
                    row_bytes);
      }
    }
  }

  static std::byte* row_of(const Tensor& tensor, std::size_t row) {
    return tensor.rows(static_cast<std::int64_t>(row), 1).data_as<std::byte>();
  }

  // Starts an operation by start(request) and waits until it is done.
  template <typename Start>
  void wait(const char* what, const Start& start) {
    QUIRE_CHECK(!under_way_, "used again after it gave up");
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(start(&request), what);
    under_way_ = true;
    const Clock::time_point begin = Clock::now();
    Clock::time_point next_check = begin + kCheckPeriod;
    while (true) {
      int done = 0;
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
      if (done != 0) break;
      const Clock::time_point now = Clock::now();
      if (now >= next_check) {
        check_alive_();
        next_check = now + kCheckPeriod;
      }
      const auto waited = now - begin;
      if (waited < kSpin) continue;
      if (waited < kYield) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::min<Clock::duration>(kLongestSleep, waited / 16));
      }
    }
    under_way_ = false;
  }

  MPI_Comm comm_;
  std::function<void()> check_alive_;
  int rank_ = 0;
  int size_ = 0;
  std::vector<std::byte> scratch_;  // what all ranks sent
  std::vector<std::byte> packed_;   // rows of an `in` that is not contiguous
  bool under_way_ = false;          // an operation is; it stays so where it was given up
};

class MpiProcesses : public Processes {
 public:
  MpiProcesses() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized == 0) {
      // Else a thread that finds a peer's connection closed waits in MPI until mpirun has printed that, which
      // may then be busy ending this process.
      ::setenv("OMPI_MCA_orte_execute_quiet", "1", 0);
      int provided = 0;
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
      if (provided < MPI_THREAD_SERIALIZED)
        fail("this MPI can be used by one thread alone (MPI_THREAD_SERIALIZED is missing)");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // copies inherit it
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    check_launcher();
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &tensors_), "MPI_Comm_dup");  // here, where all are
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
    MPI_Comm_rank(host, &place_on_host_);
    MPI_Comm_size(host, &num_on_host_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int place_on_host() const override { return place_on_host_; }
  int num_on_host() const override { return num_on_host_; }

  std::string broadcast(const std::string& text, int root) override {
    if (finished_) fail("MPI has ended in this process; under mpirun a process has one engine");
    std::uint64_t length = text.size();
    check_mpi(MPI_Bcast(&length, 1, MPI_UINT64_T, root, MPI_COMM_WORLD), "MPI_Bcast");
    QUIRE_CHECK(length <= INT_MAX);
    std::string result = rank_ == root ? text : std::string(length, '\0');
    check_mpi(MPI_Bcast(result.data(), static_cast<int>(length), MPI_CHAR, root, MPI_COMM_WORLD),
              "MPI_Bcast");
    return result;
  }

  std::unique_ptr<Communicator> connect(std::function<void()> check_alive) override {
    return std::make_unique<MpiCommunicator>(tensors_, std::move(check_alive));
  }

  void finish() override {
    finished_ = true;
    check_mpi(MPI_Finalize(), "MPI_Finalize");
  }

 private:
  // Processes that another MPI's launcher started do not find each other: each is alone.
  void check_launcher() const {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
      const char* size = std::getenv(name);
      if (size == nullptr) continue;
      if (size == std::to_string(size_)) return;
      char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
      int length = 0;
      MPI_Get_library_version(version, &length);
      fail("mpirun started {} processes, but MPI knows of {}; use the mpirun of {}", size, size_,
           std::string(version).substr(0, std::string(version).find_first_of(",\n")));
    }
  }

  int rank_ = 0;
  int size_ = 1;
  int place_on_host_ = 0;
  int num_on_host_ = 1;
  bool finished_ = false;
  MPI_Comm tensors_ = MPI_COMM_NULL;  // their messages do not meet those of the start
};

}  // namespace
}  // namespace quire

extern "C" void quire_open_processes(std::unique_ptr<quire::Processes>& processes) {
  processes = std::make_unique<quire::MpiProcesses>();
}
