// The numbers of a request that are made around the model: timing in the answer and in the metrics, by a clock that the
// test moves; what the engine would do, the test does.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/field_error.h"
#include "server/handler/handler.h"
#include "server/models/repository.h"
#include "server/schedule/device_failure.h"
#include "server/schedule/queue.h"
#include "tests/model/run_model.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

using std::chrono::microseconds;

TEST(MicrosecondsTest, WholeMicrosecondsStayWhatTheyAre) {
  for (int64_t count = 0; count < 100000; ++count) {
    ASSERT_EQ(Microseconds(Seconds(microseconds(count))), static_cast<uint64_t>(count));
  }
  EXPECT_EQ(Microseconds(Seconds(std::chrono::nanoseconds(1999))), 1u) << "rounded down";
  EXPECT_EQ(Microseconds(Seconds(std::chrono::hours(24 * 365)) + 1e-6), 31536000000001u);
}

class AnswerTest : public ::testing::Test, public TokenStream {
 protected:
  AnswerTest() {
    folder_.AddModel("sbm", "sbm", 3);
    folder_.AddModel("lm-dense", "lm", 4);
    const std::vector<LoadJob> jobs = repository_.Scan().value();
    for (const LoadJob& job : jobs) repository_.Load(job, TestBackend());
  }

  bool ready() const override { return true; }
  void Send(std::unique_ptr<v1::GenerateResponse> message) override { messages_.push_back(std::move(*message)); }

  // Replies go to ends_ and messages_.
  void Predict(RequestHandler& handler, const v1::PredictRequest& message, v1::PredictResponse& response,
               Time deadline = Time::max()) {
    handler.Start(message, {.deadline = deadline, .reply = reply_, .response = &response});
  }
  void Generate(const v1::GenerateRequest& message) {
    handler_.Start(message, {.rpc = Rpc::kGenerate, .reply = reply_, .stream = this});
  }

  // Does with the one request that waits what the engine does, as far as the metrics go.
  RequestPtr Take() {
    UnderWay nothing;
    nothing.room = {1, uint64_t{1} << 40};
    Assignment work = queue_.Next(Wait::kNot, nothing);
    if (work.turn.kind == Turn::kStart) queue_.Ended(work.turn.pass);
    RequestPtr request = work.generation ? std::move(work.generation) : std::move(work.batch[0]);
    LoadedMetrics& metrics = *request->ticket.model->metrics;
    Request* const started[] = {request.get()};
    request->work.generation ? metrics.CountGeneration(*request) : metrics.CountBatch(started);
    return request;
  }
  double Metric(const std::string& series) const {
    const std::string text = metrics_.Render();
    const size_t at = text.find("\nedgewise_" + series + " ");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size() + 11));
  }

  Time now_ = Time() + std::chrono::hours(1);
  TestFolder folder_;
  Metrics metrics_;
  Repository repository_{{folder_.path()}, metrics_};
  RequestQueue queue_{{}, [this] { return now_; }};
  const ServerOptions options_;
  MemoryLedger memory_{uint64_t{1} << 30};
  RequestHandler handler_{options_, memory_, repository_, queue_};
  std::vector<v1::GenerateResponse> messages_;
  std::vector<absl::Status> ends_;
  const std::function<void(const absl::Status&)> reply_ = [this](const absl::Status& status) {
    ends_.push_back(status);
  };
};

