#include "client/cli/render.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"

namespace edgewise::cli {
namespace {

constexpr int kMaxRows = 20;  // of a list, before it is cut short

void Line(std::string& text, const char* name, const std::string& value) {
  absl::StrAppendFormat(&text, "%-13s%s\n", name, value);
}

std::string More(int total) {
  return total > kMaxRows ? absl::StrCat(PadRight("", 13), "... ", total - kMaxRows, " more; --json shows all\n") : "";
}

// "0.9312", and " ± 0.0210" where several samples say so.
std::string WithDeviation(float mean, float deviation, uint32_t samples) {
  return samples > 1 ? absl::StrFormat("%.4f ± %.4f", mean, deviation) : absl::StrFormat("%.4f", mean);
}

// A name as one line: tokens may be line ends.
std::string Visible(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c == '\n') {
      text += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&text, "\\x%02x", c);
    } else {
      text += c;
    }
  }
  return text == " " ? "' '" : text;
}

// "positive (label 1)", or "label 1" where the model names none. kind: "label", or "token" of a language model.
std::string LabelText(const std::string& label, int id, const char* kind = "label") {
  const std::string number = absl::StrCat(kind, " ", id);
  return label.empty() || label == absl::StrCat(id) ? number : absl::StrCat(Visible(label), " (", number, ")");
}

void AddEmbedding(const v1::Prediction& prediction, std::string& text) {
  const int numbers = prediction.embedding_size();
  std::string line = absl::StrCat(Plural(numbers, "number"), prediction.normalized() ? ", of length 1:" : ":");
  for (int i = 0; i < std::min(numbers, 4); ++i) absl::StrAppendFormat(&line, " %.4f", prediction.embedding(i));
  Line(text, "embedding", absl::StrCat(line, numbers > 4 ? " ...; --json shows all" : ""));
  if (prediction.samples() < 2) return;
  double squares = 0.0;
  for (const float deviation : prediction.stddev()) squares += static_cast<double>(deviation) * deviation;
  Line(text, "deviation", absl::StrFormat("%.4f over samples, before it is normalised", std::sqrt(squares)));
}

void AddTokens(const v1::Prediction& prediction, std::string& text) {
  const auto pads = std::count_if(prediction.tokens().begin(), prediction.tokens().end(),
                                  [](const v1::TokenPrediction& token) { return token.pad(); });
  Line(text, "tokens", absl::StrCat(Plural(prediction.tokens_size(), "position"), ", ", Plural(pads, "pad")));
  for (int t = 0; t < std::min(prediction.tokens_size(), kMaxRows); ++t) {
    const v1::TokenPrediction& token = prediction.tokens(t);
    // Only fill-mask gives positions, which are not below the token's number.
    std::string row = absl::StrFormat("%6d  ", std::max<uint32_t>(token.position(), t));
    if (token.pad() || token.label_id() >= token.probabilities_size()) {
      row += "pad";
    } else {
      const int id = token.label_id();
      const float deviation = id < token.stddev_size() ? token.stddev(id) : 0.0f;
      absl::StrAppend(&row, PadRight(LabelText(token.label(), id), 24),
                      WithDeviation(token.probabilities(id), deviation, prediction.samples()));
    }
    Line(text, "", row);
    for (const v1::Prediction::Top& top : token.top()) {
      Line(text, "",
           absl::StrFormat("%8s%s%.4f", "", PadRight(LabelText(top.label(), top.label_id()), 24), top.probability()));
    }
  }
  text += More(prediction.tokens_size());
}

std::string NameOf(std::span<const std::string> names, int id) {
  return static_cast<size_t>(id) < names.size() ? names[static_cast<size_t>(id)] : "";
}

// The labels of a multi-label model that are above 0.5, the most probable first; else the most probable.
void AddLabels(const v1::Prediction& prediction, std::span<const std::string> names, std::string& text) {
  const auto probability = [&](int id) {
    const float deviation = id < prediction.stddev_size() ? prediction.stddev(id) : 0.0f;
    return WithDeviation(prediction.probabilities(id), deviation, prediction.samples());
  };
  std::vector<int32_t> labels = AnsweredLabels(prediction);
  std::stable_sort(labels.begin(), labels.end(),
                   [&](int a, int b) { return prediction.probabilities(a) > prediction.probabilities(b); });
  if (labels.empty()) {
    const int id = prediction.label_id();
    Line(text, "prediction",
         absl::StrCat("none above 0.5; the most probable is ", LabelText(prediction.label(), id), ": ",
                      probability(id)));
  }
  const int shown = std::min(static_cast<int>(labels.size()), kMaxRows);
  for (int i = 0; i < shown; ++i) {
    const int id = labels[static_cast<size_t>(i)];
    Line(text, i == 0 ? "prediction" : "",
         absl::StrCat(PadRight(LabelText(id == prediction.label_id() ? prediction.label() : NameOf(names, id), id), 24),
                      probability(id)));
  }
  text += More(static_cast<int>(labels.size()));
}

