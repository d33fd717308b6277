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

namespace edgewise::testing {

// The keys and values of a case as pages, in no order; NaN where no token is.
class Paged {
 public:
  explicit Paged(const Case& from) : page_{from.inputs.key_value_heads(), from.inputs.head_dim} {
    const AttentionInputs& inputs = from.inputs;
    for (size_t p = 0; p < from.problems.size(); ++p) {
      const AttentionProblem& problem = from.problems[p];
      std::vector<float*>& pages = tables_.emplace_back((problem.tokens + KvPage::kTokens - 1) / KvPage::kTokens);
      for (size_t place = pages.size(); place-- > 0;) pages[place] = NewPage();
      for (int32_t token = 0; token < problem.tokens; ++token) {
        float* const page = pages[token / KvPage::kTokens];
        const int64_t row = token % KvPage::kTokens * page_.head_dim;
        for (int32_t head = 0; head < page_.heads; ++head) {
          for (int32_t c = 0; c < page_.head_dim; ++c) {
            const int64_t column = head * page_.head_dim + c;
            page[page_.Keys(head) + row + c] = inputs.k.row(problem.first_row + token)[column];
            page[page_.Values(head) + row + c] = inputs.v.row(problem.first_row + token)[column];
          }
        }
      }
    }
  }

  // The case reads pages from now on, and NaN wherever else keys and values were.
  void Give(Case& to) {
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
  float* NewPage() {
    memory_.emplace_back(static_cast<size_t>(page_.floats()) + 16, std::nanf(""));
    const auto address = reinterpret_cast<uintptr_t>(memory_.back().data());
    return memory_.back().data() + (64 - address % 64) % 64 / sizeof(float);
  }

  const KvPage page_;
  std::vector<std::vector<float>> memory_;
  std::vector<std::vector<float*>> tables_;  // by problem
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_KERNELS_PAGED_CASE_H_