TEST_F(AnswerTest, TimingOfAPredictionIsTheEnginesAndTheClocks) {
  v1::PredictRequest request;
  request.set_model("sbm");
  request.set_request_id("one");
  request.set_priority(3);
  request.mutable_ensemble()->set_seed(5);
  for (const int length : {3, 4}) {
    v1::TokenIds* ids = request.add_inputs()->mutable_sequence()->mutable_token_ids();
    for (int i = 0; i < length; ++i) ids->add_values(i + 1);
  }
  v1::PredictResponse response;
  Predict(handler_, request, response);
  const std::string of_sbm = R"({model="sbm",version="3"})";
  EXPECT_EQ(Metric("queue_requests" + of_sbm), 1);
  EXPECT_EQ(Metric("queue_tokens" + of_sbm), 7);
  EXPECT_EQ(Metric("requests_in_flight" + of_sbm), 1);
  EXPECT_EQ(handler_.in_flight(), 1);
  now_ += microseconds(9000);
  const RequestPtr taken = Take();
  EXPECT_EQ(taken->ticket.priority, 3u);
  EXPECT_EQ(taken->work.tokens, 7u);
  taken->outcome.results = edgewise::testing::RunAll(*taken->ticket.model->model, taken->work.inputs);
  taken->outcome.queue_seconds = Seconds(microseconds(249));  // 0.000249 * 1e6 is 248.99999999999997
  taken->outcome.compute_seconds = Seconds(microseconds(4501));
  taken->outcome.batch_inputs = 11;
  taken->outcome.batch_tokens = 222;
  EXPECT_TRUE(ends_.empty());
  taken->done(absl::OkStatus());
  ASSERT_EQ(ends_.size(), 1u);
  ASSERT_TRUE(ends_[0].ok()) << ends_[0];
  EXPECT_EQ(response.timing().queue_us(), 249u);
  EXPECT_EQ(response.timing().compute_us(), 4501u);
  EXPECT_EQ(response.timing().total_us(), 9000u);
  EXPECT_EQ(response.timing().batch_inputs(), 11u);
  EXPECT_EQ(response.timing().batch_tokens(), 222u);
  EXPECT_EQ(response.model(), "sbm");
  EXPECT_EQ(response.version(), 3);
  EXPECT_EQ(response.seed(), 5u);
  EXPECT_EQ(response.request_id(), "one");
  EXPECT_EQ(response.device(), TestBackend().device());
  EXPECT_EQ(response.predictions_size(), 2);
  EXPECT_DOUBLE_EQ(Metric("queue_duration_seconds_sum" + of_sbm), 0.000249);
  EXPECT_DOUBLE_EQ(Metric(R"(stage_seconds_total{model="sbm",stage="forward",version="3"})"), 0.004501);
  EXPECT_DOUBLE_EQ(Metric("request_duration_seconds_sum" + of_sbm), 0.009);
  EXPECT_EQ(Metric("items_total" + of_sbm), 2);
  EXPECT_EQ(Metric("tokens_total" + of_sbm), 7);
  EXPECT_EQ(Metric("queue_requests" + of_sbm), 0);
  EXPECT_EQ(Metric("queue_tokens" + of_sbm), 0);
  EXPECT_EQ(Metric("requests_in_flight" + of_sbm), 0);
  EXPECT_EQ(handler_.in_flight(), 0);
}

// A request that never ran leaves the queue, and its end is counted by its reason.
TEST_F(AnswerTest, RequestThatDiesInTheQueueIsCountedOnceAndLeavesNothingBehind) {
  v1::PredictRequest request;
  request.set_model("sbm");
  request.add_inputs()->mutable_sequence()->mutable_token_ids()->add_values(1);
  v1::PredictResponse response;
  Predict(handler_, request, response, now_ + std::chrono::seconds(1));
  now_ += std::chrono::seconds(1);
  EXPECT_TRUE(queue_.Next(Wait::kNot).none());
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ends_[0])) << ends_[0];
  EXPECT_EQ(Metric(R"(requests_total{code="DEADLINE_EXCEEDED",model="sbm",version="3"})"), 1);
  EXPECT_EQ(Metric(R"(rejections_total{model="sbm",reason="deadline",version="3"})"), 1);
  EXPECT_EQ(Metric(R"(queue_duration_seconds_sum{model="sbm",version="3"})"), 1);
  EXPECT_EQ(Metric(R"(request_duration_seconds_sum{model="sbm",version="3"})"), 1);
  EXPECT_EQ(Metric(R"(queue_requests{model="sbm",version="3"})"), 0);
  EXPECT_EQ(Metric(R"(queue_tokens{model="sbm",version="3"})"), 0);
  EXPECT_EQ(Metric(R"(requests_in_flight{model="sbm",version="3"})"), 0);
  EXPECT_EQ(handler_.in_flight(), 0);
}

