// The Open Inference Protocol over real ports, gRPC and HTTP: the numbers of Predict, in the shapes of this protocol.
#include <gmock/gmock.h>

#include <cstring>

#include "oip/v2/open_inference.pb.h"
#include "tests/server/http_fixture.h"

namespace edgewise::server {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kService[] = "/inference.GRPCInferenceService/";
constexpr char kModelInfer[] = "/inference.GRPCInferenceService/ModelInfer";
constexpr char kInfer[] = "/v2/models/sbm/infer";

std::string IdsOf(const std::vector<int64_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t)};
}

// Four tokens for the model "sbm", as SmallRequest.
inference::ModelInferRequest SmallInfer() {
  inference::ModelInferRequest message;
  message.set_model_name("sbm");
  auto& tensor = *message.add_inputs();
  tensor.set_name("input_ids");
  tensor.set_datatype("INT64");
  tensor.add_shape(1);
  tensor.add_shape(4);
  message.add_raw_input_contents(IdsOf({1, 2, 3, 4}));
  return message;
}

json SmallBody() {
  return {{"inputs", {{{"name", "input_ids"}, {"datatype", "INT64"}, {"shape", {1, 4}}, {"data", {{1, 2, 3, 4}}}}}}};
}

template <typename Value>
std::vector<Value> ValuesOf(const std::string& raw) {
  std::vector<Value> values(raw.size() / sizeof(Value));
  std::memcpy(values.data(), raw.data(), values.size() * sizeof(Value));
  return values;
}

