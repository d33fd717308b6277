// Plots: every token has its place, one denominator for every density, keys ranked as the caption says, and a picture
// comes out in each format.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/cli/plot_layout.h"
#include "client/cli/plot_show.h"

namespace edgewise::cli {
namespace {

using Labels = std::vector<std::string>;
using Edges = std::vector<std::vector<std::pair<int, float>>>;  // of each query: keys and weights

v1::Sequence Text(const std::string& text, v1::Truncate truncate = v1::REFUSE) {
  v1::Sequence sequence;
  sequence.set_text(text);
  sequence.set_truncate(truncate);
  return sequence;
}

v1::ModelInfo Model(const std::string& tokenizer, bool causal = false) {
  v1::ModelInfo model;
  model.set_tokenizer(tokenizer);
  model.set_causal(causal);
  return model;
}

// An answer with the given graph, [layer][head], and the key degrees, pairs and densities that belong to it.
struct Example {
  v1::Input input;
  v1::PredictResponse response;
  v1::ModelInfo model;
  v1::Graph graph;

  Example(const std::string& text, bool causal, const std::vector<std::vector<Edges>>& layers)
      : model(Model("word", causal)) {
    *input.mutable_sequence() = Text(text);
    response.set_model("toy");
    response.set_version(1);
    v1::Prediction* prediction = response.add_predictions();
    prediction->set_samples(1);
    prediction->set_label("positive");
    prediction->add_probabilities(0.75f);
    v1::EdgeReport* report = prediction->mutable_edges();
    uint64_t edges = 0, pairs = 0;
    for (const std::vector<Edges>& heads : layers) {
      v1::Graph::Layer* layer = graph.add_layers();
      v1::EdgeReport::LayerEdges* counts = report->add_layers();
      for (const Edges& queries : heads) {
        v1::Graph::Head* head = layer->add_heads();
        std::vector<uint32_t> degrees(queries.size());
        head->add_row_offsets(0);
        for (const auto& keys : queries) {
          for (const auto& [key, weight] : keys) {
            head->add_keys(key);
            head->add_weights(weight);
            ++degrees[key];
          }
          head->add_row_offsets(head->keys_size());
        }
        counts->add_heads()->set_edges(head->keys_size());
        counts->mutable_heads(counts->heads_size() - 1)->mutable_key_degrees()->Add(degrees.begin(), degrees.end());
        edges += head->keys_size();
        pairs += causal ? queries.size() * (queries.size() + 1) / 2 : queries.size() * queries.size();
      }
    }
    report->set_edges(edges);
    report->set_max_sample_edges(edges);
    report->set_pairs(pairs);
    report->set_density(static_cast<double>(edges) / static_cast<double>(pairs));
  }
  v1::Prediction& prediction() { return *response.mutable_predictions(0); }
  PlotSource Source(bool with_graph = true) const {
    return {.input = input,
            .response = response,
            .model = model,
            .graph = with_graph ? &graph : nullptr,
            .without_graph = "the server refused"};
  }
};

// Three tokens; the last one attends to the first two.
Example Causal() {
  return Example("to be or", true, {{{{{0, 1.0f}}, {{0, 0.5f}, {1, 0.5f}}, {{0, 0.25f}, {1, 0.75f}}}}});
}

// A CLS token attends to "x", which attended to "y" in the layer below.
Example Chain() { return Example("x y", false, {{{{}, {{2, 1.0f}}, {}}}, {{{{1, 1.0f}}, {}, {}}}}); }

// Every query attends to itself alone.
Example Diagonal(int positions) {
  std::string text;
  Edges edges;
  for (int p = 0; p < positions; ++p) {
    absl::StrAppend(&text, "w", p % 10, " ");
    edges.push_back({{p, 1.0f}});
  }
  return Example(text, false, {{edges, edges}});
}

TEST(TokenNamesTest, FollowTheTokenizer) {
  EXPECT_EQ(TokenNames(Text("a warm  film"), Model("word"), 3, 0), (Labels{"a", "warm", "film"}));
  EXPECT_EQ(TokenNames(Text("a b"), Model("byte"), 3, 0), (Labels{"a", "\u2423", "b"}));
  EXPECT_EQ(TokenNames(Text("gr\u00fc\n"), Model("char"), 4, 0), (Labels{"g", "r", "\u00fc", "\u21b5"}));
  EXPECT_EQ(TokenNames(Text("\u00fc"), Model("byte"), 2, 0), (Labels{"c3", "bc"}));
  v1::Sequence ids;
  ids.mutable_token_ids()->add_values(17);
  EXPECT_EQ(TokenNames(ids, Model("none"), 1, 0), (Labels{"17"}));
}

TEST(TokenNamesTest, AllowForAClsTokenDroppedTokensAndWindows) {
  EXPECT_EQ(TokenNames(Text("a b"), Model("word"), 3, 0), (Labels{"[CLS]", "a", "b"}));
  EXPECT_EQ(TokenNames(Text("a b c", v1::HEAD), Model("word"), 2, 1), (Labels{"b", "c"}));
  EXPECT_EQ(TokenNames(Text("a b c", v1::TAIL), Model("word"), 2, 1), (Labels{"a", "b"}));
  EXPECT_EQ(TokenNames(Text("a b c d"), Model("word", true), 2, 0), (Labels{"c", "d"}));
}

TEST(TokenNamesTest, ArePositionsWhereTheyDoNotComeOutEven) {
  EXPECT_EQ(TokenNames(Text("a b c"), Model("word"), 2, 0), (Labels{"position 0", "position 1"}));
  EXPECT_EQ(TokenNames(Text("a b"), Model("unheard_of"), 1, 0), (Labels{"position 0"}));
}

TEST(LayOutPlotTest, CellsAreWeightsAndDensitiesHaveTheServersPairs) {
  const Example example = Causal();
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok()) << plot.status();
  EXPECT_TRUE(plot->weights);
  const SequencePicture& picture = plot->sequences.at(0);
  EXPECT_EQ(picture.names, (Labels{"to", "be", "or"}));
  EXPECT_EQ(picture.pictures.at(0).cells, (std::vector<float>{1, 0, 0, 0.5f, 0.5f, 0, 0.25f, 0.75f, 0}));
  EXPECT_DOUBLE_EQ(picture.pictures[0].density, 5.0 / 6);  // causal: 6 pairs, not 9
  EXPECT_NE(plot->subtitle.find("density 83.33 %"), std::string::npos) << plot->subtitle;
  EXPECT_NE(plot->density_note.find("(causal); 6 a head"), std::string::npos) << plot->density_note;
}

TEST(LayOutPlotTest, PadsOfOneSequenceAreInNoDensity) {
  Example example = Diagonal(8);
  example.prediction().mutable_edges()->set_pairs(2 * 25);  // 5 of the 8 positions are tokens
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok()) << plot.status();
  EXPECT_DOUBLE_EQ(plot->sequences[0].pictures[0].density, 8.0 / 25);
}

