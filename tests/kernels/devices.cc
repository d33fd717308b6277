#include "tests/kernels/devices.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace edgewise::testing {
namespace {

constexpr int kSkipped = 77;  // no device: as tests/gpu.cmake and tools/gpu/run.sh expect

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

Device Cpu(const std::string& isa) { return {isa, {.isa = isa}, 1e-5, 1e-5, 1e-5, 3e-6}; }

}  // namespace

std::vector<Device> Cpus() {
  if (std::getenv("EDGEWISE_TEST_DEVICE") != nullptr) return {};
  return {Cpu("generic"), Cpu("avx2"), Cpu("avx512")};
}

std::vector<Device> CpuFormats() {
  std::vector<Device> formats, cpus = Cpus();
  if (!cpus.empty()) cpus.push_back(Cpu("amx"));  // what is not a product of a format is avx512
  for (const Device& device : cpus) {
    for (const char* weights : {"bfloat16", "int8"}) {
      formats.push_back(device);
      formats.back().name += std::string("_") + weights;
      formats.back().options.weights = weights;
    }
  }
  return formats;
}

std::vector<Device> Gpus() {
  const char* named = std::getenv("EDGEWISE_TEST_DEVICE");
  const std::string device = named == nullptr ? "cuda:0" : named;
  return {{"cuda_fp32", {.device = device}, 3e-5, 1e-5, 1e-9, 5e-6},
          {"cuda_bf16", {.device = device, .precision = "bf16"}, 2e-2, 1e-5, 1e-9, 5e-6, true}};
}

std::vector<Device> Devices() {
  std::vector<Device> devices = Cpus();
  for (const Device& gpu : Gpus()) devices.push_back(gpu);
  return devices;
}

std::string NameOf(const ::testing::TestParamInfo<Device>& info) { return info.param.name; }

void PrintTo(const Device& device, std::ostream* out) { *out << device.name; }

Buffer Place(Backend& backend, std::span<const float> host) {
  auto buffer = backend.Allocate(static_cast<int64_t>(host.size()));
  Check(buffer.status());
  Check(backend.Upload(host, buffer->data()));
  return *std::move(buffer);
}

std::vector<float> Fetch(Backend& backend, const Buffer& buffer) {
  std::vector<float> host(static_cast<size_t>(buffer.size()));
  Check(backend.Download(buffer.data(), host));
  return host;
}

PlacedCase::PlacedCase(Backend& backend, const Case& attention_case)
    : inputs(attention_case.inputs), columns(attention_case.out_columns()) {
  const auto place = [&](std::span<const float> host, const float*& pointer) {
    if (pointer == nullptr || host.empty()) return;
    const auto offset = pointer - host.data();
    pointer = buffers.emplace_back(Place(backend, host)).data() + offset;
  };
  const std::span<const float> data = attention_case.data;
  const float* placed = buffers.emplace_back(Place(backend, data)).data();
  for (ConstMatrix* matrix : {&inputs.q, &inputs.k, &inputs.v}) matrix->data = placed + (matrix->data - data.data());
  place(attention_case.x, inputs.memberships.x);
  place(attention_case.y, inputs.memberships.y);
  place(attention_case.query_bound, inputs.memberships.query_bound);
  place(attention_case.key_bound, inputs.memberships.key_bound);
  if (inputs.distance_bias != nullptr) {
    const size_t values = static_cast<size_t>(inputs.num_heads) * (2 * static_cast<size_t>(inputs.distance_span) - 1);
    place({inputs.distance_bias, values}, inputs.distance_bias);
  }
  out = Place(backend, std::vector<float>(attention_case.out_rows * attention_case.out_columns(), NAN));
}

Outcome RunOn(Backend& backend, const Case& attention_case, std::vector<EdgeCap> caps, double share) {
  const PlacedCase placed(backend, attention_case);
  Outcome outcome;
  outcome.caps = std::move(caps);
  if (share == 1.0) {
    Check(backend.Attend(placed.inputs, attention_case.problems, outcome.caps, placed.Out()));
  } else {
    auto parts = backend.AttendInParts(placed.inputs, attention_case.problems, outcome.caps, placed.Out());
    Check(parts.status());
    for (bool done = *parts == nullptr; !done;) {
      const absl::StatusOr<bool> next = (*parts)->Next(share);
      Check(next.status());
      done = *next;
    }
  }
  outcome.out = Fetch(backend, placed.out);
  for (const AttentionProblem& problem : attention_case.problems) outcome.reports.push_back(*problem.report);
  return outcome;
}

void ExpectSameReports(const Outcome& got, const Outcome& want, double weights, double expected) {
  ASSERT_EQ(got.reports.size(), want.reports.size());
  for (size_t p = 0; p < want.reports.size(); ++p) {
    ASSERT_EQ(got.reports[p].heads.size(), want.reports[p].heads.size());
    for (size_t h = 0; h < want.reports[p].heads.size(); ++h) {
      const HeadReport& a = got.reports[p].heads[h];
      const HeadReport& b = want.reports[p].heads[h];
      SCOPED_TRACE("problem " + std::to_string(p) + " head " + std::to_string(h));
      ASSERT_EQ(a.edges, b.edges);
      ASSERT_EQ(a.isolated, b.isolated);
      ASSERT_EQ(a.key_degrees, b.key_degrees);
      ASSERT_NEAR(a.expected, b.expected, expected * b.expected);
      ASSERT_EQ(a.graph.row_offsets, b.graph.row_offsets);
      ASSERT_EQ(a.graph.keys, b.graph.keys);
      ASSERT_EQ(a.graph.multiplicity, b.graph.multiplicity);
      ASSERT_LE(LargestDifference(a.graph.weights, b.graph.weights), weights);
    }
  }
  ASSERT_EQ(got.caps.size(), want.caps.size());
  for (size_t c = 0; c < want.caps.size(); ++c) ASSERT_EQ(got.caps[c].capped, want.caps[c].capped) << "cap " << c;
}

void DeviceTest::SetUp() {
  auto backend = Make(2);
  if (absl::IsUnavailable(backend.status()) || absl::IsUnimplemented(backend.status())) {
    if (std::getenv("EDGEWISE_TEST_DEVICE") == nullptr) GTEST_SKIP() << backend.status();
    std::fprintf(stderr, "skipped: %s\n", backend.status().ToString().c_str());
    std::_Exit(kSkipped);
  }
  ASSERT_TRUE(backend.ok()) << backend.status();
  backend_ = *std::move(backend);
  on_emulator_ = GetParam().options.device != "cpu" && std::getenv("EDGEWISE_CUDA_MODULE") != nullptr;
}

absl::StatusOr<std::unique_ptr<Backend>> DeviceTest::Make(int threads) const {
  BackendOptions options = GetParam().options;
  if (options.device == "cpu") options.num_threads = threads;
  return CreateBackend(options);
}

void DeviceTest::ExpectReference(const Case& attention_case, const std::vector<EdgeCap>& caps) {
  const Outcome want = RunReference(attention_case, caps), got = Run(attention_case, caps);
  ExpectNear(got.out, want.out, GetParam().outputs);
  ExpectSameReports(got, want, GetParam().weights, GetParam().expected);
}

void DeviceTest::ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance) {
  double largest = 0.0;
  for (const float value : want) largest = std::max(largest, std::abs(static_cast<double>(value)));
  EXPECT_LE(LargestDifference(got, want), tolerance * largest);
}

}  // namespace edgewise::testing
