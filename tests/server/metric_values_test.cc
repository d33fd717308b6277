// Contents of the histograms: exact sums of known values, in the units of docs/metrics.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "server/base/status_details.h"
#include "server/observe/metrics.h"
#include "tests/model/run_model.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

using ::testing::ElementsAreArray;

class MetricValuesTest : public ::testing::Test {
 protected:
  // The value of a series of the page; fails where there is none.
  double Value(const std::string& series) const {
    std::istringstream lines(metrics_.Render());
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(series + " ", 0) == 0) return std::stod(line.substr(series.size() + 1));
    }
    ADD_FAILURE() << "no series " << series;
    return 0.0;
  }
  // The same of a series of the model, `part` "_sum", "_count" or "_total"; `before` and `after` are labels that sort
  // before and after `model`.
  double Of(const std::string& name, const std::string& before = "", const std::string& after = "") const {
    return Value("edgewise_" + name + "{" + before + "model=\"m\"," + after + "version=\"1\"}");
  }
  void CountRequest(Rpc rpc, const absl::Status& status, double seconds) {
    of_model_->CountRequest(of_model_->Event(), rpc, status, seconds);
  }
  void CountRequest(Rpc rpc, absl::StatusCode code, double seconds) {
    CountRequest(rpc, absl::Status(code, ""), seconds);
  }
  void CountLoad(bool ok, double seconds) { of_model_->CountLoad(of_model_->Event(), ok, seconds); }
  void CountEnd(const Request& request, bool answered, double output_seconds = 0.0) {
    loaded_->CountEnd(of_model_->Event(), request, answered, output_seconds);
  }
  void CountInput(const ModelInput& input, const InputResult& result) {
    loaded_->CountInput(of_model_->Event(), input, result);
  }

  Metrics metrics_;
  const std::unique_ptr<Model> model_ = LoadTestModel("sbm");
  const std::shared_ptr<ModelMetrics> of_model_ = metrics_.ForModel("m", 1);
  const std::unique_ptr<LoadedMetrics> loaded_ = of_model_->Loaded(of_model_->Event(), *model_);
};

// Boundaries belong to the bucket that they end.
TEST_F(MetricValuesTest, AValueIsCountedInTheBucketsFromItsOwnOn) {
  CountRequest(Rpc::kPredict, absl::StatusCode::kOk, 0.3);
  CountRequest(Rpc::kPredict, absl::StatusCode::kOk, 0.4);
  CountRequest(Rpc::kPredict, absl::StatusCode::kOk, 31.0);
  const std::pair<const char*, double> cumulative[] = {{"0.1", 0}, {"0.3", 1}, {"1", 2}, {"5", 2}, {"+Inf", 3}};
  for (const auto& [le, count] : cumulative) {
    EXPECT_EQ(Value(R"(edgewise_request_duration_seconds_bucket{model="m",version="1",le=")" + std::string(le) + "\"}"),
              count)
        << le;
  }
}

// Powers of two add up without rounding. Every duration of its own, so that no two can be swapped.
TEST_F(MetricValuesTest, DurationsAreSummedInSeconds) {
  CountRequest(Rpc::kPredict, absl::StatusCode::kOk, 0.25);
  CountRequest(Rpc::kPredict, absl::StatusCode::kInvalidArgument, 2.0);
  CountLoad(true, 3.5);
  Request request;
  request.ticket.priority = 1;
  request.outcome.queue_seconds = 0.125;
  request.outcome.compute_seconds = 32.0;
  request.outcome.cancelled_seconds = 0.375;
  CountEnd(request, false);
  request.outcome.cancelled_seconds = 0.0;
  request.ticket.priority = 2;
  request.outcome.queue_seconds = 0.25;
  request.outcome.compute_seconds = 16.0;
  CountEnd(request, true, 0.03125);
  request.outcome.queue_seconds = 4.0;
  request.outcome.compute_seconds = 0.5;
  CountEnd(request, true);
  request.ticket.priority = 3;
  request.outcome.queue_seconds = 8.0;
  CountEnd(request, false);
  loaded_->CountValid(request, 0.0625);
  EXPECT_EQ(Of("request_duration_seconds_sum"), 2.25);
  EXPECT_EQ(Of("request_duration_seconds_count"), 2);
  EXPECT_EQ(Of("model_load_duration_seconds"), 3.5);
  EXPECT_EQ(Of("queue_duration_seconds_sum"), 12.375);
  EXPECT_EQ(Of("queue_duration_seconds_count"), 4);
  EXPECT_EQ(Of("stage_seconds_total", "", R"(stage="input",)"), 0.0625);
  EXPECT_EQ(Of("stage_seconds_total", "", R"(stage="forward",)"), 16.5);
  EXPECT_EQ(Of("stage_seconds_total", "", R"(stage="output",)"), 0.03125);
  EXPECT_EQ(Of("cancelled_compute_seconds_total"), 0.375);
}

