// What decoders of the Llama shape need beside the other models' operations: RMS norm, rotation, gates, grouped
// queries, windows.
#include <cmath>
#include <string>

#include "kernels/reference/reference.h"
#include "tests/kernels/attention_patterns.h"
#include "tests/kernels/device_matrix.h"
#include "tests/kernels/paged_case.h"
#include "tests/kernels/quantized.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::DeviceMatrix;
using testing::GraphsOf;
using testing::MakeCase;
using testing::Outcome;
using testing::Paged;
using testing::Pattern;
using testing::Place;
using testing::Random;
using testing::Rounded;
using testing::RunOn;
using testing::RunReference;
using testing::SameBytes;
using testing::Shape;

class DecoderTest : public testing::DeviceTest {
 protected:
  // Operands of products as the device sees them.
  std::vector<float> Seen(std::vector<float> values) const { return GetParam().bf16 ? Rounded(values) : values; }
};
EDGEWISE_TEST_ON(Devices, DecoderTest);

TEST_P(DecoderTest, RmsNormOfRowsAndOfHeads) {
  struct Size {
    int64_t rows, columns, group, stride, shift;
  };
  const Size sizes[] = {{0, 8, 8, 8, 0},    {1, 1, 1, 1, 0},      {9, 6, 3, 7, 0},      {17, 64, 64, 64, 0},
                        {5, 60, 20, 65, 1}, {130, 96, 32, 96, 0}, {8, 257, 257, 257, 0}};
  for (const Size s : sizes) {
    const auto x = Random(s.rows * s.columns, 1), weight = Random(s.group, 2);
    std::vector<float> expected(x.size());
    reference::RmsNorm({x.data(), s.rows, s.columns}, weight.data(), 1e-3f, s.group,
                       {expected.data(), s.rows, s.columns});
    const Buffer w = Place(*backend_, weight);
    const DeviceMatrix given(*backend_, x, s.rows, s.columns, s.stride, s.shift), y(*backend_, x, s.rows, s.columns);
    ASSERT_TRUE(backend_->RmsNorm(given.view(), w.data(), 1e-3f, s.group, y.view()).ok());
    const auto result = y.Host();
    EXPECT_LE(testing::LargestDifference(result, expected), 2e-6) << s.columns;
    ASSERT_TRUE(backend_->RmsNorm(given.view(), w.data(), 1e-3f, s.group, given.view()).ok());
    EXPECT_EQ(given.Host(), result);
    for (int64_t r = 0; r < s.rows; ++r) {
      const DeviceMatrix alone(*backend_, testing::RowsOf(x, s.columns, r, 1), 1, s.columns, s.columns, r % 5);
      ASSERT_TRUE(backend_->RmsNorm(alone.view(), w.data(), 1e-3f, s.group, alone.view()).ok());
      ASSERT_EQ(alone.Host(), testing::RowsOf(result, s.columns, r, 1));
    }
  }
}

TEST_P(DecoderTest, RotateByPositions) {
  for (const int64_t width : {2, 6, 32, 40, 128}) {
    const int64_t rows = 70, heads = 3, columns = heads * width;
    const auto x = Random(rows * columns, 1), table = Random(50 * width, 2);
    std::vector<int32_t> positions;
    for (int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<int32_t>(r * 7 % 50));
    std::vector<float> expected = x;
    reference::Rotate({expected.data(), rows, columns}, {table.data(), 50, width}, positions);
    const DeviceMatrix given(*backend_, x, rows, columns, columns + 3, 1), turns(*backend_, table, 50, width);
    ASSERT_TRUE(backend_->Rotate(given.view(), turns.view(), positions).ok());
    const auto result = given.Host();
    EXPECT_LE(testing::LargestDifference(result, expected), 2e-6) << width;
    for (int64_t r = 0; r < rows; r += 9) {
      const DeviceMatrix alone(*backend_, testing::RowsOf(x, columns, r, 1), 1, columns, columns, r % 5);
      ASSERT_TRUE(backend_->Rotate(alone.view(), turns.view(), {&positions[r], 1}).ok());
      ASSERT_EQ(alone.Host(), testing::RowsOf(result, columns, r, 1));
    }
  }
}