TEST_F(AnswerTest, TimingOfAGenerationIsTheEnginesAndTheClocks) {
  v1::GenerateRequest request;
  request.set_model("lm");
  request.set_request_id("two");
  request.set_max_new_tokens(2);
  request.mutable_ensemble()->set_seed(6);
  request.mutable_ensemble()->set_samples(2);
  for (const int id : {3, 1, 4, 1, 5}) request.mutable_prompt()->mutable_token_ids()->add_values(id);
  Generate(request);
  const RequestPtr taken = Take();
  GeneratedToken token;
  token.edges.edges = 3.5;
  token.edges.pairs = 14;
  token.edges.budget = 8;
  token.edges.max_sample_edges = 4;
  now_ += microseconds(500000);
  taken->outcome.queue_seconds = 0.25;
  taken->outcome.compute_seconds = 0.125;
  taken->outcome.batch_inputs = 3;
  taken->token(token, FinishReason::kNone);
  token.edges.max_sample_edges = 6;
  token.edges.capped = true;
  now_ += microseconds(125000);
  taken->outcome.compute_seconds = 0.1875;
  taken->outcome.batch_inputs = 2;
  taken->token(token, FinishReason::kLength);
  taken->done(absl::OkStatus());
  ASSERT_EQ(ends_.size(), 1u);
  ASSERT_TRUE(ends_[0].ok()) << ends_[0];
  ASSERT_EQ(messages_.size(), 2u);
  EXPECT_FALSE(messages_[0].done());
  EXPECT_FALSE(messages_[0].has_timing());
  EXPECT_EQ(messages_[0].model(), "lm");
  EXPECT_EQ(messages_[0].version(), 4);
  EXPECT_EQ(messages_[0].seed(), 6u);
  EXPECT_EQ(messages_[0].request_id(), "two");
  EXPECT_EQ(messages_[0].edges().edges(), 3.5);
  EXPECT_EQ(messages_[0].edges().pairs(), 14u);
  EXPECT_EQ(messages_[0].edges().density(), 0.25);
  EXPECT_EQ(messages_[0].edges().budget(), 8u);
  EXPECT_EQ(messages_[0].edges().max_sample_edges(), 4u);
  EXPECT_FALSE(messages_[0].edges().capped());
  const v1::GenerateResponse& last = messages_[1];
  EXPECT_TRUE(last.edges().capped());
  EXPECT_TRUE(last.done());
  EXPECT_EQ(last.finish_reason(), "length");
  EXPECT_EQ(last.prompt_tokens(), 5u);
  EXPECT_EQ(last.generated_tokens(), 2u);
  EXPECT_EQ(last.timing().queue_us(), 250000u);
  EXPECT_EQ(last.timing().compute_us(), 187500u);
  EXPECT_EQ(last.timing().total_us(), 625000u);
  EXPECT_EQ(last.timing().batch_inputs(), 2u);
  EXPECT_EQ(last.timing().batch_tokens(), 7u);
  const std::string of_lm = R"({model="lm",version="4"})";
  EXPECT_EQ(Metric("first_token_duration_seconds_sum" + of_lm), 0.5);
  EXPECT_EQ(Metric("token_duration_seconds_sum" + of_lm), 0.125);
  EXPECT_EQ(Metric("generation_duration_seconds_sum" + of_lm), 0.625);
  EXPECT_EQ(Metric("queue_duration_seconds_sum" + of_lm), 0.25);
  EXPECT_EQ(Metric(R"(stage_seconds_total{model="lm",stage="forward",version="4"})"), 0.1875);
  EXPECT_EQ(Metric("edge_budget_utilization_ratio_sum" + of_lm), 0.75) << "of the most expensive row";
  EXPECT_EQ(Metric("edge_budget_capped_total" + of_lm), 1);
  EXPECT_EQ(Metric("prompt_tokens_total" + of_lm), 5);
  EXPECT_EQ(Metric("generated_tokens_total" + of_lm), 2);
  EXPECT_EQ(Metric("ensemble_samples_sum" + of_lm), 2);
  EXPECT_EQ(Metric("requests_in_flight" + of_lm), 0);
  EXPECT_EQ(handler_.in_flight(), 0);
}

