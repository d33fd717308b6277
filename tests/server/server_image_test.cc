// Images over a real port.
#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string ImageFolder() { return tests::TestdataFolder() + "_images"; }

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class ServerImageTest : public ::testing::Test {
 protected:
  v1::PredictRequest Request(const std::string& model, const std::string& image) {
    v1::PredictRequest request;
    request.set_model(model);
    request.add_inputs()->mutable_sequence()->set_image(image);
    request.mutable_outputs()->set_logits(true);
    request.mutable_ensemble()->set_seed(3);
    return request;
  }

  // The predictions of a request that is answered.
  std::vector<std::string> Predict(const v1::PredictRequest& request) {
    v1::PredictResponse response;
    const grpc::Status status = server_.Predict(request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> predictions;
    for (const v1::Prediction& one : response.predictions()) predictions.push_back(one.SerializeAsString());
    return predictions;
  }

  std::string Refused(const v1::PredictRequest& request) {
    const grpc::Status status = server_.Predict(request, response_);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  }

  TestServer server_{TestOptions(ImageFolder())};
  v1::PredictResponse response_;
};

TEST_F(ServerImageTest, AFileHasTheLogitsOfTransformers) {
  const json golden = json::parse(Read(ImageFolder() + "/vit_classes/golden.json"))["files"];
  ASSERT_GE(golden.size(), 3u);
  for (const auto& [name, entry] : golden.items()) {
    const grpc::Status status =
        server_.Predict(Request("vit_classes", Read(ImageFolder() + "/files/" + name)), response_);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response_.predictions(0).logits_size(), 3);
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(response_.predictions(0).logits(i), entry["logits"][i], 1e-4) << name;
    EXPECT_THAT(response_.predictions(0).label(), ::testing::AnyOf("no", "maybe", "yes"));
  }
}

TEST_F(ServerImageTest, ImagesTakeBudgetsSamplesAndOverrides) {
  v1::PredictRequest request = Request("vit_classes", Read(ImageFolder() + "/files/photo.png"));
  request.mutable_override()->set_kind("ssa");
  request.mutable_override()->set_windows(3);
  request.mutable_override()->add_sigma(0.4);
  request.mutable_ensemble()->set_samples(8);
  request.mutable_budget()->set_max_density(0.25);
  ASSERT_TRUE(server_.Predict(request, response_).ok());
  EXPECT_EQ(response_.predictions(0).samples(), 8u);
  EXPECT_LE(response_.predictions(0).edges().density(), 0.25);
  const std::string first = response_.predictions(0).SerializeAsString();
  ASSERT_TRUE(server_.Predict(request, response_).ok());
  EXPECT_EQ(response_.predictions(0).SerializeAsString(), first);
}

v1::AttentionOverride Ssa() {
  v1::AttentionOverride override;
  override.set_kind("ssa");
  override.set_windows(3);
  override.add_sigma(0.4);
  return override;
}

v1::AttentionOverride Blocks() {
  v1::AttentionOverride override;
  override.set_kind("block");
  override.set_block_size(2);
  override.set_pattern("first_and_diagonal");
  return override;
}

// Three files and rows of features.
std::vector<v1::Input> Inputs() {
  std::vector<v1::Input> inputs(4);
  for (size_t i = 0; i < 3; ++i) {
    const char* kFiles[] = {"photo.png", "cmyk.jpg", "interlaced.png"};
    inputs[i].mutable_sequence()->set_image(Read(ImageFolder() + "/files/" + kFiles[i]));
  }
  v1::Features* features = inputs[3].mutable_sequence()->mutable_features();
  features->set_rows(6);
  features->set_columns(48);
  for (int i = 0; i < 6 * 48; ++i) features->add_values(0.01f * static_cast<float>(i % 100));
  return inputs;
}

TEST_F(ServerImageTest, AloneAndInABatchTheBytesAreTheSame) {
  for (const std::optional<v1::AttentionOverride>& override :
       {std::optional<v1::AttentionOverride>(), std::optional(Ssa()), std::optional(Blocks())}) {
    v1::PredictRequest all = Request("vit_classes", "");
    all.mutable_ensemble()->set_samples(3);
    all.mutable_outputs()->set_layer_stats(true);
    if (override) *all.mutable_override() = *override;
    v1::PredictRequest one = all;
    all.clear_inputs();
    std::vector<std::string> alone;
    for (const v1::Input& input : Inputs()) {
      *all.add_inputs() = input;
      *one.mutable_inputs(0) = input;
      const std::vector<std::string> predictions = Predict(one);
      ASSERT_EQ(predictions.size(), 1u);
      alone.push_back(predictions[0]);
    }
    EXPECT_EQ(Predict(all), alone);
    EXPECT_NE(alone[0], alone[1]);
  }
}

