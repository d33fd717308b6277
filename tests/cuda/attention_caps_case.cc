#include "tests/cuda/attention_caps_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "kernels/cuda/attention/age_select.h"
#include "kernels/reference.h"

namespace edgewise::cuda::testing {

using edgewise::testing::Case;

Drawn DrawnUnder(const Case& host, int32_t cap) {
  Drawn drawn;
  for (size_t p = 0; p < host.problems.size(); ++p) {
    const AttentionProblem& problem = host.problems[p];
    if (problem.cap != cap || !std::holds_alternative<DrawnRows>(problem.pattern)) continue;
    for (int h = 0; h < host.inputs.num_heads; ++h) {
      for (const reference::Edge& edge : reference::DrawEdges(host.inputs, problem, h)) {
        if (edge.forced) {
          ++drawn.forced;
        } else {
          drawn.edges.emplace_back(edge.age, static_cast<int32_t>(p), h, edge.query, edge.key);
        }
      }
    }
  }
  std::sort(drawn.edges.begin(), drawn.edges.end());
  return drawn;
}

void ExpectCap(const DeviceCap& cap, const Drawn& drawn, uint64_t allowed, int num_heads, const std::string& what) {
  EXPECT_EQ(cap.forced, drawn.forced) << what;
  EXPECT_EQ(cap.drawn, drawn.edges.size()) << what;
  EXPECT_EQ(cap.allowed, allowed) << what;
  EXPECT_EQ(cap.failed, 0) << what;
  const bool drops = drawn.edges.size() > allowed;
  EXPECT_EQ(cap.capped, drops ? 1 : 0) << what;
  if (!drops) {
    EXPECT_EQ(cap.cut.age_bits, ~uint64_t{0}) << what;
    EXPECT_EQ(cap.tau, 1.0) << what;
    return;
  }
  const auto [age, problem, head, query, key] = drawn.edges[allowed];
  EXPECT_EQ(cap.cut.age_bits, AgeBits(age)) << what;
  EXPECT_EQ(cap.cut.order, EdgeOrder(problem, num_heads, head, query, key)) << what;
  EXPECT_EQ(cap.tau, age) << what;
}

void ExpectAsReference(const Case& host, const std::vector<uint64_t>& max_edges, const std::string& what) {
  std::vector<EdgeCap> caps;
  std::vector<DeviceCap> device_caps;
  for (uint64_t edges : max_edges) {
    caps.push_back(EdgeCap{edges});
    device_caps.push_back(CapOf(edges));
  }
  const edgewise::testing::Outcome want = RunReference(host, caps);
  DeviceCase device(host, device_caps);
  Select(device);
  const std::vector<DeviceCap> got = device.Caps();
  for (size_t c = 0; c < caps.size(); ++c) {
    EXPECT_EQ(got[c].capped != 0, want.caps[c].capped) << what;
    const Drawn drawn = DrawnUnder(host, static_cast<int32_t>(c));
    const uint64_t taken = drawn.forced + got[c].undrawn;
    ExpectCap(got[c], drawn, max_edges[c] > taken ? max_edges[c] - taken : 0, device.call.num_heads, what);
  }
  for (size_t p = 0; p < host.problems.size(); ++p) {
    if (device.problems[p].kind != PatternKind::kDrawn) continue;
    SCOPED_TRACE(what);
    ExpectListed(device, static_cast<int32_t>(p), want.reports[p]);
  }
}

}  // namespace edgewise::cuda::testing
