// A case whose keys and values lie in pages (kernels/kv_page.h).
#ifndef EDGEWISE_TESTS_KERNELS_PAGED_CASE_H_
#define EDGEWISE_TESTS_KERNELS_PAGED_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/kv_page.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/quantized.h"

namespace edgewise::testing {

// The keys and values of a case as pages in a backend's memory, in no order; NaN where no token is.
class Paged {
 public:
  Paged(Backend& backend, const Case& from) {
    const AttentionInputs& inputs = from.inputs;
    const KvPage shape{inputs.key_value_heads(), inputs.head_dim};
    std::vector<float> rows;  // of all tokens, the keys and then the values
    std::vector<PagePlace> places;
    for (const AttentionProblem& problem : from.problems) {
      std::vector<float*>& pages = tables_.emplace_back((problem.tokens + KvPage::kTokens - 1) / KvPage::kTokens);
      for (size_t place = pages.size(); place-- > 0;) {
        const std::vector<float> nothing(static_cast<size_t>(backend.CacheFloats(shape.floats())), std::nanf(""));
        pages[place] = memory_.emplace_back(Place(backend, nothing)).data();
      }
      for (int32_t token = 0; token < problem.tokens; ++token) {
        places.push_back(
            {pages[token / KvPage::kTokens], token % KvPage::kTokens, static_cast<int32_t>(places.size())});
        for (const ConstMatrix* matrix : {&inputs.k, &inputs.v}) {
          const float* const row = matrix->row(problem.first_row + token);
          rows.insert(rows.end(), row, row + matrix->columns);
        }
      }
    }
    const int64_t columns = inputs.k.columns + inputs.v.columns;
    const Buffer placed = Place(backend, rows);
    const ConstMatrix x = placed.AsMatrix(static_cast<int64_t>(rows.size()) / columns, columns);
    std::reverse(places.begin(), places.end());
    const auto half = places.begin() + static_cast<int64_t>(places.size()) / 2;
    EXPECT_TRUE(backend.StoreInPages(x, shape, {places.begin(), half}).ok());
    // The other half as attention reads rows.
    const bool bf16 = backend.FormsOfAttention(columns).inputs == Form::kBfloat16;
    const Buffer rounded = Place(backend, bf16 ? InBfloat16(rows) : rows);
    const ConstMatrix of_attention(rounded.data(), x.rows, columns, bf16 ? columns / 2 : columns,
                                   bf16 ? Form::kBfloat16 : Form::kFloat32);
    EXPECT_TRUE(backend.StoreInPages(of_attention, shape, {half, places.end()}).ok());
    EXPECT_TRUE(backend.Synchronize().ok());
  }

  // The case reads pages from now on, and NaN wherever else keys and values were.
  void Give(Case& to) const {
    for (ConstMatrix* matrix : {&to.inputs.k, &to.inputs.v}) {
      for (int64_t r = 0; r < matrix->rows; ++r) {
        std::fill_n(const_cast<float*>(matrix->row(r)), matrix->columns, std::nanf(""));
      }
    }
    for (size_t p = 0; p < to.problems.size(); ++p) {
      AttentionProblem& problem = to.problems[p];
      problem.query_shift += std::exchange(problem.first_row, 0);
      problem.pages = tables_[p].data();
    }
  }

 private:
  std::vector<Buffer> memory_;
  std::vector<std::vector<float*>> tables_;  // by problem
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_PAGED_CASE_H_
