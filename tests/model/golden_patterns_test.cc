// The patterns of SSA and of blocks against those that the NumPy reference wrote to tests/testdata, exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/checkpoint/parse_config.h"
#include "model/checkpoint/safetensors.h"
#include "model/kinds/kind.h"
#include "tests/model/pattern_cases.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;

std::string Read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool Chooses(const AttentionConfig& attention) { return attention.kind == &kSsaKind || attention.kind == &kBlockKind; }

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(tests::TestdataFolder())) {
    if (!std::filesystem::exists(entry.path() / "golden.json")) continue;
    const auto config = ParseModelConfig(Read(entry.path() / "1/config.json"));
    EXPECT_TRUE(config.ok()) << entry.path() << config.status();
    if (!config.ok() || std::none_of(config->attention.begin(), config->attention.end(), Chooses)) continue;
    cases.push_back(entry.path().filename().string());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// As Model::Prepare, without its checks.
ModelSequence Prepared(const ModelConfig& config, const json& ids) {
  ModelSequence sequence;
  const bool features = config.feature_size > 0;
  if (features) {
    sequence.feature_rows = static_cast<int32_t>(ids.size());
  } else {
    sequence.token_ids = ids.get<std::vector<int32_t>>();
    if (config.pooling == Pooling::kCls) sequence.token_ids.insert(sequence.token_ids.begin(), config.cls_token_id);
    const size_t most = static_cast<size_t>(config.max_position_embeddings);
    sequence.token_ids.resize(std::min(sequence.token_ids.size(), most));
  }
  for (int32_t p = 0; p < sequence.length(); ++p) {
    if (features || sequence.token_ids[p] != config.pad_token_id) sequence.positions.push_back(p);
  }
  return sequence;
}

class GoldenPatternsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenPatternsTest, AreThoseOfTheReference) {
  const std::filesystem::path folder = std::filesystem::path(tests::TestdataFolder()) / GetParam();
  const auto config = ParseModelConfig(Read(folder / "1/config.json"));
  ASSERT_TRUE(config.ok());
  auto weights = SafetensorsFile::Open(folder / "1/model.safetensors");
  ASSERT_TRUE(weights.ok() && (*weights)->ReadData().ok());
  const json golden = json::parse(Read(folder / "golden.json"));
  const int32_t layers = config->num_hidden_layers;
  for (const json& entry : golden) {
    std::vector<ModelSequence> sequences = {
        Prepared(*config, entry[config->feature_size > 0 ? "features" : "token_ids"])};
    if (entry.contains("second")) sequences.push_back(Prepared(*config, entry["second"]));
    std::vector<QueryRange> ranges;
    for (const ModelSequence& sequence : sequences) ranges.push_back({&sequence});
    for (int32_t layer = 0; layer < layers; ++layer) {
      AttentionSpec choice = ChoiceOf(*config, entry["seed"].get<uint64_t>());
      choice.attention = &config->attention[layer];
      choice.layer = layer;
      choice.sample = entry["sample"].get<uint32_t>();
      const std::string scores =
          "layers." + std::to_string(config->tied_layers ? 0 : layer) + ".attention.block_scores";
      if (const auto tensor = (*weights)->tensors().find(scores); tensor != (*weights)->tensors().end()) {
        choice.block_scores = {(*weights)->Values(scores), (tensor->second.end - tensor->second.begin) / sizeof(float)};
      }
      const MemberPatterns made = MakePatterns(choice, ranges, kNoCap);
      for (size_t side = 0; side < sequences.size(); ++side) {
        const ModelSequence& sequence = sequences[side];
        const Rows rows = RowsOf(made.patterns[side], ranges[side]);
        const json& heads = entry["graph"]["layers"][side * layers + layer]["heads"];
        ASSERT_EQ(heads.size(), static_cast<size_t>(config->num_attention_heads));
        for (const json& head : heads) {
          HeadEdges expected;
          expected.row_offsets = head["row_offsets"].get<std::vector<int64_t>>();
          expected.keys = head["keys"].get<std::vector<int32_t>>();
          expected = ToValidTokens(expected, sequence);
          for (int32_t i = 0; i < sequence.valid(); ++i) {
            const std::vector<int32_t> keys(expected.keys.begin() + expected.row_offsets[i],
                                            expected.keys.begin() + expected.row_offsets[i + 1]);
            ASSERT_EQ(rows[i], keys) << "layer " << layer << ", side " << side << ", query " << i;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenPatternsTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace edgewise::testing