TEST_F(MetricValuesTest, PredictionsAreComparedWhereThereWasOne) {
  loaded_->CountPrediction(0.0, 1.0);
  EXPECT_EQ(Of("measured_over_predicted_ratio_count"), 0);
  loaded_->CountPrediction(2.0, 3.0);
  EXPECT_EQ(Of("measured_over_predicted_ratio_sum"), 1.5);
}

TEST_F(MetricValuesTest, BatchesAndQueuesAreCountedInTheirOwnUnits) {
  // Seven valid requests: five are computed, one is answered, one waits.
  std::vector<Request> requests(7);
  const uint64_t tokens[] = {100, 1000, 9, 11, 20, 7, 29};
  loaded_->ExpectShadow(of_model_->Event());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].work.tokens = tokens[i];
    requests[i].forecast.seconds = 0.5;
    loaded_->CountValid(requests[i], 0.0);
  }
  EXPECT_EQ(Of("queue_requests"), 7);
  EXPECT_EQ(Of("queue_tokens"), 1176);
  EXPECT_EQ(Of("queue_seconds"), 3.5);
  for (size_t i = 0; i < 5; ++i) {
    Request* const request[] = {&requests[i]};
    loaded_->CountBatch(request);
  }
  requests[5] = Request();
  EXPECT_EQ(Of("executions_total"), 5);
  EXPECT_EQ(Of("requests_in_flight"), 6);
  EXPECT_EQ(Of("queue_requests"), 1);
  EXPECT_EQ(Of("queue_tokens"), 29);
  EXPECT_EQ(Of("queue_seconds"), 0.5);
  for (double seconds : {0.25, 0.5}) loaded_->CountDevice(seconds);
  EXPECT_EQ(Of("device_seconds_total"), 0.75);
  loaded_->CountDevice(2.0, true);
  EXPECT_EQ(Of("device_seconds_total"), 0.75) << "nobody waited for that";
  EXPECT_EQ(Of("shadow_device_seconds_total"), 2);
}

// An answer of two samples whose every number is known: 2 layers of 2 heads over 5 valid tokens.
class InputValuesTest : public MetricValuesTest {
 protected:
  InputValuesTest() {
    input_ = edgewise::testing::MakeInput(*model_, {1, 2, 0, 3, 4, 5});  // 0: a pad
    input_.max_edges = 64;
    result_.rows = 1;
    result_.labels = 2;
    result_.label_id = {1};
    result_.samples = 2;
    result_.pairs = 100;
    result_.edges = 25.0;
    result_.density = 0.25;
    result_.max_sample_edges = 32;
    result_.isolated_queries = 5.0;  // of 5 tokens * 2 heads * 2 layers
    result_.sample_results.resize(2);
    const uint64_t edges[2][2][2] = {{{1, 2}, {4, 11}}, {{3, 5}, {8, 16}}};
    const uint64_t isolated[2][2][2] = {{{4, 0}, {1, 0}}, {{0, 3}, {0, 2}}};
    for (size_t s = 0; s < 2; ++s) {
      SampleResult& sample = result_.sample_results[s];
      sample.probabilities = s == 0 ? std::vector<float>{0.75f, 0.25f} : std::vector<float>{0.0f, 1.0f};
      sample.layers.resize(2);
      for (size_t l = 0; l < 2; ++l) {
        for (size_t h = 0; h < 2; ++h) {
          HeadCounts& head = sample.layers[l].emplace_back();
          head.edges = edges[s][l][h];
          head.isolated = isolated[s][l][h];
          sample.edges += head.edges;
        }
      }
    }
  }