// Why requests got no answer: the reason that each counts under, and no other.
class RejectionTest : public AnswerTest {
 protected:
  RejectionTest() { request_.add_inputs()->mutable_sequence()->mutable_token_ids()->add_values(1); }

  // Asks the model; what waits then fails with `failure`, where it is an error. Returns the reasons that were counted.
  std::string Reasons(const std::string& model, const absl::Status& failure = absl::OkStatus(),
                      Time deadline = Time::max()) {
    const std::string before = metrics_.Render();
    request_.set_model(model);
    v1::PredictResponse response;
    ends_.clear();
    Predict(handler_, request_, response, deadline);
    if (!failure.ok()) Take()->done(failure);
    EXPECT_EQ(ends_.size(), 1u);
    EXPECT_EQ(handler_.in_flight(), 0);
    std::string counted;
    for (const char* of : {"_other\"", "sbm\"", "lm\""}) {
      for (const char* reason :
           {"queue_full", "deadline", "cancelled", "draining", "invalid", "budget", "oom", "not_ready"}) {
        const std::string version = of[0] == '_' ? "_other" : of[0] == 's' ? "3" : "4";
        const std::string series = std::string("edgewise_rejections_total{model=\"") + of + ",reason=\"" + reason +
                                   "\",version=\"" + version + "\"} ";
        const auto value = [&](const std::string& text) {
          return std::stod(text.substr(text.find(series) + series.size()));
        };
        const double moved = value(metrics_.Render()) - value(before);
        EXPECT_TRUE(moved == 0.0 || moved == 1.0) << series;
        if (moved == 1.0) counted += std::string(of, std::string(of).size() - 1) + " " + reason + ";";
      }
    }
    return counted;
  }
  absl::StatusCode code() const { return ends_.at(0).code(); }

  v1::PredictRequest request_;
};

TEST_F(RejectionTest, WhatIsRefusedAtOnce) {
  EXPECT_EQ(Reasons("unknown"), "_other invalid;");
  EXPECT_EQ(code(), absl::StatusCode::kNotFound);
  request_.set_priority(4);
  EXPECT_EQ(Reasons("sbm"), "sbm invalid;");
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  request_.set_priority(0);
  request_.set_attention(v1::DENSE);
  request_.mutable_budget()->set_max_edges(1);
  EXPECT_EQ(Reasons("sbm"), "sbm budget;");
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  request_.clear_budget();
  EXPECT_EQ(Reasons("sbm", absl::OkStatus(), now_), "sbm deadline;") << "a deadline that has come has passed";
  EXPECT_EQ(code(), absl::StatusCode::kDeadlineExceeded);
  folder_.AddModel("sbm", "new", 1);
  ASSERT_TRUE(repository_.Scan().ok());
  EXPECT_EQ(Reasons("new"), "") << "counted under a model of its own";
  EXPECT_EQ(code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Metric(R"(rejections_total{model="new",reason="not_ready",version="1"})"), 1);
  handler_.Drain();
  EXPECT_EQ(Reasons("sbm"), "sbm draining;");
  EXPECT_EQ(code(), absl::StatusCode::kUnavailable);
}