TEST_F(ServerImageTest, ACapOnAnImageHoldsAndASlackOneChangesNoByte) {
  v1::PredictRequest request = Request("vit_classes", Read(ImageFolder() + "/files/photo.png"));
  *request.mutable_override() = Ssa();
  ASSERT_TRUE(server_.Predict(request, response_).ok());
  const v1::Prediction free = response_.predictions(0);
  const uint64_t edges = static_cast<uint64_t>(free.edges().edges());
  ASSERT_GT(edges, 100u);
  request.mutable_budget()->set_max_edges(edges);
  ASSERT_TRUE(server_.Predict(request, response_).ok());
  EXPECT_FALSE(response_.predictions(0).edges().capped());
  EXPECT_EQ(response_.predictions(0).logits_size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(response_.predictions(0).logits(i), free.logits(i));
  request.mutable_budget()->set_max_edges(edges / 2);
  ASSERT_TRUE(server_.Predict(request, response_).ok());
  EXPECT_TRUE(response_.predictions(0).edges().capped());
  EXPECT_LE(response_.predictions(0).edges().edges(), static_cast<double>(edges / 2));
}

TEST_F(ServerImageTest, CallsAtOnceHaveTheBytesOfCallsAlone) {
  const std::vector<v1::Input> inputs = Inputs();
  std::vector<v1::PredictRequest> requests;
  std::vector<std::vector<std::string>> alone;
  for (const v1::Input& input : inputs) {
    v1::PredictRequest& request = requests.emplace_back(Request("vit_classes", ""));
    *request.mutable_inputs(0) = input;
    *request.mutable_override() = Ssa();
    alone.push_back(Predict(request));
  }
  std::vector<std::jthread> callers;
  for (size_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t i = 0; i < 20; ++i) {
        const size_t one = (caller + i) % requests.size();
        EXPECT_EQ(Predict(requests[one]), alone[one]);
      }
    });
  }
}

TEST_F(ServerImageTest, AStreamAnswersImagesAndWhatIsNone) {
  CallContext context;
  const auto stream = server_.stub().PredictStream(&context);
  constexpr int kRequests = 100;  // more than are in flight at once
  std::jthread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      v1::PredictRequest request = Request("vit_classes", "");
      *request.mutable_inputs(0) = Inputs()[static_cast<size_t>(i % 4)];
      if (i % 5 == 0) request.mutable_inputs(0)->mutable_sequence()->set_image("BM");
      request.set_request_id(std::to_string(i));
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  std::set<std::string> answered;
  v1::PredictStreamResponse response;
  while (stream->Read(&response)) {
    EXPECT_TRUE(answered.insert(response.request_id()).second);
    EXPECT_EQ(response.has_error(), std::stoi(response.request_id()) % 5 == 0) << response.error().message();
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answered.size(), static_cast<size_t>(kRequests));
}

TEST_F(ServerImageTest, MemoryComesBack) {
  const std::string photo = Read(ImageFolder() + "/files/photo.png");
  for (const std::string& image : {photo, photo.substr(0, 500), std::string("GIF89a")}) {
    server_.Predict(Request("vit_classes", image), response_);
  }
  EXPECT_TRUE(WaitUntil("the memory", [&] { return server_.Metric("edgewise_call_memory_bytes") == 0.0; }));
}

TEST(ServerImageMemoryTest, AnImageThatNeedsMoreThanIsLeftIsRefusedBeforeItIsDecoded) {
  ServerOptions options = TestOptions(ImageFolder());
  options.max_memory = uint64_t{8} << 20;  // less than a codec may take
  TestServer server(options);
  v1::PredictRequest request;
  request.set_model("vit_classes");
  request.add_inputs()->mutable_sequence()->set_image(Read(ImageFolder() + "/files/photo.png"));
  v1::PredictResponse response;
  EXPECT_EQ(server.Predict(request, response).error_code(), grpc::RESOURCE_EXHAUSTED);
  *request.mutable_inputs(0) = Inputs()[3];
  EXPECT_TRUE(server.Predict(request, response).ok());
}