TEST(LayOutPlotTest, PairHasItsOwnPairsOrSaysThatTheyAreNotKnown) {
  Example example = Diagonal(4);
  const Example second = Diagonal(3);
  v1::EdgeReport* edges = example.prediction().mutable_edges();
  *edges->add_layers() = second.response.predictions(0).edges().layers(0);
  *example.graph.add_layers() = second.graph.layers(0);
  *example.input.mutable_second() = second.input.sequence();
  edges->set_pairs(2 * (16 + 9));
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok()) << plot.status();
  ASSERT_EQ(plot->sequences.size(), 2u);
  EXPECT_EQ(plot->sequences[1].names, (Labels{"w0", "w1", "w2"}));
  EXPECT_DOUBLE_EQ(plot->sequences[0].pictures[0].density, 4.0 / 16);
  EXPECT_DOUBLE_EQ(plot->sequences[1].pictures[0].density, 3.0 / 9);
  edges->set_pairs(2 * (9 + 9));  // a pad in the first
  plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok()) << plot.status();
  EXPECT_EQ(plot->sequences[0].pictures[0].density, -1);
  EXPECT_EQ(plot->sequences[0].pictures[0].edges, 4);
  EXPECT_NE(plot->density_note.find("Heads have edges instead"), std::string::npos) << plot->density_note;
}

