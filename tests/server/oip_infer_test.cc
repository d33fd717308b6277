// Calls of the Open Inference Protocol become the requests that they mean, or are refused by the names that they have.
#include <gmock/gmock.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "server/oip/infer.h"
#include "server/oip/json.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

using inference::ModelInferRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename Value>
std::string Raw(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

std::string Elements(const std::vector<std::string>& texts) {
  std::string raw;
  for (const std::string& text : texts) raw += Raw<uint32_t>({static_cast<uint32_t>(text.size())}) + text;
  return raw;
}

void Add(const std::string& name, const std::string& datatype, const std::vector<int64_t>& shape,
         const std::string& raw, ModelInferRequest& message) {
  auto& tensor = *message.add_inputs();
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  message.add_raw_input_contents(raw);
}

ModelInferRequest Ids(const std::vector<int64_t>& shape, const std::vector<int64_t>& ids) {
  ModelInferRequest message;
  Add("input_ids", "INT64", shape, Raw(ids), message);
  return message;
}

ModelInferRequest Texts(const std::vector<int64_t>& shape, const std::vector<std::string>& texts) {
  ModelInferRequest message;
  Add("text", "BYTES", shape, Elements(texts), message);
  return message;
}

std::unique_ptr<Model> Encoder() {
  return LoadModel(tests::TestdataFolder() + "_sentence/mean/1", TestBackend()).value();
}

class InferTest : public ::testing::Test {
 protected:
  absl::Status Read(const ModelInferRequest& message, const Model& model) {
    call_ = {};
    MemoryHold memory;
    const auto tensors = TensorsOf(message);
    if (!tensors.ok()) return tensors.status();
    return call_.Named(ReadInfer(model, limits_, message, *tensors, {memory}, call_));
  }
  absl::Status Read(const ModelInferRequest& message) { return Read(message, *model_); }
  std::string Error(const ModelInferRequest& message, const Model& model) {
    const absl::Status status = Read(message, model);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message.ShortDebugString();
    EXPECT_FALSE(FieldOf(status).empty()) << status;
    return std::string(status.message());
  }
  std::string Error(const ModelInferRequest& message) { return Error(message, *model_); }
  const google::protobuf::RepeatedField<int32_t>& IdsOf(int input) {
    return call_.request.inputs(input).sequence().token_ids().values();
  }

  const std::unique_ptr<Model> model_ = LoadTestModel("sbm");
  RequestLimits limits_;
  InferCall call_;
};

TEST_F(InferTest, IdsAreTheSameRawOrTypedOrOf32Bits) {
  ModelInferRequest typed, narrow, narrow_typed;
  for (ModelInferRequest* message : {&typed, &narrow_typed}) {
    Add("input_ids", message == &typed ? "INT64" : "INT32", {2, 3}, "", *message);
    message->clear_raw_input_contents();
  }
  for (const int id : {1, 2, 3, 4, 5, 6}) {
    typed.mutable_inputs(0)->mutable_contents()->add_int64_contents(id);
    narrow_typed.mutable_inputs(0)->mutable_contents()->add_int_contents(id);
  }
  Add("input_ids", "INT32", {2, 3}, Raw<int32_t>({1, 2, 3, 4, 5, 6}), narrow);
  for (const ModelInferRequest& message : {Ids({2, 3}, {1, 2, 3, 4, 5, 6}), typed, narrow, narrow_typed}) {
    ASSERT_TRUE(Read(message).ok()) << Read(message);
    ASSERT_EQ(call_.request.inputs_size(), 2);
    EXPECT_THAT(IdsOf(0), ElementsAre(1, 2, 3));
    EXPECT_THAT(IdsOf(1), ElementsAre(4, 5, 6));
  }
}

// A parameter of all texts is a part of each input.
TEST_F(InferTest, CopiesOfAParameterAreCountedBeforeTheyAreMade) {
  constexpr int kInputs = 500;
  constexpr size_t kName = 10'000;
  ModelInferRequest message = Ids({kInputs, 1}, std::vector<int64_t>(kInputs, 1));
  message.set_id(std::string(kName, 'i'));
  (*message.mutable_parameters())["prompt_name"].set_string_param(std::string(kName, 'p'));
  (*message.mutable_parameters())["profile"].set_string_param(std::string(kName, 'f'));
  const std::vector<InputTensor> tensors = *TensorsOf(message);
  const auto read = [&](uint64_t ledger_limit, uint64_t message_limit, int inputs) {
    MemoryLedger ledger(ledger_limit);
    MemoryHold memory(ledger);
    const auto wanted = [&inputs] { return inputs-- > 0 ? absl::OkStatus() : absl::DeadlineExceededError("late"); };
    call_ = {};
    const absl::Status status = ReadInfer(*model_, limits_, message, tensors, {memory, message_limit, wanted}, call_);
    EXPECT_LE(call_.request.SpaceUsedLong() + call_.id.size(), memory.bytes() + 1024);
    return status;
  };
  constexpr uint64_t kCopies = kInputs * kName;
  EXPECT_TRUE(read(10 * kCopies, kCopies, 2 * kInputs).ok());
  EXPECT_EQ(call_.request.inputs(kInputs - 1).sequence().prompt_name().size(), kName);
  const absl::Status long_message = read(10 * kCopies, kCopies - 1, 2 * kInputs);
  EXPECT_EQ(long_message.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(long_message.message()), StartsWith("the inputs take 5000000 bytes"));
  EXPECT_LT(call_.request.SpaceUsedLong(), kCopies / 5);
  EXPECT_EQ(read(kCopies, kCopies, 2 * kInputs).code(), absl::StatusCode::kResourceExhausted) << "the ledger";
  EXPECT_LT(call_.request.SpaceUsedLong(), kCopies / 5);
  for (const int inputs : {0, kInputs / 2, kInputs, 2 * kInputs - 1}) {
    EXPECT_EQ(read(10 * kCopies, kCopies, inputs).code(), absl::StatusCode::kDeadlineExceeded) << inputs;
  }
}

TEST_F(InferTest, MaskedPositionsAreLeftOutOnEitherSide) {
  ModelInferRequest message = Ids({3, 4}, {1, 2, 0, 0, 0, 0, 3, 4, 5, 6, 7, 8});
  Add("attention_mask", "INT32", {3, 4}, Raw<int32_t>({1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}), message);
  ASSERT_TRUE(Read(message).ok());
  EXPECT_THAT(IdsOf(0), ElementsAre(1, 2));
  EXPECT_THAT(IdsOf(1), ElementsAre(3, 4));
  EXPECT_THAT(IdsOf(2), ElementsAre(5, 6, 7, 8));
  // Errors count the positions that were left out.
  EXPECT_EQ(FieldOf(call_.Named(FieldError("inputs[1].sequence.token_ids[1]", "is wrong"))), "input_ids[1][3]");
  EXPECT_EQ(FieldOf(call_.Named(FieldError("inputs[0].sequence.token_ids[1]", "is wrong"))), "input_ids[0][1]");
  const auto mask = [&](const std::vector<int32_t>& ones) {
    *message.mutable_raw_input_contents(1) = Raw(ones);
    return Error(message);
  };
  EXPECT_THAT(mask({1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1}), StartsWith("attention_mask[0][2] is 1 behind a 0"));
  EXPECT_THAT(mask({1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}), StartsWith("attention_mask[1] is 0 everywhere"));
  EXPECT_THAT(mask({1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1}), StartsWith("attention_mask[1][1] is 2"));
  message.mutable_inputs(1)->set_shape(0, 4);
  message.mutable_inputs(1)->set_shape(1, 3);
  EXPECT_THAT(Error(message), StartsWith("attention_mask.shape is [4, 3]; that of input_ids is [3, 4]"));
}

TEST_F(InferTest, TextsAreInputsOfOneOrTwoDimensions) {
  const std::unique_ptr<Model> encoder = Encoder();
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {2, 1}}) {
    ASSERT_TRUE(Read(Texts(shape, {"the cat", ""}), *encoder).ok());
    ASSERT_EQ(call_.request.inputs_size(), 2);
    EXPECT_EQ(call_.request.inputs(0).sequence().text(), "the cat");
    EXPECT_EQ(call_.request.inputs(1).sequence().text(), "");
  }
  EXPECT_THAT(Error(Texts({1, 2}, {"a", "b"}), *encoder), StartsWith("text.shape is [1, 2]; expected is [inputs]"));
  EXPECT_THAT(Error(Texts({2}, {"a", "\xFFz"}), *encoder), StartsWith("text[1] is no UTF-8, at byte 0"));
}

