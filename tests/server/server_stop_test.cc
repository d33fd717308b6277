// Requests over a real port with a layer that takes longer than any test waits, and clients that go while it runs: the
// layer ends, since the server counts the end of the request and serves others.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "tests/model/model_builder.h"
#include "tests/server/generate_calls.h"

namespace edgewise::server {
namespace {

constexpr int kTokens = 1 << 18;  // 16 heads over so many, on one thread: a quarter of an hour

class StopTest : public ::testing::Test {
 protected:
  static nlohmann::json LongConfig() {
    nlohmann::json config = testing::SmallConfig();
    config["max_position_embeddings"] = kTokens;
    config["hidden_size"] = 32;
    config["intermediate_size"] = 16;
    config["num_attention_heads"] = 16;
    config["num_hidden_layers"] = 1;
    config["attention"] = {{{"kind", "dense"}}};
    return config;
  }
  static nlohmann::json LongLanguageConfig() {
    nlohmann::json config = LongConfig();
    config["task"] = "causal-lm";
    config["num_hidden_layers"] = 2;  // of a prompt the last one attends only for the last token
    config["attention"] = {{{"kind", "dense"}}, {{"kind", "dense"}}};
    config["pad_token_id"] = -1;
    for (const char* field : {"pooling", "num_labels", "classifier_hidden_size"}) config.erase(field);
    return config;
  }

  StopTest() {
    testing::WriteModel(folder_.path() + "/long/1", LongConfig());
    testing::WriteModel(folder_.path() + "/long-lm/1", LongLanguageConfig());
    folder_.AddModel("sbm", "sbm", 1);
    server_ = std::make_unique<TestServer>(TestOptions(folder_.path()));
  }

  static void FillTokens(v1::TokenIds& ids, int count) {
    for (int i = 0; i < count; ++i) ids.add_values(1 + i % 49);
  }
  static v1::PredictRequest LongPredict() {
    v1::PredictRequest request;
    request.set_model("long");
    FillTokens(*request.add_inputs()->mutable_sequence()->mutable_token_ids(), kTokens);
    return request;
  }
  static v1::GenerateRequest LongGenerate() {
    v1::GenerateRequest request;
    request.set_model("long-lm");
    FillTokens(*request.mutable_prompt()->mutable_token_ids(), kTokens - 1);
    request.set_max_new_tokens(1);
    return request;
  }

  // The compute for the model's last request has ended and counts as cancelled; others are served.
  void ExpectCancelled(const std::string& model) {
    ASSERT_TRUE(server_->WaitForMetric(Of(model, "requests_in_flight"), 0));
    EXPECT_GT(server_->Metric(Of(model, "cancelled_compute_seconds_total")), 0.0);
    v1::PredictResponse response;
    EXPECT_TRUE(server_->Predict(SmallRequest(), response).ok());
  }

  TestFolder folder_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(StopTest, PredictEndsInsideALayerWhenItsClientGoes) {
  CallContext context;
  std::jthread canceller([&] {
    EXPECT_TRUE(server_->WaitForMetric(Of("long", "executions_total"), 1));
    context.TryCancel();
  });
  v1::PredictResponse response;
  EXPECT_EQ(server_->stub().Predict(&context, LongPredict(), &response).error_code(), grpc::CANCELLED);
  ExpectCancelled("long");
  EXPECT_EQ(server_->Metric(R"(edgewise_requests_total{code="CANCELLED",model="long",version="1"})"), 1.0);
}

TEST_F(StopTest, PredictEndsInsideALayerAtItsDeadline) {
  // A busy machine may take longer than the first deadlines to begin.
  for (seconds timeout(4); timeout < kHang && server_->Metric(Of("long", "executions_total")) == 0.0; timeout *= 2) {
    v1::PredictResponse response;
    EXPECT_EQ(server_->Predict(LongPredict(), response, timeout).error_code(), grpc::DEADLINE_EXCEEDED);
    ASSERT_TRUE(server_->WaitForMetric(Of("long", "requests_in_flight"), 0));
  }
  ExpectCancelled("long");
}

TEST_F(StopTest, PromptEndsInsideALayerWhenItsClientGoes) {
  CallContext context;
  std::unique_ptr<GenerateStream> stream = server_->stub().Generate(&context, LongGenerate());
  EXPECT_TRUE(server_->WaitForMetric(Of("long-lm", "generations_running"), 1));
  context.TryCancel();
  v1::GenerateResponse message;
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  ExpectCancelled("long-lm");
  EXPECT_EQ(server_->Metric(Ended("long-lm", "CANCELLED")), 1.0);
  EXPECT_EQ(server_->Metric(Of("long-lm", "generations_running")), 0.0);
}

}  // namespace
}  // namespace edgewise::server