void AddOutcome(const v1::Prediction& prediction, std::span<const std::string> names, std::string& text) {
  if (prediction.embedding_size() > 0) return AddEmbedding(prediction, text);
  if (prediction.tokens_size() > 0) {
    AddTokens(prediction, text);
    return;
  }
  for (int v = 0; v < std::min(prediction.values_size(), kMaxRows); ++v) {
    const float deviation = v < prediction.stddev_size() ? prediction.stddev(v) : 0.0f;
    Line(text, v == 0 ? "values" : "", WithDeviation(prediction.values(v), deviation, prediction.samples()));
  }
  text += More(prediction.values_size());
  const int id = prediction.label_id();
  if (id < 0 || id >= prediction.probabilities_size()) return;
  const bool language = prediction.perplexity() > 0;
  const char* kind = language ? "token" : "label";
  if (prediction.multi_label()) {
    AddLabels(prediction, names, text);
  } else {
    const float deviation = id < prediction.stddev_size() ? prediction.stddev(id) : 0.0f;
    Line(text, language ? "next token" : "prediction", LabelText(prediction.label(), id, kind));
    Line(text, "probability", WithDeviation(prediction.probabilities(id), deviation, prediction.samples()));
  }
  for (int t = 0; t < std::min(prediction.top_size(), kMaxRows); ++t) {
    const v1::Prediction::Top& top = prediction.top(t);
    Line(text, t == 0 ? "top" : "",
         absl::StrFormat("%.4f  %s", top.probability(), LabelText(top.label(), top.label_id(), kind)));
  }
  text += More(prediction.top_size());
  std::string logits;
  for (int l = 0; l < std::min(prediction.logits_size(), kMaxRows); ++l) {
    absl::StrAppendFormat(&logits, "%s%.4f", l == 0 ? "" : "  ", prediction.logits(l));
  }
  if (!logits.empty()) Line(text, "logits", logits);
  if (language) {
    Line(text, "text",
         absl::StrFormat("%s scored, log likelihood %.4f, perplexity %.4f", Plural(prediction.scored_tokens(), "token"),
                         prediction.log_likelihood(), prediction.perplexity()));
  }
  Line(text, "uncertainty",
       absl::StrFormat("entropy %.4f nats, mutual information %.4f nats", prediction.predictive_entropy(),
                       prediction.mutual_information()));
}

// Empty where all is as it was asked for.
std::string DegradedText(const v1::Degraded& degraded) {
  if (degraded.reason() == v1::Degraded::NOTHING) return "";
  return degraded.reason() == v1::Degraded::LOAD ? ", as others waited" : ", so that the answer came in time";
}

void AddEdges(const v1::Prediction& prediction, const v1::Degraded& degraded, std::string& text) {
  const v1::EdgeReport& edges = prediction.edges();
  std::string line = absl::StrCat(MeanWithCommas(edges.edges()), " of ", WithCommas(edges.pairs()), " pairs");
  if (prediction.samples() > 1) absl::StrAppend(&line, ", at most ", WithCommas(edges.max_sample_edges()), " a sample");
  Line(text, "edges", line);
  Line(text, "density", Percent(edges.density()));
  std::string budget = "none";
  if (edges.budget() > 0) {
    budget = absl::StrCat(Plural(edges.budget(), "edge"), edges.capped() ? ", capped" : ", not reached");
  }
  if (degraded.has_budget()) absl::StrAppend(&budget, ", lower than asked", DegradedText(degraded));
  Line(text, "budget", budget);
  if (edges.expected_edges() > 0) Line(text, "expected", MeanWithCommas(edges.expected_edges()) + " edges");
  if (edges.isolated_queries() > 0) Line(text, "isolated", MeanWithCommas(edges.isolated_queries()) + " queries");
  if (edges.layers_size() == 0) return;
  Line(text, "layers", "layer  head         edges      expected");
  for (int l = 0; l < edges.layers_size(); ++l) {
    for (int h = 0; h < edges.layers(l).heads_size(); ++h) {
      const v1::EdgeReport::HeadEdges& head = edges.layers(l).heads(h);
      Line(text, "",
           absl::StrFormat("%5d %5d  %12s  %12s", l, h, MeanWithCommas(head.edges()),
                           head.expected() > 0 ? MeanWithCommas(head.expected()) : "-"));
    }
  }
}

