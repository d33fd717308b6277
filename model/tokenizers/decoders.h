// From tokens back to text: the decoders of tokenizer.json, as a chain that text flows through.
#ifndef EDGEWISE_MODEL_TOKENIZERS_DECODERS_H_
#define EDGEWISE_MODEL_TOKENIZERS_DECODERS_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json_object.h"
#include "model/tokenizers/fields.h"

namespace edgewise::tokenizers {

// A stage of a chain, with what it has seen. One thread at a time.
class TextStage {
 public:
  virtual ~TextStage() = default;
  // The next part of the text, whole characters. `begins`: it begins a token; else it goes on with the one before.
  virtual void Take(std::string_view text, bool begins) = 0;
  // No more will come.
  virtual void End() = 0;
};

// When bytes that tokens name are handed on.
enum class ByteRuns {
  kWhole,  // once the run of such tokens ends, as `tokenizers` decodes: one bad byte makes all of them U+FFFD
  kEager,  // as soon as they are a character; only bad bytes become U+FFFD
  kRaw,    // at once, as they are; and nothing is stripped
};

// A decoder of the file. Immutable; may be used from any thread.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  // A fresh stage that hands its text to `next`.
  virtual std::unique_ptr<TextStage> Start(std::unique_ptr<TextStage> next, ByteRuns runs) const = 0;
};

// Immutable; may be used from any thread.
class Decoder {
 public:
  // The one of a tokenizer.json where "decoder" is null: tokens with spaces between them.
  Decoder();
  // From the object "decoder". INVALID_ARGUMENT names the field that is missing, wrong or not served; or the steps are
  // too many.
  static absl::StatusOr<Decoder> Read(const nlohmann::json& object, const std::string& path);

  // The most bytes that the steps Replace make of one byte; at most kMostGrowth. The other steps make few.
  size_t growth() const { return growth_; }
  static constexpr size_t kMostGrowth = size_t{1} << 30;

  // A chain that appends to `text`, which must outlive it.
  std::unique_ptr<TextStage> Start(std::string* text, ByteRuns runs) const;

 private:
  absl::Status Add(const nlohmann::json& object, const std::string& path, Steps& steps);
  std::unique_ptr<DecoderStep> ReadReplaceStep(JsonObject& fields);

  std::vector<std::unique_ptr<DecoderStep>> steps_;
  bool fused_ = false;  // whether the steps so far make one token of all
  size_t growth_ = 1;
};

// The steps that work on bytes (byte_decoders.cc) and the others (decoders.cc).
std::unique_ptr<DecoderStep> MakeByteLevelStep();
std::unique_ptr<DecoderStep> MakeByteFallbackStep();

}  // namespace edgewise::tokenizers

#endif  // EDGEWISE_MODEL_TOKENIZERS_DECODERS_H_
