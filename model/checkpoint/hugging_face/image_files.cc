#include "model/checkpoint/hugging_face/image_files.h"

#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr char kFile[] = "preprocessor_config.json";
constexpr uint64_t kMaxBytes = 1 << 20;

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(kFile, ": ", message));
}

// The files have the height first, messages the width.
std::string Show(int32_t height, int32_t width) { return absl::StrCat(width, " x ", height); }

// One number for both sides, or [height, width].
std::pair<int32_t, int32_t> ReadSides(JsonObject& object, const char* field, int32_t most, int32_t fallback) {
  const json& value = object.Value(field, false);
  if (value.is_null()) return {fallback, fallback};
  if (IsInteger(value, 1, most)) return {value.get<int32_t>(), value.get<int32_t>()};
  if (value.is_array() && value.size() == 2 && IsInteger(value[0], 1, most) && IsInteger(value[1], 1, most)) {
    return {value[0].get<int32_t>(), value[1].get<int32_t>()};
  }
  object.FailAt(field, value, absl::StrCat("allowed: an integer from 1 to ", most, ", or [height, width]"));
  return {fallback, fallback};
}

// Height and width of `size`: an object of the two, or one number as older files have it.
absl::StatusOr<std::pair<int32_t, int32_t>> ReadSize(const json& value) {
  if (IsInteger(value, 1, kMaxWidth)) return std::pair(value.get<int32_t>(), value.get<int32_t>());
  const auto side = [&](const char* name) {
    const auto found = value.find(name);
    return found != value.end() && IsInteger(*found, 1, kMaxWidth) ? found->get<int32_t>() : 0;
  };
  if (value.is_object() && value.size() == 2 && side("height") > 0 && side("width") > 0) {
    return std::pair(side("height"), side("width"));
  }
  return Invalid(absl::StrCat("size is ", ShowJson(value), "; served: {\"height\", \"width\"}, or one number"));
}

// Three finite numbers; a deviation is not 0.
void ReadChannels(JsonObject& object, const char* field, bool divides, std::array<float, 3>& values) {
  const json& found = object.Value(field, false);
  if (found.is_null()) return;
  bool good = found.is_array() && found.size() == values.size();
  for (size_t i = 0; good && i < values.size(); ++i) {
    good = found[i].is_number() && std::abs(found[i].get<double>()) <= 1e6 &&
           (!divides || std::abs(found[i].get<double>()) >= 1e-6);
    if (good) values[i] = static_cast<float>(found[i].get<double>());
  }
  if (!good) {
    object.FailAt(field, found,
                  absl::StrCat("allowed: 3 numbers from -1e6 to 1e6", divides ? ", at least 1e-6 in size" : ""));
  }
}

// Steps that ViTImageProcessor can be told to take and that are not served.
absl::Status RefuseSteps(const json& config) {
  for (const char* field : {"image_processor_type", "feature_extractor_type"}) {
    const auto found = config.find(field);
    if (found == config.end()) continue;
    if (*found != "ViTImageProcessor" && *found != "ViTImageProcessorFast" && *found != "ViTImageProcessorPil" &&
        *found != "ViTFeatureExtractor") {
      return Invalid(absl::StrCat(field, " is ", ShowJson(*found), "; served: \"ViTImageProcessor\""));
    }
  }
  for (const char* field : {"do_center_crop", "do_pad"}) {
    const auto found = config.find(field);
    if (found == config.end() || *found == false) continue;
    return Invalid(absl::StrCat(field, " is ", ShowJson(*found), "; served is false"));
  }
  if (config.contains("auto_map")) {
    return Invalid("auto_map is given, so code of its own prepares the images, which is not served");
  }
  return absl::OkStatus();
}

}  // namespace

void ReadPatches(JsonObject& object, ModelConfig& config) {
  ImagePatches& image = config.image;
  std::tie(image.height, image.width) = ReadSides(object, "image_size", kMaxWidth, 224);
  std::tie(image.patch_height, image.patch_width) = ReadSides(object, "patch_size", 1024, 16);
  image.channels = object.Integer("num_channels", 1, 1024, 3);
  const int64_t count = int64_t{image.height / image.patch_height} * (image.width / image.patch_width);
  if (count == 0 || count >= kMaxPositions) {
    object.Fail(absl::StrCat("image_size is ", Show(image.height, image.width), ", patch_size is ",
                             Show(image.patch_height, image.patch_width), " (width x height): that makes ", count,
                             " patches; allowed are 1 to ", kMaxPositions - 1));
  }
  const int64_t size = int64_t{image.channels} * image.patch_height * image.patch_width;
  if (size > kMaxWidth) {
    object.Fail(absl::StrCat("patch_size is ", Show(image.patch_height, image.patch_width),
                             " (width x height), num_channels is ", image.channels, ": a patch has ", size,
                             " values; at most ", kMaxWidth, " are served"));
  }
  if (!object.status().ok()) return;
  config.feature_size = image.size();
  config.max_position_embeddings = 1 + image.count();
}

absl::Status ReadPreprocessor(ModelFolder& files, ModelConfig& config) {
  const absl::StatusOr<std::string> text = files.Read(kFile, kMaxBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();  // the model takes rows of features alone
  if (!text.ok()) return Invalid(std::string(text.status().message()));
  const absl::StatusOr<json> whole = ParsePythonJson(*text);
  if (!whole.ok()) return Invalid(std::string(whole.status().message()));
  if (!whole->is_object()) return Invalid("an object is expected");
  json fields = json::object();  // null is read as absent
  for (const auto& [field, value] : whole->items()) {
    if (!value.is_null()) fields[field] = value;
  }
  const absl::Status refused = RefuseSteps(fields);
  if (!refused.ok()) return refused;
  if (config.image.channels != 3) {
    return Invalid(absl::StrCat("the model's num_channels is ", config.image.channels,
                                "; images have 3 (without this file it takes rows of features)"));
  }
  ImageProcessor& processor = config.image_processor;
  JsonObject object(fields, "");
  processor.serves = true;
  processor.resize = object.Boolean("do_resize", true);
  processor.rescale = object.Boolean("do_rescale", true);
  processor.normalize = object.Boolean("do_normalize", true);
  const json& resample = object.Value("resample", false);
  if (resample == 3) {
    processor.resample = Resample::kBicubic;
  } else if (!resample.is_null() && resample != 2) {
    object.FailAt("resample", resample, "served: 2 (bilinear), 3 (bicubic)");
  }
  processor.factor = object.Number("rescale_factor", 1e-9, 1e9, processor.factor);
  ReadChannels(object, "image_mean", false, processor.mean);
  ReadChannels(object, "image_std", true, processor.deviation);
  if (!object.status().ok()) return Invalid(std::string(object.status().message()));
  const auto size = fields.find("size");
  if (processor.resize) {
    std::pair<int32_t, int32_t> sides = {224, 224};
    if (size != fields.end()) {
      const absl::StatusOr<std::pair<int32_t, int32_t>> read = ReadSize(*size);
      if (!read.ok()) return read.status();
      sides = *read;
    }
    if (sides != std::pair(config.image.height, config.image.width)) {
      return Invalid(absl::StrCat("size is ", Show(sides.first, sides.second), "; image_size of config.json is ",
                                  Show(config.image.height, config.image.width), " (width x height)"));
    }
  }
  config.others += whole->dump();
  return absl::OkStatus();
}

}  // namespace edgewise::hugging_face