void AddSamples(const v1::Prediction& prediction, std::string& text) {
  const int id = prediction.label_id();
  for (int s = 0; s < std::min(prediction.sample_outputs_size(), kMaxRows); ++s) {
    const v1::SampleOutput& sample = prediction.sample_outputs(s);
    std::string row = absl::StrFormat("%6d  ", s);
    if (prediction.tokens_size() == 0 && id < sample.probabilities_size()) {
      absl::StrAppendFormat(&row, "%.4f  ", sample.probabilities(id));
    } else if (sample.values_size() > 0) {
      absl::StrAppendFormat(&row, "%.4f  ", sample.values(0));
    }
    Line(text, s == 0 ? "each sample" : "", absl::StrCat(row, Plural(sample.edges(), "edge")));
  }
  text += More(prediction.sample_outputs_size());
}

void AddGraph(const v1::Prediction& prediction, std::string& text) {
  if (!prediction.has_graph()) return;
  uint64_t edges = 0;
  for (const v1::Graph::Layer& layer : prediction.graph().layers()) {
    for (const v1::Graph::Head& head : layer.heads()) edges += head.keys_size();
  }
  Line(text, "graph", absl::StrCat(Plural(edges, "edge"), "; --json shows it"));
}

// "4", "4 of 16, so that the answer came in time", "4 of 16, as others waited".
std::string SamplesText(const v1::PredictResponse& response) {
  const v1::Degraded& degraded = response.degraded();
  std::string text = absl::StrCat(response.predictions(0).samples());
  if (degraded.samples() >= degraded.requested_samples()) return text;
  return absl::StrCat(text, " of ", degraded.requested_samples(), DegradedText(degraded));
}

// "toxic, insult", with numbers for those without a name; "none".
std::string LabelList(const std::vector<int32_t>& labels, std::span<const std::string> names) {
  std::vector<std::string> shown;
  for (const int32_t id : labels) {
    const std::string name = NameOf(names, id);
    shown.push_back(name.empty() ? absl::StrCat(id) : Visible(name));
  }
  return shown.empty() ? "none" : absl::StrJoin(shown, ", ");
}

double AnswerProbability(const v1::Prediction& prediction) {
  const int id = prediction.label_id();
  return id >= 0 && id < prediction.probabilities_size() ? prediction.probabilities(id) : 0.0;
}

}  // namespace

std::string RenderAnswer(const v1::PredictResponse& response, std::span<const std::string> names) {
  std::string text;
  Line(text, "model", absl::StrCat(response.model(), ", version ", response.version()));
  if (response.predictions_size() != 1) return text;
  const v1::Prediction& prediction = response.predictions(0);
  AddOutcome(prediction, names, text);
  Line(text, "samples", SamplesText(response));
  AddSamples(prediction, text);
  AddEdges(prediction, response.degraded(), text);
  AddGraph(prediction, text);
  if (prediction.truncated_tokens() > 0) Line(text, "truncated", Plural(prediction.truncated_tokens(), "token"));
  const v1::Timing& timing = response.timing();
  Line(text, "time",
       absl::StrCat("queue ", Milliseconds(timing.queue_us()), ", compute ", Milliseconds(timing.compute_us()),
                    ", total ", Milliseconds(timing.total_us())));
  Line(text, "batch",
       absl::StrCat(Plural(timing.batch_inputs(), "input"), ", ", Plural(timing.batch_tokens(), "token")));
  if (!response.settings().profile().empty()) Line(text, "profile", response.settings().profile());
  Line(text, "device", response.device());
  Line(text, "seed", absl::StrCat(response.seed()));
  return text;
}

std::string RenderHeading() {
  return "    #  prediction              prob       sd  entropy       edges   density  capped  samples  total ms\n";
}

