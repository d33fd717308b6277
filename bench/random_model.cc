#include "bench/random_model.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "bench/timing.h"
#include "model/checkpoint/parse_config.h"
#include "model/checkpoint/weights.h"
#include "model/config/config.h"
#include "model/load/load.h"

namespace edgewise::bench {

RandomModel MakeRandomModel(const std::string& config_json, Backend& backend) {
  const auto config = ParseModelConfig(config_json);
  Check(config.status());
  RandomModel made;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::ostringstream header;
  std::string data;
  header << "{";
  for (const auto& [name, shape, optional] : ExpectedTensors(*config)) {
    if (optional) continue;
    int64_t size = 1;
    for (int64_t dimension : shape) size *= dimension;
    std::vector<float> values(size, name.find("norm.weight") == std::string::npos ? 0.0f : 1.0f);
    if (shape.size() == 2) {
      for (float& value : values) value = normal(random);
      if (name.find("position") == std::string::npos) made.matrix_bytes += size * 4;
    }
    if (header.tellp() > 1) header << ",";
    header << "\"" << name << "\":{\"dtype\":\"F32\",\"shape\":[";
    for (size_t d = 0; d < shape.size(); ++d) header << (d > 0 ? "," : "") << shape[d];
    header << "],\"data_offsets\":[" << data.size() << "," << data.size() + size * 4 << "]}";
    data.append(reinterpret_cast<const char*>(values.data()), size * 4);
  }
  header << "}";
  const std::string text = header.str();
  const uint64_t length = text.size();

  std::string folder = (std::filesystem::temp_directory_path() / "edgewise-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) Check(absl::UnavailableError("cannot make a folder like " + folder));
  std::ofstream(folder + "/config.json") << config_json;
  {
    std::ofstream file(folder + "/model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text << data;
  }
  auto model = LoadModel(folder, backend);
  std::filesystem::remove_all(folder);
  Check(model.status());
  made.model = *std::move(model);
  return made;
}

}  // namespace edgewise::bench
