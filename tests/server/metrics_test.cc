#include "server/observe/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <vector>

#include "model/forward/pass.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

// The value of the series whose line starts with `series`; -1: there is none.
double Value(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(series + " ", 0) == 0) return std::stod(line.substr(series.size() + 1));
  }
  return -1.0;
}

size_t Lines(const std::string& text) {
  size_t lines = 0;
  for (char c : text) lines += c == '\n';
  return lines;
}

class MetricsTest : public ::testing::Test {
 protected:
  std::unique_ptr<LoadedMetrics> Load(const std::shared_ptr<ModelMetrics>& model) {
    return model->Loaded(model->Event(), *model_);
  }
  static void CountRequest(const std::shared_ptr<ModelMetrics>& model, absl::StatusCode code) {
    model->CountRequest(model->Event(), Rpc::kPredict, absl::Status(code, ""), 0.01);
  }

  Metrics metrics_;
  std::unique_ptr<Model> model_ = LoadTestModel("sbm");
};

TEST_F(MetricsTest, EverySeriesIsThereAtZeroBeforeTheFirstRequest) {
  std::unique_ptr<LoadedMetrics> loaded = Load(metrics_.ForModel("m", 3));
  const std::string text = metrics_.Render();
  for (const char* series :
       {R"(edgewise_requests_total{code="OK",model="m",version="3"})",
        R"(edgewise_requests_total{code="RESOURCE_EXHAUSTED",model="m",version="3"})",
        R"(edgewise_requests_total{code="NOT_FOUND",model="_other",version="_other"})",
        R"(edgewise_rejections_total{model="m",reason="queue_full",version="3"})",
        R"(edgewise_items_total{model="m",version="3"})", R"(edgewise_attention_edges_total{model="m",version="3"})",
        R"(edgewise_attention_pairs_total{model="m",version="3"})",
        R"(edgewise_isolated_queries_total{model="m",version="3"})",
        R"(edgewise_input_density_ratio_count{model="m",version="3"})",
        R"(edgewise_ensemble_disagreement_ratio_count{model="m",version="3"})",
        R"(edgewise_queue_duration_seconds_count{model="m",version="3"})",
        R"(edgewise_stage_seconds_total{model="m",stage="forward",version="3"})",
        R"(edgewise_cancelled_compute_seconds_total{model="m",version="3"})",
        R"(edgewise_rpc_requests_total{code="OK",method="Predict",service="edgewise.v1.InferenceService"})"}) {
    EXPECT_EQ(Value(text, series), 0.0) << series;
  }
}

TEST_F(MetricsTest, PromtoolFindsNothingToSay) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) GTEST_SKIP() << "promtool is not installed";
  std::unique_ptr<LoadedMetrics> loaded = Load(metrics_.ForModel("m", 1));
  FILE* promtool = popen("promtool check metrics", "w");
  ASSERT_NE(promtool, nullptr);
  const std::string text = metrics_.Render();
  std::fwrite(text.data(), 1, text.size(), promtool);
  EXPECT_EQ(pclose(promtool), 0);
}

TEST_F(MetricsTest, RequestsMoveTheCountersByExactlyTheirNumber) {
  const std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", 1);
  for (int i = 0; i < 7; ++i) CountRequest(model, absl::StatusCode::kOk);
  CountRequest(model, absl::StatusCode::kInvalidArgument);
  CountRequest(model, absl::StatusCode::kDataLoss);  // not one of the codes: a fault of ours
  const std::string text = metrics_.Render();
  EXPECT_EQ(Value(text, R"(edgewise_requests_total{code="OK",model="m",version="1"})"), 7.0);
  EXPECT_EQ(Value(text, R"(edgewise_requests_total{code="INVALID_ARGUMENT",model="m",version="1"})"), 1.0);
  EXPECT_EQ(Value(text, R"(edgewise_requests_total{code="INTERNAL",model="m",version="1"})"), 1.0);
  EXPECT_EQ(Value(text, R"(edgewise_request_duration_seconds_count{model="m",version="1"})"), 9.0);
}