TEST(LayOutPlotTest, TextInWindowsShowsTheLastOne) {
  Example example = Causal();
  example.model.set_layers(1);
  v1::EdgeReport* edges = example.prediction().mutable_edges();
  *edges->add_layers() = edges->layers(0);
  *example.graph.add_layers() = example.graph.layers(0);
  example.graph.mutable_layers(1)->mutable_heads(0)->set_weights(0, 0.5f);
  edges->set_pairs(12);
  example.input.mutable_sequence()->set_text("to be or not to");
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok()) << plot.status();
  ASSERT_EQ(plot->sequences.size(), 1u);
  EXPECT_EQ(plot->sequences[0].title, "Window 2 of 2, the end of the text");
  EXPECT_EQ(plot->sequences[0].names, (Labels{"or", "not", "to"}));
  EXPECT_EQ(plot->sequences[0].pictures.at(0).cells[0], 0.5f);
  EXPECT_DOUBLE_EQ(plot->sequences[0].pictures[0].density, 5.0 / 6);
}

TEST(LayOutPlotTest, LongInputsAreBinnedAndTheirShadesAddUpToTheDensity) {
  constexpr int kPositions = 1000;
  const Example example = Diagonal(kPositions);
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok()) << plot.status();
  EXPECT_FALSE(plot->weights);
  const SequencePicture& picture = plot->sequences[0];
  EXPECT_TRUE(picture.names.empty());
  EXPECT_EQ(picture.bin, 8);
  ASSERT_EQ(picture.columns, 125);
  double sum = 0;
  for (int row = 0; row < picture.rows; ++row) {
    for (int column = 0; column < picture.columns; ++column) {
      const float share = picture.pictures[0].cells[row * picture.columns + column];
      EXPECT_EQ(share, row == column ? 0.125f : 0.0f);
      sum += share;
    }
  }
  EXPECT_NEAR(sum / (125 * 125), picture.pictures[0].density, 1e-9);
}

TEST(ShareOfPairsTest, PairsOfACausalModelEndAtTheDiagonal) {
  Edges edges(5);
  for (int query = 0; query < 5; ++query) {
    for (int key = 0; key <= query; ++key) edges[query].push_back({key, 1.0f});
  }
  const Example dense("a b c d e", true, {{edges}});
  const std::vector<const v1::Graph::Head*> heads = {&dense.graph.layers(0).heads(0)};
  EXPECT_EQ(ShareOfPairs(heads, 5, true, 2, 2), (std::vector<float>{1, 0, 1, 1}));
  // Rows 0 to 2 and 3 to 4, columns likewise, of 9, 6, 6 and 4 pairs.
  EXPECT_EQ(ShareOfPairs(heads, 5, false, 2, 2), (std::vector<float>{6.0f / 9, 0, 1, 3.0f / 4}));
}

TEST(LayOutPlotTest, WithoutAGraphKeysAreShownAndThePictureSaysWhy) {
  const Example example = Causal();
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source(false));
  ASSERT_TRUE(plot.ok()) << plot.status();
  const SequencePicture& picture = plot->sequences[0];
  EXPECT_EQ(picture.rows, 1);
  // Keys 0, 1 and 2 have 3, 2 and 1 queries that may attend to them.
  EXPECT_EQ(picture.pictures[0].cells, (std::vector<float>{1, 1, 0}));
  EXPECT_DOUBLE_EQ(picture.pictures[0].density, 5.0 / 6);
  EXPECT_EQ(plot->edges_note, "Only keys are shown, over all queries: the server refused.");
  EXPECT_EQ(picture.keys[0].name, "to (0)");
  EXPECT_DOUBLE_EQ(picture.keys[0].share, 0.6);
  EXPECT_TRUE(picture.keys_measure.starts_with("Share of all edges that go to the key,")) << picture.keys_measure;
}