  ModelInput input_;
  InputResult result_;
};

TEST_F(InputValuesTest, AnInputCountsWhatItsAnswerSays) {
  CountInput(input_, result_);
  EXPECT_EQ(Of("items_total"), 1);
  EXPECT_EQ(Of("tokens_total"), 5);
  EXPECT_EQ(Of("input_density_ratio_sum"), 0.25);
  EXPECT_EQ(Of("edge_budget_utilization_ratio_sum"), 0.5) << "32 edges of 64";
  EXPECT_EQ(Of("edge_budget_utilization_ratio_count"), 1);
  EXPECT_EQ(Of("edge_budget_capped_total"), 0);
  EXPECT_EQ(Of("ensemble_samples_sum"), 2);
  EXPECT_EQ(Of("ensemble_disagreement_ratio_sum"), 0.5) << "one sample of two has the other label";
  EXPECT_EQ(Of("attention_edges_total"), 1 + 2 + 3 + 5 + 4 + 11 + 8 + 16);
  EXPECT_EQ(Of("isolated_queries_total"), 4 + 3 + 1 + 2);
  EXPECT_EQ(Of("attention_pairs_total"), 5 * 5 * 2 * 2 * 2) << "2 layers, 2 heads, 2 samples";
}

TEST_F(InputValuesTest, AnInputWithoutABudgetUsesNone) {
  input_.max_edges = kNoCap;
  result_.capped = true;
  CountInput(input_, result_);
  EXPECT_EQ(Of("edge_budget_utilization_ratio_count"), 0);
  EXPECT_EQ(Of("edge_budget_capped_total"), 1);
}

// Of the labels of two tokens in two samples, one is not the answer's; the pad between them has none.
TEST_F(InputValuesTest, DisagreementIsOfEveryToken) {
  result_.rows = 3;
  result_.label_id = {1, -1, 0};
  result_.sample_results[0].probabilities = {0.25f, 0.75f, 0.0f, 0.0f, 0.5f, 0.25f};
  result_.sample_results[1].probabilities = {0.25f, 0.75f, 0.0f, 0.0f, 0.25f, 0.5f};
  CountInput(input_, result_);
  EXPECT_EQ(Of("ensemble_disagreement_ratio_sum"), 0.25);
}

// Of the yes or no to three labels in two samples, the second sample's to the first label is not the answer's. The most
// probable label differs in the first sample, which says nothing.
TEST_F(InputValuesTest, DisagreementIsOfEveryLabelOfAMultiLabelModel) {
  result_.multi_label = true;
  result_.labels = 3;
  result_.probabilities = {0.75f, 0.9f, 0.25f};
  result_.sample_results[0].probabilities = {1.0f, 0.9f, 0.25f};
  result_.sample_results[1].probabilities = {0.5f, 0.9f, 0.25f};
  CountInput(input_, result_);
  EXPECT_DOUBLE_EQ(Of("ensemble_disagreement_ratio_sum"), 1.0 / 6.0);
}

