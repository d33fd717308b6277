// The layout of plots: every token has its place, shares are shares of queries, and a picture comes out.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <numeric>

#include "client/cli/plot_draw.h"
#include "client/cli/plot_layout.h"
#include "tests/client/fake_service.h"

namespace edgewise::cli {
namespace {

using Labels = std::vector<std::string>;

v1::Sequence Text(const std::string& text, v1::Truncate truncate = v1::REFUSE) {
  v1::Sequence sequence;
  sequence.set_text(text);
  sequence.set_truncate(truncate);
  return sequence;
}

TEST(TokenLabelsTest, FollowTheTokenizer) {
  EXPECT_EQ(TokenLabels(Text("a warm  film"), "word", 3, 0), (Labels{"a", "warm", "film"}));
  EXPECT_EQ(TokenLabels(Text("a b"), "byte", 3, 0), (Labels{"a", "\u2423", "b"}));
  EXPECT_EQ(TokenLabels(Text("gr\u00fcn"), "char", 4, 0), (Labels{"g", "r", "\u00fc", "n"}));
  EXPECT_EQ(TokenLabels(Text("\u00fc"), "byte", 2, 0), (Labels{"c3", "bc"}));
  v1::Sequence ids;
  ids.mutable_token_ids()->add_values(17);
  EXPECT_EQ(TokenLabels(ids, "none", 1, 0), (Labels{"17"}));
}

TEST(TokenLabelsTest, AllowForAClsTokenAndDroppedTokens) {
  EXPECT_EQ(TokenLabels(Text("a b"), "word", 3, 0), (Labels{"[CLS]", "a", "b"}));
  EXPECT_EQ(TokenLabels(Text("a b c", v1::HEAD), "word", 2, 1), (Labels{"b", "c"}));
  EXPECT_EQ(TokenLabels(Text("a b c", v1::TAIL), "word", 2, 1), (Labels{"a", "b"}));
}

TEST(TokenLabelsTest, AreLeftOutWhereTheyDoNotComeOutEven) {
  EXPECT_TRUE(TokenLabels(Text("a b"), "word", 7, 0).empty());
  EXPECT_TRUE(TokenLabels(Text("a b"), "unheard_of", 2, 0).empty());
}

TEST(CountQueriesTest, PadsAreNoQueries) {
  EXPECT_EQ(CountQueries(4 * 25, 4, 8), 5);  // 5 of 8 positions are tokens
  EXPECT_EQ(CountQueries(4 * 64, 4, 8), 8);
  EXPECT_EQ(CountQueries(4 * 36 / 2, 4, 8), 8);  // a causal model's pairs: no square
  EXPECT_EQ(CountQueries(0, 4, 8), 8);
}

v1::PredictRequest Request(bool graph) {
  v1::PredictRequest request;
  request.set_model("toy");
  request.add_inputs()->mutable_sequence()->set_text("one two three four five six seven eight");
  request.mutable_outputs()->set_key_degrees(true);
  request.mutable_outputs()->set_graph(graph);
  request.mutable_ensemble()->set_samples(graph ? 1 : 4);
  return request;
}

TEST(LayOutPlotTest, ShareIsDegreeOverQueriesAndSamples) {
  const v1::PredictRequest request = Request(false);
  absl::StatusOr<Plot> plot = LayOutPlot(request.inputs(0), testing::PlausibleAnswer(request), "word");
  ASSERT_TRUE(plot.ok()) << plot.status();
  ASSERT_EQ(plot->panels.size(), 1u);
  const HeatPanel& panel = plot->panels[0];
  ASSERT_EQ(panel.rows.size(), 4u);
  EXPECT_EQ(panel.labels[7], "eight");
  EXPECT_EQ(panel.rows[3].layer, 1);
  EXPECT_EQ(panel.rows[3].head, 1);
  EXPECT_DOUBLE_EQ(panel.rows[3].share[3], 1.0);    // all 8 queries, in all 4 samples
  EXPECT_DOUBLE_EQ(panel.rows[3].share[5], 0.125);  // one of 8
  EXPECT_DOUBLE_EQ(panel.rows[3].share[0], 0.0);
  EXPECT_DOUBLE_EQ(panel.rows[3].density, 11.0 / 64);
  EXPECT_EQ(plot->largest_share, 1.0);
  EXPECT_TRUE(plot->matrices.empty());
}

TEST(LayOutPlotTest, LongInputsAreBinnedAndTheMeanIsKept) {
  const v1::PredictRequest request = Request(false);
  v1::PredictResponse response = testing::PlausibleAnswer(request);
  constexpr int kPositions = 4096;
  v1::EdgeReport* edges = response.mutable_predictions(0)->mutable_edges();
  edges->set_pairs(uint64_t{4} * kPositions * kPositions);
  for (auto& layer : *edges->mutable_layers()) {
    for (auto& head : *layer.mutable_heads()) {
      head.clear_key_degrees();
      for (int key = 0; key < kPositions; ++key) head.add_key_degrees(key % 7 * 100);
    }
  }
  absl::StatusOr<Plot> plot = LayOutPlot(request.inputs(0), response, "word");
  ASSERT_TRUE(plot.ok()) << plot.status();
  const HeatPanel& panel = plot->panels[0];
  EXPECT_LE(panel.rows[0].share.size(), 600u);
  EXPECT_EQ((kPositions + panel.bin - 1) / panel.bin, static_cast<int>(panel.rows[0].share.size()));
  EXPECT_LE(panel.cell_width * panel.rows[0].share.size(), 1300u);
  EXPECT_TRUE(panel.labels.empty());
  const double mean = std::accumulate(panel.rows[0].share.begin(), panel.rows[0].share.end(), 0.0) /
                      static_cast<double>(panel.rows[0].share.size());
  EXPECT_NEAR(mean, 300.0 / (4 * kPositions), 0.01 * mean);
}

TEST(LayOutPlotTest, LabelsNeverTouch) {
  const v1::PredictRequest request = Request(false);
  for (int positions : {1, 2, 8, 60, 100, 101, 300, 600, 601, 5000}) {
    v1::PredictResponse response = testing::PlausibleAnswer(request);
    for (auto& layer : *response.mutable_predictions(0)->mutable_edges()->mutable_layers()) {
      for (auto& head : *layer.mutable_heads()) head.mutable_key_degrees()->Resize(positions, 1);
    }
    absl::StatusOr<Plot> plot = LayOutPlot(request.inputs(0), response, "word");
    ASSERT_TRUE(plot.ok()) << plot.status();
    const HeatPanel& panel = plot->panels[0];
    EXPECT_GE(panel.cell_width, panel.labels.empty() ? 2 : 11) << positions;
    EXPECT_GE(panel.tick_step * panel.cell_width / panel.bin, 36) << positions;
  }
}

TEST(LayOutPlotTest, PairHasAPanelForEachSequence) {
  v1::PredictRequest request = Request(true);
  request.mutable_inputs(0)->mutable_second()->set_text("eight seven six five four three two one");
  absl::StatusOr<Plot> plot = LayOutPlot(request.inputs(0), testing::PlausibleAnswer(request), "word");
  ASSERT_TRUE(plot.ok()) << plot.status();
  ASSERT_EQ(plot->panels.size(), 2u);
  EXPECT_EQ(plot->panels[0].rows.size(), 2u);
  EXPECT_EQ(plot->panels[1].rows.size(), 2u);
  EXPECT_EQ(plot->panels[1].rows[0].layer, 0);
  EXPECT_EQ(plot->panels[1].labels[0], "eight");
  ASSERT_EQ(plot->matrices.size(), 4u);
  EXPECT_EQ(plot->matrices[2].sequence, 1);
  EXPECT_EQ(plot->matrices[2].layer, 0);
}

TEST(LayOutPlotTest, MatrixHasItsEdgesAndLargeGraphsAreLeftOut) {
  const v1::PredictRequest request = Request(true);
  v1::PredictResponse response = testing::PlausibleAnswer(request);
  absl::StatusOr<Plot> plot = LayOutPlot(request.inputs(0), response, "word");
  ASSERT_TRUE(plot.ok()) << plot.status();
  ASSERT_EQ(plot->matrices.size(), 4u);
  const Matrix& matrix = plot->matrices[0];
  ASSERT_EQ(matrix.size, 8);
  for (int q = 0; q < 8; ++q) {
    for (int k = 0; k < 8; ++k) EXPECT_EQ(matrix.weight[q * 8 + k], q == k ? 1.0f : 0.0f);
  }
  for (auto& layer : *response.mutable_predictions(0)->mutable_graph()->mutable_layers()) {
    for (auto& head : *layer.mutable_heads()) head.mutable_row_offsets()->Resize(kMaxMatrixPositions + 2, 8);
  }
  EXPECT_TRUE(LayOutPlot(request.inputs(0), response, "word")->matrices.empty());
}

TEST(LayOutPlotTest, AnswerWithoutKeyDegreesIsRefused) {
  v1::PredictRequest request = Request(false);
  request.mutable_outputs()->set_key_degrees(false);
  EXPECT_EQ(LayOutPlot(request.inputs(0), testing::PlausibleAnswer(request), "word").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(DrawPlotTest, WritesAPng) {
  const v1::PredictRequest request = Request(true);
  absl::StatusOr<Plot> plot = LayOutPlot(request.inputs(0), testing::PlausibleAnswer(request), "word");
  ASSERT_TRUE(plot.ok());
  const std::string path = ::testing::TempDir() + "edgewise_plot.png";
  ASSERT_TRUE(DrawPlot(*plot, path).ok());
  std::ifstream file(path, std::ios::binary);
  char signature[8] = {};
  file.read(signature, sizeof(signature));
  EXPECT_EQ(std::string(signature, 8), "\x89PNG\r\n\x1a\n");
  std::remove(path.c_str());
  EXPECT_EQ(DrawPlot(*plot, "/nonexistent/plot.png").code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace edgewise::cli
