// Softmax in parts against one in float64.
#include "kernels/cuda/attention/online_softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace edgewise::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A weighted sum of values 1, 2, 3, .. as kernels keep it.
struct Row {
  OnlineSoftmax state;
  float value = 0.0f;
  int edges = 0;

  void Add(const std::vector<float>& scores, int first) {
    float largest = -kInfinity;
    for (const float score : scores) largest = std::fmax(largest, score);
    const float factor = state.Raise(largest);
    state.sum *= factor;
    value *= factor;
    for (size_t i = 0; i < scores.size(); ++i) {
      const float weight = state.Weight(scores[i]);
      state.sum += weight;
      value += weight * static_cast<float>(first + static_cast<int>(i));
      ++edges;
    }
  }
  float Result() const { return edges > 0 ? value * state.Normalizer(true) : state.Normalizer(false); }
};

Row MergeRows(const Row& a, const Row& b) {
  const MergedSoftmax merged = Merge(a.state, b.state);
  return {merged.state, a.value * merged.of_first + b.value * merged.of_second, a.edges + b.edges};
}

double Exact(const std::vector<float>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0, value = 0.0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp2(scores[i] - largest);
    sum += weight;
    value += weight * static_cast<double>(i + 1);
  }
  return value / sum;
}

TEST(OnlineSoftmaxTest, PartsGiveTheWholeRow) {
  std::mt19937 random(1);
  for (const float spread : {0.0f, 1.0f, 30.0f, 3000.0f, 1e30f}) {
    for (const int size : {1, 2, 7, 64, 500}) {
      std::vector<float> scores;
      for (int i = 0; i < size; ++i) scores.push_back(spread * std::normal_distribution<float>()(random));
      Row parts[2];
      for (int begin = 0, part = 0; begin < size; part ^= 1) {
        const int end = std::min(size, begin + 1 + static_cast<int>(random() % 40));
        parts[part].Add({scores.begin() + begin, scores.begin() + end}, begin + 1);
        begin = end;
      }
      const Row row = MergeRows(parts[0], parts[1]), turned = MergeRows(parts[1], parts[0]);
      EXPECT_NEAR(row.Result() / Exact(scores), 1.0, 1e-5) << spread << " " << size;
      EXPECT_EQ(row.Result(), turned.Result());
      EXPECT_EQ(row.state.sum, turned.state.sum);
      EXPECT_EQ(row.state.largest, *std::max_element(scores.begin(), scores.end()));
    }
  }
}

TEST(OnlineSoftmaxTest, EmptyPartsChangeNothing) {
  Row row, empty;
  row.Add({-2000.0f, -1999.5f}, 1);
  const float result = row.Result(), sum = row.state.sum;
  row.Add({}, 0);
  EXPECT_EQ(row.Result(), result);
  for (const Row& merged : {MergeRows(row, empty), MergeRows(empty, row)}) {
    EXPECT_EQ(merged.Result(), result);
    EXPECT_EQ(merged.state.sum, sum);
    EXPECT_EQ(merged.state.largest, -1999.5f);
  }
  EXPECT_EQ(MergeRows(empty, empty).Result(), 0.0f);
  empty.Add({-2000.0f}, 3);
  EXPECT_EQ(empty.Result(), 3.0f);
}

TEST(OnlineSoftmaxTest, ScoresThatAreNotFiniteGiveNaN) {
  const std::vector<std::vector<float>> rows = {
      {kInfinity}, {1.0f, kInfinity}, {kInfinity, 1.0f}, {kInfinity, kInfinity}, {-kInfinity}, {-kInfinity, -kInfinity},
      {NAN},       {NAN, 1.0f},       {1.0f, NAN},       {-kInfinity, NAN}};
  for (const std::vector<float>& scores : rows) {
    Row whole, parts;
    whole.Add(scores, 1);
    EXPECT_TRUE(std::isnan(whole.Result()));
    for (const float score : scores) {
      Row part;
      part.Add({score}, 1);
      parts = MergeRows(parts, part);
    }
    EXPECT_TRUE(std::isnan(parts.Result()));
  }
}

TEST(OnlineSoftmaxTest, MinusInfinityBesideFiniteScoresWeighsNothing) {
  Row row;
  row.Add({-kInfinity}, 1);
  row.Add({5.0f}, 2);
  row.Add({-kInfinity, 5.0f}, 3);
  EXPECT_EQ(row.Result(), 3.0f);
}

}  // namespace
}  // namespace edgewise::cuda
