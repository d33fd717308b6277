// Weight files: a file that is not whole or does not fit is refused, and the error says why.
#include "model/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <functional>

#include "model/load/load.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A file with this header, and `data_bytes` zero bytes behind it.
std::string FileOf(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\0');
}

std::string LengthOnly(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), 8) + rest;
}

std::string Tensor(const std::string& shape, uint64_t begin, uint64_t end, const std::string& dtype = "F32") {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" + std::to_string(begin) + "," +
         std::to_string(end) + "]}";
}

struct Case {
  const char* name;
  std::string bytes;
  const char* message;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string ManyTensors(int count) {
  std::string header = "{";
  for (int t = 0; t < count; ++t) header += (t == 0 ? "\"" : ",\"") + std::to_string(t) + "\":{}";
  return header + "}";
}

std::vector<Case> BadFiles() {
  const std::string good = "{\"a\":" + Tensor("[2,3]", 0, 24) + "}";
  return {
      {"empty", "", "has 0 bytes"},
      {"seven_bytes", "1234567", "has 7 bytes"},
      {"header_length_zero", LengthOnly(0, ""), "does not begin with {"},
      {"header_longer_than_file", LengthOnly(100, "{}"), "header length is 100"},
      {"header_length_all_ones", LengthOnly(~uint64_t{0}, "{}"), "header length is 18446744073709551615"},
      {"header_length_big_endian", LengthOnly(__builtin_bswap64(2), "{}"), "header length is"},
      {"not_json", FileOf("{\"a\"", 0), "not valid JSON"},
      {"a_list", FileOf("[]", 0), "does not begin with {"},
      {"leading_space", FileOf(" {}", 0), "does not begin with {"},
      {"pickle", std::string("\x80\x02}q\x00(X\x05\x00\x00\x00hello", 15), "header length is"},
      {"html", "<!DOCTYPE html><html><body>Sign in</body></html>", "header length is"},
      {"many_tensors", FileOf(ManyTensors(250000), 0), "has 250000 tensors"},  // minutes in quadratic time
      {"nul", FileOf(std::string("{}\0 {", 5), 0),
       "line 1, column 3: found the byte 0x00; nothing is expected after the value"},
      {"not_utf8", FileOf("{\"\xff\":1}", 0), "not valid JSON"},
      {"deep", FileOf("{\"a\":" + std::string(10000, '[') + "}", 0), "nested deeper"},
      {"duplicate_tensor", FileOf("{\"a\":" + Tensor("[1]", 0, 4) + ",\"a\":" + Tensor("[1]", 0, 4) + "}", 4),
       "\"a\" stands twice"},
      {"duplicate_field", FileOf(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
       "\"dtype\" stands twice"},
      {"metadata_number", FileOf(R"({"__metadata__":{"x":1}})", 0), "__metadata__"},
      {"metadata_tensor", FileOf("{\"__metadata__\":" + Tensor("[1]", 0, 4) + "}", 4), "__metadata__"},
      {"unknown_dtype", FileOf("{\"a\":" + Tensor("[1]", 0, 4, "F12") + "}", 4), "unknown dtype \"F12\""},
      {"negative_shape", FileOf("{\"a\":" + Tensor("[-1]", 0, 4) + "}", 4), "shape [-1]"},
      {"float_shape", FileOf("{\"a\":" + Tensor("[1.0]", 0, 4) + "}", 4), "shape [1.0]"},
      {"string_shape", FileOf("{\"a\":" + Tensor("[\"1\"]", 0, 4) + "}", 4), "no count"},
      {"nine_dimensions", FileOf("{\"a\":" + Tensor("[1,1,1,1,1,1,1,1,1]", 0, 4) + "}", 4), "at most 8"},
      {"shape_overflows", FileOf("{\"a\":" + Tensor("[4611686018427387904,4]", 0, 4) + "}", 4), "is too large"},
      {"overflow_then_zero", FileOf("{\"a\":" + Tensor("[4611686018427387904,4,0]", 0, 0) + "}", 0), "is too large"},
      {"zero_then_overflow", FileOf("{\"a\":" + Tensor("[0,4611686018427387904,4]", 0, 0) + "}", 0), "is too large"},
      {"offsets_reversed", FileOf("{\"a\":" + Tensor("[1]", 4, 0) + "}", 4), "data_offsets [4,0]"},
      {"offsets_gap", FileOf("{\"a\":" + Tensor("[1]", 0, 4) + ",\"b\":" + Tensor("[1]", 8, 12) + "}", 12),
       "tensor b begins at byte 8"},
      {"offsets_overlap", FileOf("{\"a\":" + Tensor("[2]", 0, 8) + ",\"b\":" + Tensor("[2]", 4, 12) + "}", 12),
       "tensor b begins at byte 4"},
      {"offsets_start", FileOf("{\"a\":" + Tensor("[1]", 4, 8) + "}", 8), "tensor a begins at byte 4"},
      {"size_mismatch", FileOf("{\"a\":" + Tensor("[2]", 0, 4) + "}", 4), "takes 8 bytes; data_offsets hold 4"},
      {"trailing_bytes", FileOf(good, 25), "describes 24 bytes of data; the file has 25"},
      {"truncated_by_one", FileOf(good, 23), "describes 24 bytes of data; the file has 23"},
      {"no_data", FileOf(good, 0), "describes 24 bytes of data; the file has 0"},
      {"name_with_slash", FileOf("{\"a/b\":" + Tensor("[1]", 0, 4) + "}", 4), "tensor name \"a/b\""},
      {"name_with_newline", FileOf("{\"a\\nb\":" + Tensor("[1]", 0, 4) + "}", 4), "tensor name"},
      {"name_too_long", FileOf("{\"" + std::string(300, 'x') + "\":" + Tensor("[1]", 0, 4) + "}", 4), "tensor name"},
      {"extra_field", FileOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4), "and nothing else"},
  };
}

class BadFileTest : public ::testing::TestWithParam<Case> {};

TEST_P(BadFileTest, IsRefusedWithAReason) {
  const TemporaryFolder folder;
  WriteFile(folder.path() + "/x", GetParam().bytes);
  const auto file = SafetensorsFile::Open(folder.path() + "/x");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Cases, BadFileTest, ::testing::ValuesIn(BadFiles()),
                         [](const auto& info) { return info.param.name; });

TEST(SafetensorsTest, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  WriteFile(folder.path() + "/x",
            SafetensorsBytes({{"b", {{2, 2}, {1, 2, 3, 4}}}, {"a", {{1}, {-5}}}, {"e", {{0}, {}}}}));
  auto file = SafetensorsFile::Open(folder.path() + "/x");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->ReadData().ok());
  EXPECT_EQ((*file)->Values("a")[0], -5.0f);
  EXPECT_EQ((*file)->Values("b")[3], 4.0f);
  EXPECT_EQ((*file)->sha256().size(), 64u);
}

