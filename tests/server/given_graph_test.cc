// Given graphs that are refused: every check, by the field that its error names.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "tests/server/validated.h"

namespace edgewise::server {
namespace {

constexpr int kLayers = 2, kHeads = 2, kPositions = 4;

// Every query attends to itself and, but for the first, to the one before it; `pad` attends to nothing and nothing to
// it.
void SetGraph(v1::Graph& graph, int pad) {
  for (int l = 0; l < kLayers; ++l) {
    v1::Graph::Layer* layer = graph.add_layers();
    for (int h = 0; h < kHeads; ++h) {
      v1::Graph::Head* head = layer->add_heads();
      head->add_row_offsets(0);
      for (int query = 0; query < kPositions; ++query) {
        for (const int key : {query - 1, query}) {
          if (key >= 0 && query != pad && key != pad) head->add_keys(static_cast<uint32_t>(key));
        }
        head->add_row_offsets(static_cast<uint32_t>(head->keys_size()));
      }
    }
  }
}

RequestLimits WithGraphs() {
  RequestLimits limits;
  limits.allow_graphs = true;
  return limits;
}

constexpr int kNoPad = -1;

// Keys 0 | 0 1 | 1 2 | 2 3 by query, and offsets 0 1 3 5 7; with a pad at 2: 0 | 0 1 | | 3 and 0 1 3 3 4.
struct Case {
  const char* name;
  std::function<void(v1::Graph::Head&)> change;
  const char* field;  // within the head
  const char* what;   // the message after the field
  const char* model = "sbm";
  int pad = kNoPad;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kRefused[] = {
    {"repeated_key", [](auto& head) { head.set_keys(2, 0); }, "keys[2]", "is 0 after 0; keys ascend within a row"},
    {"descending_keys",
     [](auto& head) {
       head.set_keys(3, 2);
       head.set_keys(4, 1);
     },
     "keys[4]", "is 1 after 2; keys ascend within a row"},
    {"future_key", [](auto& head) { head.set_keys(2, 2); }, "keys[2]",
     "is 2 of query 1; on a causal model keys do not come after", "lm-dense"},
    {"pad_as_key", [](auto& head) { head.set_keys(2, 2); }, "keys[2]", "is 2 of query 1: position 2 is a pad", "sbm",
     2},
    {"pad_as_query", [](auto& head) { head.set_row_offsets(2, 2); }, "keys[2]", "is 1 of query 2: position 2 is a pad",
     "sbm", 2},
    {"key_beyond_the_text", [](auto& head) { head.set_keys(6, 4); }, "keys[6]", "is 4; positions go from 0 to 3"},
    {"key_beyond_any_text", [](auto& head) { head.set_keys(6, 2147483648u); }, "keys[6]",
     "is 2147483648; no position is so large"},
    {"first_offset", [](auto& head) { head.set_row_offsets(0, 1); }, "row_offsets[0]", "is 1; 0 is expected"},
    {"descending_offsets", [](auto& head) { head.set_row_offsets(2, 0); }, "row_offsets[2]",
     "is 0; offsets ascend from 0 to 7"},
    {"offset_beyond_the_keys", [](auto& head) { head.set_row_offsets(2, 8); }, "row_offsets[2]",
     "is 8; offsets ascend from 0 to 7"},
    {"offset_that_an_int_cannot_hold", [](auto& head) { head.set_row_offsets(2, 4294967295u); }, "row_offsets[2]",
     "is 4294967295; offsets ascend from 0 to 7"},
    {"last_offset", [](auto& head) { head.set_row_offsets(4, 6); }, "row_offsets", "ends with 6; keys has 7 entries"},
    {"too_few_offsets", [](auto& head) { head.mutable_row_offsets()->RemoveLast(); }, "row_offsets",
     "has 4 entries; 5 (positions + 1) are expected"},
    {"multiplicities_of_another_law",
     [](auto& head) {
       for (int i = 0; i < head.keys_size(); ++i) head.add_multiplicities(1);
     },
     "multiplicities", "is set; only law poisson_multi has parallel edges"},
};

class RefusedGraphTest : public ::testing::TestWithParam<Case> {
 protected:
  RefusedGraphTest() {
    v1::Input* input = request_.add_inputs();
    for (int i = 0; i < kPositions; ++i) {
      input->mutable_sequence()->mutable_token_ids()->add_values(i == GetParam().pad ? 0 : i + 1);
    }
    SetGraph(*input->mutable_graph(), GetParam().pad);
    *request_.add_inputs() = *input;
  }
  absl::Status Parse() const { return Validated(request_, *model_, WithGraphs()).status(); }

