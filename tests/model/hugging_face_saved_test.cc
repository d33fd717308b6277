// Folders as people have them: what transformers loads, loads, and gives the same numbers; what is no model yet says
// what it is and what to do about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/load/load.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kIndexFile[] = "model.safetensors.index.json";

class SavedFolderTest : public ::testing::Test {
 protected:
  // Copies a folder of tests/testdata_hugging_face.
  void Copy(const std::string& name) {
    fs::remove_all(Folder());
    fs::copy(tests::TestdataFolder() + "_hugging_face/" + name + "/1", Folder(), fs::copy_options::recursive);
  }
  fs::path Folder() const { return temporary_.path() + "/1"; }

  std::string Read(const std::string& name) const {
    std::ifstream file(Folder() / name, std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
  }
  void Write(const std::string& name, const std::string& bytes) const { WriteFile(Folder() / name, bytes); }
  void Replace(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = Read(name);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    Write(name, text.replace(at, from.size(), to));
  }

  std::string Refusal() const {
    const std::unique_ptr<Backend> backend = MakeBackend();
    const auto model = edgewise::LoadModel(Folder(), *backend);
    if (model.ok()) return "";
    const std::string message(model.status().message());
    EXPECT_EQ(message.find(temporary_.path()), std::string::npos) << message;  // clients read it
    return message;
  }
  // Of one input.
  InputResult Answer() const {
    const LoadedModel model = LoadModel(Folder());
    return RunOne(*model, MakeInput(*model, {6, 7, 8, 9, 10}));
  }

 private:
  const TemporaryFolder temporary_;
};

// A file of float32 tensors as one of float64, its values changed by `change`.
std::string AsFloat64(const std::string& bytes, const std::function<double(float)>& change) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  json header = json::parse(bytes.substr(8, length));
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(tensor["dtype"], "F32");
    tensor["dtype"] = "F64";
    for (json& offset : tensor["data_offsets"]) offset = offset.get<uint64_t>() * 2;
  }
  std::vector<float> values((bytes.size() - 8 - length) / sizeof(float));
  std::memcpy(values.data(), &bytes[8 + length], values.size() * sizeof(float));
  std::vector<double> doubles;
  for (const float value : values) doubles.push_back(change(value));
  const std::string text = header.dump();
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + text +
         std::string(reinterpret_cast<const char*>(doubles.data()), doubles.size() * sizeof(double));
}

TEST_F(SavedFolderTest, Float64IsRoundedOnceToTheNearestFloat32) {
  Copy("bert_sequence");
  const InputResult expected = Answer();
  const std::string bytes = Read("model.safetensors");
  Write("model.safetensors", AsFloat64(bytes, [](float value) { return value; }));
  EXPECT_TRUE(SameBytes(Answer(), expected));
  // Nearly half of the way to the next one.
  const auto beside = [](float value) {
    const double next = std::nextafter(value, std::numeric_limits<float>::infinity());
    return value + 0.499999 * (next - value);
  };
  Write("model.safetensors", AsFloat64(bytes, beside));
  EXPECT_TRUE(SameBytes(Answer(), expected));
  // Beyond half of it, by less than bfloat16 or another format between them would see.
  const auto past = [](float value) {
    const float before = std::nextafter(value, -std::numeric_limits<float>::infinity());
    return static_cast<double>(before) + 0.500001 * (static_cast<double>(value) - before);
  };
  Write("model.safetensors", AsFloat64(bytes, past));
  EXPECT_TRUE(SameBytes(Answer(), expected));
}

TEST_F(SavedFolderTest, Float64BeyondFloat32IsRefused) {
  Copy("bert_sequence");
  Write("model.safetensors", AsFloat64(Read("model.safetensors"), [](float value) { return value * 1e300; }));
  EXPECT_THAT(Refusal(), HasSubstr("weights must be finite"));
}