TEST(GenerationValuesTest, TokensAndGenerationsCountWhatTheySay) {
  const std::unique_ptr<Model> model = LoadTestModel("lm-dense");
  Metrics metrics;
  const std::shared_ptr<ModelMetrics> of_model = metrics.ForModel("m", 1);
  const std::unique_ptr<LoadedMetrics> loaded = of_model->Loaded(of_model->Event(), *model);
  const auto value = [&](const std::string& name, const std::string& before = "") {
    const std::string text = metrics.Render();
    const std::string series = "\nedgewise_" + name + "{" + before + "model=\"m\",version=\"1\"} ";
    const size_t at = text.find(series);
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size()));
  };
  RowEdges row;
  row.edges = 2.5;  // of each of two samples
  row.pairs = 12;
  Request request;
  request.work.tokens = 9;
  request.work.generation.emplace();
  request.work.generation->options.samples = 2;
  for (const double seconds : {0.5, 0.125, 0.25}) {
    loaded->CountToken(request, row, seconds);
    ++request.outcome.generated.tokens;
  }
  request.outcome.generated.utilization = 0.75;
  request.outcome.generated.capped = true;
  loaded->CountEnd(of_model->Event(), request, true, 0.0);
  request.work.tokens = 2;
  request.work.generation->options.samples = 4;
  request.outcome.generated.utilization = -1.0;
  request.outcome.generated.capped = false;
  loaded->CountEnd(of_model->Event(), request, true, 0.0);
  EXPECT_EQ(value("first_token_duration_seconds_sum"), 0.5);
  EXPECT_EQ(value("first_token_duration_seconds_count"), 1);
  EXPECT_EQ(value("token_duration_seconds_sum"), 0.375);
  EXPECT_EQ(value("token_duration_seconds_count"), 2);
  EXPECT_EQ(value("generated_tokens_total"), 3);
  EXPECT_EQ(value("prompt_tokens_total"), 11);
  EXPECT_EQ(value("attention_edges_total"), 15);
  EXPECT_EQ(value("attention_pairs_total"), 72);
  EXPECT_EQ(value("ensemble_samples_sum"), 6);
  EXPECT_EQ(value("edge_budget_utilization_ratio_sum"), 0.75);
  EXPECT_EQ(value("edge_budget_utilization_ratio_count"), 1);
  EXPECT_EQ(value("edge_budget_capped_total"), 1);
}

TEST_F(MetricValuesTest, EveryRejectionCountsUnderItsOwnLabel) {
  const std::pair<Rejection, const char*> rejections[] = {
      {Rejection::kQueueFull, "queue_full"}, {Rejection::kDeadline, "deadline"}, {Rejection::kCancelled, "cancelled"},
      {Rejection::kDraining, "draining"},    {Rejection::kInvalid, "invalid"},   {Rejection::kBudget, "budget"},
      {Rejection::kOutOfMemory, "oom"},      {Rejection::kNotReady, "not_ready"}};
  int times = 0;  // the reason of number i comes i + 1 times
  for (const auto& [reason, name] : rejections) {
    for (int i = 0; i <= times; ++i) {
      CountRequest(Rpc::kPredict, WithRejection(absl::UnknownError(""), reason), 0.0);
    }
    ++times;
  }
  times = 0;
  for (const auto& [reason, name] : rejections) {
    EXPECT_EQ(Of("rejections_total", "", "reason=\"" + std::string(name) + "\","), ++times) << name;
  }
}

TEST_F(MetricValuesTest, RequestsWithABudgetAreCounted) {
  for (const BudgetKind kind : {BudgetKind::kNone, BudgetKind::kEdges, BudgetKind::kDensity, BudgetKind::kDensity}) {
    Request request;
    request.work.budget = kind;
    loaded_->CountValid(request, 0.0);
  }
  EXPECT_EQ(Of("edge_budget_requests_total"), 3);
}

