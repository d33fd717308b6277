// Unary calls over a real port.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor_database.h>

#include "reflection/v1/reflection.pb.h"
#include "tests/server/test_server.h"

namespace edgewise::server {
namespace {

using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kReflection[] = {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                       "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};

TEST(ServerTest, PredictFillsTheAnswer) {
  TestServer server;
  v1::PredictRequest request = SmallRequest();
  *request.add_inputs() = request.inputs(0);
  request.set_request_id("id-1");
  request.mutable_ensemble()->set_samples(3);
  request.mutable_ensemble()->set_seed(7);
  request.mutable_budget()->set_max_edges(20);
  v1::OutputOptions* outputs = request.mutable_outputs();
  outputs->set_logits(true);
  outputs->set_layer_stats(true);
  outputs->set_key_degrees(true);
  outputs->set_each_sample(true);
  outputs->set_top_k(2);
  v1::PredictResponse response;
  const grpc::Status status = server.Predict(request, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.model(), "sbm");
  EXPECT_EQ(response.version(), 1);
  EXPECT_EQ(response.request_id(), "id-1");
  EXPECT_EQ(response.seed(), 7u);
  EXPECT_EQ(response.device().substr(0, 4), "cpu/");
  EXPECT_EQ(response.timing().batch_inputs(), 2u);
  EXPECT_EQ(response.timing().batch_tokens(), 8u);
  EXPECT_GE(response.timing().total_us(), response.timing().compute_us());
  ASSERT_EQ(response.predictions_size(), 2);
  EXPECT_EQ(response.predictions(0).SerializeAsString(), response.predictions(1).SerializeAsString());
  const v1::Prediction& prediction = response.predictions(0);
  EXPECT_EQ(prediction.probabilities_size(), 5);
  EXPECT_EQ(prediction.stddev_size(), 5);
  EXPECT_EQ(prediction.logits_size(), 5);
  EXPECT_EQ(prediction.label(), std::to_string(prediction.label_id()));
  EXPECT_EQ(prediction.samples(), 3u);
  ASSERT_EQ(prediction.top_size(), 2);
  EXPECT_EQ(prediction.top(0).label_id(), prediction.label_id());
  EXPECT_GE(prediction.top(0).probability(), prediction.top(1).probability());
  ASSERT_EQ(prediction.sample_outputs_size(), 3);
  const v1::EdgeReport& edges = prediction.edges();
  EXPECT_EQ(edges.pairs(), 64u);
  EXPECT_EQ(edges.budget(), 20u);
  EXPECT_LE(edges.max_sample_edges(), 20u);
  EXPECT_DOUBLE_EQ(edges.density(), edges.edges() / 64.0);
  double samples = 0, heads = 0, degrees = 0, expected = 0;
  for (const v1::SampleOutput& sample : prediction.sample_outputs()) samples += static_cast<double>(sample.edges());
  ASSERT_EQ(edges.layers_size(), 2);
  for (const auto& layer : edges.layers()) {
    ASSERT_EQ(layer.heads_size(), 2);
    for (const auto& head : layer.heads()) {
      heads += head.edges();
      expected += head.expected();
      ASSERT_EQ(head.key_degrees_size(), 4);
      for (const uint32_t degree : head.key_degrees()) degrees += degree;
    }
  }
  EXPECT_NEAR(samples / 3, edges.edges(), 1e-9);
  EXPECT_NEAR(heads, edges.edges(), 1e-9);
  EXPECT_NEAR(degrees / 3, edges.edges(), 1e-9);
  EXPECT_NEAR(expected, edges.expected_edges(), 1e-6);
}

TEST(ServerTest, ReturnedSeedGivesTheSameBytes) {
  TestServer server;
  v1::PredictRequest request = SmallRequest();
  v1::PredictResponse first, second;
  ASSERT_TRUE(server.Predict(request, first).ok());
  request.mutable_ensemble()->set_seed(first.seed());
  ASSERT_TRUE(server.Predict(request, second).ok());
  EXPECT_EQ(first.predictions(0).SerializeAsString(), second.predictions(0).SerializeAsString());
}

TEST(ServerTest, EveryTaskAnswers) {
  TestServer server;
  v1::PredictResponse response;
  v1::PredictRequest pair = SmallRequest("sbm-pair");
  *pair.mutable_inputs(0)->mutable_second() = pair.inputs(0).sequence();
  ASSERT_TRUE(server.Predict(pair, response).ok());
  EXPECT_EQ(response.predictions(0).probabilities_size(), 2);
  EXPECT_EQ(response.predictions(0).edges().pairs(), 128u);
  v1::PredictRequest tokens = SmallRequest("sbm-tokens");
  tokens.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->set_values(1, 0);
  ASSERT_TRUE(server.Predict(tokens, response).ok());
  ASSERT_EQ(response.predictions(0).tokens_size(), 4);
  EXPECT_TRUE(response.predictions(0).tokens(1).pad());
  EXPECT_EQ(response.predictions(0).tokens(1).probabilities_size(), 0);
  EXPECT_EQ(response.predictions(0).tokens(2).probabilities_size(), 5);
  v1::PredictRequest dense = SmallRequest();
  dense.set_attention(v1::DENSE);
  ASSERT_TRUE(server.Predict(dense, response).ok());
  EXPECT_EQ(response.predictions(0).edges().density(), 1.0);
}

TEST(ServerTest, ReturnedGraphFedBackGivesTheSameNumbers) {
  ServerOptions options = TestOptions();
  options.limits.allow_graphs = true;
  TestServer server(options);
  for (const char* model : {"sbm", "sbm-tokens"}) {  // the second by law poisson_multi
    v1::PredictRequest request = SmallRequest();
    request.set_model(model);
    request.mutable_outputs()->set_graph(true);
    v1::PredictResponse drawn, given;
    ASSERT_TRUE(server.Predict(request, drawn).ok());
    const v1::Graph& graph = drawn.predictions(0).graph();
    ASSERT_GE(graph.layers_size(), 1);
    int edges = 0;
    for (const auto& layer : graph.layers()) {
      for (const auto& head : layer.heads()) edges += head.keys_size();
    }
    EXPECT_GT(edges, 0);
    EXPECT_EQ(edges, drawn.predictions(0).edges().edges());
    *request.mutable_inputs(0)->mutable_graph() = graph;
    const grpc::Status status = server.Predict(request, given);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(drawn.predictions(0).SerializeAsString(), given.predictions(0).SerializeAsString()) << model;
  }
}

// Also where it is larger than the usual message.
TEST(ServerTest, TheLargestGraphThatIsReturnedIsTakenBack) {
  TestFolder folder;
  std::filesystem::copy(edgewise::tests::ExamplesFolder() + "/listops", folder.path() + "/listops",
                        std::filesystem::copy_options::recursive);
  ServerOptions options = TestOptions(folder.path());
  options.limits.allow_graphs = true;
  TestServer server(options);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto stub = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(server.server().port()), grpc::InsecureChannelCredentials(), arguments));
  v1::PredictRequest request;
  request.set_model("listops");
  v1::TokenIds* tokens = request.add_inputs()->mutable_sequence()->mutable_token_ids();
  for (int i = 0; i < 256; ++i) tokens->add_values(1 + i % 15);
  request.mutable_outputs()->set_graph(true);
  request.set_attention(v1::DENSE);
  v1::PredictResponse drawn, given;
  CallContext first, second;
  ASSERT_TRUE(stub->Predict(&first, request, &drawn).ok());
  request.clear_attention();
  *request.mutable_inputs(0)->mutable_graph() = drawn.predictions(0).graph();
  EXPECT_GT(request.ByteSizeLong(), size_t{4} << 20);
  const grpc::Status status = stub->Predict(&second, request, &given);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(drawn.predictions(0).SerializeAsString(), given.predictions(0).SerializeAsString());
}

TEST(ServerTest, BadRequestsHaveTheirCodeAndTheServerServesTheNext) {
  TestServer server;
  struct Bad {
    std::function<void(v1::PredictRequest&)> change;
    grpc::StatusCode code;
    const char* message;
  };
  const Bad cases[] = {
      {[](auto& r) { r.Clear(); }, grpc::INVALID_ARGUMENT, "model is empty"},
      {[](auto& r) { r.set_model("../sbm"); }, grpc::INVALID_ARGUMENT, "model is \"../sbm\""},
      {[](auto& r) { r.set_model("/etc/passwd"); }, grpc::INVALID_ARGUMENT, "model is"},
      {[](auto& r) { r.set_model(std::string("sbm\0", 4)); }, grpc::INVALID_ARGUMENT, "model is"},
      {[](auto& r) { r.set_model(std::string(1 << 20, 'a')); }, grpc::INVALID_ARGUMENT, "(1048576 bytes)"},
      {[](auto& r) { r.set_model("SBM"); }, grpc::INVALID_ARGUMENT, "model is \"SBM\""},
      {[](auto& r) { r.set_model("unknown"); }, grpc::NOT_FOUND, "model \"unknown\" is not in the repository"},
      {[](auto& r) { r.set_version(-1); }, grpc::INVALID_ARGUMENT, "version is -1"},
      {[](auto& r) { r.set_version(9223372036854775807); }, grpc::NOT_FOUND, "version 9223372036854775807"},
      {[](auto& r) { r.set_request_id("a\nb"); }, grpc::INVALID_ARGUMENT, "request_id is \"a\\nb\""},
      {[](auto& r) { r.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(40); },
       grpc::INVALID_ARGUMENT, "inputs[0].sequence.token_ids[4] is 40; the vocabulary has 40 entries"},
  };
  v1::PredictResponse response;
  for (const Bad& bad : cases) {
    v1::PredictRequest request = SmallRequest();
    bad.change(request);
    const grpc::Status status = server.Predict(request, response);
    EXPECT_EQ(status.error_code(), bad.code) << bad.message;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.message));
    EXPECT_EQ(status.error_message().find(tests::TestdataFolder()), std::string::npos);
    if (bad.code == grpc::INVALID_ARGUMENT) {
      EXPECT_THAT(status.error_details(), HasSubstr("google.rpc.BadRequest"));
    }
    EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  }
}

