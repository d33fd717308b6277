// Requests over a real port whose layers are long, and clients that go while one runs: the rest of it is not computed.
// Times are of the compute that the server counts, next to those of the same request when it is not stopped.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "tests/model/model_builder.h"
#include "tests/server/generate_calls.h"

namespace edgewise::server {
namespace {

constexpr int kTokens = 16384;  // a layer over so many takes most of a second

class StopTest : public ::testing::Test {
 protected:
  static nlohmann::json LongConfig() {
    nlohmann::json config = testing::SmallConfig();
    config["max_position_embeddings"] = kTokens;
    config["hidden_size"] = 64;
    config["num_attention_heads"] = 4;
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

  // What a request costs whose client goes as soon as it runs is less than half of `whole_us`; others are served.
  void ExpectStopped(const std::string& model, double whole_us) {
    EXPECT_TRUE(server_->WaitForMetric(Of(model, "requests_in_flight"), 0));
    const double spent_us = 1e6 * server_->Metric(Of(model, "cancelled_compute_seconds_total"));
    EXPECT_GT(spent_us, 0.0);
    EXPECT_LT(spent_us, whole_us / 2);
    v1::PredictResponse response;
    EXPECT_TRUE(server_->Predict(SmallRequest(), response).ok());
  }

  TestFolder folder_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(StopTest, PredictEndsInsideALayerWhenItsClientGoes) {
  v1::PredictResponse response;
  ASSERT_TRUE(server_->Predict(LongPredict(), response).ok());
  const auto whole_us = static_cast<double>(response.timing().compute_us());
  CallContext context;
  std::thread canceller([&] {
    EXPECT_TRUE(server_->WaitForMetric(Of("long", "batch_items_count"), 2));
    context.TryCancel();
  });
  EXPECT_EQ(server_->stub().Predict(&context, LongPredict(), &response).error_code(), grpc::CANCELLED);
  canceller.join();
  ExpectStopped("long", whole_us);
  EXPECT_EQ(server_->Metric(R"(edgewise_requests_total{code="CANCELLED",model="long",version="1"})"), 1.0);
}

TEST_F(StopTest, PredictEndsInsideALayerAtItsDeadline) {
  v1::PredictResponse response;
  ASSERT_TRUE(server_->Predict(LongPredict(), response).ok());
  const auto whole_us = static_cast<double>(response.timing().compute_us());
  const milliseconds timeout(static_cast<int64_t>(whole_us / 8000));
  EXPECT_EQ(server_->Predict(LongPredict(), response, timeout).error_code(), grpc::DEADLINE_EXCEEDED);
  ExpectStopped("long", whole_us);
}

TEST_F(StopTest, PromptEndsInsideALayerWhenItsClientGoes) {
  const Generated whole = Generate(*server_, LongGenerate());
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  const auto whole_us = static_cast<double>(whole.messages.back().timing().compute_us());
  CallContext context;
  std::unique_ptr<GenerateStream> stream = server_->stub().Generate(&context, LongGenerate());
  EXPECT_TRUE(server_->WaitForMetric(Of("long-lm", "generations_running"), 1));
  context.TryCancel();
  v1::GenerateResponse message;
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  ExpectStopped("long-lm", whole_us);
  EXPECT_EQ(server_->Metric(Ended("long-lm", "CANCELLED")), 1.0);
  EXPECT_EQ(server_->Metric(Of("long-lm", "generations_running")), 0.0);
}

}  // namespace
}  // namespace edgewise::server