TEST_F(MetricsTest, EdgesAndPairsAreThoseOfTheResult) {
  std::unique_ptr<LoadedMetrics> loaded = Load(metrics_.ForModel("m", 1));
  std::vector<ModelInput> inputs(1);
  inputs[0].sequences.push_back(model_->Prepare({1, 2, 0, 3, 4, 5}, TruncateMode::kRefuse).value());
  inputs[0].samples = 3;
  inputs[0].max_edges = 20;
  Pass pass(*model_, inputs, {});
  while (!pass.done()) ASSERT_TRUE(pass.Step().ok());
  const InputResult result = pass.TakeResult(0);
  ASSERT_TRUE(result.status.ok());
  loaded->CountInput(metrics_.other()->Event(), inputs[0], result);
  const std::string text = metrics_.Render();
  EXPECT_DOUBLE_EQ(Value(text, R"(edgewise_attention_edges_total{model="m",version="1"})"), result.edges * 3);
  EXPECT_EQ(Value(text, R"(edgewise_attention_pairs_total{model="m",version="1"})"), 2 * 2 * 25 * 3);
  EXPECT_EQ(result.pairs, 100u);
  EXPECT_EQ(Value(text, R"(edgewise_tokens_total{model="m",version="1"})"), 5.0);
  EXPECT_NEAR(Value(text, R"(edgewise_input_density_ratio_sum{model="m",version="1"})"), result.density, 1e-6);
  EXPECT_NEAR(Value(text, R"(edgewise_edge_budget_utilization_ratio_sum{model="m",version="1"})"),
              static_cast<double>(result.max_sample_edges) / 20.0, 1e-6);
}

// Of one version of a model, by its task, whatever its layers; the lines of HELP and TYPE have no labels.
TEST_F(MetricsTest, AModelHasAtMost120SeriesAndThoseOfWhatItCanDo) {
  const auto series = [](const Metrics& metrics, const std::string& word) {
    std::istringstream lines(metrics.Render());
    size_t found = 0;
    for (std::string line; std::getline(lines, line);) {
      found += line.find(R"(model="m")") != std::string::npos && line.find(word) != std::string::npos;
    }
    return found;
  };
  for (const bool has_shadow : {false, true}) {
    for (const char* name : {"sbm", "sbm-tokens", "regression", "features", "lm-dense"}) {
      const std::unique_ptr<Model> model = LoadTestModel(name);
      const bool generates = model->config().task == ModelTask::kCausalLm;
      Metrics metrics;
      const std::shared_ptr<ModelMetrics> version = metrics.ForModel("m", 1);
      const std::unique_ptr<LoadedMetrics> loaded = version->Loaded(version->Event(), *model);
      if (has_shadow) loaded->ExpectShadow(version->Event());
      const size_t all = series(metrics, "");
      EXPECT_LE(all, 120u) << name;
      EXPECT_EQ(all, (generates ? 113u : 82u) + (has_shadow ? 7u : 0u)) << name << "; docs/metrics.md says so";
      EXPECT_EQ(series(metrics, "_token_duration_") > 0, generates) << name;
      EXPECT_EQ(series(metrics, "edgewise_generat") > 0, generates) << name;
      EXPECT_EQ(series(metrics, "edgewise_shadow_") > 0, has_shadow) << name;
    }
  }
}

// Where the model has no series for them.
TEST_F(MetricsTest, GenerationsOfAModelThatDoesNotGenerateCountUnderOther) {
  const std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", 1);
  const std::unique_ptr<LoadedMetrics> loaded = Load(model);
  const size_t before = Lines(metrics_.Render());
  model->CountRequest(model->Event(), Rpc::kGenerate, absl::InvalidArgumentError(""), 0.5);
  const std::string text = metrics_.Render();
  EXPECT_EQ(Value(text, R"(edgewise_generations_total{code="INVALID_ARGUMENT",model="_other",version="_other"})"), 1.0);
  EXPECT_EQ(Value(text, R"(edgewise_generation_duration_seconds_sum{model="_other",version="_other"})"), 0.5);
  EXPECT_EQ(Value(text, R"(edgewise_requests_total{code="INVALID_ARGUMENT",model="m",version="1"})"), 0.0);
  EXPECT_EQ(Lines(text), before);
}

