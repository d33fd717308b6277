// A malloc that leaks, to be loaded before the server's own (LD_PRELOAD): `./dev bench soak` must notice it.
#include <atomic>
#include <cstddef>
#include <cstring>

extern "C" void* __libc_malloc(size_t bytes);

namespace {

constexpr size_t kLeaked = 4096;   // bytes
constexpr unsigned kEvery = 1000;  // calls
std::atomic<unsigned> calls = 0;

}  // namespace

extern "C" void* malloc(size_t bytes) {
  if (calls.fetch_add(1, std::memory_order_relaxed) % kEvery == kEvery - 1) {
    if (void* const leaked = __libc_malloc(kLeaked)) std::memset(leaked, 1, kLeaked);
  }
  return __libc_malloc(bytes);
}
