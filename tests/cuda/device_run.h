// The CUDA backend under test, and attention cases (tests/kernels/attention_cases.h) run on it. The backend comes from
// the module that EDGEWISE_CUDA_MODULE names: the emulated one in ctest, the real one in the GPU bundle.
#ifndef EDGEWISE_TESTS_CUDA_DEVICE_RUN_H_
#define EDGEWISE_TESTS_CUDA_DEVICE_RUN_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::testing {

// Where there is none, ends the process with 77: skipped.
std::unique_ptr<Backend> MakeDevice(const std::string& precision = "fp32");

// Whether kernels run on a GPU and not on the emulator: sizes can be what they are in use.
bool OnGpu();

// A backend's copy of host floats.
Buffer Place(Backend& backend, std::span<const float> host);

// A backend's copies of what a case's inputs point to, and room for what it gives: NaN until then.
struct PlacedCase {
  PlacedCase(Backend& backend, const Case& attention_case);
  Matrix Out() const { return out.AsMatrix(out.size() / inputs.v.columns, inputs.v.columns); }

  AttentionInputs inputs;
  std::vector<Buffer> buffers;
  Buffer out;
};

// Uploads the case, attends, waits, downloads.
Outcome RunOnDevice(Backend& backend, const Case& attention_case, std::vector<EdgeCap> caps = {});

// Largest difference over the largest value of `want`.
double RelativeDifference(std::span<const float> got, std::span<const float> want);

// Graphs and counts agree exactly, weights and expected edges to within a tolerance.
void ExpectSameReports(const Outcome& got, const Outcome& want, double tolerance);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CUDA_DEVICE_RUN_H_