std::vector<int32_t> AnsweredLabels(const v1::Prediction& prediction) {
  std::vector<int32_t> labels;
  for (int id = 0; id < prediction.probabilities_size(); ++id) {
    if (prediction.probabilities(id) > 0.5f) labels.push_back(id);
  }
  return labels;
}

std::vector<int32_t> HoldingLabels(const LabelledInput& input) {
  std::set<int32_t> labels;
  for (const std::optional<int32_t>& label : *input.labels) {
    if (label) labels.insert(*label);
  }
  return {labels.begin(), labels.end()};
}

std::string RenderLine(size_t number, const v1::PredictResponse& response, const LabelledInput& input,
                       std::span<const std::string> names) {
  const v1::Prediction& prediction = response.predictions(0);
  const v1::EdgeReport& edges = prediction.edges();
  const int id = prediction.label_id();
  std::string outcome = Visible(prediction.label());
  double entropy = prediction.predictive_entropy();
  if (prediction.tokens_size() > 0) {
    outcome = Plural(prediction.tokens_size(), "token");
  } else if (prediction.values_size() > 0) {
    outcome = absl::StrFormat("%.4f", prediction.values(0));
  } else if (prediction.embedding_size() > 0) {
    outcome = Plural(prediction.embedding_size(), "number");
  } else if (prediction.multi_label()) {
    outcome = LabelList(AnsweredLabels(prediction), names);
  }
  const int deviating = prediction.values_size() > 0 ? 0 : id;
  const double deviation = prediction.embedding_size() == 0 && deviating >= 0 && deviating < prediction.stddev_size()
                               ? prediction.stddev(deviating)
                               : 0.0;
  const double probability = AnswerProbability(prediction);
  const bool has_probability = prediction.probabilities_size() > 0;
  std::string line = absl::StrFormat(
      "%5d  %s  %6s  %7s  %7s  %10s  %8s  %6s  %7d  %8.2f", number, PadRight(outcome, 20),
      has_probability ? absl::StrFormat("%.4f", probability) : "-",
      prediction.tokens_size() > 0 ? "-" : absl::StrFormat("%.4f", deviation),
      has_probability ? absl::StrFormat("%.4f", entropy) : "-", MeanWithCommas(edges.edges()), Percent(edges.density()),
      edges.capped() ? "yes" : "no", prediction.samples(), static_cast<double>(response.timing().total_us()) / 1000.0);
  if (input.label) absl::StrAppend(&line, *input.label == id ? "  right" : absl::StrCat("  wrong: ", *input.label));
  if (input.value && prediction.values_size() > 0) {
    absl::StrAppendFormat(&line, "  off by %.4f", std::abs(prediction.values(0) - *input.value));
  }
  if (input.labels && prediction.multi_label()) {
    const std::vector<int32_t> labels = HoldingLabels(input);
    absl::StrAppend(&line, labels == AnsweredLabels(prediction) ? "  right" : "  wrong: " + LabelList(labels, names));
  } else if (input.labels) {
    Accuracy accuracy;
    const bool fits = accuracy.Add(prediction, input);
    absl::StrAppend(&line, "  ", accuracy.right, "/", accuracy.known, " right");
    if (!fits) {
      absl::StrAppend(&line, " (", input.labels->size(), " labels for ", prediction.tokens_size(), " tokens)");
    }
  }
  return line + "\n";
}

bool Accuracy::Add(const v1::Prediction& prediction, const LabelledInput& input) {
  if (input.label) {
    ++known;
    right += prediction.label_id() == *input.label;
  }
  if (input.value && prediction.values_size() > 0) {
    ++valued;
    off += std::abs(static_cast<double>(prediction.values(0)) - *input.value);
  }
  if (!input.labels) return true;
  if (prediction.multi_label()) {
    ++known;
    right += AnsweredLabels(prediction) == HoldingLabels(input);
    return true;
  }
  const std::vector<std::optional<int32_t>>& labels = *input.labels;
  const bool fits = labels.size() == static_cast<size_t>(prediction.tokens_size());
  for (size_t t = 0; t < labels.size(); ++t) {
    if (!labels[t] || (fits && prediction.tokens(static_cast<int>(t)).pad())) continue;
    ++known;
    right += fits && prediction.tokens(static_cast<int>(t)).label_id() == *labels[t];
  }
  return fits;
}

}  // namespace edgewise::cli
