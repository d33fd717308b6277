// Models of images: the pixels against Pillow's, the rows and the outputs against those of transformers in float64
// (tests/reference/make_image_goldens.py), and the promises on them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "model/image/processor.h"
#include "model/kinds/override.h"
#include "model/load/load.h"
#include "tests/model/model_builder.h"
#include "tests/model/near.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string Folder() { return tests::TestdataFolder() + "_images/"; }

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// The image `made` of tests/reference/make_image_goldens.py.
RgbImage Made(int32_t width, int32_t height) {
  RgbImage image{width, height, {}};
  for (int64_t i = 0; i < int64_t{3} * width * height; ++i) {
    const int64_t value = i / 9 % 5 == 0 ? 255 : i / 7 % 6 == 0 ? 0 : (i * i * 7 + i * 31) % 251;
    image.pixels.push_back(static_cast<uint8_t>(value));
  }
  return image;
}

RgbImage FileOf(const std::string& name) {
  const json file = ReadJson(Folder() + "pixels.json")["files"][name];
  return {file["width"], file["height"], FromHex(file["hex"])};
}

TEST(ResizeTest, HasTheBytesOfPillow) {
  const json pixels = ReadJson(Folder() + "pixels.json");
  ASSERT_GE(pixels["resized"].size(), 16u);
  for (const json& entry : pixels["resized"]) {
    const json &from = entry["from"], &to = entry["to"];
    const auto resample = entry["resample"] == 2 ? Resample::kBilinear : Resample::kBicubic;
    const RgbImage resized = Resize(Made(from[0], from[1]), to[0], to[1], resample);
    EXPECT_EQ(resized.width, to[0]);
    EXPECT_EQ(resized.height, to[1]);
    EXPECT_EQ(resized.pixels, FromHex(entry["hex"])) << from << " to " << to << " by " << entry["resample"];
    EXPECT_LE(resized.pixels.size(), ResizeBytes(from[0], from[1], to[0], to[1]));
  }
}

void Compare(Comparison& comparison, const Model& model, const ModelSequence& sequence, const json& golden,
             const std::string& what) {
  ModelInput input;
  input.sequences.push_back(sequence);
  const InputResult result = RunOne(model, input);
  ASSERT_TRUE(result.status.ok()) << what << result.status;
  const bool embeds = model.config().task == ModelTask::kEmbedding;
  comparison.Add(embeds ? result.probabilities : result.logits, golden[embeds ? "embedding" : "logits"], what);
}

// The features of an input of the golden file.
ModelSequence RowsOf(const Model& model, const json& rows) {
  std::vector<float> values;
  for (const json& row : rows) {
    for (const json& value : row) values.push_back(value.get<float>());
  }
  const auto sequence = model.PrepareFeatures(static_cast<uint32_t>(rows.size()), model.config().feature_size,
                                              std::move(values), TruncateMode::kRefuse);
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  return *sequence;
}

class ImageModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  const LoadedModel model_ = LoadModel(Folder() + GetParam() + "/1");
  const json golden_ = ReadJson(Folder() + GetParam() + "/golden.json");
};

TEST_P(ImageModelTest, RowsGiveWhatTransformersGivesInFloat64) {
  Comparison comparison;
  for (const json& entry : golden_["inputs"]) {
    Compare(comparison, *model_, RowsOf(*model_, entry["rows"]), entry, GetParam());
  }
}

TEST_P(ImageModelTest, ImagesGiveTheValuesOfTheProcessorAndItsAnswers) {
  EXPECT_EQ(golden_["files"].empty(), !model_->config().image_processor.serves);
  Comparison comparison;
  for (const auto& [name, entry] : golden_["files"].items()) {
    const absl::StatusOr<ModelSequence> sequence = model_->PrepareImage(FileOf(name));
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    std::vector<float> values(entry["values"].size() + model_->config().feature_size, 0.0f);  // behind the CLS row
    for (size_t i = 0; i < entry["values"].size(); ++i) {
      values[model_->config().feature_size + i] = entry["values"][i].get<float>();
    }
    ASSERT_EQ(sequence->features.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      // The golden values have 8 digits.
      ASSERT_NEAR(sequence->features[i], values[i], 2e-7 * std::max(1.0f, std::abs(values[i]))) << name << ", " << i;
    }
    Compare(comparison, *model_, *sequence, entry, name);
  }
}