TEST_P(DecoderTest, GatedFeedForward) {
  struct Size {
    int64_t rows, hidden, wide;
  };
  for (const Size s : {Size{1, 16, 24}, Size{13, 20, 33}, Size{Sized(300, 30), 32, 72}}) {
    const auto x = Random(s.rows * s.hidden, 1), first = Random(2 * s.wide * s.hidden, 2), bias = Random(2 * s.wide, 3);
    const auto second = Random(s.hidden * s.wide, 4), before = Random(s.rows * s.hidden, 5);
    for (const Activation activation : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu,
                                        Activation::kQuickGelu, Activation::kMish, Activation::kTanh}) {
      std::vector<float> both(s.rows * 2 * s.wide), gated(s.rows * s.wide), expected = before;
      reference::Linear({Seen(x).data(), s.rows, s.hidden}, Seen(first), bias, Activation::kNone, false,
                        {both.data(), s.rows, 2 * s.wide});
      reference::Gate({both.data(), s.rows, 2 * s.wide}, activation, {gated.data(), s.rows, s.wide});
      gated = Seen(gated);
      reference::Linear({gated.data(), s.rows, s.wide}, Seen(second), {}, Activation::kNone, true,
                        {expected.data(), s.rows, s.hidden});
      const auto gate_up = *backend_->PrepareLinear(first, bias, 2 * s.wide, s.hidden, Activation::kNone);
      const auto down = *backend_->PrepareLinear(second, {}, s.hidden, s.wide, Activation::kNone);
      const auto run = [&](int64_t row, int64_t rows, Phase phase) {
        const DeviceMatrix source(*backend_, testing::RowsOf(x, s.hidden, row, rows), rows, s.hidden);
        const DeviceMatrix y(*backend_, testing::RowsOf(before, s.hidden, row, rows), rows, s.hidden);
        EXPECT_TRUE(backend_->GatedFeedForward(*gate_up, *down, activation, source.view(), y.view(), phase).ok());
        return y.Host();
      };
      double largest = 1.0;
      for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
      for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        const auto result = run(0, s.rows, phase);
        // Between the products a sum's last bits decide about a rounding to bf16.
        EXPECT_LE(testing::LargestDifference(result, expected), (GetParam().bf16 ? 1e-3 : 1e-6) * largest) << s.rows;
        for (int64_t r = 0; r < s.rows; r += 11) {
          ASSERT_EQ(run(r, 1, phase), testing::RowsOf(result, s.hidden, r, 1));
        }
        if (GetParam().options.device == "cpu") {
          EXPECT_EQ(run(0, s.rows, Phase::kPrefill), result);
        }
      }
    }
  }
}

// One number in, one out.
TEST_P(DecoderTest, SiluEverywhere) {
  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) / 64.0f);
  for (const float far : {1e-20f, 90.0f, 1e6f}) x.insert(x.end(), {far, -far});
  const auto rows = static_cast<int64_t>(x.size());
  const auto twice =
      *backend_->PrepareLinear(std::vector<float>{1.0f, 0.0f}, std::vector<float>{0.0f, 1.0f}, 2, 1, Activation::kNone);
  const auto one = *backend_->PrepareLinear(std::vector<float>{1.0f}, {}, 1, 1, Activation::kNone);
  const DeviceMatrix source(*backend_, x, rows, 1), y(*backend_, std::vector<float>(x.size(), 0.0f), rows, 1);
  ASSERT_TRUE(backend_->GatedFeedForward(*twice, *one, Activation::kSilu, source.view(), y.view()).ok());
  const std::vector<float> got = y.Host(), seen = Seen(x);
  const double tolerance = GetParam().bf16 ? 0x1p-8 : 1e-6;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = seen[i] / (1.0 + std::exp(-static_cast<double>(seen[i])));
    ASSERT_NEAR(got[i], want, tolerance * std::max(1.0, std::abs(want))) << x[i];
  }
}

