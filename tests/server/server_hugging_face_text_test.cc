// Texts of Hugging Face folders over a real port: what is joined, what is refused, and what streams say.
#include <gmock/gmock.h>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

class ServerHuggingFaceTextTest : public ::testing::Test {
 protected:
  static v1::PredictRequest Texts(const std::string& model, const std::string& text, const std::string& second = "") {
    v1::PredictRequest request;
    request.set_model(model);
    request.add_inputs()->mutable_sequence()->set_text(text);
    if (!second.empty()) request.mutable_inputs(0)->mutable_second()->set_text(second);
    request.mutable_ensemble()->set_seed(3);
    return request;
  }

  v1::Prediction Answer(const v1::PredictRequest& request) {
    const grpc::Status status = server_.Predict(request, response_);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? response_.predictions(0) : v1::Prediction();
  }

  std::string Refused(const v1::PredictRequest& request) {
    const grpc::Status status = server_.Predict(request, response_);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    return status.error_message();
  }

  static ServerOptions Options() {
    ServerOptions options = TestOptions(tests::TestdataFolder() + "_hugging_face");
    options.limits.allow_graphs = true;
    return options;
  }

  TestServer server_{Options()};
  v1::PredictResponse response_;
};

// [CLS] the cat [SEP] a dog sat [SEP]
TEST_F(ServerHuggingFaceTextTest, TwoTextsAreOneSequence) {
  v1::PredictRequest request = Texts("bert_sequence", "the cat", "a dog sat");
  request.mutable_outputs()->set_graph(true);
  const v1::Prediction joined = Answer(request);
  EXPECT_EQ(joined.edges().pairs(), 2u * 4u * 8u * 8u);
  ASSERT_EQ(joined.graph().layers_size(), 2) << "one side";
  EXPECT_EQ(joined.graph().layers(0).heads(0).row_offsets_size(), 9);

  // Its graph goes in again, and its budget is one.
  v1::PredictRequest again = Texts("bert_sequence", "the cat", "a dog sat");
  *again.mutable_inputs(0)->mutable_graph() = joined.graph();
  const v1::Prediction same = Answer(again);
  ASSERT_EQ(same.probabilities_size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(same.probabilities(i), joined.probabilities(i), 1e-6);
  v1::PredictRequest capped = Texts("bert_sequence", "the cat", "a dog sat");
  capped.mutable_override()->set_kind("ssa");
  capped.mutable_override()->set_windows(2);
  capped.mutable_override()->add_sigma(0.4);
  capped.mutable_budget()->set_max_edges(100);
  EXPECT_LE(Answer(capped).edges().max_sample_edges(), 100u);

  EXPECT_NE(Answer(Texts("bert_sequence", "a dog sat", "the cat")).probabilities(0), joined.probabilities(0));
  EXPECT_NE(Answer(Texts("bert_sequence", "the cat[SEP]a dog sat")).probabilities(0), joined.probabilities(0))
      << "the same ids, but other types";
}

TEST_F(ServerHuggingFaceTextTest, TokenIdsAreTakenAsSent) {
  v1::PredictRequest ids = Texts("bert_sequence", "");
  for (const int id : {2, 6, 7, 3}) ids.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(id);
  EXPECT_EQ(Answer(ids).SerializeAsString(), Answer(Texts("bert_sequence", "The CAT")).SerializeAsString());
}

TEST_F(ServerHuggingFaceTextTest, StreamsSayTheSame) {
  v1::PredictRequest request = Texts("roberta_sequence", "the cat", "a dog sat");
  request.set_request_id("a");
  const v1::Prediction expected = Answer(request);
  CallContext context;
  const auto stream = server_.stub().PredictStream(&context);
  ASSERT_TRUE(stream->Write(request));
  v1::PredictStreamResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.response().predictions(0).SerializeAsString(), expected.SerializeAsString());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerHuggingFaceTextTest, WhatCannotBeJoinedIsRefused) {
  v1::PredictRequest request = Texts("bert_sequence", "the cat");
  request.mutable_inputs(0)->mutable_second()->mutable_token_ids()->add_values(6);
  EXPECT_THAT(Refused(request),
              HasSubstr("inputs[0].second is joined with the first text by the tokenizer, so both are"));
  request.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(6);
  request.mutable_inputs(0)->mutable_second()->set_text("a dog");
  EXPECT_THAT(Refused(request), HasSubstr("send token_ids of joined texts as sequence alone"));
  request = Texts("bert_sequence", "the cat", "a dog");
  request.mutable_inputs(0)->mutable_second()->set_truncate(v1::TAIL);
  EXPECT_THAT(Refused(request), HasSubstr("inputs[0].second.truncate is not that of sequence"));
  request.mutable_inputs(0)->mutable_second()->clear_truncate();
  request.mutable_inputs(0)->mutable_second()->mutable_bias()->add_values(1);
  EXPECT_THAT(Refused(request), HasSubstr("inputs[0].second.bias is given; the joined texts are one sequence"));
  for (const char* model : {"bert_tokens", "bert_masked", "mpnet_sentence", "bert_model"}) {
    EXPECT_THAT(Refused(Texts(model, "the cat", "a dog")), HasSubstr("inputs[0].second is for pair-classification"));
  }
  // This folder has no tokenizer.
  EXPECT_THAT(Refused(Texts("mpnet_sequence", "the cat")),
              HasSubstr("inputs[0].sequence.text: this model has no tokenizer"));
}

TEST_F(ServerHuggingFaceTextTest, ErrorsNameTheirText) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "cat ";
  EXPECT_THAT(Refused(Texts("bert_sequence", text)),
              HasSubstr("inputs[0].sequence.text has more than 40 tokens, those of the"));
  EXPECT_THAT(Refused(Texts("bert_sequence", "the", text)),
              HasSubstr("has more than 40 tokens with the second text, those of"));
  EXPECT_THAT(Refused(Texts("bert_masked", "the cat")),
              HasSubstr("inputs[0].sequence.text has no mask token ([MASK], 5)"));
}

}  // namespace
}  // namespace edgewise::server