TEST(ServerTest, R31toR34MessagesThatAreNoMessages) {
  TestServer server;
  const std::string path = "/edgewise.v1.InferenceService/Predict";
  const auto code = [&](const std::string& bytes) { return server.Call(path, bytes).error_code(); };
  EXPECT_EQ(code("\xff\xff\xff\xff"), grpc::INVALID_ARGUMENT);                           // random bytes
  EXPECT_EQ(code(SmallRequest().SerializeAsString() + "\x1a"), grpc::INVALID_ARGUMENT);  // truncated
  EXPECT_EQ(code("\x0a\x02\xff\xfe"), grpc::INVALID_ARGUMENT);                           // a name that is not UTF-8
  std::string nested;
  for (int i = 0; i < 200; ++i) nested += "\x7b";  // start of group 15, 200 deep
  EXPECT_EQ(code(nested), grpc::INVALID_ARGUMENT);
  std::string unknown = SmallRequest().SerializeAsString();
  for (int i = 0; i < 1000; ++i) unknown += std::string("\xfa\x7d\x01x", 4);  // field 2015: ignored
  EXPECT_TRUE(server.Call(path, unknown).ok());
}

TEST(ServerTest, R35MessageOverTheLimitIsRefused) {
  ServerOptions options = TestOptions();
  options.max_message_bytes = 100000;
  TestServer server(options);
  v1::PredictRequest request = SmallRequest();
  for (int i = 0; i < 200000; ++i) request.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(1);
  v1::PredictResponse response;
  EXPECT_EQ(server.Predict(request, response).error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
}

TEST(ServerTest, R37CompressedMessagesAreRefused) {
  TestServer server;
  CallContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::PredictRequest request = SmallRequest();
  for (int i = 0; i < 100; ++i) *request.add_inputs() = request.inputs(0);
  v1::PredictResponse response;
  EXPECT_EQ(server.stub().Predict(&context, request, &response).error_code(), grpc::UNIMPLEMENTED);
}

TEST(ServerTest, R39R40WhatIsNotServedIsUnimplemented) {
  TestServer server;
  EXPECT_EQ(server.Call("/edgewise.v1.InferenceService/Nothing", "").error_code(), grpc::UNIMPLEMENTED);
  EXPECT_EQ(server.Call("/grpc.channelz.v1.Channelz/GetServers", "").error_code(), grpc::UNIMPLEMENTED);
  for (const char* path : kReflection) EXPECT_EQ(server.Call(path, "\x3a").error_code(), grpc::UNIMPLEMENTED) << path;
  const grpc::Status generate = server.Call("/edgewise.v1.InferenceService/Generate", "");
  EXPECT_EQ(generate.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(generate.error_message(), HasSubstr("model is empty"));
}

// The first answer of both versions of reflection; fails where they differ.
ServerReflectionResponse Reflect(TestServer& server, const ServerReflectionRequest& request) {
  std::string answers[2];
  for (int v = 0; v < 2; ++v) {
    const grpc::Status status = server.Call(kReflection[v], request.SerializeAsString(), &answers[v]);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(answers[0], answers[1]);
  ServerReflectionResponse response;
  EXPECT_TRUE(response.ParseFromString(answers[0]));
  return response;
}

// What a tool that knows nothing of the services does: it lists them and builds each from the files that it is sent.
TEST(ServerTest, ReflectionDescribesEveryServiceThatItLists) {
  ServerOptions options = TestOptions();
  options.reflection = true;
  TestServer server(options);
  ServerReflectionRequest request;
  request.set_list_services("*");
  std::vector<std::string> names;
  const ServerReflectionResponse list = Reflect(server, request);
  for (const auto& service : list.list_services_response().service()) {
    names.push_back(service.name());
    request.set_file_containing_symbol(service.name());
    const ServerReflectionResponse answer = Reflect(server, request);
    EXPECT_EQ(answer.original_request().file_containing_symbol(), service.name());
    google::protobuf::SimpleDescriptorDatabase files;
    for (const std::string& bytes : answer.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      ASSERT_TRUE(file.ParseFromString(bytes));
      files.Add(file);
    }
    google::protobuf::DescriptorPool pool(&files);
    EXPECT_NE(pool.FindServiceByName(service.name()), nullptr) << service.name();
  }
  EXPECT_THAT(
      names, ElementsAre("edgewise.v1.InferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                         "grpc.reflection.v1alpha.ServerReflection", "inference.GRPCInferenceService"));
  request.set_file_by_filename("edgewise/v1/inference.proto");
  EXPECT_GE(Reflect(server, request).file_descriptor_response().file_descriptor_proto_size(), 1);
}

TEST(ServerTest, ReflectionSaysWhatItDoesNotKnowAndGoesOn) {
  ServerOptions options = TestOptions();
  options.reflection = true;
  TestServer server(options);
  ServerReflectionRequest request;
  EXPECT_EQ(Reflect(server, request).error_response().error_code(), grpc::INVALID_ARGUMENT);
  request.set_file_by_filename("no.proto");
  EXPECT_EQ(Reflect(server, request).error_response().error_code(), grpc::NOT_FOUND);
  request.set_all_extension_numbers_of_type("no.Type");
  EXPECT_EQ(Reflect(server, request).error_response().error_code(), grpc::NOT_FOUND);
  request.mutable_file_containing_extension()->set_containing_type("edgewise.v1.Input");
  EXPECT_EQ(Reflect(server, request).error_response().error_code(), grpc::NOT_FOUND);
  request.set_all_extension_numbers_of_type("edgewise.v1.Input");
  EXPECT_EQ(Reflect(server, request).all_extension_numbers_response().base_type_name(), "edgewise.v1.Input");
  for (const char* path : kReflection) {
    EXPECT_EQ(server.Call(path, "\x3a\x7f").error_code(), grpc::INVALID_ARGUMENT) << "not a message";
    EXPECT_EQ(server.Call(path, std::string(5000, '\0')).error_code(), grpc::INVALID_ARGUMENT) << "too long";
    grpc::GenericStub stub(server.channel());
    grpc::CompletionQueue queue;
    CallContext context;
    const auto call = stub.PrepareCall(&context, path, &queue);
    const auto next = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    ASSERT_TRUE(next());
    for (int i = 0; i < 3; ++i) {  // one after the other on one call
      const grpc::Slice unknown(request.SerializeAsString());
      call->Write(grpc::ByteBuffer(&unknown, 1), nullptr);
      ASSERT_TRUE(next());
      grpc::ByteBuffer answer;
      call->Read(&answer, nullptr);
      ASSERT_TRUE(next()) << i;
    }
    call->WritesDone(nullptr);
    ASSERT_TRUE(next());
    grpc::Status status;
    call->Finish(&status, nullptr);
    ASSERT_TRUE(next());
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

// Probes that name the service, as many do.
TEST(ServerTest, HealthKnowsTheServiceByItsName) {
  TestFolder folder;
  TestServer server(TestOptions(folder.path()));
  EXPECT_EQ(server.Health("edgewise.v1.InferenceService"), 2);
  folder.AddModel("sbm", "m", 1);
  ASSERT_TRUE(server.server().Reload().ok());
  EXPECT_TRUE(server.WaitForHealth("edgewise.v1.InferenceService", 1));
  EXPECT_EQ(server.Health(""), 1);
  EXPECT_EQ(server.Health("edgewise.v1.Inference"), -grpc::NOT_FOUND);
}

TEST(ServerTest, ModelsAreListedWithWhatTheyAre) {
  TestServer server;
  CallContext context;
  v1::ListModelsResponse list;
  ASSERT_TRUE(server.stub().ListModels(&context, {}, &list).ok());
  EXPECT_GE(list.models_size(), 16);
  for (int i = 1; i < list.models_size(); ++i) EXPECT_LT(list.models(i - 1).name(), list.models(i).name());
  v1::GetModelRequest request;
  request.set_model("sbm-pair");
  v1::GetModelResponse model;
  CallContext second;
  ASSERT_TRUE(server.stub().GetModel(&second, request, &model).ok());
  EXPECT_EQ(model.model().state(), v1::ModelInfo::READY);
  EXPECT_EQ(model.model().task(), "pair-classification");
  EXPECT_EQ(model.model().attention(), "sbm/bernoulli");
  EXPECT_EQ(model.model().max_tokens(), 48u);
  EXPECT_EQ(model.model().sha256().size(), 64u);
  EXPECT_GT(model.model().parameters(), 0u);
  request.set_model("..");
  CallContext third, fourth;
  EXPECT_EQ(server.stub().GetModel(&third, request, &model).error_code(), grpc::INVALID_ARGUMENT);
  request.set_model("unknown");
  EXPECT_EQ(server.stub().GetModel(&fourth, request, &model).error_code(), grpc::NOT_FOUND);
}

// Inputs of one request, each with the answer that it gets alone.
TEST(ServerTest, AnswersOfOneRequestAreInTheOrderOfItsInputs) {
  TestServer server;
  const std::vector<std::vector<int32_t>> texts = {{3, 1, 4}, {1, 5, 9, 2, 6}, {5}, {4, 1, 3}, {2, 7, 1, 8}};
  for (const char* model : {"sbm", "sbm-tokens", "sbm-pair", "regression"}) {
    v1::PredictRequest empty;
    empty.set_model(model);
    empty.mutable_ensemble()->set_seed(7);
    empty.mutable_ensemble()->set_samples(2);
    empty.mutable_outputs()->set_layer_stats(true);
    v1::PredictRequest all = empty;
    std::vector<std::string> alone;
    for (size_t i = 0; i < texts.size(); ++i) {
      v1::Input* input = all.add_inputs();
      input->mutable_sequence()->mutable_token_ids()->mutable_values()->Add(texts[i].begin(), texts[i].end());
      if (std::string(model) == "sbm-pair") *input->mutable_second() = all.inputs(0).sequence();
      v1::PredictRequest request = empty;
      *request.add_inputs() = *input;
      v1::PredictResponse response;
      const grpc::Status status = server.Predict(request, response);
      ASSERT_TRUE(status.ok()) << model << ": " << status.error_message();
      alone.push_back(response.predictions(0).SerializeAsString());
      for (size_t other = 0; other < i; ++other) ASSERT_NE(alone[i], alone[other]) << "this test tests nothing";
    }
    v1::PredictResponse response;
    ASSERT_TRUE(server.Predict(all, response).ok());
    ASSERT_EQ(response.predictions_size(), static_cast<int>(texts.size()));
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(response.predictions(static_cast<int>(i)).SerializeAsString(), alone[i]) << model << ", input " << i;
    }
  }
}

TEST(ServerTest, EveryRpcCountsUnderItsOwnMethodAndCode) {
  TestServer server;
  const auto counted = [&](const char* method, const char* code) {
    return server.Metric(std::string("edgewise_rpc_requests_total{code=\"") + code + "\",method=\"" + method +
                         "\",service=\"edgewise.v1.InferenceService\"}");
  };
  v1::PredictResponse response;
  v1::GetModelRequest get;
  v1::GetModelResponse model;
  v1::ListModelsResponse list;
  EXPECT_TRUE(server.Predict(SmallRequest(), response).ok());
  EXPECT_FALSE(server.Predict(SmallRequest("unknown"), response).ok());
  for (const char* name : {"sbm", "dense", "unknown"}) {
    grpc::ClientContext context;
    get.set_model(name);
    server.stub().GetModel(&context, get, &model);
  }
  for (int i = 0; i < 4; ++i) {
    grpc::ClientContext context;
    EXPECT_TRUE(server.stub().ListModels(&context, {}, &list).ok());
  }
  EXPECT_EQ(counted("Predict", "OK"), 1);
  EXPECT_EQ(counted("Predict", "NOT_FOUND"), 1);
  EXPECT_EQ(counted("GetModel", "OK"), 2);
  EXPECT_EQ(counted("GetModel", "NOT_FOUND"), 1);
  EXPECT_EQ(counted("ListModels", "OK"), 4);
  EXPECT_EQ(counted("PredictStream", "OK"), 0);
  EXPECT_EQ(counted("Generate", "OK"), 0);
}

}  // namespace
}  // namespace edgewise::server
