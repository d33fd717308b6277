// Edge caps on the device where many edges have one age, or nearly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>

#include "kernels/cuda/attention/age_select.h"
#include "tests/cuda/attention_caps_case.h"

namespace edgewise::cuda {
namespace {

using edgewise::testing::Case;
using edgewise::testing::Shape;
using testing::CapOf;
using testing::DeviceCase;
using testing::Drawn;
using testing::DrawnUnder;
using testing::ExpectAsReference;
using testing::ExpectCap;
using testing::List;
using testing::Select;

// The same sequence several times with the same random key: each age as often, the order decides.
TEST(SelectYoungestTiesTest, EdgesOfOneAgeAreKeptInTheOrderOfProblemHeadQueryAndKey) {
  Shape shape;
  shape.lengths = {24};
  shape.heads = 2;
  shape.mean_rate = 0.5;
  Case host(shape);
  for (int copy = 0; copy < 5; ++copy) host.AddProblems(DrawnRows{.law = Law::kPoissonMulti}, 0);
  host.AskForAll();
  for (uint64_t cap = 501; cap < 508; ++cap) ExpectAsReference(host, {cap}, std::to_string(cap));
}

// Sequences of one token, all with the same uniform number, whose edges have ages as near as their rates; and one of 40
// tokens, whose edges have ages of all sizes. That uniform number is just above a multiple of 2^-8 and the ages just
// below a bucket's end, so that a bound on either that is slightly too low loses edges.
struct Crowd {
  Crowd(int size, double spread) : size(size), host(ShapeOf(size)) {
    DrawnRows pattern;
    for (pattern.key.seed = 1;; ++pattern.key.seed) {
      const double u = static_cast<double>(PairUniform(pattern.key, 0, 0, 0)) / kPairUniformScale;
      const double bucket = u / kRate * kAgeBuckets, byte = u * 256.0;
      if (u > 0.1 && u < 0.2 && bucket - std::floor(bucket) > 0.7 && byte - std::floor(byte) < 4e-4) break;
    }
    std::mt19937 random(7);
    std::fill(host.x.begin(), host.x.end(), 0.0f);
    std::fill(host.y.begin(), host.y.end(), 0.0f);
    for (size_t i = 0; i < host.query_bound.size(); ++i) {
      const float rate = static_cast<float>(kRate + spread * static_cast<double>(random() % 1024) / 1024.0);
      host.x[i * 16] = host.query_bound[i] = rate;
      host.y[i * 16] = host.key_bound[i] = 1.0f;
    }
    host.AddProblems(pattern, 0);
    drawn = DrawnUnder(host, 0);
    while (std::get<1>(drawn.edges[first]) == size) ++first;
  }
  static Shape ShapeOf(int size) {
    Shape shape;
    shape.lengths.assign(size, 1);
    shape.lengths.push_back(40);
    shape.heads = 1;
    shape.head_dim = 1;
    shape.rank = 16;
    return shape;
  }
  static constexpr double kRate = 0.98;
  int size;
  Case host;
  Drawn drawn;
  size_t first = 0;  // of the sequences of one token among the drawn edges
};

TEST(SelectYoungestTiesTest, DividesABucketThatHasTooManyEdges) {
  const Crowd crowd(9000, 3e-6);
  const uint32_t youngest = AgeTick(std::get<0>(crowd.drawn.edges[crowd.first]));
  const uint32_t oldest = AgeTick(std::get<0>(crowd.drawn.edges[crowd.first + 8999]));
  ASSERT_EQ(AgeBucket(youngest), AgeBucket(oldest));
  ASSERT_LT(youngest, oldest);
  for (const uint64_t allowed : {crowd.first, crowd.first + 4321}) {
    DeviceCase device(crowd.host, {CapOf(allowed)});
    Select(device);
    ExpectCap(device.Caps()[0], crowd.drawn, allowed, 1, std::to_string(allowed));
  }
}

TEST(SelectYoungestTiesTest, ReportsThatMoreEdgesThanItCanListHaveOneAge) {
  const Crowd crowd(8193, 0.0);
  DeviceCase device(crowd.host, {CapOf(crowd.first + 100)});
  Select(device);
  const DeviceCap cap = device.Caps()[0];
  EXPECT_EQ(cap.failed, 1);
  EXPECT_EQ(cap.drawn, crowd.drawn.edges.size());
  EXPECT_EQ(List(device, 8193).keys.size(), 0u);  // the allowance holds all the same
}

TEST(SelectYoungestTiesTest, SelectsAmongAsManyEdgesOfOneAgeAsItCanList) {
  const Crowd crowd(8100, 0.0);  // and some that are near
  const uint64_t allowed = crowd.first + 6000;
  DeviceCase device(crowd.host, {CapOf(allowed)});
  Select(device);
  ExpectCap(device.Caps()[0], crowd.drawn, allowed, 1, "one age");
}

}  // namespace
}  // namespace edgewise::cuda
