// Stands in for NVIDIA's libcuda.so.1 in cuda_module_test.cc. From the environment: FAKE_DRIVER_ERROR is what cuInit
// says, FAKE_DRIVER_DEVICES how many devices there are.
#include <cstdlib>

namespace {

int Number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

extern "C" {
int cuInit(unsigned) { return Number("FAKE_DRIVER_ERROR"); }
int cuDeviceGetCount(int* count) { return *count = Number("FAKE_DRIVER_DEVICES"), 0; }
int cuGetErrorName(int error, const char** name) {
  *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : nullptr;
  return *name == nullptr ? 1 : 0;
}
}