TEST_F(MetricsTest, SeriesDoNotGrowWithTraffic) {
  std::unique_ptr<LoadedMetrics> loaded = Load(metrics_.ForModel("m", 1));
  const size_t before = Lines(metrics_.Render());
  for (int i = 0; i < 100; ++i) {
    CountRequest(metrics_.other(), absl::StatusCode::kNotFound);
    metrics_.CountRpc(Rpc::kPredict, absl::StatusCode::kOutOfRange);
    loaded->CountEnd(metrics_.other()->Event(), Request(), true, 0.1);
  }
  EXPECT_EQ(Lines(metrics_.Render()), before);
}

TEST_F(MetricsTest, RemovedVersionHoldsNoMemoryAndHasNoInfo) {
  const std::string memory =
      R"(edgewise_memory_bytes{device=")" + model_->backend().device() + R"(",kind="weights",model="m",version="1"})";
  const std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", 1);
  model->Removed();  // before any load
  std::unique_ptr<LoadedMetrics> loaded = Load(model);
  EXPECT_GT(Value(metrics_.Render(), memory), 0.0);
  constexpr char kCapacity[] = R"(edgewise_capacity_requests_per_second{model="m",version="1"})";
  model->SetCapacity(10.0);
  EXPECT_EQ(Value(metrics_.Render(), kCapacity), 10.0);
  model->Removed();
  model->SetCapacity(10.0);  // by who saw it loaded
  EXPECT_EQ(Value(metrics_.Render(), kCapacity), 0.0);
  EXPECT_EQ(Value(metrics_.Render(), memory), 0.0);
  EXPECT_EQ(metrics_.Render().find("edgewise_model_info{"), std::string::npos);
  loaded = Load(model);
  EXPECT_GT(Value(metrics_.Render(), memory), 0.0);
  EXPECT_NE(metrics_.Render().find("edgewise_model_info{"), std::string::npos);
}

TEST_F(MetricsTest, LoadingAgainKeepsTheNumbers) {
  Request request;
  request.work.budget = BudgetKind::kEdges;
  const std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", 1);
  std::unique_ptr<LoadedMetrics> loaded = Load(model);
  loaded->CountValid(request, 0.0);
  loaded = Load(model);
  loaded->CountValid(request, 0.0);
  const std::string text = metrics_.Render();
  EXPECT_EQ(Value(text, R"(edgewise_edge_budget_requests_total{model="m",version="1"})"), 2.0);
  size_t infos = 0;
  for (size_t at = text.find("edgewise_model_info{"); at != std::string::npos;
       at = text.find("edgewise_model_info{", at + 1))
    ++infos;
  EXPECT_EQ(infos, 1u);
}

TEST_F(MetricsTest, SeriesLeaveWithTheLastThatRecordsAndComeBackAtZero) {
  const std::string requests = R"(edgewise_requests_total{code="OK",model="m",version="1"})";
  const size_t before = Lines(metrics_.Render());
  std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", 1);
  std::unique_ptr<LoadedMetrics> loaded = Load(model);
  loaded = Load(model);
  const size_t with = Lines(metrics_.Render());
  Request request;
  request.ticket.metrics = model;
  loaded->CountValid(request, 0.0);
  model->Removed();
  model.reset();
  EXPECT_EQ(Value(metrics_.Render(), R"(edgewise_requests_in_flight{model="m",version="1"})"), 1.0);
  CountRequest(request.ticket.metrics, absl::StatusCode::kOk);
  EXPECT_EQ(Value(metrics_.Render(), requests), 1.0);
  EXPECT_EQ(metrics_.ForModel("m", 1), request.ticket.metrics) << "it came back before";
  CountRequest(request.ticket.metrics, absl::StatusCode::kOk);
  loaded.reset();
  request = Request();
  EXPECT_EQ(Value(metrics_.Render(), requests), 2.0) << "the last page";
  const std::string after = metrics_.Render();
  EXPECT_EQ(Lines(after), before);
  EXPECT_EQ(after.find(R"(model="m")"), std::string::npos);
  loaded = Load(metrics_.ForModel("m", 1));
  EXPECT_EQ(Value(metrics_.Render(), requests), 0.0);
  EXPECT_EQ(Lines(metrics_.Render()), with);
}