TEST_F(RejectionTest, R6RequestIdIsPrintableAndShort) {
  for (const std::string& good : {std::string(), std::string(128, '~')}) {
    request_.set_request_id(good);
    EXPECT_EQ(Reasons("sbm", absl::CancelledError("admitted")), "sbm cancelled;");
  }
  for (const std::string& bad : {std::string(129, 'a'), std::string("a\nb"), std::string("\x1b[31m"),
                                 std::string("a\0b", 3), std::string("\x7f"), std::string("\xc3\xa9")}) {
    request_.set_request_id(bad);
    EXPECT_EQ(Reasons("sbm"), "sbm invalid;");
    EXPECT_EQ(FieldOf(ends_.at(0)), "request_id");
    EXPECT_EQ(ends_.at(0).message().find('\n'), absl::string_view::npos);
  }
}

TEST_F(RejectionTest, WhatFailsLater) {
  EXPECT_EQ(Reasons("sbm", DeviceFailure(absl::ResourceExhaustedError("cudaMalloc"))), "sbm oom;");
  EXPECT_EQ(ends_.at(0).message(), "out of device memory");
  EXPECT_EQ(Reasons("sbm", absl::CancelledError("gone")), "sbm cancelled;");
  EXPECT_EQ(Reasons("sbm", absl::DeadlineExceededError("late")), "sbm deadline;");
  EXPECT_EQ(Reasons("sbm", absl::InternalError("broken")), "") << "a failure of ours is no rejection";
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
}

TEST_F(RejectionTest, FullQueue) {
  RequestQueue narrow({.max_requests = 1}, [this] { return now_; });
  RequestHandler handler(options_, memory_, repository_, narrow);
  request_.set_model("sbm");
  v1::PredictResponse first, second;
  Predict(handler, request_, first);
  Predict(handler, request_, second);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Metric(R"(rejections_total{model="sbm",reason="queue_full",version="3"})"), 1);
  EXPECT_EQ(Metric(R"(queue_requests{model="sbm",version="3"})"), 1);
  EXPECT_EQ(Metric(R"(requests_in_flight{model="sbm",version="3"})"), 1);
  narrow.CancelAll();
}

TEST_F(RejectionTest, TooManySamplesAreAMistakeHoweverFullTheQueueIs) {
  RequestQueue narrow({.max_requests = 1}, [this] { return now_; });
  RequestHandler handler(options_, memory_, repository_, narrow);
  request_.set_model("sbm");
  repository_.Resolve("sbm", 0).loaded->costs->ObserveRequest({}, 1.0, 1.0);  // so that full is seen before the checks
  v1::PredictResponse first, second;
  Predict(handler, request_, first);
  request_.mutable_ensemble()->set_samples(1 << 30);
  Predict(handler, request_, second);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument) << ends_[0];
  narrow.CancelAll();
}

// Known as hopeless before it is checked, by its size, but not for samples that are computed once.
TEST_F(RejectionTest, SamplesThatAreAllTheSameMakeNoRequestHopeless) {
  request_.set_model("sbm");
  const v1::PredictRequest first = request_;
  repository_.Resolve("sbm", 0).loaded->costs->ObserveRequest({}, static_cast<double>(first.ByteSizeLong()), 0.01);
  v1::PredictResponse response;
  Predict(handler_, first, response);  // the server is not idle
  request_.mutable_ensemble()->set_samples(256);
  Predict(handler_, request_, response, now_ + std::chrono::seconds(1));
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(code(), absl::StatusCode::kDeadlineExceeded) << ends_[0];
  request_.set_attention(v1::DENSE);
  Predict(handler_, request_, response, now_ + std::chrono::seconds(1));
  EXPECT_EQ(ends_.size(), 1u) << ends_.back();
  queue_.CancelAll();
}

}  // namespace
}  // namespace edgewise::server