TEST(ServerImageQueueTest, TooManyThatWaitAreToldSoAndTheOthersAreAnswered) {
  ServerOptions options = TestOptions(ImageFolder());
  options.queue.max_requests = 1;
  TestServer server(options);
  v1::PredictRequest request;
  request.set_model("vit_classes");
  for (int i = 0; i < 64; ++i) *request.add_inputs() = Inputs()[1];
  std::vector<std::jthread> callers;
  std::atomic<int> answered = 0;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        v1::PredictResponse response;
        const grpc::Status status = server.Predict(request, response);
        answered += status.ok();
        EXPECT_TRUE(status.ok() || status.error_code() == grpc::RESOURCE_EXHAUSTED) << status.error_message();
        EXPECT_THAT(status.error_details(), HasSubstr(status.ok() ? "" : "RetryInfo")) << status.error_message();
      }
    });
  }
  callers.clear();
  EXPECT_GT(answered, 0);
}

TEST(ServerImageDrainTest, CallsThatWaitForTheirImagesEndToo) {
  TestServer server(TestOptions(ImageFolder()));
  v1::PredictRequest request;
  request.set_model("vit_classes");
  for (int i = 0; i < 64; ++i) *request.add_inputs() = Inputs()[1];
  std::atomic<int> answered = 0;
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      v1::PredictResponse response;
      grpc::Status status;
      while ((status = server.Predict(request, response)).ok()) ++answered;
      EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
    });
  }
  EXPECT_TRUE(WaitUntil("answers", [&] { return answered >= 8; }));
  server.server().Drain(seconds(25));
  EXPECT_TRUE(server.server().calls_ended());
}

TEST_F(ServerImageTest, GetModelSaysWhatAnImageBecomes) {
  v1::GetModelRequest request;
  request.set_model("vit_classes");
  v1::GetModelResponse response;
  CallContext context;
  ASSERT_TRUE(server_.stub().GetModel(&context, request, &response).ok());
  EXPECT_EQ(response.model().image_width(), 8u);
  EXPECT_EQ(response.model().image_height(), 12u);
  request.set_model("vit_features");
  CallContext second;
  ASSERT_TRUE(server_.stub().GetModel(&second, request, &response).ok());
  EXPECT_EQ(response.model().image_width(), 0u);
}

TEST_F(ServerImageTest, WhatIsNotTakenNamesTheField) {
  const std::string png = Read(ImageFolder() + "/files/photo.png");
  EXPECT_THAT(Refused(Request("vit_classes", "no image")),
              HasSubstr("inputs[0].sequence.image has the bytes of another format; PNG and JPEG are served"));
  EXPECT_THAT(Refused(Request("vit_classes", png.substr(0, 500))),
              HasSubstr("inputs[0].sequence.image is no PNG that can be read: the file ends early"));
  std::string huge = png;  // of 30,000 x 30,000 pixels, as its header says
  huge.replace(16, 8, std::string("\0\0\x75\x30\0\0\x75\x30", 8)).replace(29, 4, "\xe9\x45\x6f\xed");
  EXPECT_THAT(Refused(Request("vit_classes", huge)),
              HasSubstr("inputs[0].sequence.image has 30000 x 30000 pixels; at most 16384 a side and 33554432 in all"));
  v1::PredictRequest text = Request("vit_classes", "");
  text.mutable_inputs(0)->mutable_sequence()->set_text("a cat");
  EXPECT_THAT(Refused(text), HasSubstr("inputs[0].sequence.text: this model takes rows of features"));
  EXPECT_THAT(Refused(Request("vit_features", png)),
              HasSubstr("inputs[0].sequence.image: this model has no preprocessor_config.json"));
  v1::PredictRequest rows = Request("vit_classes", png);
  v1::Features* features = rows.mutable_inputs(0)->mutable_sequence()->mutable_features();
  features->set_rows(7);
  features->set_columns(48);
  features->mutable_values()->Resize(7 * 48, 0.5f);
  EXPECT_THAT(Refused(rows), HasSubstr("features.rows is 7; the model takes 6, the patches of 8 x 12 pixels"));
  features->set_rows(6);
  features->mutable_values()->Resize(6 * 48, 0.5f);
  EXPECT_TRUE(server_.Predict(rows, response_).ok());
}

}  // namespace
}  // namespace edgewise::server
