#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ops/communicator.h"

namespace quire {

// The processes that mpirun started together, one a rank. Thread contract: one call at a time, of this class
// and of its communicators together.
class Processes {
 public:
  virtual ~Processes() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int place_on_host() const = 0;  // number among the processes of this host
  virtual int num_on_host() const = 0;

  // Every process gets what `root` gives. Blocks, and does not notice a peer's death: for the start only.
  virtual std::string broadcast(const std::string& text, int root) = 0;

  // Communicator for tensors on the CPU; waits for nobody. One at a time. Sums are added in float32 in rank
  // order and rounded once: bitwise the same on all ranks and in every run. While an operation waits it calls
  // check_alive about every millisecond, and gives up by throwing what that throws (Error where MPI fails).
  // The communicator is not used again then, and the process is to end without finish(): the operation's
  // tensors may still be written to.
  virtual std::unique_ptr<Communicator> connect(std::function<void()> check_alive) = 0;

  // Ends MPI, in order: waits until every process has called it, and is the last call. It is no destructor,
  // for it would wait for ever once a peer is lost; then the process ends without it (std::_Exit), and mpirun
  // ends what is left of the others.
  virtual void finish() = 0;
};

// The processes this one was started with, or null where it was started alone (also by mpirun -np 1). They
// live as long as the program. Error where mpirun started several and MPI cannot be used.
Processes* started_processes();

// What the MPI module, lib/quire/libquire_mpi.so, exports: Error where MPI cannot be used.
using OpenProcesses = void (*)(std::unique_ptr<Processes>& processes);
inline constexpr char kOpenProcesses[] = "quire_open_processes";

}  // namespace quire