TEST_F(MetricsTest, VersionsLeaveWithoutAPageWhereNobodyMakesPages) {
  const std::shared_ptr<ModelMetrics> held = metrics_.ForModel("held", 1);
  for (int64_t version = 1; version <= 100; ++version) {
    const std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", version);
    const std::unique_ptr<LoadedMetrics> loaded = Load(model);
    model->CountRequest(model->Event(), Rpc::kPredict, absl::OkStatus(), 0.0);
    model->Removed();
  }
  const std::string page = metrics_.Render();
  const auto shown = [&](int64_t version) {
    return page.find(absl::StrCat(R"(model="m",version=")", version, R"(")")) != std::string::npos;
  };
  int versions = 0;
  for (int64_t version = 1; version <= 100; ++version) versions += shown(version);
  EXPECT_LE(versions, 17);
  EXPECT_TRUE(shown(100)) << "the last counts of a few are on a page";
  EXPECT_NE(page.find(R"(model="held")"), std::string::npos);
}

// Requests end on threads of their own while their version comes, goes and pages are made.
TEST_F(MetricsTest, VersionsLeaveWhileTheirLastRequestsCount) {
  constexpr int kRounds = 300;
  std::atomic<bool> over = false;
  std::thread scraper([&] {
    while (!over) {
      const std::string text = metrics_.Render();
      EXPECT_EQ(Value(text, R"(edgewise_requests_total{code="OK",model="m",version="1"})"),
                Value(text, R"(edgewise_request_duration_seconds_count{model="m",version="1"})"));
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", 1);
    std::shared_ptr<LoadedMetrics> loaded = Load(model);
    std::thread last([this, model, loaded]() mutable {
      Request request;
      loaded->CountValid(request, 0.0);
      CountRequest(model, absl::StatusCode::kOk);
      request.gauges = {};
      loaded.reset();
      model.reset();
    });
    model->Removed();
    model.reset();
    loaded.reset();
    last.join();
  }
  over = true;
  scraper.join();
  metrics_.Render();
  EXPECT_EQ(metrics_.Render().find(R"(model="m")"), std::string::npos);
}

// Threads record without a pause while pages are made: on every page, what one event moves has moved together.
TEST_F(MetricsTest, PageShowsWholeEvents) {
  const std::shared_ptr<ModelMetrics> model = metrics_.ForModel("m", 1);
  std::unique_ptr<LoadedMetrics> loaded = Load(model);
  std::atomic<bool> over = false;
  std::vector<std::thread> recorders;
  for (int t = 0; t < 2; ++t) {
    recorders.emplace_back([&] {
      Request request;
      request.ticket.priority = 1;
      request.work.tokens = 4;
      request.outcome.cancelled_seconds = 1.0;
      while (!over) {
        loaded->CountValid(request, 0.0);
        Request* const started[] = {&request};
        loaded->CountBatch(started);
        const MetricsEvent event = model->Event();
        model->CountRequest(event, Rpc::kPredict, absl::CancelledError(), 1.0);
        loaded->CountEnd(event, request, false, 0.0);
        request.gauges = {};
      }
    });
  }
  int violations = 0;
  double ended = 0.0;
  for (int page = 0; page < 300 || ended == 0.0; ++page) {
    const std::string text = metrics_.Render();
    ended = Value(text, R"(edgewise_requests_total{code="CANCELLED",model="m",version="1"})");
    violations += Value(text, R"(edgewise_request_duration_seconds_count{model="m",version="1"})") != ended;
    violations += Value(text, R"(edgewise_rejections_total{model="m",reason="cancelled",version="1"})") != ended;
    violations += Value(text, R"(edgewise_cancelled_compute_seconds_total{model="m",version="1"})") != ended;
    violations += Value(text, R"(edgewise_queue_duration_seconds_count{model="m",version="1"})") != ended;
    violations += Value(text, R"(edgewise_queue_tokens{model="m",version="1"})") !=
                  4.0 * Value(text, R"(edgewise_queue_requests{model="m",version="1"})");
  }
  over = true;
  for (std::thread& recorder : recorders) recorder.join();
  EXPECT_EQ(violations, 0);
}

}  // namespace
}  // namespace edgewise::server
