// The devices that one suite of tests of Backend runs on, what each test needs of them, and attention cases
// (attention_cases.h) run on a backend.
#ifndef EDGEWISE_TESTS_KERNELS_DEVICES_H_
#define EDGEWISE_TESTS_KERNELS_DEVICES_H_

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::testing {

// A row of the table of devices. Tolerances are against the float64 reference.
struct Device {
  std::string name;
  BackendOptions options;
  double outputs;     // of attention, over the largest output
  double weights;     // of softmax weights
  double expected;    // edges, over their number
  double rates;       // of inner products of memberships
  bool bf16 = false;  // keys, values, and both operands of a product are rounded to bf16
};

// The instruction sets of the CPU, and a GPU in both precisions. Where the environment names EDGEWISE_TEST_DEVICE, only
// that GPU; its module, of the emulator or of the GPU of this machine, is the one that EDGEWISE_CUDA_MODULE names.
std::vector<Device> Devices();
std::vector<Device> Cpus();
std::vector<Device> CpuFormats();  // the instruction sets of the CPU, each with --weights=bfloat16 and int8
std::vector<Device> Gpus();
void PrintTo(const Device& device, std::ostream* out);
std::string NameOf(const ::testing::TestParamInfo<Device>& info);

// Instantiates a suite for `devices`: Devices, Cpus or Gpus.
#define EDGEWISE_TEST_ON(devices, Suite)                                                                          \
  INSTANTIATE_TEST_SUITE_P(devices, Suite, ::testing::ValuesIn(::edgewise::testing::devices()), testing::NameOf); \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite)

// A backend's copy of host floats.
Buffer Place(Backend& backend, std::span<const float> host);
std::vector<float> Fetch(Backend& backend, const Buffer& buffer);

// A backend's copies of what a case's inputs point to, and room for what it gives: NaN until then.
struct PlacedCase {
  PlacedCase(Backend& backend, const Case& attention_case);
  Matrix Out() const { return out.AsMatrix(out.size() / columns, columns); }

  AttentionInputs inputs;
  int64_t columns;  // of the output
  std::vector<Buffer> buffers;
  Buffer out;
};

// Uploads the case, attends, waits, downloads. With a `share` below 1, in parts of that share.
Outcome RunOn(Backend& backend, const Case& attention_case, std::vector<EdgeCap> caps = {}, double share = 1.0);

// Graphs, counts and what caps say agree exactly, weights within a tolerance, and expected edges within a share of
// them.
void ExpectSameReports(const Outcome& got, const Outcome& want, double weights, double expected);

// A suite that runs on every device. A test is skipped where the machine lacks the device, and says why.
class DeviceTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override;

  absl::StatusOr<std::unique_ptr<Backend>> Make(int threads) const;
  Outcome Run(const Case& attention_case, std::vector<EdgeCap> caps = {}) {
    return RunOn(*backend_, attention_case, std::move(caps));
  }
  // Outputs, reports and caps are the reference's.
  void ExpectReference(const Case& attention_case, const std::vector<EdgeCap>& caps = {});
  void ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance);
  // A size of a test, which is smaller on the emulator: it is slow.
  int Sized(int size, int emulated) const { return on_emulator_ ? emulated : size; }
  // `columns` of a head, up to a width that the device takes.
  int Aligned(int columns) const {
    const int alignment = backend_->HeadAlignment();
    return (columns + alignment - 1) / alignment * alignment;
  }

  std::unique_ptr<Backend> backend_;
  bool on_emulator_ = false;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_DEVICES_H_