TEST_F(InferTest, NoSizeOfATensorIsBelieved) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{},
                                            {1},
                                            {1, 1, 1},
                                            {-1, 3},
                                            {-1, -3},
                                            {0, 3},
                                            {3, 0},
                                            {kLeast, kLeast},
                                            {kMost, kMost},
                                            {kMost, 2},
                                            {int64_t{1} << 32, int64_t{1} << 32},
                                            {int64_t{1} << 61, 8},
                                            {int64_t{1} << 63 >> 1, 4}}) {
    EXPECT_THAT(Error(Ids(shape, {1, 2, 3})), StartsWith("input_ids.shape is ["));
  }
  EXPECT_THAT(Error(Ids(std::vector<int64_t>(1000, 2), {1})), HasSubstr("2, ...]"));
  EXPECT_THAT(Error(Ids({1, 4}, {1, 2, 3})),
              StartsWith("input_ids.data has 24 bytes; the shape [1, 4] of INT64 has 32"));
  EXPECT_THAT(Error(Ids({1, 2}, {1, 2, 3})), StartsWith("input_ids.data has 24 bytes"));
  EXPECT_THAT(Error(Ids({1, int64_t{1} << 30}, {})), StartsWith("input_ids.data has 0 bytes"));
  ModelInferRequest message = Ids({1, 3}, {1, 2, 3});
  message.mutable_raw_input_contents(0)->pop_back();
  EXPECT_THAT(Error(message), StartsWith("input_ids.data has 23 bytes"));
  EXPECT_THAT(Error(Ids({1, 2}, {1, int64_t{1} << 31})), StartsWith("input_ids[0][1] is 2147483648"));

  const std::unique_ptr<Model> encoder = Encoder();
  const auto bytes = [&](const std::string& raw, int64_t n = 2) {
    ModelInferRequest texts;
    Add("text", "BYTES", {n}, raw, texts);
    return Error(texts, *encoder);
  };
  EXPECT_THAT(bytes(""), StartsWith("text.data ends within element 0"));
  EXPECT_THAT(bytes(Elements({"a"})), StartsWith("text.data ends within element 1"));
  EXPECT_THAT(bytes(Elements({"a"}) + std::string("\1\0", 2)), StartsWith("text.data ends within element 1"));
  EXPECT_THAT(bytes(Raw<uint32_t>({0xFFFFFFFF}) + "abc"), StartsWith("text.data ends within element 0"));
  EXPECT_THAT(bytes(Raw<uint32_t>({4}) + "abc"), StartsWith("text.data ends within element 0"));
  EXPECT_THAT(bytes(Elements({"a", "b"}) + "c"), StartsWith("text.data has 1 bytes behind the 2 elements"));
  EXPECT_THAT(bytes(Elements({"a"}), 5000), StartsWith("text.shape has 5000 inputs; the server takes at most 1024"));
  EXPECT_THAT(bytes(Elements({"a"}), kMost), StartsWith("text.shape is ["));
}

