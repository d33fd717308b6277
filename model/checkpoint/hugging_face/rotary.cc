#include "model/checkpoint/hugging_face/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr double kMost = 1e12;
constexpr double kLeastTheta = 1.0 + 1e-6;
constexpr double kCircle = 2.0 * std::numbers::pi;

// A positive number; `fallback` 0: it must be there.
double Positive(JsonObject& rope, const char* field, double least, double fallback) {
  const double value = rope.Number(field, least, kMost, fallback);
  if (value == 0.0) rope.Fail(absl::StrCat(rope.Path(field), " is missing; this rope_type needs it"));
  return value == 0.0 ? 1.0 : value;
}

// The context that the model was trained with first.
double FirstContext(JsonObject& rope, JsonObject& object, const ModelConfig& config) {
  const int32_t own =
      rope.Integer("original_max_position_embeddings", 1, kMaxPositions, config.max_position_embeddings);
  return object.Integer("original_max_position_embeddings", 1, kMaxPositions, own);
}

// Slow turns become slower by the factor, fast ones stay, and those between are mixed.
void ScaleLlama3(JsonObject& rope, double context, Rotary& rotary) {
  const double factor = Positive(rope, "factor", 1.0, 0.0);
  const double low = Positive(rope, "low_freq_factor", 1e-6, 0.0), high = Positive(rope, "high_freq_factor", 1e-6, 0.0);
  if (high <= low) {
    rope.Fail(absl::StrCat(rope.Path("high_freq_factor"), " is ", high, "; more than low_freq_factor, ", low,
                           ", is expected"));
    return;
  }
  for (double& angle : rotary.angles) {
    const double turns = context * angle / kCircle;
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    angle = (1.0 - kept) * angle / factor + kept * angle;
  }
}

double Temperature(double factor, double scale) { return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0; }

// Angles of many turns in the first context stay, those of few are divided, and a ramp over their indices mixes those
// between.
void ScaleYarn(JsonObject& rope, double theta, double context, Rotary& rotary) {
  const double factor = Positive(rope, "factor", 1.0, 0.0);
  const double fast = Positive(rope, "beta_fast", 1e-6, 32.0), slow = Positive(rope, "beta_slow", 1e-6, 1.0);
  const double scale = rope.Number("mscale", 0.0, kMost, 0.0), all = rope.Number("mscale_all_dim", 0.0, kMost, 0.0);
  const double own =
      scale > 0.0 && all > 0.0 ? Temperature(factor, scale) / Temperature(factor, all) : Temperature(factor, 1.0);
  rotary.factor = rope.Number("attention_factor", 0.0, kMost, own);
  const double width = 2.0 * static_cast<double>(rotary.angles.size());
  const auto index_of = [&](double turns) {
    return width * std::log(context / (turns * kCircle)) / (2.0 * std::log(theta));
  };
  double first = index_of(fast), last = index_of(slow);
  if (rope.Boolean("truncate", true)) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, width - 1.0);
  if (first == last) last += 0.001;
  for (size_t i = 0; i < rotary.angles.size(); ++i) {
    double& angle = rotary.angles[i];
    const double divided = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    angle = divided * angle / factor + (1.0 - divided) * angle;
  }
}

// The field that has the parameters, and its value: an object, empty where there is none. Files of two spellings fail.
std::pair<const char*, json> Given(JsonObject& object) {
  const bool newer = object.Has("rope_parameters");
  const char* const field = newer ? "rope_parameters" : "rope_scaling";
  if (newer && object.Has("rope_scaling")) {
    object.Fail("rope_parameters and rope_scaling are both given; one of them is expected");
  }
  const json& given = object.Value(field, false);
  if (given.is_object()) return {field, given};
  if (!given.is_null()) object.FailAt(field, given, "an object is expected");
  return {field, json::object()};
}

// Reads the parameters `rope` of some layers. `outer`: theta where they have none.
void ReadRope(JsonObject& rope, double outer, JsonObject& object, const ModelConfig& config, Rotary& rotary) {
  const bool older = rope.Has("type");  // files of some versions have both
  const char* const type_field = older && !rope.Has("rope_type") ? "type" : "rope_type";
  const std::string type = rope.String(type_field, "default");
  const double theta = rope.Number("rope_theta", kLeastTheta, kMost, outer);
  const double part = object.Number("partial_rotary_factor", 0.0, 1.0, 1.0);
  if (rope.Number("partial_rotary_factor", 0.0, 1.0, part) != 1.0) {
    object.Fail("partial_rotary_factor is not 1; heads that rotate in part are not served");
  }
  if (config.head_dim % 2 != 0) {
    object.Fail(absl::StrCat("head_dim is ", config.head_dim, "; an even number is expected, as halves rotate"));
  }
  for (int32_t i = 0; 2 * i < config.head_dim; ++i) {
    rotary.angles.push_back(std::pow(theta, -2.0 * i / config.head_dim));
  }
  if (type == "linear") {
    const double factor = Positive(rope, "factor", 1.0, 0.0);
    for (double& angle : rotary.angles) angle /= factor;
  } else if (type == "llama3") {
    ScaleLlama3(rope, FirstContext(rope, object, config), rotary);
  } else if (type == "yarn") {
    ScaleYarn(rope, theta, FirstContext(rope, object, config), rotary);
  } else if (type == "dynamic" || type == "longrope") {
    rope.FailAt(type_field, json(type),
                "served: default, linear, llama3, yarn; with this one a longer text changes its earlier rows");
  } else if (type != "default") {
    rope.FailAt(type_field, json(type), "served: default, linear, llama3, yarn");
  }
  rope.FinishInto(object);
}

}  // namespace

void ReadRotary(JsonObject& object, ModelConfig& config) {
  const auto [field, given] = Given(object);
  JsonObject rope(given, field);
  config.position_embedding = PositionEmbedding::kRotary;
  ReadRope(rope, object.Number("rope_theta", kLeastTheta, kMost, 10000.0), object, config, config.rotary);
}

void ReadRotaryOfTypes(JsonObject& object, ModelConfig& config) {
  const auto [field, given] = Given(object);
  config.position_embedding = PositionEmbedding::kRotary;
  const double full = object.Number("global_rope_theta", kLeastTheta, kMost, 160000.0);
  if (object.Value("local_rope_theta", false) == false) {  // it was null (folder.cc)
    return object.Fail("local_rope_theta is null; versions of transformers differ in what that is, so give a number");
  }
  const double window = object.Number("local_rope_theta", kLeastTheta, kMost, 10000.0);
  if (!object.Has("rope_parameters")) {  // of all layers
    for (const auto& [theta, rotary] : {std::pair(full, &config.rotary), std::pair(window, &config.window_rotary)}) {
      JsonObject rope(given, field);
      ReadRope(rope, theta, object, config, *rotary);
    }
    return;
  }
  JsonObject types(given, field);
  const auto read = [&](const char* type, double theta, Rotary& rotary) {
    const json& own = types.Value(type, false);
    if (!own.is_null() && !own.is_object()) return types.FailAt(type, own, "an object is expected");
    const json fields = own.is_null() ? json::object() : own;
    JsonObject rope(fields, types.Path(type));
    ReadRope(rope, theta, object, config, rotary);
  };
  read("full_attention", full, config.rotary);
  read("sliding_attention", window, config.window_rotary);
  types.FinishInto(object);
}

}  // namespace edgewise::hugging_face
