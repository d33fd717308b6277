// The corpora of the fuzz targets without a fuzzer: every file, and simple changes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {
namespace {

struct Target {
  const char* name;
  void (*run)(const std::string& bytes);
  int changes = 2000;  // of each file
};

void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

std::vector<std::string> Corpus(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& file : std::filesystem::directory_iterator(EDGEWISE_CORPUS "/" + name)) paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return files;
}

class CorpusTest : public ::testing::TestWithParam<Target> {};

TEST_P(CorpusTest, BreaksNoPromiseAsItIsOrChanged) {
  std::mt19937_64 random(1);
  const std::vector<std::string> files = Corpus(GetParam().name);
  ASSERT_GE(files.size(), 4u);
  for (const std::string& file : files) {
    GetParam().run(file);
    for (int change = 0; change < GetParam().changes; ++change) {
      std::string bytes = file;
      if (bytes.empty()) break;
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes.resize(at);
          break;
        case 1:
          bytes[at] = static_cast<char>(random());
          break;
        case 2:
          bytes.erase(at, random() % 8);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 8));
          break;
      }
      GetParam().run(bytes);
    }
  }
}

// So changes of them reach what comes behind the checks: the parts of a chat, the pixels of an image.
TEST(RequestCorpusTest, EveryFileIsAValidRequest) {
  for (const std::string& file : Corpus("request")) EXPECT_EQ(CheckRequest(file), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Of, CorpusTest,
                         ::testing::Values(Target{"safetensors", FuzzSafetensors}, Target{"config", FuzzConfig},
                                           Target{"tokenizer", FuzzTokenizer}, Target{"hftext", FuzzHfText},
                                           Target{"hffile", FuzzHfFile}, Target{"http", FuzzHttp},
                                           Target{"ids", FuzzIds, 200}, Target{"chat", FuzzChat},
                                           Target{"image", FuzzImage}, Target{"request", FuzzRequest},
                                           Target{"routes", FuzzRoutes, 300}, Target{"wire", FuzzWire}),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace edgewise::fuzz
