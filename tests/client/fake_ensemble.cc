#include "tests/client/fake_ensemble.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace edgewise::testing {
namespace {

using Row = std::vector<float>;

constexpr int kLayers = 2;
constexpr int kHeads = 3;

// One forward pass of the fake model.
struct Sample {
  Row probabilities;  // [positions, labels]
  Row logits;
  Row values;
  std::vector<double> token_probabilities;
  uint64_t head_edges[kLayers][kHeads];
  double head_expected[kLayers][kHeads];
  uint32_t degrees[kLayers][kHeads][kPositions];
  uint64_t isolated;
  bool capped;
};

Sample DrawSample(int index, Task task, int input) {
  std::mt19937_64 random(1000 * index + input);
  auto uniform = [&] { return std::uniform_real_distribution<double>(0.01, 1.0)(random); };
  Sample sample;
  for (int position = 0; position < (task == Task::kTokens ? kPositions : 1); ++position) {
    std::vector<double> weights;
    double total = 0;
    for (int c = 0; c < kLabels; ++c) {
      weights.push_back(uniform());
      total += weights.back();
    }
    const bool pad = task == Task::kTokens && position == kPad;
    if (task == Task::kMultiLabel) total = 1;
    for (double weight : weights) {
      sample.probabilities.push_back(pad ? 0.0f : static_cast<float>(weight / total));
      sample.logits.push_back(pad ? 0.0f : static_cast<float>(std::log(weight)));
    }
  }
  if (task == Task::kRegression) {
    sample.probabilities.clear();
    sample.logits.clear();
    sample.values = {static_cast<float>(10 * uniform() - 5), static_cast<float>(uniform())};
  }
  for (int t = 0; task == Task::kLanguage && t < kScored; ++t) sample.token_probabilities.push_back(uniform());
  for (int l = 0; l < kLayers; ++l) {
    for (int h = 0; h < kHeads; ++h) {
      sample.head_edges[l][h] = random() % 37;
      sample.head_expected[l][h] = std::round(36 * uniform() * 1048576) / 1048576;
      for (uint32_t& degree : sample.degrees[l][h]) degree = random() % 7;
    }
  }
  sample.isolated = random() % 5;
  sample.capped = index == 5;
  return sample;
}

double Entropy(const std::vector<double>& q, bool multi_label) {
  double sum = 0;
  for (double value : q) {
    if (multi_label) {
      if (value > 0 && value < 1) sum += value * std::log(value) + (1 - value) * std::log1p(-value);
    } else if (value > 0) {
      sum += value * std::log(value);
    }
  }
  return sum == 0 ? 0 : -sum;
}

// Mean, deviation, entropy, mutual information and label of the `width` numbers at `offset` of each row.
struct Statistics {
  std::vector<double> mean;
  Row deviation;
  double entropy;
  double information;
  int label;
};

Statistics Compute(const std::vector<Row>& rows, size_t offset, size_t width, bool multi_label = false) {
  const double k = static_cast<double>(rows.size());
  Statistics result;
  for (size_t c = 0; c < width; ++c) {
    double sum = 0;
    for (const Row& row : rows) sum += row[offset + c];
    const double mean = sum / k;
    double squares = 0;
    for (const Row& row : rows) squares += (row[offset + c] - mean) * (row[offset + c] - mean);
    result.mean.push_back(mean);
    result.deviation.push_back(rows.size() < 2 ? 0.0f : static_cast<float>(std::sqrt(squares / (k - 1))));
  }
  result.entropy = Entropy(result.mean, multi_label);
  double entropies = 0;
  for (const Row& row : rows) {
    entropies += Entropy(std::vector<double>(row.begin() + offset, row.begin() + offset + width), multi_label);
  }
  result.information = std::max(0.0, result.entropy - entropies / k);
  result.label = 0;
  for (size_t c = 1; c < width; ++c) {
    if (result.mean[c] > result.mean[result.label]) result.label = static_cast<int>(c);
  }
  return result;
}

template <typename Message>
void Fill(const Statistics& statistics, Message* message) {
  for (double mean : statistics.mean) message->add_probabilities(static_cast<float>(mean));
  for (float deviation : statistics.deviation) message->add_stddev(deviation);
  message->set_predictive_entropy(statistics.entropy);
  message->set_mutual_information(statistics.information);
  message->set_label_id(statistics.label);
  message->set_label(Names()[statistics.label]);
}

void FillEdges(const std::vector<Sample>& samples, v1::Prediction* prediction) {
  const double k = static_cast<double>(samples.size());
  v1::EdgeReport* edges = prediction->mutable_edges();
  edges->set_pairs(kLayers * kHeads * 36);
  edges->set_budget(120);
  uint64_t all = 0, isolated = 0;
  double all_expected = 0;
  for (const Sample& sample : samples) {
    uint64_t own = 0;
    for (const auto& layer : sample.head_edges) {
      for (uint64_t count : layer) own += count;
    }
    for (const auto& layer : sample.head_expected) {
      for (double expected : layer) all_expected += expected;
    }
    all += own;
    isolated += sample.isolated;
    edges->set_max_sample_edges(std::max<uint64_t>(edges->max_sample_edges(), own));
    edges->set_capped(edges->capped() || sample.capped);
  }
  edges->set_edges(static_cast<double>(all) / k);
  edges->set_density(edges->edges() / static_cast<double>(edges->pairs()));
  edges->set_expected_edges(all_expected / k);
  edges->set_isolated_queries(static_cast<double>(isolated) / k);
  for (int l = 0; l < kLayers; ++l) {
    v1::EdgeReport::LayerEdges* layer = edges->add_layers();
    for (int h = 0; h < kHeads; ++h) {
      v1::EdgeReport::HeadEdges* head = layer->add_heads();
      uint64_t count = 0;
      double expected = 0;
      uint32_t degrees[kPositions] = {};
      for (const Sample& sample : samples) {
        count += sample.head_edges[l][h];
        expected += sample.head_expected[l][h];
        for (int key = 0; key < kPositions; ++key) degrees[key] += sample.degrees[l][h][key];
      }
      head->set_edges(static_cast<double>(count) / k);
      head->set_expected(expected / k);
      for (uint32_t degree : degrees) head->add_key_degrees(degree);
    }
  }
}

v1::Prediction MakePrediction(Task task, int input, int first, int count, bool logits) {
  std::vector<Sample> samples;
  std::vector<Row> probabilities, logit_rows, values;
  v1::Prediction prediction;
  for (int s = first; s < first + count; ++s) {
    samples.push_back(DrawSample(s, task, input));
    const Sample& sample = samples.back();
    probabilities.push_back(sample.probabilities);
    logit_rows.push_back(sample.logits);
    values.push_back(sample.values);
    v1::SampleOutput* output = prediction.add_sample_outputs();
    for (float p : sample.probabilities) output->add_probabilities(p);
    for (float value : sample.values) output->add_values(value);
    for (double p : sample.token_probabilities) output->add_token_probabilities(p);
    if (logits) output->mutable_logits()->Add(sample.logits.begin(), sample.logits.end());
    for (const auto& layer : sample.head_edges) {
      for (uint64_t edges : layer) output->set_edges(output->edges() + edges);
    }
  }
  prediction.set_samples(count);
  prediction.set_truncated_tokens(3);
  prediction.add_input_tokens()->set_token_id(input + 1);
  FillEdges(samples, &prediction);
  auto add_logits = [&](size_t offset, auto* message) {
    if (!logits) return;
    for (double mean : Compute(logit_rows, offset, kLabels).mean) message->add_logits(static_cast<float>(mean));
  };
  if (task == Task::kLanguage) {
    double likelihood = 0;
    for (int t = 0; t < kScored; ++t) {
      double sum = 0;
      for (const Sample& sample : samples) sum += sample.token_probabilities[t];
      likelihood += std::log(sum / count);
    }
    prediction.set_scored_tokens(kScored);
    prediction.set_log_likelihood(likelihood);
    prediction.set_perplexity(std::exp(-likelihood / kScored));
  }
  if (task == Task::kRegression) {
    const Statistics statistics = Compute(values, 0, 2);
    for (double mean : statistics.mean) prediction.add_values(static_cast<float>(mean));
    for (float deviation : statistics.deviation) prediction.add_stddev(deviation);
  } else if (task == Task::kTokens) {
    for (int t = 0; t < kPositions; ++t) {
      v1::TokenPrediction* token = prediction.add_tokens();
      token->set_pad(t == kPad);
      token->set_begin(3 * t);
      token->set_end(3 * t + 2);
      if (t == kPad) continue;
      Fill(Compute(probabilities, t * kLabels, kLabels), token);
      add_logits(t * kLabels, token);
    }
  } else {
    const Statistics statistics = Compute(probabilities, 0, kLabels, task == Task::kMultiLabel);
    Fill(statistics, &prediction);
    prediction.set_multi_label(task == Task::kMultiLabel);
    add_logits(0, &prediction);
    std::vector<int> order = {0, 1, 2, 3, 4};
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return prediction.probabilities(a) > prediction.probabilities(b); });
    for (int t = 0; t < 3; ++t) {
      v1::Prediction::Top* top = prediction.add_top();
      top->set_label_id(order[t]);
      top->set_label(Names()[order[t]]);
      top->set_probability(static_cast<float>(statistics.mean[order[t]]));
    }
  }
  return prediction;
}

}  // namespace

const std::vector<std::string>& Names() {
  static const auto& names = *new std::vector<std::string>{"zero", "one", "two", "three", "four"};
  return names;
}

v1::PredictResponse MakeResponse(Task task, int first, int count, bool logits) {
  v1::PredictResponse response;
  response.set_model("toy");
  response.set_version(2);
  response.set_seed(0xfedcba9876543210u);
  response.set_device("cpu/test/fp32");
  for (int input = 0; input < 2; ++input) {
    *response.add_predictions() = MakePrediction(task, input, first, count, logits);
  }
  return response;
}

}  // namespace edgewise::testing