// Windows, and patterns that others have too, with heads that share their keys.
class SharedKeysTest : public testing::DeviceTest {
 protected:
  static std::vector<Pattern> Windows() {
    std::vector<Pattern> patterns;
    for (const bool causal : {false, true}) {
      for (const int32_t reach : {0, 1, 5, 63, 64, 100}) {
        patterns.push_back({"reach " + std::to_string(reach) + (causal ? ", causal" : ""), [=](int32_t) {
                              return AllPairs{causal, reach};
                            }});
      }
    }
    return patterns;
  }
  void ForEach(const std::function<void(const std::function<std::unique_ptr<Case>()>&)>& check) {
    std::vector<Pattern> patterns = testing::Patterns();
    for (Pattern& pattern : Windows()) patterns.push_back(std::move(pattern));
    size_t turn = 0;
    for (const Pattern& pattern : patterns) {
      for (const int key_value_heads : {0, 1, 2}) {
        for (const double gap_share : {0.0, 0.3}) {
          if (key_value_heads == 0 && gap_share == 0.0) continue;
          if (++turn % Sized(1, 3) != 0) continue;
          Shape shape;
          shape.lengths = {1, 65, Sized(200, 130)};
          shape.heads = 4;
          shape.key_value_heads = key_value_heads;
          shape.head_dim = turn % 3 == 0 ? 64 : turn % 3 == 1 ? 16 : 24;
          shape.value_dim = turn % 4 == 3 ? 32 : 0;
          shape.gap_share = gap_share;
          shape.one_matrix = gap_share > 0.0;
          SCOPED_TRACE(pattern.name + ", " + std::to_string(key_value_heads) + " of 4 heads, " +
                       std::to_string(shape.head_dim));
          check([&] {
            auto made = MakeCase(shape, pattern);
            made->inputs.runs_as_windows = true;
            return made;
          });
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};
EDGEWISE_TEST_ON(Devices, SharedKeysTest);

TEST_P(SharedKeysTest, AgreeWithTheReference) {
  ForEach([&](const auto& make) { ExpectReference(*make()); });
}

TEST_P(SharedKeysTest, TheGraphGivenBackGivesTheSameBytes) {
  ForEach([&](const auto& make) {
    const auto made = make(), given = make();
    const Outcome first = Run(*made);
    const auto graphs = GraphsOf(first);
    for (size_t p = 0; p < graphs.size(); ++p) given->problems[p].pattern = ExplicitEdges{&graphs[p], true};
    const Outcome second = Run(*given);
    EXPECT_TRUE(SameBytes(first.out, second.out));
    ExpectSameReports(second, first, 0.0, 0.0);
  });
}

TEST_P(SharedKeysTest, PagesThreadsAndBatchMatesChangeNoByte) {
  const auto four = *Make(4);
  ForEach([&](const auto& make) {
    const auto made = make();
    if (GetParam().options.device != "cpu") {  // gives no graphs of pages
      for (const auto& report : made->reports) report->wanted.graph = false;
    }
    const Outcome whole = Run(*made);
    EXPECT_TRUE(SameBytes(RunOn(*four, *made).out, whole.out));
    for (size_t p = 0; p < made->problems.size(); ++p) {
      const auto alone = make();
      alone->problems = {made->problems[p]};
      alone->problems[0].out_row = 0;
      alone->out_rows = made->lengths[p];
      EXPECT_TRUE(SameBytes(Run(*alone).out, testing::RowsOf(*made, whole, p))) << p;
    }
    if (made->inputs.value_dim > 0) return;  // pages have one width
    Paged paged(*backend_, *made);
    paged.Give(*made);
    const Outcome got = Run(*made);
    EXPECT_TRUE(SameBytes(got.out, whole.out));
    ExpectSameReports(got, whole, 0.0, 0.0);
  });
}

// As decoding does.
TEST_P(SharedKeysTest, LaterQueriesAloneGiveTheBytesOfTheWhole) {
  ForEach([&](const auto& make) {
    const auto whole = make();
    if (!std::holds_alternative<AllPairs>(whole->problems[0].pattern)) return;
    const Outcome want = Run(*whole);
    for (const int32_t queries : {1, 5, 70}) {
      const auto part = make();
      part->out_rows = 0;
      for (AttentionProblem& problem : part->problems) {
        problem.first_query = std::max(0, problem.tokens - queries);
        problem.out_row = part->out_rows;
        part->out_rows += problem.tokens - problem.first_query;
      }
      const Outcome got = Run(*part);
      ExpectSameReports(got, RunReference(*part), GetParam().weights, GetParam().expected);
      for (size_t p = 0; p < part->problems.size(); ++p) {
        const std::span<const float> rows = testing::RowsOf(*part, got, p);
        EXPECT_TRUE(SameBytes(testing::RowsOf(*whole, want, p).last(rows.size()), rows)) << queries;
      }
    }
  });
}

}  // namespace
}  // namespace edgewise
