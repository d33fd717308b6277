#include "model/checkpoint/hugging_face/sentence_head.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/checkpoint/hugging_face/text_limit.h"

namespace edgewise::hugging_face {
namespace {

using nlohmann::json;

constexpr char kSettings[] = "config_sentence_transformers.json";

// Whether a file gives this token a name, as transformers' all_special_ids has it: being special is not enough.
bool IsNamed(const HfTokenizer& tokenizer, int32_t id) {
  const SpecialTokens& special = tokenizer.special_tokens();
  for (const int32_t role :
       {special.bos, special.eos, special.unk, special.sep, special.pad, special.cls, special.mask}) {
    if (id == role) return true;
  }
  const std::string* token = tokenizer.Token(id);
  return token != nullptr && std::any_of(special.named.begin(), special.named.end(),
                                         [&](const auto& named) { return named.second == *token; });
}

}  // namespace

absl::Status ReadEmbedding(const SentenceModules* modules, ModelConfig& config) {
  config.num_labels = config.embedding_size = config.hidden_size;
  config.pooling = Pooling::kMeanValid;
  if (modules == nullptr) return absl::OkStatus();
  config.pooling = modules->pooling;
  config.normalize = modules->normalize;
  config.dense = modules->dense;
  for (size_t l = 0; l < config.dense.size(); ++l) {
    const DenseLayer& layer = config.dense[l];
    if (layer.in_features != config.num_labels) {
      return InvalidIn(modules->dense_folders[l] + "/config.json",
                       absl::StrCat("in_features is ", layer.in_features, "; ",
                                    l == 0 ? "the pooled rows" : "those of the layer before", " have ",
                                    config.num_labels, " numbers"));
    }
    config.num_labels = layer.out_features;
  }
  const int32_t cut = modules->settings.truncate_dim;
  config.embedding_size = cut > 0 ? std::min(cut, config.num_labels) : config.num_labels;
  return absl::OkStatus();
}

absl::Status ReadScores(const SentenceModules* modules, JsonObject& object, ModelConfig& config) {
  const bool one = config.task == ModelTask::kRegression && config.num_labels == 1;
  std::string file = kSettings, field = "activation_fn", path;
  if (modules != nullptr) path = modules->settings.activation;
  if (path.empty()) {  // before 5.4, and before 4.0
    const json& settings = object.Value("sentence_transformers", false);
    const bool later = settings.is_object() && settings.contains("activation_fn");
    const json& old = object.Value("sbert_ce_default_activation_function", false);
    const json& found = later ? settings["activation_fn"] : old;
    if (found.is_string()) {
      path = found.get<std::string>();
      file = "config.json";
      field = later ? "sentence_transformers.activation_fn" : "sbert_ce_default_activation_function";
    }
  }
  if (path.empty()) {
    config.sigmoid = one && modules != nullptr;
    return absl::OkStatus();
  }
  const std::string name = TorchClass(path);
  const bool classes = config.task != ModelTask::kRegression;
  if (name == "Identity" || (classes && !config.multi_label && name == "Softmax")) return absl::OkStatus();
  if ((one || classes) && name == "Sigmoid") {
    (one ? config.sigmoid : config.multi_label) = true;  // of several labels each is an answer of its own
    return absl::OkStatus();
  }
  return InvalidIn(file, absl::StrCat(field, " is ", ShowJson(json(path)), "; served: Identity and Sigmoid",
                                      classes && !config.multi_label ? ", and Softmax," : "", " of torch.nn with ",
                                      config.num_labels, one ? " label" : " labels"));
}

absl::Status ReadTexts(ModelFolder& files, const SentenceModules* modules, const HfTokenizer* tokenizer,
                       ModelConfig& config) {
  if (tokenizer == nullptr) return absl::OkStatus();
  if (modules != nullptr) config.max_text_tokens = modules->settings.max_text_tokens;
  // Angles have no table that ends, so there a longer text is taken too.
  if (config.position_embedding == PositionEmbedding::kRotary) {
    config.max_position_embeddings = std::max(config.max_position_embeddings, config.max_text_tokens);
  }
  if (config.max_text_tokens == 0 && config.task != ModelTask::kCausalLm) {
    ASSIGN_OR_RETURN(config.max_text_tokens, ReadModelMaxLength(files));
  }
  if (modules == nullptr) return absl::OkStatus();
  config.pools_prompts = modules->pools_prompts;
  config.default_prompt = modules->settings.default_prompt;
  for (const auto& [name, text] : modules->settings.prompts) {
    Prompt& prompt = config.prompts[name];
    prompt.text = text;
    if (config.pools_prompts || text.empty()) continue;
    const EncodeOptions options{.max_tokens = static_cast<size_t>(MostTextTokens(config)), .only_ids = true};
    const absl::StatusOr<Encoding> encoding = tokenizer->Encode(text, options);
    if (!encoding.ok()) {
      return InvalidIn(kSettings, absl::StrCat("prompts.", name, ": ", std::string(encoding.status().message())));
    }
    // A special token that has a name comes behind the text too, as sentence-transformers counts.
    const std::vector<int32_t>& ids = encoding->ids;
    const bool behind = !ids.empty() && IsNamed(*tokenizer, ids.back());
    prompt.tokens = static_cast<int32_t>(ids.size()) - (behind ? 1 : 0);
    const absl::StatusOr<Encoding> bare =
        tokenizer->Encode(text, {.add_special_tokens = false, .max_tokens = options.max_tokens, .only_ids = true});
    if (bare.ok()) prompt.template_tokens = std::max<int32_t>(0, prompt.tokens - static_cast<int32_t>(bare->size()));
  }
  return absl::OkStatus();
}

}  // namespace edgewise::hugging_face