TEST(SafetensorsTest, OnlyRegularFilesAreOpened) {
  const TemporaryFolder folder;
  const std::string fifo = folder.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, folder.path()}) {
    EXPECT_EQ(SafetensorsFile::Open(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
  EXPECT_EQ(SafetensorsFile::Open(folder.path() + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, AHugeSparseFileIsRefusedBeforeItIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x";
  WriteFile(path, FileOf("{\"a\":" + Tensor("[1]", 0, 4) + "}", 4));
  ASSERT_EQ(truncate(path.c_str(), int64_t{1} << 40), 0);
  EXPECT_EQ(SafetensorsFile::Open(path).status().code(), absl::StatusCode::kInvalidArgument);
}

using Tensors = std::map<std::string, TestTensor>;

struct WeightCase {
  const char* name;
  std::function<void(Tensors&)> damage;
  const char* message;
};

void PrintTo(const WeightCase& c, std::ostream* out) { *out << c.name; }

class BadWeightsTest : public ::testing::TestWithParam<WeightCase> {};

TEST_P(BadWeightsTest, AreRefusedAndNamed) {
  const TemporaryFolder folder;
  Tensors tensors = RandomTensors(SmallConfig(), 1);
  GetParam().damage(tensors);
  WriteFile(folder.path() + "/config.json", SmallConfig().dump());
  WriteFile(folder.path() + "/model.safetensors", SafetensorsBytes(tensors));
  const auto backend = CreateBackend({});
  ASSERT_TRUE(backend.ok());
  const auto model = LoadModel(folder.path(), **backend);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadWeightsTest,
    ::testing::Values(
        WeightCase{"missing", [](Tensors& t) { t.erase("final_norm.bias"); }, "tensor final_norm.bias [32] is missing"},
        WeightCase{"superfluous",
                   [](Tensors& t) {
                     t["final_norm.gain"] = {{1}, {1}};
                   },
                   "tensor final_norm.gain is not part of this model"},
        WeightCase{"shape",
                   [](Tensors& t) {
                     t["layers.0.mlp.up.weight"].shape = {32, 48};
                   },
                   "tensor layers.0.mlp.up.weight has shape [32, 48]; config.json expects [48, 32]"},
        WeightCase{"nan", [](Tensors& t) { t["layers.1.attention.clusters"].values[3] = NAN; },
                   "tensor layers.1.attention.clusters: element 3 is nan"},
        WeightCase{"infinite", [](Tensors& t) { t["classifier.output.bias"].values[2] = INFINITY; },
                   "classifier.output.bias: element 2 is inf"},
        WeightCase{"self_test",
                   [](Tensors& t) {
                     for (float& v : t["classifier.output.weight"].values) v = 3e38f;
                   },
                   "self-test"},
        WeightCase{"block_matrix_negative",
                   [](Tensors& t) {
                     t["layers.0.attention.block_matrix"] = {{2, 16, 16}, std::vector<float>(512, -0.001f)};
                   },
                   "layers.0.attention.block_matrix: entry 0 of head 0 is -0.001"},
        WeightCase{"block_matrix_sum",
                   [](Tensors& t) {
                     t["layers.0.attention.block_matrix"] = {{2, 16, 16}, std::vector<float>(512, 0.01f)};
                   },
                   "head 0 sums to 2.56"}),
    [](const auto& info) { return info.param.name; });

TEST(ModelLoadTest, MissingFilesAreNotFound) {
  const TemporaryFolder folder;
  const auto backend = CreateBackend({});
  EXPECT_EQ(LoadModel(folder.path(), **backend).status().code(), absl::StatusCode::kNotFound);
  WriteFile(folder.path() + "/config.json", SmallConfig().dump());
  EXPECT_THAT(LoadModel(folder.path(), **backend).status().ToString(), HasSubstr("model.safetensors: no such file"));
}

}  // namespace
}  // namespace edgewise::testing
