// The entry that libFuzzer calls. EDGEWISE_FUZZ_TARGET is a function of targets.h.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  edgewise::fuzz::EDGEWISE_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