// transformers joins the paths of the index to the folder, and takes all tensors of the files.
TEST_F(SavedFolderTest, ShardsAreWhereTheIndexSaysBelowTheFolder) {
  Copy("bert_regression");
  const InputResult expected = Answer();
  const auto renamed = [&](const std::function<std::string(const std::string&)>& rename) {
    json index = json::parse(Read(kIndexFile));
    for (json& file : index["weight_map"]) file = rename(file.get<std::string>());
    Write(kIndexFile, index.dump());
  };
  renamed([](const std::string& file) { return "./" + file; });
  EXPECT_TRUE(SameBytes(Answer(), expected));
  renamed([](const std::string& file) { return file.find("00001") != std::string::npos ? file : file.substr(2); });
  EXPECT_TRUE(SameBytes(Answer(), expected)) << "one file by two spellings";

  fs::create_directories(Folder() / "weights" / "parts");
  for (const char* file : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    fs::rename(Folder() / file, Folder() / "weights" / "parts" / file);
  }
  renamed([](const std::string& file) { return "weights/./parts//" + fs::path(file).filename().string(); });
  EXPECT_TRUE(SameBytes(Answer(), expected));

  const json good = json::parse(Read(kIndexFile));
  json index = good;
  for (json& file : index["weight_map"]) file = index["weight_map"].front();
  index["weight_map"]["no.such.tensor"] = good["weight_map"]["classifier.weight"];
  index["weight_map"]["classifier.bias"] = good["weight_map"].front();
  Write(kIndexFile, index.dump());
  EXPECT_TRUE(SameBytes(Answer(), expected)) << "an index that says wrongly which file has a tensor";

  for (const char* out :
       {"../x.safetensors", "weights/../../x.safetensors", "/x.safetensors", "a\\b.safetensors", "..", "", "x.bin"}) {
    index["weight_map"]["classifier.bias"] = out;
    Write(kIndexFile, index.dump());
    EXPECT_THAT(Refusal(), HasSubstr("weight_map: \"classifier.bias\" is in " + json(out).dump() +
                                     "; the path of a .safetensors file in this folder is expected"));
  }
}

TEST_F(SavedFolderTest, ConfigJsonMayNameTheFileOfTheWeights) {
  Copy("bert_sequence");
  const InputResult expected = Answer();
  fs::rename(Folder() / "model.safetensors", Folder() / "mine.safetensors");
  Replace("config.json", "{", "{\"transformers_weights\": \"mine.safetensors\", ");
  EXPECT_TRUE(SameBytes(Answer(), expected));
  Replace("config.json", "mine.safetensors", "../mine.safetensors");
  EXPECT_THAT(Refusal(), HasSubstr("config.json: transformers_weights is \"../mine.safetensors\"; the path of a "));
}

TEST_F(SavedFolderTest, OfTwoValuesOfAKeyTheLastCountsAsInPython) {
  Copy("bert_sequence");
  const InputResult expected = Answer();
  Replace("config.json", "\"hidden_size\"", "\"hidden_size\": 7, \"hidden_size\"");
  Replace("tokenizer_config.json", "{", "{\"model_input_names\": 7, \"model_input_names\": [\"input_ids\"], ");
  EXPECT_TRUE(SameBytes(Answer(), expected));
}

TEST_F(SavedFolderTest, NumbersThatAreNotFiniteStandWhereNothingReadsThem) {
  Copy("bert_sequence");
  const InputResult expected = Answer();
  Replace("config.json", "{", "{\"note\": [NaN, -Infinity], \"initializer_range\": {\"__float__\": \"Infinity\"}, ");
  EXPECT_TRUE(SameBytes(Answer(), expected));
  Replace("config.json", "\"layer_norm_eps\": ", "\"layer_norm_eps\": Infinity, \"was\": ");
  EXPECT_EQ(Refusal(), "config.json: layer_norm_eps is Infinity; allowed: a number from 1e-12 to 1");
}

// GPT2Config() of a smaller vocabulary has the ends of the published one.
TEST_F(SavedFolderTest, AnEndBeyondTheVocabularyNeverComes) {
  Copy("gpt2_causal");
  Replace("config.json", "\"eos_token_id\": 2", "\"eos_token_id\": [50256, 2]");
  EXPECT_EQ(LoadModel(Folder())->config().end_token_ids, std::vector<int32_t>{2});
  Write("generation_config.json", R"({"eos_token_id": 50256})");
  EXPECT_EQ(LoadModel(Folder())->config().end_token_ids, std::vector<int32_t>());
}

TEST_F(SavedFolderTest, AFileThatDoesNotParseSaysLineAndColumn) {
  Copy("bert_sequence");
  Replace("config.json", "{", "{\n  'a': 1,");
  EXPECT_EQ(Refusal(),
            "config.json: not valid JSON: line 2, column 3: found \"'\"; a key in double quotes is expected");
}

