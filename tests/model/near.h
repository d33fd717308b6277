// What numbers may differ by from those of another implementation.
#ifndef EDGEWISE_TESTS_MODEL_NEAR_H_
#define EDGEWISE_TESTS_MODEL_NEAR_H_

#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace edgewise::testing {

// The numbers of one model beside those that another implementation computed in float64.
class Comparison {
 public:
  // With weights in float32 (MakeBackend), expects each number within 1e-4 of its own, relative where that is above 1.
  void Add(std::span<const float> got, const nlohmann::json& expected, const std::string& what);

  // The norm of all errors over the norm of all numbers, recorded as the property "relative_error" of the running test.
  // With weights in bfloat16, or a GPU's precision bf16, expects at most 0.03, with int8 at most 0.15.
  ~Comparison();

 private:
  double errors_ = 0.0, numbers_ = 0.0;  // sums of squares
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_NEAR_H_
