#include "model/tokenizers/decoders.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/tokenizers/fields.h"
#include "model/tokenizers/metaspace.h"

namespace edgewise::tokenizers {
namespace {

using nlohmann::json;

// The end of a chain.
class Collect : public TextStage {
 public:
  explicit Collect(std::string* text) : text_(*text) {}
  void Take(std::string_view text, bool) override { text_ += text; }
  void End() override {}

 private:
  std::string& text_;
};

// Each part of a text becomes another, which depends on the parts before only in the number of tokens begun.
class MapStage : public TextStage {
 public:
  // `map`: (part, index of its token) -> part.
  using Map = std::function<std::string(std::string_view, size_t)>;
  MapStage(std::unique_ptr<TextStage> next, Map map) : next_(std::move(next)), map_(std::move(map)) {}
  void Take(std::string_view text, bool begins) override {
    tokens_ += begins || tokens_ == 0;
    next_->Take(map_(text, tokens_ - 1), begins);
  }
  void End() override { next_->End(); }

 private:
  const std::unique_ptr<TextStage> next_;
  const Map map_;
  size_t tokens_ = 0;
};

class MapStep : public DecoderStep {
 public:
  explicit MapStep(MapStage::Map map) : map_(std::move(map)) {}
  std::unique_ptr<TextStage> Start(std::unique_ptr<TextStage> next, ByteRuns) const override {
    return std::make_unique<MapStage>(std::move(next), map_);
  }

 private:
  const MapStage::Map map_;
};

class FuseStage : public TextStage {
 public:
  explicit FuseStage(std::unique_ptr<TextStage> next) : next_(std::move(next)) {}
  void Take(std::string_view text, bool) override {
    next_->Take(text, begins_);
    begins_ = false;
  }
  void End() override { next_->End(); }

 private:
  const std::unique_ptr<TextStage> next_;
  bool begins_ = true;
};

class FuseStep : public DecoderStep {
 public:
  std::unique_ptr<TextStage> Start(std::unique_ptr<TextStage> next, ByteRuns) const override {
    return std::make_unique<FuseStage>(std::move(next));
  }
};

// Takes up to `start` times `content` from the front of each token, and up to `stop` times from its end.
class StripStage : public TextStage {
 public:
  StripStage(std::unique_ptr<TextStage> next, char32_t content, size_t start, size_t stop)
      : next_(std::move(next)), content_(content), start_(start), stop_(stop) {}

  void Take(std::string_view text, bool begins) override {
    if (begins) {
      EndToken();
      front_ = start_;
      begins_ = true;
    }
    std::string kept;
    for (const char32_t c : ToCharacters(text)) {
      if (c == content_ && front_ > 0) {
        --front_;
        continue;
      }
      front_ = 0;
      if (c == content_ && stop_ > 0) {
        ++held_;
        continue;
      }
      for (; held_ > 0; --held_) AppendCharacter(content_, kept);
      AppendCharacter(c, kept);
    }
    while (held_ > stop_) {  // these have more behind them
      AppendCharacter(content_, kept);
      --held_;
    }
    HandOn(kept);
  }

  void End() override {
    EndToken();
    next_->End();
  }

 private:
  void EndToken() { held_ = 0; }
  void HandOn(const std::string& text) {
    next_->Take(text, begins_);  // an empty token counts too
    begins_ = false;
  }

  const std::unique_ptr<TextStage> next_;
  const char32_t content_;
  const size_t start_, stop_;
  size_t front_ = 0;  // that may still be taken from the front
  size_t held_ = 0;   // `content` that may be the end of the token
  bool begins_ = true;
};

class StripStep : public DecoderStep {
 public:
  StripStep(char32_t content, size_t start, size_t stop) : content_(content), start_(start), stop_(stop) {}
  std::unique_ptr<TextStage> Start(std::unique_ptr<TextStage> next, ByteRuns runs) const override {
    if (runs == ByteRuns::kRaw) return next;
    return std::make_unique<StripStage>(std::move(next), content_, start_, stop_);
  }

 private:
  const char32_t content_;
  const size_t start_, stop_;
};

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string replaced;
  size_t last = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, last)) {
    replaced.append(text, last, at - last).append(to);
    last = at + from.size();
  }
  return replaced.append(text, last);
}

// The cleanup that transformers does to English that WordPiece has split, in this order.
std::string CleanUp(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = ReplaceAll(text, from, to);
  return text;
}