TEST_F(SavedFolderTest, AGitLfsPointerSaysSo) {
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    Copy("bert_sequence");
    Write(file, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 63076\n");
    EXPECT_THAT(Refusal(), ::testing::StartsWith(std::string(file) + ": is a pointer of git-lfs")) << file;
  }
}

struct OtherFormatCase {
  std::vector<const char*> files;
  const char* missing;
  const char* remedy;
};

// In the place of the weights, and beside nothing.
TEST_F(SavedFolderTest, AFolderInAnotherFormatSaysWhichAndWhatToDo) {
  const OtherFormatCase cases[] = {
      {{"model-q4_k_m.gguf"}, "config.json", "model-q4_k_m.gguf, which is GGUF"},
      {{"adapter_config.json", "adapter_model.safetensors"},
       "config.json",
       "adapter_config.json, which is of an adapter (PEFT) and not served alone; merge it into its base model"},
      {{"config.json", "adapter_model.safetensors"}, "model.safetensors", "merge_and_unload().save_pretrained(OTHER)"},
      {{"config.json", "pytorch_model.bin", "training_args.bin"},
       "model.safetensors",
       "pytorch_model.bin, which is pickled and not read; from_pretrained(FOLDER).save_pretrained(OTHER)"},
      {{"config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"},
       "model.safetensors",
       "which is pickled and not read"},
      {{"config.json", "model.fp16.safetensors"}, "model.safetensors", "name it model.safetensors"},
      {{"config.json", "model.fp16-00001-of-00002.safetensors", "model.safetensors.index.fp16.json"},
       "model.safetensors",
       "name it model.safetensors.index.json"},
      {{"config.json", "model-00001-of-00002.safetensors"},
       "model.safetensors",
       "copy model.safetensors.index.json, which names all parts, too"},
      {{"consolidated.safetensors", "params.json", "tekken.json"}, "config.json", "a format of the model's makers"},
      {{"config.json", "consolidated.00.pth"}, "model.safetensors", "a format of the model's makers"},
      {{"config.json", "tf_model.h5"}, "model.safetensors", "tf_model.h5, which is of TensorFlow or JAX"},
      {{"config.json", "flax_model.msgpack"}, "model.safetensors", "flax_model.msgpack, which is of TensorFlow or JAX"},
      {{"config.json", "onnx/model.onnx"}, "model.safetensors", "onnx, which is a compiled model"},
      {{"config.json", "model_quantized.onnx"}, "model.safetensors", "serve the folder that it was exported from"},
      {{"config.json", "openvino_model.xml"}, "model.safetensors", "openvino_model.xml, which is a compiled model"},
      {{"config.json", "weights.safetensors"}, "model.safetensors", "if these are the weights, name it model.safet"},
      {{"model.safetensors", "tokenizer.json"}, "config.json", "copy the config.json of the same model too"},
      {{"ckpt.pt"}, "config.json", "tools/convert.py"},
      {{"modules.json", "0_Transformer/config.json"}, "config.json", "move its files beside modules.json"},
      {{}, "config.json", "the folder is empty"},
      {{"README.md"}, "config.json", ""},
  };
  const std::unique_ptr<Backend> backend = MakeBackend();
  for (const auto& [files, missing, remedy] : cases) {
    Copy("bert_sequence");
    const std::string config = Read("config.json");
    fs::remove_all(Folder());
    fs::create_directories(Folder());
    for (const std::string file : files) {
      fs::create_directories((Folder() / file).parent_path());
      Write(file, file == "config.json" ? config : "x");
    }
    const absl::Status status = edgewise::LoadModel(Folder(), *backend).status();
    const std::string message(status.message());
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_EQ(message.find(std::string(missing) + ": no such file"), 0u) << message;
    EXPECT_THAT(message, HasSubstr(remedy));
  }
}

TEST_F(SavedFolderTest, SoDoesAFolderOfOurOwnFormat) {
  WriteModel(Folder(), SmallConfig());
  fs::rename(Folder() / "model.safetensors", Folder() / "ckpt.pt");
  EXPECT_THAT(Refusal(), HasSubstr("model.safetensors: no such file; the folder has ckpt.pt, which is pickled"));
}

}  // namespace
}  // namespace edgewise::testing
