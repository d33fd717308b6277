#include "tests/cuda/device_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace edgewise::testing {
namespace {

constexpr int kSkipped = 77;  // no device: as tests/gpu.cmake and tools/gpu/run.sh expect

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

std::unique_ptr<Backend> MakeDevice(const std::string& precision) {
  const char* device = std::getenv("EDGEWISE_TEST_DEVICE");
  auto backend = CreateBackend({device == nullptr ? "cuda:0" : device, 0, "auto", precision});
  if (absl::IsUnavailable(backend.status()) || absl::IsUnimplemented(backend.status())) {
    std::fprintf(stderr, "skipped: %s\n", backend.status().ToString().c_str());
    std::_Exit(kSkipped);
  }
  Check(backend.status());
  return *std::move(backend);
}

bool OnGpu() { return std::getenv("EDGEWISE_CUDA_MODULE") == nullptr; }

Buffer Place(Backend& backend, std::span<const float> host) {
  auto buffer = backend.Allocate(static_cast<int64_t>(host.size()));
  Check(buffer.status());
  Check(backend.Upload(host, buffer->data()));
  return *std::move(buffer);
}

PlacedCase::PlacedCase(Backend& backend, const Case& attention_case) : inputs(attention_case.inputs) {
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
  out = Place(backend, std::vector<float>(attention_case.out_rows * inputs.v.columns, NAN));
}

Outcome RunOnDevice(Backend& backend, const Case& attention_case, std::vector<EdgeCap> caps) {
  const PlacedCase placed(backend, attention_case);
  Outcome outcome;
  outcome.caps = std::move(caps);
  Check(backend.Attend(placed.inputs, attention_case.problems, outcome.caps, placed.Out()));
  outcome.out.resize(static_cast<size_t>(placed.out.size()));
  Check(backend.Download(placed.out.data(), outcome.out));
  for (const AttentionProblem& problem : attention_case.problems) outcome.reports.push_back(*problem.report);
  return outcome;
}

double RelativeDifference(std::span<const float> got, std::span<const float> want) {
  double largest = 0.0;
  for (const float value : want) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return LargestDifference(got, want) / (largest > 0.0 ? largest : 1.0);
}

void ExpectSameReports(const Outcome& got, const Outcome& want, double tolerance) {
  ASSERT_EQ(got.reports.size(), want.reports.size());
  for (size_t p = 0; p < want.reports.size(); ++p) {
    ASSERT_EQ(got.reports[p].heads.size(), want.reports[p].heads.size());
    for (size_t h = 0; h < want.reports[p].heads.size(); ++h) {
      const HeadReport& a = got.reports[p].heads[h];
      const HeadReport& b = want.reports[p].heads[h];
      EXPECT_EQ(a.edges, b.edges) << "problem " << p << " head " << h;
      EXPECT_EQ(a.isolated, b.isolated) << "problem " << p << " head " << h;
      EXPECT_EQ(a.key_degrees, b.key_degrees) << "problem " << p << " head " << h;
      EXPECT_NEAR(a.expected, b.expected, 1e-6 * (1.0 + b.expected)) << "problem " << p << " head " << h;
      EXPECT_EQ(a.graph.row_offsets, b.graph.row_offsets) << "problem " << p << " head " << h;
      EXPECT_EQ(a.graph.keys, b.graph.keys) << "problem " << p << " head " << h;
      EXPECT_EQ(a.graph.multiplicity, b.graph.multiplicity) << "problem " << p << " head " << h;
      EXPECT_LE(LargestDifference(a.graph.weights, b.graph.weights), tolerance) << "problem " << p << " head " << h;
    }
  }
}

}  // namespace edgewise::testing