TEST_F(InferTest, TensorsThatAreNotTakenAreNamed) {
  const ModelInferRequest good = Ids({1, 3}, {1, 2, 3});
  ModelInferRequest message = good;
  message.mutable_inputs(0)->set_name("inputs_ids");
  EXPECT_THAT(Error(message), StartsWith(R"(inputs[0].name is "inputs_ids"; did you mean input_ids?)"));
  message = good;
  message.mutable_inputs(0)->set_datatype("FP32");
  EXPECT_THAT(Error(message), StartsWith(R"(input_ids.datatype is "FP32"; allowed are INT64 and INT32)"));
  message = good;
  message.mutable_inputs(0)->mutable_contents()->add_int64_contents(1);
  EXPECT_THAT(Error(message), StartsWith("inputs[0].contents is given beside raw_input_contents"));
  message.clear_raw_input_contents();
  EXPECT_THAT(Error(message), StartsWith("input_ids.data has 1 elements; the shape [1, 3] has 3"));
  message.mutable_inputs(0)->mutable_contents()->add_int_contents(1);
  EXPECT_THAT(Error(message), StartsWith("input_ids.contents has elements of another datatype"));
  message = good;
  message.add_raw_input_contents("");
  EXPECT_THAT(Error(message), StartsWith("raw_input_contents has 2 entries for 1 inputs"));
  message = good;
  Add("input_ids", "INT64", {1, 1}, Raw<int64_t>({1}), message);
  EXPECT_THAT(Error(message), StartsWith("inputs[1].name is input_ids twice"));
  for (int i = 0; i < 20; ++i) message.add_inputs();
  EXPECT_THAT(Error(message), StartsWith("inputs has 22 tensors"));
  EXPECT_THAT(Error(ModelInferRequest()), StartsWith("inputs has no tensor with inputs"));
  message = good;
  (*message.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("x");
  EXPECT_THAT(Error(message), HasSubstr("shared memory, which is not served"));
  message.Clear();
  Add("attention_mask", "INT64", {1, 1}, Raw<int64_t>({1}), message);
  EXPECT_THAT(Error(message), StartsWith("attention_mask is given without input_ids"));

  const std::unique_ptr<Model> encoder = Encoder();
  message = good;
  Add("text", "BYTES", {1}, Elements({"a"}), message);
  EXPECT_THAT(Error(message, *encoder), StartsWith("input_ids is given beside text"));
  const std::unique_ptr<Model> pairs = LoadTestModel("sbm-pair");
  EXPECT_EQ(Error(good, *pairs), "inputs has the first of a pair alone; the second is input_ids_pair");
  message.Clear();
  Add("input_ids_pair", "INT64", {1, 2}, Raw<int64_t>({1, 2}), message);
  EXPECT_EQ(Error(message, *pairs), "inputs has the second of a pair alone; the first is input_ids");
  const std::unique_ptr<Model> ranker =
      LoadModel(tests::TestdataFolder() + "_sentence/cross_encoder/1", TestBackend()).value();
  message.Clear();
  Add("text_pair", "BYTES", {1}, Elements({"a"}), message);
  EXPECT_EQ(Error(message, *ranker), "inputs has the second of a pair alone; the first is text or input_ids");
  message = good;
  Add("input_ids_pair", "INT64", {2, 1}, Raw<int64_t>({1, 2}), message);
  EXPECT_THAT(Error(message, *pairs), StartsWith("input_ids_pair.shape has 2 inputs; the tensor before it has 1"));
}

TEST_F(InferTest, FeaturesAreRowsOfFloats) {
  const std::unique_ptr<Model> model = LoadTestModel("features");
  const auto columns = static_cast<int64_t>(model->config().feature_size);
  std::vector<float> values(static_cast<size_t>(2 * 3 * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 8;
  ModelInferRequest message;
  Add("features", "FP32", {2, 3, columns}, "x" + Raw(values), message);
  message.mutable_raw_input_contents(0)->erase(0, 1);
  ASSERT_TRUE(Read(message, *model).ok()) << Read(message, *model);
  ASSERT_EQ(call_.request.inputs_size(), 2);
  const v1::Features& second = call_.request.inputs(1).sequence().features();
  EXPECT_EQ(second.rows(), 3u);
  EXPECT_EQ(second.columns(), static_cast<uint32_t>(columns));
  ASSERT_EQ(second.values_size(), 3 * columns);
  EXPECT_EQ(second.values(0), values[static_cast<size_t>(3 * columns)]);
  message.mutable_inputs(0)->set_shape(0, 3);
  EXPECT_THAT(Error(message, *model), StartsWith("features.data has "));
}

TEST_F(InferTest, ParametersMayBeOfAnyKindOfNumber) {
  ModelInferRequest message = Ids({1, 3}, {1, 2, 3});
  auto& parameters = *message.mutable_parameters();
  parameters["max_density"].set_string_param("0.25");
  parameters["samples"].set_double_param(3.0);
  parameters["seed"].set_uint64_param(~uint64_t{0});
  parameters["tolerance"].set_int64_param(1);
  parameters["priority"].set_uint64_param(1);
  parameters["allow_degraded"].set_bool_param(true);
  parameters["keep"].set_string_param("PROBABLE");
  parameters["profile"].set_string_param("fast");
  parameters["override"].set_string_param(R"({"kind": "ssa", "windows": 2, "sigma": [0.5]})");
  parameters["timeout"].set_string_param("1500");
  parameters["truncate"].set_string_param("TAIL");
  parameters["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(Read(message).ok()) << Read(message);
  const v1::PredictRequest& request = call_.request;
  EXPECT_EQ(request.budget().max_density(), 0.25);
  EXPECT_EQ(request.budget().keep(), v1::PROBABLE);
  EXPECT_TRUE(request.budget().allow_degraded());
  EXPECT_EQ(request.ensemble().samples(), 3u);
  EXPECT_EQ(request.ensemble().seed(), ~uint64_t{0});
  EXPECT_EQ(request.ensemble().tolerance(), 1.0);
  EXPECT_EQ(request.priority(), 1u);
  EXPECT_EQ(request.profile(), "fast");
  EXPECT_EQ(request.override().windows(), 2u);
  EXPECT_EQ(request.inputs(0).sequence().truncate(), v1::TAIL);
  EXPECT_EQ(call_.timeout, std::chrono::microseconds(1500));
  EXPECT_EQ(call_.DeadlineOf(Time(), Time::max()), Time() + std::chrono::microseconds(1500));
  EXPECT_EQ(call_.DeadlineOf(Time(), Time() + Clock::duration(5)), Time() + Clock::duration(5));
}

TEST_F(InferTest, ParametersThatAreWrongAreNamed) {
  const auto error = [&](const std::string& key, auto set) {
    ModelInferRequest message = Ids({1, 3}, {1, 2, 3});
    set((*message.mutable_parameters())[key]);
    return Error(message);
  };
  const auto text = [](const char* value) {
    return [value](inference::InferParameter& parameter) { parameter.set_string_param(value); };
  };
  EXPECT_THAT(error("max_densty", text("1")), AllOf(HasSubstr("did you mean max_density?"), HasSubstr("first_sample")));
  EXPECT_THAT(error("max_edges", text("many")), StartsWith(R"(parameters.max_edges is "many"; expected an integer)"));
  EXPECT_THAT(error("max_edges", [](auto& parameter) { parameter.set_int64_param(-1); }), HasSubstr("is -1; expected"));
  EXPECT_THAT(error("max_edges", [](auto& parameter) { parameter.set_double_param(0.5); }),
              HasSubstr("is 0.5; expected"));
  EXPECT_THAT(error("samples", [](auto& parameter) { parameter.set_bool_param(true); }),
              HasSubstr("is true; expected an integer from 1 to 256"));
  EXPECT_THAT(error("keep", text("BEST")),
              StartsWith(R"(parameters.keep is "BEST"; expected KEEP_MODEL_DEFAULT, RANDOM, PROBABLE)"));
  EXPECT_THAT(error("override", text("{\"kind\": 3}")), StartsWith("parameters.override.kind is 3; expected a string"));
  EXPECT_THAT(error("timeout", text("-3")),
              StartsWith(R"(parameters.timeout is "-3"; expected an integer from 0 to 86400000000)"));
  EXPECT_THAT(error("timeout", text("86400000001")), StartsWith(R"(parameters.timeout is "86400000001")"));
  EXPECT_THAT(error("sequence_id", text("1")), HasSubstr("not served"));
  EXPECT_THAT(error("seed", [](auto&) {}), HasSubstr(R"(is ""; expected an integer)"));
  ModelInferRequest both = Ids({1, 3}, {1, 2, 3});
  (*both.mutable_parameters())["max_edges"].set_int64_param(5);
  (*both.mutable_parameters())["max_density"].set_double_param(0.5);
  EXPECT_THAT(Error(both), HasSubstr("is given beside another cap"));
}

TEST_F(InferTest, ErrorsOfOurFieldsHaveTheNamesOfThisProtocol) {
  const auto named = [&](const std::string& field) {
    const absl::Status status = call_.Named(FieldError(field, "is wrong"));
    EXPECT_EQ(status.message(), FieldOf(status) + " is wrong");
    return FieldOf(status);
  };
  EXPECT_EQ(named("inputs[3].sequence.text"), "text[3]");
  EXPECT_EQ(named("inputs[3].second.text"), "text_pair[3]");
  EXPECT_EQ(named("inputs[0].sequence.token_ids[12]"), "input_ids[0][12]");
  EXPECT_EQ(named("inputs[0].sequence.features"), "features[0]");
  EXPECT_EQ(named("inputs[0].sequence.prompt_name"), "parameters.prompt_name");
  EXPECT_EQ(named("inputs[0].second"), "text_pair[0]");
  EXPECT_EQ(named("budget.max_density"), "parameters.max_density");
  EXPECT_EQ(named("ensemble.samples"), "parameters.samples");
  EXPECT_EQ(named("override.sigma[0]"), "parameters.override.sigma[0]");
  EXPECT_EQ(named("request_id"), "id");
  EXPECT_EQ(named("text.shape"), "text.shape");
  EXPECT_EQ(call_.Named(absl::UnavailableError("inputs is")).message(), "inputs is");
}

TEST_F(InferTest, OutputsAreAllOfTheMetadataOrThoseNamed) {
  ModelInferRequest message = Ids({1, 3}, {1, 2, 3});
  const auto names = [&] {
    std::vector<std::string> all;
    for (const OutputTensorInfo& info : call_.outputs) all.emplace_back(info.name);
    return all;
  };
  ASSERT_TRUE(Read(message).ok());
  EXPECT_THAT(names(), ElementsAre("probabilities", "label", "label_id", "stddev", "predictive_entropy",
                                   "mutual_information", "samples", "edges", "density", "budget", "capped"));
  EXPECT_FALSE(call_.request.outputs().logits());
  message.add_outputs()->set_name("edges");
  message.add_outputs()->set_name("logits");
  ASSERT_TRUE(Read(message).ok());
  EXPECT_THAT(names(), ElementsAre("edges", "logits"));
  EXPECT_TRUE(call_.request.outputs().logits());
  message.add_outputs()->set_name("edges");
  EXPECT_THAT(Error(message), StartsWith("outputs[2].name is edges twice"));
  message.mutable_outputs(2)->set_name("embedding");
  EXPECT_THAT(Error(message), StartsWith(R"(outputs[2].name is "embedding"; the model gives)"));
  (*message.mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(2);
  EXPECT_THAT(Error(message), HasSubstr("classification, which is not served"));
}

v1::PredictResponse OfTokens(const std::vector<int>& lengths) {
  v1::PredictResponse response;
  response.set_seed(~uint64_t{0});
  for (const int length : lengths) {
    v1::Prediction& prediction = *response.add_predictions();
    for (int i = 0; i < length; ++i) {
      v1::TokenPrediction& token = *prediction.add_tokens();
      if (i == 1) {
        token.set_pad(true);
        continue;
      }
      token.set_label("L" + std::to_string(i));
      token.set_label_id(i);
      token.add_probabilities(0.25F);
      token.add_probabilities(0.75F);
    }
  }
  return response;
}

TEST_F(InferTest, OutputsOfTokensAreAsLongAsTheLongestInput) {
  const std::unique_ptr<Model> tokens = LoadTestModel("sbm-tokens");
  ModelInferRequest message = Ids({2, 3}, {1, 2, 3, 1, 2, 3});
  for (const char* name : {"label_id", "probabilities", "label"}) message.add_outputs()->set_name(name);
  ASSERT_TRUE(Read(message, *tokens).ok()) << Read(message, *tokens);
  MemoryHold memory;
  inference::ModelInferResponse answer;
  ASSERT_TRUE(WriteInfer(call_, OfTokens({1, 3}), 1000, memory, answer).ok());
  EXPECT_THAT(answer.outputs(0).shape(), ElementsAre(2, 3));
  EXPECT_EQ(answer.raw_output_contents(0), Raw<int32_t>({0, -1, -1, 0, -1, 2}));
  EXPECT_THAT(answer.outputs(1).shape(), ElementsAre(2, 3, 2));
  EXPECT_EQ(answer.raw_output_contents(1), Raw<float>({0.25F, 0.75F, 0, 0, 0, 0, 0.25F, 0.75F, 0, 0, 0.25F, 0.75F}));
  EXPECT_EQ(answer.raw_output_contents(2), Elements({"L0", "", "", "L0", "", "L2"}));
  EXPECT_EQ(answer.parameters().at("seed").string_param(), "18446744073709551615");
}

TEST_F(InferTest, OutputsOfTokensStandAtTheColumnsOfTheirIds) {
  const std::unique_ptr<Model> tokens = LoadTestModel("sbm-tokens");
  ModelInferRequest message = Ids({2, 5}, {0, 0, 1, 2, 3, 1, 0, 0, 0, 0});
  Add("attention_mask", "INT32", {2, 5}, Raw<int32_t>({0, 0, 1, 1, 1, 1, 0, 0, 0, 0}), message);
  for (const char* name : {"label_id", "probabilities", "label", "begin"}) message.add_outputs()->set_name(name);
  ASSERT_TRUE(Read(message, *tokens).ok()) << Read(message, *tokens);
  v1::PredictResponse response = OfTokens({3, 1});
  response.mutable_predictions(0)->mutable_tokens(0)->set_begin(4);
  MemoryHold memory;
  inference::ModelInferResponse answer;
  ASSERT_TRUE(WriteInfer(call_, response, 1000, memory, answer).ok());
  EXPECT_THAT(answer.outputs(0).shape(), ElementsAre(2, 5));
  EXPECT_EQ(answer.raw_output_contents(0), Raw<int32_t>({-1, -1, 0, -1, 2, 0, -1, -1, -1, -1}));
  EXPECT_EQ(answer.raw_output_contents(1),
            Raw<float>({0, 0, 0, 0, 0.25F, 0.75F, 0, 0, 0.25F, 0.75F, 0.25F, 0.75F, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(answer.raw_output_contents(2), Elements({"", "", "L0", "", "L2", "L0", "", "", "", ""}));
  EXPECT_EQ(answer.raw_output_contents(3), Raw<uint32_t>({0, 0, 4, 0, 0, 0, 0, 0, 0, 0})) << "no column";
}

TEST_F(InferTest, AnswersThatGrowByTheirLongestInputAreBounded) {
  const std::unique_ptr<Model> tokens = LoadTestModel("sbm-tokens");
  ASSERT_TRUE(Read(Ids({1, 3}, {1, 2, 3}), *tokens).ok());
  std::vector<int> lengths(100, 1);
  lengths[0] = 1000;
  MemoryLedger ledger(1 << 20);
  MemoryHold memory(ledger), none;
  inference::ModelInferResponse answer;
  EXPECT_EQ(WriteInfer(call_, OfTokens(lengths), 1 << 20, none, answer).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(WriteInfer(call_, OfTokens(lengths), 1 << 30, memory, answer).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(answer.outputs_size(), 0);
  EXPECT_TRUE(WriteInfer(call_, OfTokens(lengths), 1 << 30, none, answer).ok());
}

class InferBodyTest : public InferTest {
 protected:
  absl::Status ReadBody(const std::string& body, const std::string& length = "") {
    body_ = {};
    MemoryHold memory;
    return ReadInferBody(body, length, memory, body_);
  }
  std::string BodyError(const std::string& body, const std::string& length = "") {
    const absl::Status status = ReadBody(body, length);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    return std::string(status.message());
  }
  static std::string WithData(const std::string& data, const std::string& datatype = "INT64") {
    return R"({"inputs":[{"name":"input_ids","datatype":")" + datatype + R"(","shape":[2,2],"data":)" + data + "}]}";
  }
  static std::string WithSize(const std::string& size, const std::string& more = "") {
    return R"({"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1,2],"parameters":{"binary_data_size":)" +
           size + "}" + more + "}]}";
  }

  InferBody body_;
};

TEST_F(InferBodyTest, DataNestsAsItsShapeOrIsFlat) {
  for (const char* data : {"[1,2,3,4]", "[[1,2],[3,4]]", "[1.0,2e0,3,4]"}) {
    ASSERT_TRUE(ReadBody(WithData(data)).ok()) << data << ReadBody(WithData(data));
    EXPECT_THAT(body_.message.inputs(0).contents().int64_contents(), ElementsAre(1, 2, 3, 4));
  }
  for (const char* data : {"1", "null", "{}", "\"x\"", "[1,null]", "[{}]", "[\"1\"]", "[true]", "[1.5]", "[1e300]",
                           "[9223372036854775808]"}) {
    EXPECT_THAT(BodyError(WithData(data)), StartsWith("inputs[0]")) << data;
  }
  for (const char* data : {"[[1,2,3],[4]]", "[[1,2,3,4]]", "[[1],[2],[3],[4]]", "[[[1],2],[[3,[4]]]]", "[1,[2,3],4]",
                           "[[1,2],3,4]", "[1,2,[3,4]]", "[[1,2],[3,4],[]]", "[[1,2],[3,4],[5,6]]", "[[],[]]", "[[]]",
                           "[[[1,2],[3,4]]]", "[[[1,2]],[[3,4]]]"}) {
    EXPECT_THAT(BodyError(WithData(data)), StartsWith("inputs[0].data nests otherwise")) << data;
  }
  EXPECT_TRUE(ReadBody(WithData(R"([["a","b"],["c","d"]])", "BYTES")).ok());
  EXPECT_THAT(BodyError(WithData(R"([[[["a"]]]])", "BYTES")), HasSubstr("nests otherwise"));
  EXPECT_THAT(BodyError(WithData("[1]", "BYTES")), HasSubstr("has an element that is 1; expected a string"));
  EXPECT_THAT(BodyError(WithData("[1e39]", "FP32")), HasSubstr("float32"));
  EXPECT_THAT(BodyError(WithData(std::string(100, '[') + std::string(100, ']'))), HasSubstr("nests deeper"));
}

TEST_F(InferBodyTest, TheBinaryFormIsAskedForByTrueOrFalse) {
  const std::string inputs = R"({"inputs":[],"parameters":{"binary_data_output":)";
  const std::string outputs = R"(,"outputs":[{"name":"a"},{"name":"b","parameters":{"binary_data":)";
  ASSERT_TRUE(ReadBody(inputs + "true}" + outputs + "false}}]}").ok());
  EXPECT_TRUE(body_.binary);
  EXPECT_THAT(body_.binary_outputs, ElementsAre(true, false));
  ASSERT_TRUE(ReadBody(inputs + "false}" + outputs + "true}}]}").ok());
  EXPECT_FALSE(body_.binary);
  EXPECT_THAT(body_.binary_outputs, ElementsAre(false, true));
  for (const char* wrong : {"1", "0", "\"true\"", "\"false\"", "1.0"}) {
    EXPECT_THAT(BodyError(inputs + wrong + "}}"),
                AllOf(StartsWith("parameters.binary_data_output is "), HasSubstr("; expected true or false")));
    EXPECT_THAT(BodyError(absl::StrCat(inputs, "true}", outputs, wrong, "}}]}")),
                AllOf(StartsWith("outputs[1].parameters.binary_data is "), HasSubstr("; expected true or false")));
  }
}

TEST_F(InferBodyTest, BinarySizesMustAddUp) {
  const std::string tail = Raw<int64_t>({1, 2}), head = WithSize("16");
  const std::string length = std::to_string(head.size());
  ASSERT_TRUE(ReadBody(head + tail, length).ok()) << ReadBody(head + tail, length);
  ASSERT_TRUE(body_.tensors[0].raw);
  EXPECT_EQ(*body_.tensors[0].raw, tail);
  EXPECT_THAT(BodyError(head + tail + "x", length), HasSubstr("leave 1 bytes"));
  EXPECT_THAT(BodyError(head + tail.substr(1), length), HasSubstr("binary_data_size is not within the 15 bytes"));
  EXPECT_THAT(BodyError(head, length), HasSubstr("not within the 0 bytes"));
  EXPECT_THAT(BodyError(head), HasSubstr("not within the 0 bytes"));
  EXPECT_THAT(BodyError(head + tail), HasSubstr("no JSON"));
  for (const char* wrong : {"99999", "-1", "x", "1.5", "18446744073709551616", "+10", " 10", "0x10"}) {
    EXPECT_THAT(BodyError(head + tail, wrong), StartsWith("Inference-Header-Content-Length is")) << wrong;
  }
  EXPECT_THAT(BodyError(head + tail, "10"), HasSubstr("no JSON"));
  for (const char* size : {"-1", "17", "1.5", "\"16\"", "true", "18446744073709551615", "9223372036854775807"}) {
    const std::string wrong = WithSize(size);
    EXPECT_THAT(BodyError(wrong + tail, std::to_string(wrong.size())), HasSubstr("binary_data_size")) << size;
  }
  const std::string both = WithSize("16", R"(,"data":[1,2])");
  EXPECT_THAT(BodyError(both + tail, std::to_string(both.size())), HasSubstr("data and binary_data_size"));
  EXPECT_THAT(BodyError(R"({"inputs":[{"name":"a","datatype":"INT64","shape":[1]}]})"), HasSubstr("has no data"));
}

}  // namespace
}  // namespace edgewise::server
