// Folders of sentence-transformers over a real port: prompts, dimensions and scores.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/server/answered.h"
#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json GoldenTexts(const std::string& model) {
  std::ifstream file(tests::TestdataFolder() + "_sentence/" + model + "/golden.json");
  return json::parse(file)["texts"];
}

v1::PredictRequest Ask(const std::string& model, const std::string& text) {
  v1::PredictRequest request;
  request.set_model(model);
  request.add_inputs()->mutable_sequence()->set_text(text);
  request.mutable_inputs(0)->mutable_sequence()->set_truncate(v1::TAIL);
  return request;
}

class ServerSentenceTest : public ::testing::Test {
 protected:
  v1::Prediction Answer(const v1::PredictRequest& request) {
    v1::PredictResponse response;
    const grpc::Status status = server_.Predict(request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? response.predictions(0) : v1::Prediction();
  }

  std::string Refused(const v1::PredictRequest& request) {
    v1::PredictResponse response;
    const grpc::Status status = server_.Predict(request, response);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    return status.error_message();
  }

  v1::ModelInfo Info(const std::string& model) {
    grpc::ClientContext context;
    v1::GetModelRequest request;
    request.set_model(model);
    v1::GetModelResponse response;
    EXPECT_TRUE(server_.stub().GetModel(&context, request, &response).ok());
    return response.model();
  }

  TestServer server_{TestOptions(tests::TestdataFolder() + "_sentence")};
};

TEST_F(ServerSentenceTest, APromptIsPutBeforeATextByItsName) {
  for (const char* model : {"cls_prompts", "old_last_token", "excluded_prompts"}) {
    for (const json& entry : GoldenTexts(model)) {
      v1::PredictRequest request = Ask(model, entry["text"]);
      if (entry.contains("prompt_name")) {
        request.mutable_inputs(0)->mutable_sequence()->set_prompt_name(entry["prompt_name"]);
      }
      const v1::Prediction prediction = Answer(request);
      ASSERT_EQ(prediction.embedding_size(), static_cast<int>(entry["embedding"].size()));
      for (int i = 0; i < prediction.embedding_size(); ++i) {
        EXPECT_NEAR(prediction.embedding(i), entry["embedding"][i].get<double>(), 1e-4) << model << entry["text"];
      }
    }
  }
}

TEST_F(ServerSentenceTest, TheEmptyNameIsNoPromptAndNotTheDefaultOne) {
  v1::PredictRequest request = Ask("cls_prompts", "the cat");
  const v1::Prediction by_default = Answer(request);
  request.mutable_inputs(0)->mutable_sequence()->set_prompt_name("document");  // an empty text
  const v1::Prediction empty = Answer(request);
  request.mutable_inputs(0)->mutable_sequence()->set_prompt_name("");
  const v1::Prediction none = Answer(request);
  EXPECT_EQ(none.SerializeAsString(), empty.SerializeAsString());
  EXPECT_NE(none.SerializeAsString(), by_default.SerializeAsString());
  // No prompt is what every model does.
  request.set_model("mean");
  Answer(request);
  request.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(7);
  Answer(request);
}

TEST_F(ServerSentenceTest, APromptThatDoesNotApplyIsRefused) {
  v1::PredictRequest request = Ask("cls_prompts", "the cat");
  v1::Sequence& sequence = *request.mutable_inputs(0)->mutable_sequence();
  sequence.set_prompt_name("qery");
  EXPECT_THAT(Refused(request), HasSubstr("inputs[0].sequence.prompt_name is \"qery\"; the model has \"document\", "
                                          "\"query\", \"title\"; did you mean query?"));
  sequence.set_prompt_name("query");
  sequence.mutable_token_ids()->add_values(7);
  EXPECT_THAT(Refused(request), HasSubstr("prompt_name is \"query\"; a prompt goes before a text"));
  request = Ask("cross_encoder", "the cat");
  request.mutable_inputs(0)->mutable_sequence()->set_prompt_name("query");
  EXPECT_THAT(Refused(request), HasSubstr("prompt_name is \"query\"; the model has no prompts"));
  request = Ask("cross_encoder", "the cat");
  request.mutable_inputs(0)->mutable_second()->set_text("a dog");
  request.mutable_inputs(0)->mutable_second()->set_truncate(v1::TAIL);
  request.mutable_inputs(0)->mutable_second()->set_prompt_name("query");
  EXPECT_THAT(Refused(request), HasSubstr("inputs[0].second.prompt_name is \"query\"; a prompt goes before the first"));
}

TEST_F(ServerSentenceTest, ATextThatIsNothingBehindItsPromptHasNothingToPool) {
  v1::PredictRequest request = Ask("excluded_prompts", "");
  request.mutable_inputs(0)->mutable_sequence()->set_prompt_name("query");
  Answer(request);  // the template's last token
}

TEST_F(ServerSentenceTest, ModelsSayTheirPromptsAndTheSizeOfTheirEmbeddings) {
  const v1::ModelInfo prompts = Info("cls_prompts");
  EXPECT_THAT(prompts.prompts(), ElementsAre("document", "query", "title"));
  EXPECT_EQ(prompts.default_prompt(), "title");
  EXPECT_EQ(prompts.embedding_size(), 16u);
  EXPECT_EQ(Info("mean").default_prompt(), "");
  EXPECT_EQ(Info("dense").embedding_size(), 6u);
  EXPECT_EQ(Info("truncate_dim").embedding_size(), 6u);
  EXPECT_EQ(Info("cross_encoder").embedding_size(), 0u);
  EXPECT_TRUE(Info("last_token").causal());
}

TEST_F(ServerSentenceTest, TheFoldersCutIsTheDefaultOfDimensions) {
  v1::PredictRequest request = Ask("truncate_dim", "the cat sat on the mat.");
  request.mutable_outputs()->set_each_sample(true);
  const v1::Prediction cut = Answer(request);
  ASSERT_EQ(cut.embedding_size(), 6);
  EXPECT_EQ(cut.stddev_size(), 6);
  EXPECT_EQ(cut.sample_outputs(0).embedding_size(), 6);
  EXPECT_FALSE(cut.normalized());
  request.mutable_outputs()->set_dimensions(16);
  const v1::Prediction whole = Answer(request);
  ASSERT_EQ(whole.embedding_size(), 16);
  EXPECT_TRUE(whole.normalized());
  for (int i = 0; i < 6; ++i)
    EXPECT_NEAR(whole.embedding(i) / whole.embedding(0), cut.embedding(i) / cut.embedding(0), 1e-5);
  request.mutable_outputs()->set_dimensions(17);
  EXPECT_THAT(Refused(request), HasSubstr("outputs.dimensions is 17; the model's embeddings have 16"));
}

TEST_F(ServerSentenceTest, ACutOfAModelThatNormalisesHasLengthOne) {
  v1::PredictRequest request = Ask("dense", "the cat");
  request.mutable_outputs()->set_dimensions(4);
  const v1::Prediction prediction = Answer(request);
  double squares = 0.0;
  for (const float number : prediction.embedding()) squares += static_cast<double>(number) * number;
  EXPECT_NEAR(squares, 1.0, 1e-6);
}

TEST_F(ServerSentenceTest, AScoreThatIsASigmoidHasItsLogitAndPartsMergeBoth) {
  v1::PredictRequest request = Ask("cross_encoder", "the cat");
  request.mutable_inputs(0)->mutable_second()->set_text("a dog sat");
  request.mutable_inputs(0)->mutable_second()->set_truncate(v1::TAIL);
  request.mutable_outputs()->set_logits(true);
  const v1::Prediction prediction = Answer(request);
  ASSERT_EQ(prediction.logits_size(), 1);
  EXPECT_NEAR(prediction.values(0), 1.0 / (1.0 + std::exp(-prediction.logits(0))), 1e-7);
  request.mutable_override()->set_kind("ssa");
  request.mutable_override()->set_windows(2);
  request.mutable_override()->add_sigma(0.4);
  request.mutable_ensemble()->set_seed(5);
  request.mutable_outputs()->set_each_sample(true);
  v1::PredictResponse whole;
  ExpectPartsMerge(server_, request, whole);
  request.set_model("cross_encoder_logits");
  EXPECT_THAT(Refused(request), HasSubstr("the values of a regression model are its outputs as they are"));
}

TEST_F(ServerSentenceTest, ScoresOfACrossEncoderAreThoseOfPredict) {
  for (const char* model : {"cross_encoder", "cross_encoder_logits", "old_cross_encoder", "cross_encoder_labels"}) {
    for (const json& entry : GoldenTexts(model)) {
      v1::PredictRequest request = Ask(model, entry["text"]);
      request.mutable_inputs(0)->mutable_second()->set_text(entry["second"]);
      request.mutable_inputs(0)->mutable_second()->set_truncate(v1::TAIL);
      const bool several = entry["scores"].size() > 1;
      request.mutable_outputs()->set_logits(several);
      const v1::Prediction prediction = Answer(request);
      const auto& scores = several ? prediction.logits() : prediction.values();
      ASSERT_EQ(scores.size(), static_cast<int>(entry["scores"].size())) << model;
      for (int i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], entry["scores"][i].get<double>(), 1e-5) << model;
    }
  }
}

}  // namespace
}  // namespace edgewise::server
