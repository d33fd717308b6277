// The state behind the runtime API, shared by runtime.cc and memory.cc.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_RUNTIME_STATE_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_RUNTIME_STATE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/cuda/emulator/cuda_runtime.h"
#include "tests/cuda/emulator/emulator.h"

namespace emulator {

struct Allocation {
  size_t bytes;
  bool pooled = false;
  cudaStream_t stream = nullptr;  // of pooled memory
};

struct Pool {
  size_t reserved = 0, used = 0;  // bytes taken from the driver, and of them those of allocations
  uint64_t threshold = 0;         // bytes of the rest that stay when the host waits
};

// A copy from or to pinned memory that the host has not waited for.
struct Flight {
  cudaStream_t stream;
  uint64_t number;  // among all
  char* host;
  std::vector<char> bytes;  // read there, or to be written there
  bool to_host;
};

inline constexpr int kRuntimeVersion = 13000;  // of CUDA

struct Device {
  Device();  // as the environment says

  std::recursive_mutex mutex;            // held while a grid runs, but let go for others between two blocks
  std::atomic<int> waiting = 0;          // for the mutex
  std::thread::id grid;                  // the thread that runs one; none: no grid runs
  std::condition_variable_any grid_end;  // `grid` is none now
  std::atomic<uint64_t> calls = 0;
  int64_t launches_left = -1;  // until all calls fail; negative: never
  bool lost = false;
  uint64_t launches = 0, allocated = 0, copies = 0;  // how many
  Order order = kForward;
  bool guarded = false;  // host code that touches device memory ends the process
  int unguarded = 0;     // how many reasons there are why it can be touched now
  size_t memory = size_t{16} << 30;
  size_t used = 0;  // what the driver gave: to the pool, and outside it
  bool pools = true;
  int driver = kRuntimeVersion;
  int capability = 90;
  Pool pool;
  std::map<const char*, Allocation> allocations;       // of device memory, by address
  std::map<const char*, Allocation> host_allocations;  // pinned
  uint64_t enqueued = 0;                               // flights so far
  std::vector<Flight> flights;                         // oldest first
  std::map<const void*, int> shared_limits;            // of kernels that asked for more
  std::set<const void*> kernels;                       // that are loaded
  std::set<const void*> launched;                      // kernels, since the process began
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  Taken taken;
};
Device& TheDevice();

inline thread_local cudaError_t last_error = cudaSuccess;

// Every call of the API goes through here: `f(device)` under the lock, unless the device is lost.
template <typename F>
cudaError_t Call(F f) {
  Device& d = TheDevice();
  ++d.waiting;
  const std::lock_guard lock(d.mutex);
  --d.waiting;
  ++d.calls;
  const cudaError_t error = d.lost ? cudaErrorIllegalAddress : f(d);
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Waits until no grid runs. Within a call, and not within another.
void AwaitGrid(Device& d, const char* call);

void CheckStream(Device& d, cudaStream_t stream);

// The host has waited for the flights of a stream, or of all, up to number `until`.
void Wait(Device& d, std::optional<cudaStream_t> stream, uint64_t until = ~uint64_t{0});

// While one lives, guarded device memory can be touched.
class Unguarded {
 public:
  explicit Unguarded(Device& d);
  ~Unguarded();

 private:
  Device& device_;
};

// Reports a wrong call and ends the process.
[[noreturn]] __attribute__((format(printf, 1, 2))) void FailCall(const char* format, ...);

}  // namespace emulator

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_RUNTIME_STATE_H_
