// The operations of the CUDA backend beside attention, through its interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference.h"
#include "tests/cuda/device_run.h"
#include "tests/cuda/random_floats.h"

namespace edgewise {
namespace {

using testing::MakeDevice;
using testing::Place;
using testing::Random;

std::vector<float> Fetch(Backend& backend, const Buffer& buffer) {
  std::vector<float> host(static_cast<size_t>(buffer.size()));
  EXPECT_TRUE(backend.Download(buffer.data(), host).ok());
  return host;
}

class BackendOperationsTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = MakeDevice(GetParam());
  const double tolerance_ = GetParam() == "fp32" ? 1e-5 : 2e-2;
};

INSTANTIATE_TEST_SUITE_P(Precisions, BackendOperationsTest, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return info.param; });

TEST_P(BackendOperationsTest, LinearIsTheReferencesAndOfTheRowAlone) {
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{5, 3}, {64, 130}, {100, 36}}) {
      const std::vector<float> weight = Random(out * in, 1), bias = Random(out, 2), host_x = Random(70 * in, 3);
      auto prepared = backend_->PrepareLinear(weight, bias, out, in, activation);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      const Buffer x = Place(*backend_, host_x);
      std::vector<float> want(70 * out, 0.5f);
      for (const bool accumulate : {false, true}) {
        if (accumulate && activation != Activation::kNone) continue;
        std::fill(want.begin(), want.end(), 0.5f);
        reference::Linear(ConstMatrix(host_x.data(), 70, in), weight, bias, activation, accumulate,
                          Matrix(want.data(), 70, out));
        for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
          std::vector<std::vector<float>> results;
          for (const int64_t rows : {70, 3, 1}) {
            const Buffer y = Place(*backend_, std::vector<float>(70 * out, 0.5f));
            ASSERT_TRUE(
                backend_->Linear(**prepared, x.AsMatrix(rows, in), y.AsMatrix(rows, out), accumulate, phase).ok());
            results.push_back(Fetch(*backend_, y));
            results.back().resize(static_cast<size_t>(rows * out));
          }
          EXPECT_LE(testing::RelativeDifference(results[0], want), tolerance_) << in << " x " << out;
          for (size_t r = 1; r < results.size(); ++r) {
            EXPECT_TRUE(testing::SameBytes(results[r], std::span(results[0]).first(results[r].size())));
          }
        }
      }
    }
  }
}

TEST_P(BackendOperationsTest, FeedForwardIsTwoLinears) {
  const int64_t hidden = 24, wide = 72, rows = 40;
  auto up = backend_->PrepareLinear(Random(wide * hidden, 1), Random(wide, 2), wide, hidden, Activation::kGelu);
  auto down = backend_->PrepareLinear(Random(hidden * wide, 3), Random(hidden, 4), hidden, wide, Activation::kNone);
  ASSERT_TRUE(up.ok() && down.ok());
  const Buffer x = Place(*backend_, Random(rows * hidden, 5)), middle = Place(*backend_, Random(rows * wide, 6));
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Buffer a = Place(*backend_, Random(rows * hidden, 7)), b = Place(*backend_, Random(rows * hidden, 7));
    const Matrix in = x.AsMatrix(rows, hidden);
    ASSERT_TRUE(backend_->FeedForward(**up, **down, in, a.AsMatrix(rows, hidden), phase).ok());
    ASSERT_TRUE(backend_->Linear(**up, in, middle.AsMatrix(rows, wide), false, phase).ok());
    ASSERT_TRUE(backend_->Linear(**down, middle.AsMatrix(rows, wide), b.AsMatrix(rows, hidden), true, phase).ok());
    EXPECT_TRUE(testing::SameBytes(Fetch(*backend_, a), Fetch(*backend_, b)));
  }
}

