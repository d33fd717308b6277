#include "client/merge_prediction.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/ensemble_math.h"

namespace edgewise::internal {
namespace {

using Parts = std::span<const v1::Prediction* const>;
using Rows = std::vector<const float*>;
using Floats = google::protobuf::RepeatedField<float>;

std::string NameOf(size_t part, int input) { return absl::StrCat("parts[", part, "].predictions[", input, "]"); }

absl::Status Refuse(size_t part, int input, const std::string& what) {
  return absl::InvalidArgumentError(NameOf(part, input) + what);
}

// Label texts that are known: the caller's, then whatever the parts name.
class LabelNames {
 public:
  LabelNames(Parts parts, std::span<const std::string> names) {
    for (size_t id = 0; id < names.size(); ++id) names_.emplace(static_cast<int>(id), names[id]);
    for (const v1::Prediction* part : parts) {
      VisitLabels(*part, [this](int id, const std::string& label) {
        if (!label.empty()) names_.emplace(id, label);
      });
    }
  }
  std::string Name(int id) const {
    auto found = names_.find(id);
    return found == names_.end() || found->second.empty() ? absl::StrCat(id) : found->second;
  }

 private:
  std::map<int, std::string> names_;
};

// Labels (or values) per position of one sample; positions is 1 but for token classification.
struct Shape {
  size_t positions = 1;
  size_t labels = 0;
  size_t values = 0;
  size_t embedding = 0;
  size_t scored = 0;  // tokens of a text, for language models
  bool logits = false;
};

Shape ShapeOf(const v1::Prediction& part) {
  Shape shape;
  shape.labels = part.probabilities_size();
  shape.values = part.values_size();
  shape.embedding = part.embedding_size();
  shape.scored = part.scored_tokens();
  shape.logits = part.logits_size() > 0;
  if (part.tokens_size() > 0) {
    shape.positions = part.tokens_size();
    for (const v1::TokenPrediction& token : part.tokens()) {
      if (token.pad()) continue;
      shape.labels = token.probabilities_size();
      shape.logits = token.logits_size() > 0;
      break;
    }
  }
  return shape;
}

absl::Status CheckPart(const v1::Prediction& part, size_t index, int input, const Shape& shape) {
  if (part.samples() == 0 || part.sample_outputs_size() != static_cast<int>(part.samples())) {
    return Refuse(index, input,
                  absl::StrCat(" has ", part.sample_outputs_size(), " sample_outputs for ", part.samples(),
                               " samples; ask for outputs.each_sample"));
  }
  const Shape own = ShapeOf(part);
  if (absl::Status status = CheckSame(NameOf(index, input) + ".scored_tokens", own.scored, shape.scored);
      !status.ok()) {
    return status;
  }
  if (own.positions != shape.positions || own.labels != shape.labels || own.values != shape.values) {
    return Refuse(
        index, input,
        absl::StrCat(" has ", own.positions, " positions of ", own.labels, " labels and ", own.values,
                     " values, but parts[0] has ", shape.positions, ", ", shape.labels, " and ", shape.values));
  }
  if (absl::Status status = CheckSame(NameOf(index, input) + ".embedding", own.embedding, shape.embedding);
      !status.ok()) {
    return status;
  }
  for (int s = 0; s < part.sample_outputs_size(); ++s) {
    const v1::SampleOutput& sample = part.sample_outputs(s);
    const size_t expected = shape.positions * shape.labels;
    const size_t logits = shape.values > 0 ? shape.values : expected;
    auto check = [&](const char* field, int found, size_t want) {
      if (static_cast<size_t>(found) == want) return absl::OkStatus();
      return Refuse(index, input,
                    absl::StrCat(".sample_outputs[", s, "].", field, " has ", found, " entries, expected ", want));
    };
    absl::Status status = check("probabilities", sample.probabilities_size(), expected);
    status.Update(check("values", sample.values_size(), shape.values));
    status.Update(check("embedding", sample.embedding_size(), shape.embedding));
    status.Update(check("token_probabilities", sample.token_probabilities_size(), shape.scored));
    status.Update(check("logits", sample.logits_size(), shape.logits ? logits : 0));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Agreement in what depends on the input alone.
absl::Status CheckParts(Parts parts, int input, const Shape& shape) {
  const v1::Prediction& first = *parts[0];
  for (size_t i = 0; i < parts.size(); ++i) {
    const v1::Prediction& part = *parts[i];
    if (absl::Status status = CheckPart(part, i, input, shape); !status.ok()) return status;
    if (absl::Status status =
            CheckSame(NameOf(i, input) + ".truncated_tokens", part.truncated_tokens(), first.truncated_tokens());
        !status.ok()) {
      return status;
    }
    if (part.normalized() != first.normalized()) {
      return Refuse(i, input, ".normalized differs from parts[0]");
    }
    if (part.multi_label() != first.multi_label()) {
      return Refuse(i, input, ".multi_label differs from parts[0]");
    }
    if (part.top_size() != first.top_size()) {
      return Refuse(i, input,
                    absl::StrCat(".top has ", part.top_size(), " labels, but parts[0] has ", first.top_size()));
    }
    for (int t = 0; t < part.tokens_size(); ++t) {
      if (part.tokens(t).pad() != first.tokens(t).pad()) {
        return Refuse(i, input, absl::StrCat(".tokens[", t, "].pad differs from parts[0]"));
      }
      if (part.tokens(t).position() != first.tokens(t).position() ||
          part.tokens(t).top_size() != first.tokens(t).top_size()) {
        return Refuse(i, input, absl::StrCat(".tokens[", t, "] has another position or top than parts[0]"));
      }
    }
    if (part.has_graph() && parts.size() + part.samples() > 2) {
      return Refuse(i, input, ".graph: graphs are of one sample and cannot be merged");
    }
    if (part.has_token_embeddings()) {
      return Refuse(i, input, ".token_embeddings: they cannot be merged; ask without them");
    }
    if (part.token_scores_size() > 0) return Refuse(i, input, ".token_scores: they cannot be merged; ask without them");
  }
  return absl::OkStatus();
}

// The mean of each column, as floats, and the standard deviations. Returns the means before rounding.
std::vector<double> FillMoments(const Rows& rows, size_t columns, Floats* means, Floats* stddev) {
  std::vector<double> exact(columns);
  for (size_t c = 0; c < columns; ++c) {
    exact[c] = ensemble::Mean<float>(rows, c);
    means->Add(static_cast<float>(exact[c]));
    if (stddev != nullptr) stddev->Add(static_cast<float>(ensemble::StandardDeviation(rows, c, exact[c])));
  }
  return exact;
}

// Fills what Prediction and TokenPrediction share. rows: one per sample, `labels` probabilities each.
template <typename Message>
void FillLabels(const Rows& rows, const Rows& logits, size_t labels, bool multi_label, const LabelNames& names,
                Message* merged) {
  const std::vector<double> mean = FillMoments(rows, labels, merged->mutable_probabilities(), merged->mutable_stddev());
  merged->set_predictive_entropy(ensemble::Entropy<double>(mean, multi_label));
  merged->set_mutual_information(ensemble::MutualInformation(merged->predictive_entropy(), rows, labels, multi_label));
  merged->set_label_id(static_cast<int>(std::max_element(mean.begin(), mean.end()) - mean.begin()));
  merged->set_label(names.Name(merged->label_id()));
  if (!logits.empty()) FillMoments(logits, labels, merged->mutable_logits(), nullptr);
}

// The k most probable labels; the probabilities are merged.
template <typename Message>
void FillTop(int k, const LabelNames& names, Message* merged) {
  const std::span<const float> rounded(merged->probabilities().data(), merged->probabilities_size());
  for (int id : ensemble::LargestFirst(rounded, k)) {
    v1::Prediction::Top* top = merged->add_top();
    top->set_label_id(id);
    top->set_label(names.Name(id));
    top->set_probability(merged->probabilities(id));
  }
}

// The mean of the samples' pooled rows, of length 1 where the parts are.
void FillEmbedding(const Rows& rows, size_t size, bool normalized, v1::Prediction* merged) {
  Floats means;
  FillMoments(rows, size, &means, merged->mutable_stddev());
  const double length = normalized ? ensemble::Length({means.data(), size}) : 1.0;
  for (const float mean : means) merged->add_embedding(static_cast<float>(mean / length));
  merged->set_normalized(normalized);
}

// Row pointers of all samples: `field` of each, from `offset` on.
template <typename Field>
Rows SampleRows(const v1::Prediction& merged, size_t offset, Field field) {
  Rows rows;
  for (const v1::SampleOutput& sample : merged.sample_outputs()) rows.push_back(field(sample).data() + offset);
  return rows;
}

}  // namespace

absl::StatusOr<v1::Prediction> MergePrediction(Parts parts, int input, std::span<const std::string> label_names) {
  const Shape shape = ShapeOf(*parts[0]);
  if (absl::Status status = CheckParts(parts, input, shape); !status.ok()) return status;
  absl::StatusOr<v1::EdgeReport> edges = MergeEdges(parts, input);
  if (!edges.ok()) return edges.status();

  v1::Prediction merged;
  *merged.mutable_edges() = *std::move(edges);
  merged.set_truncated_tokens(parts[0]->truncated_tokens());
  if (parts[0]->has_graph()) *merged.mutable_graph() = parts[0]->graph();
  *merged.mutable_input_tokens() = parts[0]->input_tokens();
  uint32_t samples = 0;
  for (const v1::Prediction* part : parts) {
    samples += part->samples();
    merged.mutable_sample_outputs()->MergeFrom(part->sample_outputs());
  }
  merged.set_samples(samples);

  auto probabilities = [](const v1::SampleOutput& s) -> const Floats& { return s.probabilities(); };
  auto logits = [](const v1::SampleOutput& s) -> const Floats& { return s.logits(); };
  auto values = [](const v1::SampleOutput& s) -> const Floats& { return s.values(); };
  auto logit_rows = [&](size_t offset) { return shape.logits ? SampleRows(merged, offset, logits) : Rows(); };
  const LabelNames names(parts, label_names);

  if (parts[0]->perplexity() != 0.0) {  // a language model
    std::vector<const double*> rows;
    for (const v1::SampleOutput& sample : merged.sample_outputs()) rows.push_back(sample.token_probabilities().data());
    merged.set_scored_tokens(static_cast<uint32_t>(shape.scored));
    merged.set_log_likelihood(ensemble::LogLikelihood(rows, shape.scored));
    merged.set_perplexity(ensemble::Perplexity(merged.log_likelihood(), shape.scored));
  }
  if (shape.values > 0) {
    FillMoments(SampleRows(merged, 0, values), shape.values, merged.mutable_values(), merged.mutable_stddev());
    if (shape.logits) FillMoments(logit_rows(0), shape.values, merged.mutable_logits(), nullptr);
  }
  if (shape.embedding > 0) {
    auto pooled = [](const v1::SampleOutput& s) -> const Floats& { return s.embedding(); };
    FillEmbedding(SampleRows(merged, 0, pooled), shape.embedding, parts[0]->normalized(), &merged);
  }
  if (parts[0]->tokens_size() > 0) {
    for (size_t t = 0; t < shape.positions; ++t) {
      v1::TokenPrediction* token = merged.add_tokens();
      token->set_begin(parts[0]->tokens(static_cast<int>(t)).begin());
      token->set_end(parts[0]->tokens(static_cast<int>(t)).end());
      if (parts[0]->tokens(static_cast<int>(t)).pad()) {
        token->set_pad(true);
        continue;
      }
      const size_t offset = t * shape.labels;
      FillLabels(SampleRows(merged, offset, probabilities), logit_rows(offset), shape.labels, false, names, token);
      token->set_position(parts[0]->tokens(static_cast<int>(t)).position());
      FillTop(parts[0]->tokens(static_cast<int>(t)).top_size(), names, token);
    }
  } else if (shape.labels > 0) {
    merged.set_multi_label(parts[0]->multi_label());
    FillLabels(SampleRows(merged, 0, probabilities), logit_rows(0), shape.labels, merged.multi_label(), names, &merged);
    FillTop(parts[0]->top_size(), names, &merged);
  }
  return merged;
}

}  // namespace edgewise::internal
