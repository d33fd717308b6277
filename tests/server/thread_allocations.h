// Work as what `operator new` gives to each thread: to parse a message, to check a part of it, to make tokens of it or
// to write an answer allocates about as much as there is. For programs with thread_allocations.cc.
#ifndef EDGEWISE_TESTS_SERVER_THREAD_ALLOCATIONS_H_
#define EDGEWISE_TESTS_SERVER_THREAD_ALLOCATIONS_H_

#include <cstdint>
#include <functional>

namespace edgewise::tests {

// The bytes that a thread that serves everybody may allocate for one call.
inline constexpr uint64_t kLittle = 48 << 10;

// Bytes, by the names of the threads of a server.
struct Allocations {
  uint64_t calls = 0, http = 0, answers = 0;  // that read and end the calls of all clients
  uint64_t preparation = 0, long_answers = 0;
  uint64_t largest_of_calls = 0, largest_of_http = 0;  // the largest pieces
};

// While `work` runs, on whichever thread. One call at a time.
Allocations AllocationsDuring(const std::function<void()>& work);

}  // namespace edgewise::tests

#endif  // EDGEWISE_TESTS_SERVER_THREAD_ALLOCATIONS_H_
