#include "tests/model/near.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace edgewise::testing {
namespace {

std::string_view Weights() {
  const char* const precision = std::getenv("EDGEWISE_TEST_PRECISION");
  if (precision != nullptr && std::string_view(precision) == "bf16") return "bfloat16";
  const char* const weights = std::getenv("EDGEWISE_TEST_WEIGHTS");
  return weights == nullptr ? "float32" : weights;
}

}  // namespace

void Comparison::Add(std::span<const float> got, const nlohmann::json& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = expected[i].get<double>(), error = got[i] - value;
    errors_ += error * error;
    numbers_ += value * value;
    if (Weights() != "float32") continue;
    EXPECT_LE(std::abs(error), 1e-4 * std::max(1.0, std::abs(value))) << what << ", " << i << ": " << got[i];
  }
}

Comparison::~Comparison() {
  const double relative = std::sqrt(errors_ / numbers_);
  ::testing::Test::RecordProperty("relative_error", std::to_string(relative));
  if (Weights() != "float32") {
    EXPECT_LE(relative, Weights() == "bfloat16" ? 0.03 : 0.15) << Weights();
  }
}

}  // namespace edgewise::testing
