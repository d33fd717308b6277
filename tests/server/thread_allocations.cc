#include "tests/server/thread_allocations.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

namespace {

constexpr const char* kThreads[] = {"calls", "http", "answers", "preparation", "long answers"};
std::atomic<bool> counting{false};
std::atomic<uint64_t> allocated[std::size(kThreads)], largest[std::size(kThreads)];

void Count(size_t size) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  for (size_t i = 0; i < std::size(kThreads); ++i) {
    if (std::strcmp(name, kThreads[i]) != 0) continue;
    allocated[i].fetch_add(size);
    largest[i] = std::max(largest[i].load(), uint64_t{size});  // there is one of these threads, or its calls are few
  }
}

void* Allocate(size_t size) {
  if (counting.load(std::memory_order_relaxed)) Count(size);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace edgewise::tests {

Allocations AllocationsDuring(const std::function<void()>& work) {
  for (std::atomic<uint64_t>& bytes : allocated) bytes = 0;
  for (std::atomic<uint64_t>& bytes : largest) bytes = 0;
  counting = true;
  work();
  counting = false;
  return {allocated[0], allocated[1], allocated[2], allocated[3], allocated[4], largest[0], largest[1]};
}

}  // namespace edgewise::tests