// Samples, caps and graphs on the patches and their CLS row.
TEST_P(ImageModelTest, KeepsThePromisesUnderSsaBudgetsAndGraphs) {
  ModelInput input;
  input.sequences.push_back(RowsOf(*model_, golden_["inputs"][0]["rows"]));
  const uint64_t pairs = model_->Pairs(input);
  const auto layers = OverrideAttention(model_->config(), {.kind = "ssa", .windows = 2, .sigma = {0.3}});
  ASSERT_TRUE(layers.ok()) << layers.status();
  input.attention = std::make_shared<const std::vector<AttentionConfig>>(*layers);
  input.seed = 5;
  input.samples = 4;
  const InputResult free = RunOne(*model_, input);
  ASSERT_TRUE(free.status.ok()) << free.status;
  ModelInput other = input;
  other.sequences[0] = RowsOf(*model_, golden_["inputs"][1]["rows"]);
  EXPECT_TRUE(SameBytes(free, RunAll(*model_, {other, input, other})[1])) << "alone and in a batch";
  ModelInput slack = input;
  slack.max_edges = pairs;
  EXPECT_EQ(RunOne(*model_, slack).probabilities, free.probabilities) << "a slack cap changes no byte";
  ModelInput capped = input;
  capped.max_edges = model_->LeastEdges(capped);
  const InputResult few = RunOne(*model_, capped);
  ASSERT_TRUE(few.status.ok()) << few.status;
  EXPECT_LE(few.max_sample_edges, capped.max_edges);
  ModelInput one = input;
  one.samples = 1;
  one.wanted.graph = true;
  const InputResult drawn = RunOne(*model_, one);
  ModelInput given = one;
  given.attention = nullptr;
  given.graph = drawn.graph;
  ASSERT_TRUE(model_->CheckGraph(given).ok());
  EXPECT_EQ(RunOne(*model_, given).probabilities, drawn.probabilities) << "a returned graph gives the same numbers";
}

INSTANTIATE_TEST_SUITE_P(Folders, ImageModelTest,
                         ::testing::Values("vit_classes", "vit_regression", "vit_model", "vit_features"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ImageModelInputTest, RowsAndImagesThatTheModelDoesNotTake) {
  const LoadedModel model = LoadModel(Folder() + "vit_classes/1");
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message(model->PrepareFeatures(5, 48, std::vector<float>(5 * 48), TruncateMode::kTail)),
            "features.rows is 5; the model takes 6, the patches of 8 x 12 pixels");
  EXPECT_EQ(message(model->PrepareFeatures(6, 40, std::vector<float>(6 * 40), TruncateMode::kTail)),
            "features.columns is 40; the model takes 48");
  const LoadedModel features = LoadModel(Folder() + "vit_features/1");
  EXPECT_EQ(message(features->PrepareImage(Made(6, 6))),
            "image: this model has no preprocessor_config.json; send rows of features");
}

struct Case {
  std::string folder;
  std::function<void(const fs::path&)> change;
  std::string message;  // a part of it; empty: the folder is served
};

std::function<void(const fs::path&)> Patch(const std::string& file, const json& patch) {
  return [=](const fs::path& folder) {
    json value = ReadJson(folder / file);
    value.merge_patch(patch);
    WriteFile(folder / file, value.dump());
  };
}