  const std::unique_ptr<Model> model_ = LoadTestModel(GetParam().model);
  v1::PredictRequest request_;
};

TEST_P(RefusedGraphTest, IsInvalidArgumentThatNamesInputLayerHeadAndEntry) {
  ASSERT_TRUE(Parse().ok()) << Parse();
  for (int i = 0; i < 2; ++i) {
    for (int l = 0; l < kLayers; ++l) {
      for (int h = 0; h < kHeads; ++h) {
        const v1::PredictRequest good = request_;
        GetParam().change(*request_.mutable_inputs(i)->mutable_graph()->mutable_layers(l)->mutable_heads(h));
        const std::string field = "inputs[" + std::to_string(i) + "].graph.layers[" + std::to_string(l) + "].heads[" +
                                  std::to_string(h) + "]." + GetParam().field;
        const absl::Status refused = Parse();
        EXPECT_EQ(refused, FieldError(field, GetParam().what)) << refused;  // the google.rpc.BadRequest too
        request_ = good;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Graph, RefusedGraphTest, ::testing::ValuesIn(kRefused), ::testing::PrintToStringParamName());

class GivenGraphTest : public ::testing::Test {
 protected:
  GivenGraphTest() {
    v1::Input* input = request_.add_inputs();
    for (int i = 0; i < kPositions; ++i) input->mutable_sequence()->mutable_token_ids()->add_values(i + 1);
    SetGraph(*input->mutable_graph(), kNoPad);
  }
  v1::Graph& graph() { return *request_.mutable_inputs(0)->mutable_graph(); }
  absl::Status Parse() const { return Validated(request_, *model_, WithGraphs()).status(); }

  const std::unique_ptr<Model> model_ = LoadTestModel("sbm");
  v1::PredictRequest request_;
};

TEST_F(GivenGraphTest, LayersAndHeadsAreThoseOfTheModel) {
  graph().mutable_layers()->RemoveLast();
  EXPECT_EQ(Parse(), FieldError("inputs[0].graph.layers", "has 1 entries; 2 are expected"));
  *graph().add_layers() = graph().layers(0);
  graph().mutable_layers(1)->mutable_heads()->RemoveLast();
  EXPECT_EQ(Parse(), FieldError("inputs[0].graph.layers[1].heads", "has 1 entries; 2 are expected"));
}

// On a model that is not causal a query may attend to what comes after it; a row may be empty.
TEST_F(GivenGraphTest, FutureKeysAndEmptyRowsAreTaken) {
  v1::Graph::Head& head = *graph().mutable_layers(1)->mutable_heads(1);
  head.Clear();
  for (const uint32_t offset : {0, 0, 2, 2, 2}) head.add_row_offsets(offset);
  for (const uint32_t key : {0, 3}) head.add_keys(key);
  const absl::StatusOr<Work> parsed = Validated(request_, *model_, WithGraphs());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const HeadEdges& given = parsed->inputs[0].graph->layers[1][1];
  EXPECT_EQ(given.row_offsets, (std::vector<int64_t>{0, 0, 2, 2, 2}));
  EXPECT_EQ(given.keys, (std::vector<int32_t>{0, 3}));
}

TEST_F(GivenGraphTest, TheLargestMultiplicityIsTaken) {
  const std::unique_ptr<Model> multi = LoadTestModel("sbm-tokens");  // one layer
  graph().mutable_layers()->RemoveLast();
  v1::Graph::Head& head = *graph().mutable_layers(0)->mutable_heads(1);
  for (int i = 0; i < head.keys_size(); ++i) head.add_multiplicities(1 << 20);
  const absl::StatusOr<Work> parsed = Validated(request_, *multi, WithGraphs());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->inputs[0].graph->layers[0][1].multiplicity, std::vector<int32_t>(7, 1 << 20));
}

}  // namespace
}  // namespace edgewise::server
