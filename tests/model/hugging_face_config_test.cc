// What a config.json of Hugging Face may leave to its reader: the class, and the names of labels.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "model/load/load.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// The folder with another config.json. `name`: "hugging_face/bert_model".
absl::StatusOr<std::unique_ptr<Model>> LoadWith(const std::string& name, Backend& backend, const json& patch) {
  const TemporaryFolder temporary;
  const fs::path folder = fs::path(temporary.path()) / "1";
  fs::copy(tests::TestdataFolder() + "_" + name + "/1", folder, fs::copy_options::recursive);
  std::ifstream file(folder / "config.json");
  json config = json::parse(file);
  config.merge_patch(patch);
  std::ofstream(folder / "config.json") << config;
  return edgewise::LoadModel(folder, backend);
}

// Either as with its class, or by name: a wrong guess would answer wrongly in silence.
TEST(HuggingFaceClassTest, IsThatOfTheWeightsWhereTheFolderNamesNone) {
  const std::unique_ptr<Backend> backend = MakeBackend();
  // Their heads have the same tensors for a text and for its tokens; the last has none, nor the prefix of one.
  const std::set<std::string> in_doubt = {"hugging_face/bert_sequence",       "hugging_face/bert_regression",
                                          "hugging_face/bert_multi_label",    "sentence/old_cross_encoder",
                                          "hugging_face/modernbert_sequence", "hugging_face/modernbert_mean",
                                          "hugging_face/modernbert_tokens",   "hugging_face/gpt2_causal"};
  std::set<std::string> refused;
  int served = 0;
  for (const std::string kind : {"hugging_face", "sentence", "decoders", "images"}) {
    for (const auto& entry : fs::directory_iterator(tests::TestdataFolder() + "_" + kind)) {
      if (!fs::exists(entry.path() / "1" / "config.json")) continue;
      const std::string name = kind + "/" + entry.path().filename().string();
      const auto named = LoadWith(name, *backend, json::object());
      const auto found = LoadWith(name, *backend, {{"architectures", nullptr}});
      ASSERT_TRUE(named.ok()) << named.status();
      if (found.ok()) {
        EXPECT_EQ((*found)->config().task, (*named)->config().task) << name;
        EXPECT_EQ((*found)->config().classifier_hidden_size, (*named)->config().classifier_hidden_size) << name;
        EXPECT_EQ((*found)->parameters(), (*named)->parameters()) << name;
        EXPECT_EQ((*found)->skipped_tensors(), (*named)->skipped_tensors()) << name;
        ++served;
        continue;
      }
      refused.insert(name);
      EXPECT_TRUE(absl::StrContains(found.status().message(), "architectures is missing, and the weights fit "))
          << name << ": " << found.status();
    }
  }
  EXPECT_EQ(refused, in_doubt);
  EXPECT_GE(served, 40);
}

// What transformers 5.24 reads, and its pipeline shows.
TEST(HuggingFaceLabelsTest, AreReadAsTransformersReadsThem) {
  const std::unique_ptr<Backend> backend = MakeBackend();
  struct Case {
    json change;  // of a folder of three labels
    std::vector<std::string> labels;
  };
  const Case cases[] = {
      {{}, {"no", "maybe", "yes"}},
      {{{"id2label", {{"0", 0}, {"1", 1.5}, {"2", -2}}}}, {"0", "1.5", "-2"}},
      {{{"id2label", {{"2", nullptr}, {"7", "far"}}}}, {"no", "maybe", "LABEL_2"}},
      {{{"id2label", {{"1", nullptr}, {"01", "one"}}}}, {"no", "one", "yes"}},
      {{{"id2label", nullptr}, {"num_labels", 3}}, {"LABEL_0", "LABEL_1", "LABEL_2"}},
      {{{"id2label", {{"2", nullptr}}}, {"num_labels", 3}}, {"LABEL_0", "LABEL_1", "LABEL_2"}},
      {{{"num_labels", 3}}, {"no", "maybe", "yes"}},
  };
  for (const auto& [change, labels] : cases) {
    const auto model = LoadWith("hugging_face/bert_sequence", *backend, change.is_null() ? json::object() : change);
    ASSERT_TRUE(model.ok()) << change << model.status();
    EXPECT_EQ((*model)->config().labels, labels) << change;
  }
}

}  // namespace
}  // namespace edgewise::testing