std::vector<Case> Cases() {
  const std::string classes = "vit_classes", features = "vit_features", model = "vit_model";
  const auto config = [](const json& patch) { return Patch("config.json", patch); };
  const auto steps = [](const json& patch) { return Patch("preprocessor_config.json", patch); };
  const std::string config_file = "config.json: ", steps_file = "preprocessor_config.json: ";
  return {
      {classes, config({{"architectures", {"ViTForMaskedImageModeling"}}}),
       "architectures is [\"ViTForMaskedImageModeling\"]; served: one of ViTModel, ViTForImageClassification"},
      {classes, config({{"hidden_act", "siluu"}}), "hidden_act is \"siluu\"; allowed: gelu, gelu_python, gelu_new"},
      {model, config({{"pooler_act", "gelu"}}), "pooler_act is \"gelu\"; allowed: tanh"},
      {classes, config({{"qkv_bias", 1}}), "qkv_bias is 1"},
      {classes, config({{"qkv_bias", false}}),
       "tensor vit.encoder.layer.0.attention.attention.key.bias is not part of"},
      {model, config({{"qkv_bias", true}}),
       "tensor vit.encoder.layer.0.attention.attention.query.bias [32] is missing; ViTModel has it"},
      {classes, config({{"image_size", {12, 8, 3}}}),
       "image_size is [12,8,3]; allowed: an integer from 1 to 65536, or [height, width]"},
      {classes, config({{"patch_size", 16}}),
       "image_size is 8 x 12, patch_size is 16 x 16 (width x height): that makes 0 patches"},
      {classes, config({{"num_channels", 0}}), "num_channels is 0"},
      {features, config({{"patch_size", 600}, {"image_size", 600}}), "a patch has 1800000 values; at most 65536"},
      {features, config({{"image_size", {9, 6}}}),
       "vit.embeddings.position_embeddings has shape [1, 5, 32]; config.json expects [1, 7, 32]"},
      {features, config({{"num_channels", 4}}), "has shape [32, 5, 3, 3]; config.json expects [32, 4, 3, 3]"},
      // The preprocessor.
      {classes, steps({{"size", {{"height", 8}}}}),
       steps_file + "size is 8 x 8; image_size of config.json is 8 x 12 (width x height)"},
      {classes, steps({{"size", {{"shortest_edge", 12}, {"height", nullptr}, {"width", nullptr}}}}),
       steps_file + "size is {\"shortest_edge\":12}; served: {\"height\", \"width\"}, or one number"},
      {classes, steps({{"size", 12}}),
       steps_file + "size is 12 x 12; image_size of config.json is 8 x 12 (width x height)"},
      {classes, steps({{"resample", 1}}), steps_file + "resample is 1; served: 2 (bilinear), 3 (bicubic)"},
      {classes, steps({{"do_center_crop", true}}), steps_file + "do_center_crop is true; served is false"},
      {classes, steps({{"do_pad", true}}), steps_file + "do_pad is true; served is false"},
      {classes, steps({{"image_mean", {0.5, 0.5}}}), steps_file + "image_mean is [0.5,0.5]; allowed: 3 numbers"},
      {classes, steps({{"image_std", {0.5, 0, 0.5}}}), steps_file + "image_std is [0.5,0,0.5]; allowed: 3 numbers"},
      {classes, steps({{"rescale_factor", "x"}}), steps_file + "rescale_factor is \"x\""},
      {classes, steps({{"image_processor_type", "CLIPImageProcessor"}}),
       steps_file + "image_processor_type is \"CLIPImageProcessor\"; served: \"ViTImageProcessor\""},
      {classes, steps({{"auto_map", {{"AutoImageProcessor", "x.Y"}}}}), steps_file + "auto_map is given"},
      {classes, [](const fs::path& folder) { WriteFile(folder / "preprocessor_config.json", "{"); },
       steps_file + "not valid JSON"},
      {features, [](const fs::path& folder) { WriteFile(folder / "preprocessor_config.json", "{}"); },
       steps_file + "the model's num_channels is 5; images have 3"},
      {classes, [](const fs::path& folder) { fs::remove(folder / "preprocessor_config.json"); }, ""},
      {classes, steps({{"do_center_crop", nullptr}, {"do_convert_rgb", true}, {"do_resize", false}}), ""},
  };
}

TEST(ImageFolderTest, SaysWhatIsNotServed) {
  const std::unique_ptr<Backend> backend = MakeBackend();
  for (const auto& [name, change, message] : Cases()) {
    const TemporaryFolder temporary;
    const fs::path folder = temporary.path() + "/1";
    fs::copy(Folder() + name + "/1", folder, fs::copy_options::recursive);
    change(folder);
    const auto model = edgewise::LoadModel(folder, *backend);
    EXPECT_EQ(model.ok(), message.empty()) << message << model.status();
    if (model.ok()) continue;
    EXPECT_NE(std::string(model.status().message()).find(message), std::string::npos)
        << "got:      " << model.status().message() << "\nexpected: " << message;
  }
}

TEST(ImageFolderTest, AnImageOfAnotherSizeIsRefusedWhereNoneIsResized) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() + "/1";
  fs::copy(Folder() + "vit_classes/1", folder, fs::copy_options::recursive);
  Patch("preprocessor_config.json", {{"do_resize", false}})(folder);
  const LoadedModel model = LoadModel(folder);
  EXPECT_TRUE(model->PrepareImage(Made(8, 12)).ok());
  EXPECT_EQ(std::string(model->PrepareImage(Made(12, 8)).status().message()),
            "image has 12 x 8 pixels; the model takes 8 x 12 and resizes none (do_resize)");
}

}  // namespace
}  // namespace edgewise::testing