class OpenInferenceTest : public ::testing::Test {
 protected:
  template <typename Response>
  grpc::Status Call(const std::string& method, const google::protobuf::Message& request, Response& response,
                    const std::string& token = "") {
    std::string answer;
    const grpc::Status status = http_.server.Call(kService + method, request.SerializeAsString(), &answer, token);
    EXPECT_TRUE(response.ParseFromString(answer));
    return status;
  }
  inference::ModelInferResponse Infer(const inference::ModelInferRequest& request) {
    inference::ModelInferResponse response;
    const grpc::Status status = Call("ModelInfer", request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static const std::string& RawOf(const inference::ModelInferResponse& response, const std::string& name) {
    for (int i = 0; i < response.outputs_size(); ++i) {
      if (response.outputs(i).name() == name) return response.raw_output_contents(i);
    }
    static const std::string& none = *new std::string;
    return none;
  }
  static json OutputOf(const json& answer, const std::string& name) {
    for (const json& output : answer["outputs"]) {
      if (output["name"] == name) return output;
    }
    return json();
  }
  json Get(const std::string& path) {
    const HttpReply reply = http_.Get(path);
    EXPECT_EQ(reply.code, 200) << path << reply.body;
    return json::parse(reply.body);
  }
  std::string Refused(int code, const std::string& path, const json& body) {
    const HttpReply reply = http_.Post(path, body);
    EXPECT_EQ(reply.code, code) << path << body << reply.body;
    const json error = json::parse(reply.body);
    EXPECT_EQ(error.size(), 1u) << error;
    return error["error"];
  }
  // The answer to a body of JSON and bytes behind it.
  HttpReply PostBinary(const std::string& path, const json& head, const std::string& tail,
                       const std::string& type = "Content-Type: application/octet-stream\r\n") {
    const std::string text = head.dump();
    HttpClient client(http_.port());
    client.Send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + type +
                "Content-Length: " + std::to_string(text.size() + tail.size()) +
                "\r\nInference-Header-Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text + tail);
    return client.Read();
  }

  HttpServerFixture http_;
};

// 1,024 inputs of a message of 2 MB would be 2 GB.
TEST_F(OpenInferenceTest, APromptNameIsCountedInEveryInput) {
  constexpr int kInputs = 1024;
  const std::string name(size_t{2} << 20, 'p');
  inference::ModelInferRequest message = SmallInfer();
  message.mutable_inputs(0)->set_shape(0, kInputs);
  message.mutable_inputs(0)->set_shape(1, 1);
  message.set_raw_input_contents(0, IdsOf(std::vector<int64_t>(kInputs, 1)));
  (*message.mutable_parameters())["prompt_name"].set_string_param(name);
  inference::ModelInferResponse response;
  const grpc::Status status = Call("ModelInfer", message, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), StartsWith("the inputs take 2147483648 bytes"));
  json body = SmallBody();
  body["inputs"][0]["shape"] = {kInputs, 1};
  body["inputs"][0]["data"] = std::vector<int>(kInputs, 1);
  body["parameters"] = {{"prompt_name", name}};
  const HttpReply reply = http_.Post(kInfer, body);
  EXPECT_EQ(reply.code, 413) << reply.body;
  EXPECT_THAT(reply.body, HasSubstr("the inputs take 2147483648 bytes"));
}

TEST_F(OpenInferenceTest, NumbersAreThoseOfPredictOverEveryFront) {
  v1::PredictRequest request = SmallRequest();
  request.mutable_ensemble()->set_samples(3);
  request.mutable_ensemble()->set_seed(5);
  request.mutable_budget()->set_max_edges(20);
  v1::PredictResponse expected;
  ASSERT_TRUE(http_.server.Predict(request, expected).ok());
  const v1::Prediction& prediction = expected.predictions(0);
  const std::vector<float> probabilities(prediction.probabilities().begin(), prediction.probabilities().end());
  const std::vector<float> stddev(prediction.stddev().begin(), prediction.stddev().end());
  EXPECT_LE(prediction.edges().edges(), 20.0);

  inference::ModelInferRequest message = SmallInfer();
  message.set_id("mine");
  (*message.mutable_parameters())["samples"].set_int64_param(3);
  (*message.mutable_parameters())["seed"].set_string_param("5");
  (*message.mutable_parameters())["max_edges"].set_double_param(20.0);
  const inference::ModelInferResponse grpc = Infer(message);
  EXPECT_EQ(grpc.id(), "mine");
  EXPECT_EQ(grpc.model_name(), "sbm");
  EXPECT_EQ(grpc.model_version(), "1");
  EXPECT_EQ(grpc.parameters().at("seed").int64_param(), 5);
  EXPECT_EQ(grpc.outputs_size(), grpc.raw_output_contents_size());
  EXPECT_THAT(grpc.outputs(0).shape(), ElementsAre(1, 5));
  EXPECT_EQ(ValuesOf<float>(RawOf(grpc, "probabilities")), probabilities);
  EXPECT_EQ(ValuesOf<float>(RawOf(grpc, "stddev")), stddev);
  EXPECT_EQ(ValuesOf<double>(RawOf(grpc, "edges")), std::vector<double>{prediction.edges().edges()});
  EXPECT_EQ(ValuesOf<double>(RawOf(grpc, "density")), std::vector<double>{prediction.edges().density()});
  EXPECT_EQ(RawOf(grpc, "label").substr(4), prediction.label());

  json body = SmallBody();
  body["id"] = "mine";
  body["parameters"] = {{"samples", 3}, {"seed", 5}, {"max_edges", "20"}};
  const json answer = http_.Answer(kInfer, body);
  EXPECT_EQ(answer["id"], "mine");
  EXPECT_EQ(answer["model_version"], "1");
  EXPECT_EQ(OutputOf(answer, "probabilities")["data"].get<std::vector<float>>(), probabilities);
  EXPECT_EQ(OutputOf(answer, "probabilities")["shape"], json({1, 5}));
  EXPECT_EQ(OutputOf(answer, "edges")["data"], json({prediction.edges().edges()}));
  EXPECT_EQ(OutputOf(answer, "label")["data"], json({prediction.label()}));
  EXPECT_EQ(OutputOf(answer, "capped")["datatype"], "BOOL");

  body["inputs"][0].erase("data");
  body["inputs"][0]["parameters"] = {{"binary_data_size", 32}};
  body["outputs"] = {{{"name", "stddev"}, {"parameters", {{"binary_data", true}}}},
                     {{"name", "label_id"}},
                     {{"name", "probabilities"}, {"parameters", {{"binary_data", true}}}}};
  for (const char* type : {"Content-Type: application/octet-stream\r\n", ""}) {  // clients send none
    const HttpReply reply = PostBinary("/v2/models/sbm/versions/1/infer", body, IdsOf({1, 2, 3, 4}), type);
    ASSERT_EQ(reply.code, 200) << reply.body;
    EXPECT_EQ(reply.field("Content-Type"), "application/octet-stream");
    const size_t length = std::stoul(reply.field("Inference-Header-Content-Length"));
    const json head = json::parse(reply.body.substr(0, length));
    ASSERT_EQ(head["outputs"].size(), 3u);
    EXPECT_EQ(head["outputs"][0]["parameters"]["binary_data_size"], 20);
    EXPECT_EQ(head["outputs"][1]["data"], json({prediction.label_id()}));
    std::vector<float> both = stddev;
    both.insert(both.end(), probabilities.begin(), probabilities.end());
    EXPECT_EQ(ValuesOf<float>(reply.body.substr(length)), both);
  }
  // All outputs in binary form, as clients ask that name none.
  body.erase("outputs");
  body["parameters"]["binary_data_output"] = true;
  const HttpReply all = PostBinary(kInfer, body, IdsOf({1, 2, 3, 4}));
  ASSERT_EQ(all.code, 200) << all.body;
  const json head = json::parse(all.body.substr(0, std::stoul(all.field("Inference-Header-Content-Length"))));
  for (const json& output : head["outputs"]) EXPECT_FALSE(output.contains("data")) << output;
}

TEST_F(OpenInferenceTest, ManyInputsAreTheSameAsOneByOne) {
  constexpr int kInputs = 1000;  // prepared apart
  json body = SmallBody();
  body["parameters"] = {{"seed", 7}};
  const json one = http_.Answer(kInfer, body);
  json& tensor = body["inputs"][0];
  tensor["shape"] = {kInputs, 4};
  tensor["data"] = json::array();
  inference::ModelInferRequest message = SmallInfer();
  message.mutable_inputs(0)->set_shape(0, kInputs);
  (*message.mutable_parameters())["seed"].set_int64_param(7);
  std::vector<int64_t> ids;
  for (int i = 0; i < kInputs; ++i) {
    tensor["data"].push_back({1, 2, 3, 4});
    ids.insert(ids.end(), {1, 2, 3, 4});
  }
  *message.mutable_raw_input_contents(0) = IdsOf(ids);
  const json many = http_.Answer(kInfer, body);
  const auto numbers = OutputOf(many, "probabilities")["data"].get<std::vector<float>>();
  ASSERT_EQ(numbers.size(), 5u * kInputs);
  EXPECT_EQ(std::vector<float>(numbers.begin(), numbers.begin() + 5),
            OutputOf(one, "probabilities")["data"].get<std::vector<float>>());
  EXPECT_EQ(ValuesOf<float>(RawOf(Infer(message), "probabilities")), numbers);
  EXPECT_TRUE(http_.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

TEST_F(OpenInferenceTest, TheServerAndItsModelsAreDescribedOverBothFronts) {
  inference::ServerLiveResponse live;
  inference::ServerReadyResponse ready;
  inference::ServerMetadataResponse server;
  ASSERT_TRUE(Call("ServerLive", inference::ServerLiveRequest(), live).ok());
  ASSERT_TRUE(Call("ServerReady", inference::ServerReadyRequest(), ready).ok());
  ASSERT_TRUE(Call("ServerMetadata", inference::ServerMetadataRequest(), server).ok());
  EXPECT_TRUE(live.live());
  EXPECT_TRUE(ready.ready());
  EXPECT_EQ(Get("/v2/health/live")["live"], true);
  EXPECT_EQ(Get("/v2/health/ready")["ready"], true);
  EXPECT_EQ(Get("/v2")["name"], server.name());
  EXPECT_EQ(Get("/v2")["extensions"].size(), static_cast<size_t>(server.extensions_size()));

  inference::ModelReadyRequest model;
  inference::ModelReadyResponse model_ready;
  model.set_name("sbm");
  ASSERT_TRUE(Call("ModelReady", model, model_ready).ok());
  EXPECT_TRUE(model_ready.ready());
  EXPECT_EQ(Get("/v2/models/sbm/ready"), json({{"name", "sbm"}, {"ready", true}}));
  EXPECT_EQ(Get("/v2/models/sbm/versions/1/ready")["ready"], true);

  inference::ModelMetadataResponse metadata;
  inference::ModelConfigResponse config;
  ASSERT_TRUE(Call("ModelMetadata", model, metadata).ok());
  ASSERT_TRUE(Call("ModelConfig", model, config).ok());
  EXPECT_THAT(metadata.versions(), ElementsAre("1"));
  EXPECT_EQ(metadata.inputs(0).name(), "input_ids");
  EXPECT_THAT(metadata.inputs(0).shape(), ElementsAre(-1, -1));
  EXPECT_EQ(metadata.outputs(0).datatype(), "FP32");
  EXPECT_THAT(metadata.outputs(0).shape(), ElementsAre(-1, 5));
  EXPECT_EQ(config.config().max_batch_size(), 1024);
  EXPECT_THAT(config.config().output(0).dims(), ElementsAre(5)) << "without that of the batch";
  const json told = Get("/v2/models/sbm");
  EXPECT_EQ(told["inputs"][0], json({{"name", "input_ids"}, {"datatype", "INT64"}, {"shape", {-1, -1}}}));
  EXPECT_EQ(told["properties"]["task"], "sequence-classification");
  EXPECT_EQ(Get("/v2/models/sbm/config")["input"][0]["data_type"], "TYPE_INT64");
  EXPECT_EQ(Get("/v2/models/sbm/config")["name"], "sbm");

  inference::RepositoryIndexRequest all;
  inference::RepositoryIndexResponse index;
  ASSERT_TRUE(Call("RepositoryIndex", all, index).ok());
  const json listed = http_.Answer("/v2/repository/index", {{"ready", true}});
  EXPECT_EQ(listed.size(), static_cast<size_t>(index.models_size()));
  EXPECT_EQ(listed[0]["state"], "READY");
  EXPECT_EQ(HttpClient(http_.port()).Ask("POST", "/v2/repository/index", "Content-Length: 0\r\n").code, 200);
}

TEST_F(OpenInferenceTest, StatisticsCountEveryCall) {
  inference::ModelStatisticsRequest request;
  inference::ModelStatisticsResponse before, after;
  request.set_name("sbm");
  ASSERT_TRUE(Call("ModelStatistics", request, before).ok());
  EXPECT_EQ(before.model_stats(0).last_inference(), 0u);
  Infer(SmallInfer());
  http_.Answer(kInfer, SmallBody());
  inference::ModelInferRequest wrong = SmallInfer();
  wrong.mutable_inputs(0)->set_datatype("FP32");
  inference::ModelInferResponse none;
  EXPECT_EQ(Call("ModelInfer", wrong, none).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(WaitUntil("the counts", [&] {  // the answer is sent before the log's line
    EXPECT_TRUE(Call("ModelStatistics", request, after).ok());
    return after.model_stats(0).inference_stats().success().count() == 2;
  }));
  const inference::ModelStatistics& stats = after.model_stats(0);
  EXPECT_EQ(stats.name(), "sbm");
  EXPECT_EQ(stats.version(), "1");
  EXPECT_EQ(stats.inference_count(), 2u);
  EXPECT_EQ(stats.execution_count(), 2u);
  EXPECT_EQ(stats.inference_stats().fail().count(), 1u);
  EXPECT_EQ(stats.inference_stats().queue().count(), 2u);
  EXPECT_GT(stats.inference_stats().compute_infer().ns(), 0u);
  EXPECT_GT(stats.inference_stats().success().ns(), stats.inference_stats().compute_infer().ns());
  EXPECT_GT(stats.last_inference(), 1700000000000u);
  const json told = Get("/v2/models/sbm/stats");
  EXPECT_EQ(told["model_stats"][0]["inference_stats"]["success"]["count"], 2);
  EXPECT_GT(Get("/v2/models/stats")["model_stats"].size(), 1u);
  EXPECT_EQ(http_.server.Metric(R"(edgewise_rpc_requests_total{code="OK",method="ModelInfer",)"
                                R"(service="inference.GRPCInferenceService"})"),
            1.0);
}

TEST_F(OpenInferenceTest, ErrorsNameWhatTheClientSentInBothShapes) {
  inference::ModelInferResponse none;
  inference::ModelInferRequest message = SmallInfer();
  const auto refused = [&](grpc::StatusCode code) {
    const grpc::Status status = Call("ModelInfer", message, none);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  };
  *message.mutable_raw_input_contents(0) = IdsOf({1, 2, 99, 4});
  EXPECT_THAT(refused(grpc::INVALID_ARGUMENT), StartsWith("input_ids[0][2] is 99"));
  message.mutable_raw_input_contents(0)->pop_back();
  EXPECT_THAT(refused(grpc::INVALID_ARGUMENT), StartsWith("input_ids.data has 31 bytes"));
  message = SmallInfer();
  (*message.mutable_parameters())["max_density"].set_double_param(2.0);
  EXPECT_THAT(refused(grpc::INVALID_ARGUMENT), StartsWith("parameters.max_density is 2"));
  message.set_model_version("latest");
  EXPECT_THAT(refused(grpc::INVALID_ARGUMENT), StartsWith(R"(model_version is "latest")"));
  message.set_model_version("7");
  EXPECT_THAT(refused(grpc::NOT_FOUND), HasSubstr("7"));
  message = SmallInfer();
  message.set_model_name("nothing");
  EXPECT_THAT(refused(grpc::NOT_FOUND), HasSubstr("nothing"));
  message = SmallInfer();
  (*message.mutable_parameters())["timeout"].set_int64_param(1);
  refused(grpc::DEADLINE_EXCEEDED);

  json body = SmallBody();
  body["inputs"][0]["data"] = {1, 2, 99, 4};
  EXPECT_THAT(Refused(400, kInfer, body), StartsWith("input_ids[0][2] is 99"));
  body["inputs"][0]["data"] = {1, 2};
  EXPECT_THAT(Refused(400, kInfer, body), StartsWith("input_ids.data has 2 elements"));
  body = SmallBody();
  body["parameters"] = {{"max_density", 2}};
  EXPECT_THAT(Refused(400, kInfer, body), StartsWith("parameters.max_density is 2"));
  body["parameters"] = {{"timeout", 1}};
  Refused(504, kInfer, body);
  Refused(404, "/v2/models/nothing/infer", SmallBody());
  Refused(404, "/v2/models/sbm/versions/7/infer", SmallBody());
  Refused(400, "/v2/models/sbm/versions/x/infer", SmallBody());
  body = SmallBody();
  body["model_name"] = "dense";
  EXPECT_THAT(Refused(400, kInfer, body), StartsWith("model_name is"));
  body["model_name"] = "sbm";
  for (const json& version : {json(1), json("1"), json(""), json()}) {
    body["model_version"] = version;
    EXPECT_EQ(http_.Answer(kInfer, body)["model_version"], "1");
    EXPECT_EQ(http_.Answer("/v2/models/sbm/versions/1/infer", body)["model_version"], "1");
  }
  for (const json& version : {json(7), json("7")}) {
    body["model_version"] = version;
    Refused(404, kInfer, body);
    EXPECT_THAT(Refused(400, "/v2/models/sbm/versions/1/infer", body), StartsWith(R"(model_version is "7"; the path)"));
  }
  for (const json& version : {json("latest"), json(true), json({1})}) {
    body["model_version"] = version;
    EXPECT_THAT(Refused(400, kInfer, body), StartsWith("model_version is"));
  }
  EXPECT_EQ(http_.Get("/v2/models/nothing").code, 404);
  EXPECT_EQ(http_.Get("/v2/models/nothing/ready").code, 404);
  EXPECT_EQ(http_.Get("/v2/models/sbm/versions/7/config").code, 404);
  EXPECT_EQ(http_.Get(kInfer).code, 405);
}

TEST_F(OpenInferenceTest, AClientThatGoesCancelsItsWork) {
  json body = SmallBody();  // tens of seconds of work
  body["inputs"][0]["shape"] = {1024, 4};
  body["inputs"][0]["data"] = std::vector<int>(4096, 1);
  body["parameters"] = {{"samples", 256}};
  HttpClient client(http_.port());
  client.Send(HttpClient::Posted(kInfer, body.dump()));
  EXPECT_TRUE(http_.server.WaitForMetric(OfSbm("executions_total"), 1));
  client.Close();
  EXPECT_TRUE(http_.server.WaitForMetric(R"(edgewise_requests_total{code="CANCELLED",model="sbm",version="1"})", 1.0));
  EXPECT_TRUE(http_.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
}

TEST_F(OpenInferenceTest, MethodsThatAreNotServedSayWhy) {
  const std::pair<const char*, const char*> methods[] = {{"RepositoryModelLoad", "follows its repository"},
                                                         {"RepositoryModelUnload", "follows its repository"},
                                                         {"SystemSharedMemoryRegister", "shared memory"},
                                                         {"CudaSharedMemoryStatus", "shared memory"},
                                                         {"ModelStreamInfer", "use ModelInfer"},
                                                         {"TraceSetting", "traces"},
                                                         {"LogSettings", "log"},
                                                         {"Nothing", "no such method"}};
  for (const auto& [method, why] : methods) {
    const grpc::Status status = http_.server.Call(std::string(kService) + method, "");
    EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  }
  EXPECT_THAT(Refused(400, "/v2/repository/models/sbm/load", json::object()), HasSubstr("follows its repository"));
  EXPECT_THAT(Refused(400, "/v2/systemsharedmemory/region/x/register", json::object()), HasSubstr("shared memory"));
  EXPECT_THAT(http_.Get("/v2/cudasharedmemory/status").body, HasSubstr("shared memory"));
  for (const char* path : {"/v2/trace/setting", "/v2/models/sbm/trace/setting"}) {
    EXPECT_THAT(Refused(400, path, json::object()), HasSubstr("traces are not served"));
    EXPECT_EQ(http_.Get(path).code, 400) << path;
  }
  EXPECT_EQ(http_.Get("/v2/models/sbm/traces").code, 404);
  EXPECT_EQ(http_.Get("/v2/models/sbm/versions/1/trace").code, 404);
}

TEST_F(OpenInferenceTest, BytesOfStrangersGetAnErrorAndTheServerGoesOn) {
  const std::string bytes = SmallInfer().SerializeAsString();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    const grpc::Status status = http_.server.Call(kModelInfer, changed);
    EXPECT_NE(status.error_code(), grpc::INTERNAL) << i << status.error_message();
    EXPECT_NE(status.error_code(), grpc::UNKNOWN) << i << status.error_message();
  }
  // A message of many parts, which would take much more than its bytes.
  std::string parts;
  for (int i = 0; i < 200000; ++i) parts += std::string("\x2a\x00", 2);
  const grpc::Status status = http_.server.Call(kModelInfer, parts);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(http_.server.WaitForMetric("edgewise_call_memory_bytes", 0.0));
  Infer(SmallInfer());
}

TEST_F(OpenInferenceTest, OnlyRoutesOfThisProtocolTakeBytes) {
  EXPECT_EQ(PostBinary("/edgewise/v1/predict", json::object(), "").code, 415);
  EXPECT_EQ(PostBinary("/v1/embeddings", json::object(), "", "").code, 415);
  EXPECT_EQ(PostBinary(kInfer, SmallBody(), "", "Content-Type: text/plain\r\n").code, 415);
  EXPECT_EQ(PostBinary(kInfer, SmallBody(), "", "Origin: http://elsewhere.example\r\n").code, 403);
}

// A mask before the ids moves no answer to another column.
TEST(OpenInferenceColumnsTest, OutputsOfTokensStandAtTheColumnsOfTheirIds) {
  HttpServerFixture http(HttpOptions(tests::TestdataFolder() + "_hugging_face"));
  const auto infer = [&](const std::string& path, const std::vector<int>& ids, const std::vector<int>& mask) {
    const json shape = {1, ids.size()};
    json inputs = {{{"name", "input_ids"}, {"datatype", "INT64"}, {"shape", shape}, {"data", ids}}};
    if (!mask.empty()) {
      inputs.push_back({{"name", "attention_mask"}, {"datatype", "INT64"}, {"shape", shape}, {"data", mask}});
    }
    std::map<std::string, json> outputs;
    const json answer = http.Answer(path, {{"inputs", inputs}});
    for (const json& output : answer["outputs"]) outputs[output["name"]] = output;
    return outputs;
  };
  auto bare = infer("/v2/models/bert_tokens/infer", {2, 6, 5, 3}, {});
  auto padded = infer("/v2/models/bert_tokens/infer", {0, 0, 2, 6, 5, 3, 0}, {0, 0, 1, 1, 1, 1, 0});
  json expected = {-1, -1};
  for (const json& id : bare["label_id"]["data"]) expected.push_back(id);
  expected.push_back(-1);
  EXPECT_EQ(padded["label_id"]["data"], expected);
  EXPECT_EQ(padded["label_id"]["shape"], json({1, 7}));
  EXPECT_EQ(padded["probabilities"]["shape"][1], 7);

  auto masks = infer("/v2/models/bert_masked/infer", {0, 2, 6, 5, 9, 3}, {0, 1, 1, 1, 1, 1});
  EXPECT_EQ(masks["position"]["data"], json({3}));
  EXPECT_EQ(masks["label_id"]["shape"], json({1, 1}));
}

// Texts, pairs, embeddings, masks, images: one model of each.
TEST(OpenInferenceKindsTest, EveryKindOfModelTakesWhatItsMetadataSays) {
  struct Kind {
    const char *folder, *model;
    json inputs;
    std::vector<const char*> outputs;
  };
  const json text = {{"name", "text"}, {"datatype", "BYTES"}, {"shape", {2}}, {"data", {"the cat", "a dog sat"}}};
  const json pair = {{"name", "text_pair"}, {"datatype", "BYTES"}, {"shape", {2, 1}}, {"data", {"a", "b"}}};
  const auto ids = [](const char* name) {
    return json{{"name", name}, {"datatype", "INT32"}, {"shape", {2, 2}}, {"data", {5, 6, 7, 8}}};
  };
  const Kind kinds[] = {
      {"_sentence", "mean", {text}, {"embedding", "stddev"}},
      {"_sentence", "cross_encoder", {text, pair}, {"values", "stddev"}},
      {"_sentence", "cross_encoder_labels", {text, pair}, {"probabilities", "label"}},
      {"_hugging_face", "bert_tokens", {text}, {"probabilities", "label_id", "begin", "end"}},
      {"_hugging_face", "gpt2_causal", {text}, {"log_likelihood", "perplexity"}},
      {"", "sbm-pair", {ids("input_ids"), ids("input_ids_pair")}, {"probabilities"}},
      {"", "sbm-tokens", {ids("input_ids")}, {"label_id"}},
      {"", "regression", {ids("input_ids")}, {"values"}},
      {"", "lm-dense", {ids("input_ids")}, {"perplexity"}},
  };
  std::string open;
  std::unique_ptr<HttpServerFixture> http;
  for (const Kind& kind : kinds) {
    if (!http || open != kind.folder) {
      http.reset();
      http = std::make_unique<HttpServerFixture>(HttpOptions(tests::TestdataFolder() + kind.folder));
      open = kind.folder;
    }
    const std::string path = std::string("/v2/models/") + kind.model;
    const json metadata = json::parse(http->Get(path).body);
    const json answer = http->Answer(path + "/infer", {{"inputs", kind.inputs}});
    std::vector<std::string> names;
    ASSERT_EQ(answer["outputs"].size(), metadata["outputs"].size()) << kind.model;
    for (size_t i = 0; i < answer["outputs"].size(); ++i) {
      const json &output = answer["outputs"][i], &said = metadata["outputs"][i];
      names.push_back(output["name"]);
      EXPECT_EQ(output["name"], said["name"]);
      EXPECT_EQ(output["datatype"], said["datatype"]);
      ASSERT_EQ(output["shape"].size(), said["shape"].size()) << output;
      int64_t count = 1;
      for (size_t d = 0; d < said["shape"].size(); ++d) {
        count *= output["shape"][d].get<int64_t>();
        if (said["shape"][d] != -1) {
          EXPECT_EQ(output["shape"][d], said["shape"][d]) << output["name"];
        }
      }
      EXPECT_EQ(output["shape"][0], 2);
      EXPECT_EQ(output["data"].size(), static_cast<size_t>(count)) << output["name"];
    }
    for (const char* name : kind.outputs) EXPECT_THAT(names, ::testing::Contains(name)) << kind.model;
  }
}

TEST(OpenInferenceGuardTest, TokensAreNeededAndDrainsAreTold) {
  const std::string tokens = ::testing::TempDir() + "oip_tokens";
  std::ofstream(tokens) << "0123456789abcdef\n";
  ServerOptions options = HttpOptions();
  options.security.auth_token_file = tokens;
  HttpServerFixture http(options);
  const std::string bytes = SmallInfer().SerializeAsString();
  EXPECT_EQ(http.server.Call(kModelInfer, bytes).error_code(), grpc::UNAUTHENTICATED);
  for (const char* method : {"ServerLive", "ServerReady", "ModelReady"}) {
    EXPECT_EQ(http.server.Call(std::string(kService) + method, "").error_code(), grpc::UNAUTHENTICATED) << method;
  }
  EXPECT_TRUE(http.server.Call(kModelInfer, bytes, nullptr, "0123456789abcdef").ok());
  EXPECT_EQ(http.Post(kInfer, SmallBody()).code, 401);
  EXPECT_EQ(http.Get("/v2/models/sbm").code, 401);
  EXPECT_EQ(http.Get("/v2/health/ready").code, 200);
  EXPECT_EQ(http.Post(kInfer, SmallBody(), "Authorization: Bearer 0123456789abcdef\r\n").code, 200);
  http.server.server().AnnounceDrain();
  std::string answer;
  EXPECT_TRUE(http.server.Call(std::string(kService) + "ServerReady", "", &answer, "0123456789abcdef").ok());
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(ready.ParseFromString(answer) && !ready.ready());
  EXPECT_EQ(json::parse(http.Get("/v2/health/ready").body)["ready"], false);
}

}  // namespace
}  // namespace edgewise::server
