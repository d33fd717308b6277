// Streams and events of the runtime API. All work is done when the call that gives it returns, but for copies from and
// to pinned memory (memory.cc). A stream or event that does not exist ends the process.
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "tests/cuda/emulator/runtime_state.h"

struct CUstream_st {};
struct CUevent_st {
  bool recorded = false;
  cudaStream_t stream = nullptr;
  uint64_t number = 0;  // of the last flight before it
  std::chrono::steady_clock::time_point time;
};

namespace emulator {
namespace {

CUevent_st& Event(Device& d, cudaEvent_t event) {
  if (!d.events.contains(event)) FailCall("no event %p", static_cast<void*>(event));
  return *event;
}

bool IsDone(const Device& d, cudaStream_t stream, uint64_t until) {
  return std::none_of(d.flights.begin(), d.flights.end(),
                      [&](const Flight& flight) { return flight.stream == stream && flight.number <= until; });
}

}  // namespace

void CheckStream(Device& d, cudaStream_t stream) {
  if (stream != nullptr && !d.streams.contains(stream)) FailCall("no stream %p", static_cast<void*>(stream));
}

}  // namespace emulator

using emulator::Call;
using emulator::Device;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return Call([&](Device& d) {
    d.streams.insert(*stream = new CUstream_st);
    ++d.taken.streams;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call([&](Device& d) {
    if (d.streams.erase(stream) == 0) emulator::FailCall("no stream %p", static_cast<void*>(stream));
    emulator::Wait(d, stream);
    delete stream;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::Wait(d, stream), cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    return emulator::IsDone(d, stream, d.enqueued) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return Call([&](Device& d) {
    d.events.insert(*event = new CUevent_st);
    ++d.taken.events;
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call([&](Device& d) {
    emulator::Event(d, event);
    d.events.erase(event);
    delete event;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call([&](Device& d) {
    emulator::CheckStream(d, stream);
    emulator::Event(d, event) = {true, stream, d.enqueued, std::chrono::steady_clock::now()};
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call([&](Device& d) {
    const CUevent_st& of = emulator::Event(d, event);
    return emulator::Wait(d, of.stream, of.number), cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call([&](Device& d) {
    const CUevent_st& of = emulator::Event(d, event);
    return emulator::IsDone(d, of.stream, of.number) ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return Call([&](Device& d) {
    const CUevent_st &from = emulator::Event(d, start), &to = emulator::Event(d, end);
    if (!from.recorded || !to.recorded) return cudaErrorInvalidResourceHandle;
    *milliseconds = std::chrono::duration<float, std::milli>(to.time - from.time).count();
    return cudaSuccess;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Call([&](Device& d) {
    emulator::Event(d, event);
    return emulator::CheckStream(d, stream), cudaSuccess;
  });
}