std::unique_ptr<DecoderStep> ReadWordPieceStep(JsonObject& fields) {
  const std::string prefix = RequiredString(fields, "prefix");
  const bool clean = RequiredBoolean(fields, "cleanup");
  return std::make_unique<MapStep>([prefix, clean](std::string_view token, size_t index) {
    std::string text = index == 0                  ? std::string(token)
                       : token.starts_with(prefix) ? std::string(token.substr(prefix.size()))
                                                   : absl::StrCat(" ", View(token));
    return clean ? CleanUp(std::move(text)) : text;
  });
}

std::unique_ptr<DecoderStep> ReadMetaspaceStep(JsonObject& fields) {
  const Metaspace metaspace = ReadMetaspace(fields);
  return std::make_unique<MapStep>([metaspace](std::string_view token, size_t index) {
    const bool drop = index == 0 && metaspace.prepend != Metaspace::Prepend::kNever;
    return ReplaceAll(token, ToUtf8(metaspace.replacement), drop ? "" : " ");
  });
}

std::unique_ptr<DecoderStep> ReadStripStep(JsonObject& fields) {
  constexpr int32_t kMost = 1 << 16;
  const char32_t content = RequiredCharacter(fields, "content");
  const int32_t start = fields.Integer("start", 0, kMost), stop = fields.Integer("stop", 0, kMost);
  return std::make_unique<StripStep>(content, start, stop);
}

}  // namespace

Decoder::Decoder() {
  steps_.push_back(std::make_unique<MapStep>(
      [](std::string_view token, size_t index) { return absl::StrCat(index == 0 ? "" : " ", View(token)); }));
}

absl::StatusOr<Decoder> Decoder::Read(const json& object, const std::string& path) {
  Decoder decoder;
  decoder.steps_.clear();
  Steps steps;
  RETURN_IF_ERROR(decoder.Add(object, path, steps));
  return decoder;
}

std::unique_ptr<DecoderStep> Decoder::ReadReplaceStep(JsonObject& fields) {
  const std::string pattern = RequiredLiteral(fields), content = RequiredString(fields, "content");
  if (fused_ && CountCharacters(pattern) > 1) {
    fields.FailAt("pattern", fields.Value("pattern", true), "after Fuse or ByteLevel one character is served");
  }
  if (content.size() > pattern.size() && !pattern.empty()) {
    growth_ = std::min(growth_ * ((content.size() + pattern.size() - 1) / pattern.size()), kMostGrowth);
  }
  return std::make_unique<MapStep>([pattern, content](std::string_view token, size_t) {
    return pattern.empty() ? std::string(token) : ReplaceAll(token, pattern, content);
  });
}

absl::Status Decoder::Add(const json& object, const std::string& path, Steps& steps) {
  RETURN_IF_ERROR(steps.Add(path));
  enum { kWordPiece, kByteLevel, kMetaspace, kByteFallback, kFuse, kStrip, kReplace, kSequence };
  JsonObject fields(object, path);
  const int type =
      ReadType(fields, {"WordPiece", "ByteLevel", "Metaspace", "ByteFallback", "Fuse", "Strip", "Replace", "Sequence"});
  if (fused_ && type != kFuse && type != kStrip && type != kReplace) {
    fields.FailAt("type", fields.Value("type", true), "after Fuse or ByteLevel served are Fuse, Strip, Replace");
  }
  switch (type) {
    case kWordPiece:
      steps_.push_back(ReadWordPieceStep(fields));
      break;
    case kByteLevel:
      RequiredBoolean(fields, "add_prefix_space");  // these belong to the pre-tokenizer of the same name
      RequiredBoolean(fields, "trim_offsets");
      fields.Boolean("use_regex", true);
      steps_.push_back(MakeByteLevelStep());
      break;
    case kMetaspace:
      steps_.push_back(ReadMetaspaceStep(fields));
      break;
    case kByteFallback:
      steps_.push_back(MakeByteFallbackStep());
      break;
    case kFuse:
      steps_.push_back(std::make_unique<FuseStep>());
      break;
    case kStrip:
      steps_.push_back(ReadStripStep(fields));
      break;
    case kReplace:
      steps_.push_back(ReadReplaceStep(fields));
      break;
    case kSequence: {
      const json& list = fields.Value("decoders", true);
      if (!list.is_array()) fields.FailAt("decoders", list, "a list is expected");
      for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
        RETURN_IF_ERROR(Add(list[i], absl::StrCat(fields.Path("decoders"), "[", i, "]"), steps));
      }
      break;
    }
    default:
      break;
  }
  fused_ |= type == kFuse || type == kByteLevel;
  return fields.Finish();
}

std::unique_ptr<TextStage> Decoder::Start(std::string* text, ByteRuns runs) const {
  std::unique_ptr<TextStage> chain = std::make_unique<Collect>(text);
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) chain = (*step)->Start(std::move(chain), runs);
  return chain;
}

}  // namespace edgewise::tokenizers