TEST_F(MetricValuesTest, EveryCodeAndMethodCountsUnderItsOwnLabel) {
  const std::pair<absl::StatusCode, const char*> codes[] = {
      {absl::StatusCode::kOk, "OK"},
      {absl::StatusCode::kCancelled, "CANCELLED"},
      {absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT"},
      {absl::StatusCode::kNotFound, "NOT_FOUND"},
      {absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED"},
      {absl::StatusCode::kResourceExhausted, "RESOURCE_EXHAUSTED"},
      {absl::StatusCode::kInternal, "INTERNAL"},
      {absl::StatusCode::kFailedPrecondition, "FAILED_PRECONDITION"},
      {absl::StatusCode::kUnavailable, "UNAVAILABLE"}};
  const std::unique_ptr<Model> language_model = LoadTestModel("lm-dense");
  const std::shared_ptr<ModelMetrics> generates = metrics_.ForModel("lm", 1);
  const std::unique_ptr<LoadedMetrics> loaded = generates->Loaded(generates->Event(), *language_model);
  const std::string ours = R"(",service="edgewise.v1.InferenceService"})";
  const std::string open = R"(",service="inference.GRPCInferenceService"})";
  const std::pair<Rpc, std::string> methods[] = {
      {Rpc::kPredict, "Predict" + ours},     {Rpc::kPredictStream, "PredictStream" + ours},
      {Rpc::kGenerate, "Generate" + ours},   {Rpc::kListModels, "ListModels" + ours},
      {Rpc::kGetModel, "GetModel" + ours},   {Rpc::kModelInfer, "ModelInfer" + open},
      {Rpc::kOpenInference, "_other" + open}};
  // The one of number i comes i + 1 times.
  int times = 0;
  for (const auto& [code, name] : codes) {
    for (int i = 0; i <= times; ++i) CountRequest(Rpc::kPredict, code, 0.0);
    for (int i = 0; i <= 2 * times; ++i) {
      generates->CountRequest(generates->Event(), Rpc::kGenerate, absl::Status(code, ""), 0.5);
    }
    ++times;
  }
  times = 0;
  for (const auto& [method, name] : methods) {
    for (int i = 0; i <= times; ++i) metrics_.CountRpc(method, absl::StatusCode::kOk);
    ++times;
  }

  times = 0;
  for (const auto& [code, name] : codes) {
    EXPECT_EQ(Of("requests_total", "code=\"" + std::string(name) + "\","), times + 1) << name;
    EXPECT_EQ(Value(R"(edgewise_generations_total{code=")" + std::string(name) + R"(",model="lm",version="1"})"),
              2 * times + 1)
        << name;
    ++times;
  }
  times = 0;
  for (const auto& [method, name] : methods) {
    EXPECT_EQ(Value(R"(edgewise_rpc_requests_total{code="OK",method=")" + name), ++times) << name;
  }
}

TEST_F(MetricValuesTest, MemoryOfADeviceIsDividedByWhatHoldsIt) {
  const auto bytes = [&] {
    std::vector<double> found;
    for (const char* kind : {"weights", "cache", "scratch", "kept", "other", "free"}) {
      found.push_back(Value(std::string("edgewise_device_memory_bytes{kind=\"") + kind + "\"}"));
    }
    return found;
  };
  metrics_.SetDeviceMemory({.weights = 100, .in_use = 160, .kept = 40, .free = 500, .total = 1000}, 50);
  EXPECT_THAT(bytes(), ElementsAreArray({100, 50, 10, 40, 300, 500}));
  // Numbers of different moments.
  metrics_.SetDeviceMemory({.weights = 100, .in_use = 90, .kept = 40, .free = 900, .total = 1000}, 50);
  EXPECT_THAT(bytes(), ElementsAreArray({90, 0, 0, 40, 0, 900}));
  metrics_.SetDeviceMemory({}, 50);
  EXPECT_THAT(bytes(), ElementsAreArray({0, 0, 0, 0, 0, 0})) << "a CPU's memory is the host's";
}

TEST_F(MetricValuesTest, LoadsAreCountedByTheirResult) {
  CountLoad(true, 1.0);
  CountLoad(false, 2.0);
  CountLoad(false, 0.5);
  EXPECT_EQ(Of("model_loads_total", "", R"(result="ok",)"), 1);
  EXPECT_EQ(Of("model_loads_total", "", R"(result="error",)"), 2);
  EXPECT_EQ(Of("model_load_duration_seconds"), 0.5) << "of the last one";
  EXPECT_EQ(Of("model_ready"), 1);
  EXPECT_EQ(Of("memory_bytes", "device=\"" + model_->backend().device() + R"(",kind="weights",)"),
            static_cast<double>(model_->parameters()) * 4);
}

}  // namespace
}  // namespace edgewise::server
