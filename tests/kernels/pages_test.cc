// Keys and values in pages: the bytes and the reports of the same rows in one matrix.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kv_page.h"
#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Biases;
using testing::BiasKind;
using testing::Case;
using testing::GraphsOf;
using testing::MakeCase;
using testing::Outcome;
using testing::Pattern;
using testing::Patterns;
using testing::SameBytes;
using testing::Shape;

// The keys and values of a case as pages, in no order; NaN where no token is.
class Paged {
 public:
  explicit Paged(const Case& from) : page_{from.inputs.num_heads, from.inputs.head_dim} {
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

class PagesTest : public testing::DeviceTest {
 protected:
  void ExpectTheBytesOfOneMatrix(Case& made) {
    const Outcome whole = Run(made);
    Paged paged(made);
    paged.Give(made);
    const Outcome got = Run(made);
    EXPECT_TRUE(SameBytes(got.out, whole.out));
    ExpectSameReports(got, whole, 0.0, 0.0);
  }
};
EDGEWISE_TEST_ON(Cpus, PagesTest);

TEST_P(PagesTest, EveryPatternHasTheBytesOfOneMatrix) {
  ASSERT_TRUE(backend_->TakesPages());
  for (const Pattern& pattern : Patterns()) {
    for (const int head_dim : {16, 20, 64}) {  // rows of a page are read in place; copied; in place
      for (const bool graph : {false, true}) {
        SCOPED_TRACE(pattern.name + " " + std::to_string(head_dim) + (graph ? " with a graph" : ""));
        Shape shape;
        shape.lengths = {1, 63, 64, 65, 300};
        shape.head_dim = head_dim;
        shape.gap_share = head_dim == 16 ? 0.2 : 0.0;
        shape.one_matrix = graph;
        const auto made = MakeCase(shape, pattern);
        for (const auto& report : made->reports) report->wanted.graph = graph;
        const Biases biases(head_dim == 20 ? BiasKind::kDistanceAndBuckets : BiasKind::kNone, *made);
        ExpectTheBytesOfOneMatrix(*made);
      }
    }
  }
}

// As a token is decoded: one query, or the few of a short part.
TEST_P(PagesTest, TheLastRowsHaveTheBytesOfOneMatrix) {
  std::mt19937 random(7);
  for (const int queries : {1, 3, 70}) {
    for (const int head_dim : {24, 64}) {
      for (const int every : {0, 1, 2, 9}) {  // keys of the list: null, all, half, few
        SCOPED_TRACE(std::to_string(queries) + " " + std::to_string(head_dim) + " " + std::to_string(every));
        Shape shape;
        shape.lengths = {200, 97, 128};
        shape.head_dim = head_dim;
        Case made(shape);
        made.AddProblems(AllPairs{true});
        made.out_rows = 0;
        for (AttentionProblem& problem : made.problems) {
          problem.first_query = problem.tokens - queries;
          problem.out_row = made.out_rows;
          made.out_rows += queries;
          if (every == 0) continue;
          GroupedKeys& keys = problem.pattern.emplace<GroupedKeys>();
          for (int32_t key = 0; key < problem.tokens; key += 1 + static_cast<int32_t>(random() % every)) {
            keys.keys.push_back(key);
          }
          keys.group_begin = {problem.first_query, problem.tokens};
          keys.key_offsets = {0, static_cast<int64_t>(keys.keys.size())};
          keys.causal = true;
        }
        ExpectTheBytesOfOneMatrix(made);
      }
    }
  }
}

TEST_P(PagesTest, GivenEdgesHaveTheBytesOfOneMatrix) {
  for (const double rate : {0.05, 0.6}) {  // gathered edge by edge; by tiles
    Shape shape;
    shape.lengths = {150, 40};
    shape.mean_rate = rate;
    Case made(shape);
    made.AddProblems(DrawnRows{});
    made.AskForAll();
    const auto graphs = GraphsOf(Run(made));
    for (size_t p = 0; p < graphs.size(); ++p) made.problems[p].pattern = ExplicitEdges{&graphs[p]};
    ExpectTheBytesOfOneMatrix(made);
  }
}

}  // namespace
}  // namespace edgewise