TEST(LayOutPlotTest, SpreadIsThatOfTheLeadingLabel) {
  Example example = Causal();
  v1::Prediction& prediction = example.prediction();
  prediction.set_samples(2);
  prediction.add_probabilities(0.9f);
  prediction.set_label_id(1);
  for (float deviation : {0.0f, 0.1f}) prediction.add_stddev(deviation);
  for (float probability : {0.8f, 1.0f}) {
    v1::SampleOutput* sample = prediction.add_sample_outputs();
    sample->add_probabilities(1 - probability);
    sample->add_probabilities(probability);
  }
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok()) << plot.status();
  EXPECT_EQ(plot->spread.values, (std::vector<double>{0.8f, 1.0f}));
  EXPECT_EQ(plot->spread.mean, 0.9f);
  EXPECT_EQ(plot->spread.deviation, 0.1f);
  EXPECT_NE(plot->edges_note.find("of the first sample."), std::string::npos);
}

TEST(LayOutPlotTest, AnswerWithoutKeyDegreesIsRefused) {
  Example example = Causal();
  example.prediction().mutable_edges()->mutable_layers(0)->mutable_heads(0)->clear_key_degrees();
  EXPECT_EQ(LayOutPlot(example.Source()).status().code(), absl::StatusCode::kInvalidArgument);
  example.prediction().mutable_edges()->clear_layers();
  EXPECT_EQ(LayOutPlot(example.Source()).status().code(), absl::StatusCode::kInvalidArgument);
  const Example other = Diagonal(4);
  Example mixed = Diagonal(3);
  mixed.graph = other.graph;  // of another length
  EXPECT_EQ(LayOutPlot(mixed.Source()).status().code(), absl::StatusCode::kInvalidArgument);
}

std::vector<KeyShare> Rank(const Example& example, bool with_graph = true) {
  absl::StatusOr<std::vector<SequenceView>> views = ViewSequences(example.Source(with_graph));
  EXPECT_TRUE(views.ok()) << views.status();
  return views.ok() ? RankKeys(views->front()) : std::vector<KeyShare>();
}

TEST(RankKeysTest, CausalModelsAreReadFromTheLastToken) {
  const std::vector<KeyShare> keys = Rank(Causal());
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].name, "be (1)");
  EXPECT_NEAR(keys[0].share, 0.75, 1e-6);
  EXPECT_NEAR(keys[1].share, 0.25, 1e-6);
}

TEST(RankKeysTest, AttentionOfTheClsTokenGoesThroughAllLayers) {
  const std::vector<KeyShare> keys = Rank(Chain());
  ASSERT_EQ(keys.size(), 2u);  // the CLS token itself is reached by no edge
  EXPECT_EQ(keys[0].name, "x (1)");
  EXPECT_NEAR(keys[0].share, 0.5, 1e-6);
  EXPECT_EQ(keys[1].name, "y (2)");
  EXPECT_NEAR(keys[1].share, 0.5, 1e-6);
}

TEST(RankKeysTest, EqualWordsCountTogether) {
  const std::vector<KeyShare> keys = Rank(Diagonal(25));
  ASSERT_EQ(keys.size(), 10u);
  EXPECT_EQ(keys[0].name, "w0 (3 \u00d7)");
  EXPECT_NEAR(keys[0].share, 3.0 / 25, 1e-6);
  EXPECT_EQ(keys[9].name, "w9 (2 \u00d7)");
}