TEST_P(BackendOperationsTest, RowsAreEmbeddedNormalizedGatheredAndPooled) {
  const std::vector<float> host_word = Random(11 * 20, 1), host_place = Random(30 * 20, 2);
  const Buffer word = Place(*backend_, host_word), place = Place(*backend_, host_place);
  const Buffer y = Place(*backend_, std::vector<float>(4 * 20));
  const std::vector<int32_t> tokens = {3, 10, 0, 3}, positions = {0, 1, 29, 7};
  ASSERT_TRUE(
      backend_->Embed(word.AsMatrix(11, 20), place.AsMatrix(30, 20), tokens, positions, y.AsMatrix(4, 20)).ok());
  std::vector<float> want(4 * 20);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 20; ++c) want[r * 20 + c] = host_word[tokens[r] * 20 + c] + host_place[positions[r] * 20 + c];
  }
  EXPECT_EQ(Fetch(*backend_, y), want);

  const std::vector<float> host_scale = Random(20, 3), host_shift = Random(20, 4);
  const Buffer scale = Place(*backend_, host_scale), shift = Place(*backend_, host_shift);
  ASSERT_TRUE(backend_->LayerNorm(y.AsMatrix(4, 20), scale.data(), shift.data(), 1e-5f, y.AsMatrix(4, 20)).ok());
  std::vector<float> normed(4 * 20);
  reference::LayerNorm(ConstMatrix(want.data(), 4, 20), host_scale.data(), host_shift.data(), 1e-5f,
                       Matrix(normed.data(), 4, 20));
  const std::vector<float> got = Fetch(*backend_, y);
  EXPECT_LE(testing::LargestDifference(got, normed), 1e-5);

  const Buffer gathered = Place(*backend_, std::vector<float>(3 * 20));
  const std::vector<int64_t> rows = {3, 3, 1};
  ASSERT_TRUE(backend_->GatherRows(y.AsMatrix(4, 20), rows, gathered.AsMatrix(3, 20)).ok());
  const std::vector<float> picked = Fetch(*backend_, gathered);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 20; ++c) EXPECT_EQ(picked[r * 20 + c], got[rows[r] * 20 + c]);
  }
  const Buffer pooled = Place(*backend_, std::vector<float>(2 * 20)), pairs = Place(*backend_, std::vector<float>(80));
  ASSERT_TRUE(backend_
                  ->PoolMean(y.AsMatrix(4, 20), std::vector<int64_t>{0, 1, 4}, std::vector<float>{1.0f, 6.0f},
                             pooled.AsMatrix(2, 20))
                  .ok());
  const std::vector<float> means = Fetch(*backend_, pooled);
  for (int c = 0; c < 20; ++c) {
    EXPECT_EQ(means[c], got[c]);
    EXPECT_NEAR(means[20 + c], (got[20 + c] + got[40 + c] + got[60 + c]) / 6.0f, 1e-6);
  }
  const Matrix first = pooled.AsMatrix(2, 20).Rows(0, 1), second = pooled.AsMatrix(2, 20).Rows(1, 1);
  ASSERT_TRUE(backend_->PairFeatures(first, second, pairs.AsMatrix(1, 80)).ok());
  const std::vector<float> features = Fetch(*backend_, pairs);
  for (int c = 0; c < 20; ++c) {
    EXPECT_EQ(features[40 + c], means[c] * means[20 + c]);
    EXPECT_EQ(features[60 + c], means[c] - means[20 + c]);
  }
}

TEST_P(BackendOperationsTest, MembershipsGiveTheRatesOfTheDefinition) {
  const int32_t heads = 2, d = 16, k = 24;
  const int64_t rows = 37;
  const auto w0 = Random(d * d, 1), b0 = Random(d, 2), w1 = Random(d * d, 3), b1 = Random(d, 4);
  auto clusters = Random(heads * k * d, 5);
  for (float& value : clusters) value *= 0.3f;
  const MembershipParameters parameters = {heads, d, k, w0, b0, w1, b1, clusters, {}};
  auto weights = backend_->PrepareMemberships(parameters);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto rank = (*weights)->rank();
  const std::vector<float> host_q = Random(rows * heads * d, 6), host_k = Random(rows * heads * d, 7);
  const Buffer q = Place(*backend_, host_q), keys = Place(*backend_, host_k);
  const Buffer x = Place(*backend_, std::vector<float>(heads * rows * rank));
  const Buffer y = Place(*backend_, std::vector<float>(heads * rows * rank));
  const Buffer xb = Place(*backend_, std::vector<float>(heads * rows)),
               yb = Place(*backend_, std::vector<float>(heads * rows));
  ASSERT_TRUE(backend_
                  ->ComputeMemberships(**weights, q.AsMatrix(rows, heads * d), keys.AsMatrix(rows, heads * d),
                                       {x.data(), y.data(), xb.data(), yb.data(), rows, rank})
                  .ok());
  const auto hx = Fetch(*backend_, x), hy = Fetch(*backend_, y), hxb = Fetch(*backend_, xb), hyb = Fetch(*backend_, yb);
  for (int32_t h = 0; h < heads; ++h) {
    const ConstMatrix of_q = ConstMatrix(host_q.data(), rows, heads * d).Columns(h * d, d);
    const ConstMatrix of_k = ConstMatrix(host_k.data(), rows, heads * d).Columns(h * d, d);
    const std::vector<double> rates = reference::EdgeRates(parameters, h, of_q, of_k);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < rows; ++j) {
        const float dot = MembershipDot(&hx[(h * rows + i) * rank], &hy[(h * rows + j) * rank], rank);
        EXPECT_NEAR(dot, rates[i * rows + j], 1e-5);
        EXPECT_LE(dot, hxb[h * rows + i] * hyb[h * rows + j]);
      }
    }
  }
}

TEST(BackendTest, SaysWhichDeviceItIs) {
  EXPECT_THAT(MakeDevice("bf16")->device(), ::testing::MatchesRegex("cuda/sm_[0-9]+/bf16"));
  EXPECT_FALSE(MakeDevice()->lost());
}

}  // namespace
}  // namespace edgewise