TEST(DrawPlotTest, FormatFollowsTheName) {
  Example example = Causal();
  example.prediction().mutable_edges()->set_budget(5);
  absl::StatusOr<Plot> plot = LayOutPlot(example.Source());
  ASSERT_TRUE(plot.ok());
  const std::pair<const char*, const char*> formats[] = {{"png", "\x89PNG\r\n\x1a\n"}, {"SVG", "<?xml"}};
  for (const auto& [ending, start] : formats) {
    const std::string path = absl::StrCat(::testing::TempDir(), "edgewise_plot.", ending);
    ASSERT_TRUE(CheckPictureName(path, "or - for the terminal").ok());
    ASSERT_TRUE(DrawPlot(*plot, path).ok());
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(content.substr(0, std::string(start).size()), start);
    EXPECT_EQ(content.find("<svg ") != std::string::npos, ending == std::string("SVG"));
    std::remove(path.c_str());
    EXPECT_EQ(DrawPlot(*plot, absl::StrCat("/nonexistent/plot.", ending)).code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(DrawPlotTest, OtherEndingsAreRefused) {
  for (const char* path : {"plot.pdf", "plot", "png", "plot.svg.gz"}) {
    const absl::Status status = CheckPictureName(path, "or - for the terminal");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_NE(status.message().find(".png or .svg"), std::string::npos) << status;
  }
}

TEST(DrawPlotTest, ManyHeadsLongInputsAndKeysAloneAreDrawn) {
  const Example example = Diagonal(3000);
  for (bool with_graph : {true, false}) {
    absl::StatusOr<Plot> plot = LayOutPlot(example.Source(with_graph));
    ASSERT_TRUE(plot.ok());
    const std::string path = ::testing::TempDir() + "edgewise_plot_long.svg";
    EXPECT_TRUE(DrawPlot(*plot, path).ok());
    std::remove(path.c_str());
  }
}

TEST(PlotTextTest, ShowsQueriesAndKeysByName) {
  absl::StatusOr<std::string> text = PlotText(Causal().Source(), false);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "           to │██    │\n"
            "           be │████  │\n"
            "           or │████  │\n"
            "               0    2 key\n"
            "Shade: share of a cell's pairs with an edge, over all 1 heads:\n"
            "  ░ to 25 %  ▒ to 50 %  ▓ to 75 %  █ to 100 %\n"
            "Most attention goes to: be (1) 75.0 %; to (0) 25.0 %\n"
            "Edges: 5 of 6 pairs, density 83.33 %\n");
}

TEST(PlotTextTest, ColourAddsEscapesAndNothingElse) {
  const Example example = Causal();
  std::string coloured = *PlotText(example.Source(), true);
  for (const std::string escape : {"\x1b[36m", "\x1b[0m"}) {
    ASSERT_NE(coloured.find(escape), std::string::npos);
    for (size_t at; (at = coloured.find(escape)) != std::string::npos;) coloured.erase(at, escape.size());
  }
  EXPECT_EQ(coloured, *PlotText(example.Source(), false));
}

TEST(PlotTextTest, LongInputsFitATerminal) {
  const Example example = Diagonal(1000);
  for (bool with_graph : {true, false}) {
    const std::string text = *PlotText(example.Source(with_graph), false);
    std::istringstream lines(text);
    int pictured = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.find("│") == std::string::npos) continue;
      ++pictured;
      int columns = 0;
      for (char c : line) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
      EXPECT_EQ(columns, 80) << line;
    }
    EXPECT_EQ(pictured, with_graph ? 32 : 1) << text;
  }
}

TEST(PlotTextTest, WithoutAGraphKeysAreBars) {
  const std::string text = *PlotText(Causal().Source(false), false);
  EXPECT_NE(text.find("Only keys are shown, over all queries: the server refused.\n  all queries │██ │\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Most edges go to: to (0) 60.0 %; be (1) 40.0 %"), std::string::npos) << text;
}

}  // namespace
}  // namespace edgewise::cli
