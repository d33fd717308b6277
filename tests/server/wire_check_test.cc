// The walk over the bytes of a message before it is parsed.
#include "server/wire/wire_check.h"

#include <gmock/gmock.h>
#include <google/protobuf/arena.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <random>
#include <string>

#include "edgewise/v1/inference.pb.h"
#include "oip/v2/open_inference.pb.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

// `chunk`: the bytes come in pieces of this size, as from a network.
absl::Status Check(const std::string& bytes, WireCounts& counts, int chunk = -1) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()), chunk);
  return CheckWire(stream, *v1::PredictRequest::descriptor(), counts);
}

// Every kind of field that the message knows.
v1::PredictRequest FullRequest(int inputs) {
  v1::PredictRequest request;
  request.set_model("model");
  request.set_version(-1);
  request.mutable_budget()->set_max_density(0.5);
  request.mutable_ensemble()->set_seed(~uint64_t{0});
  request.mutable_override()->add_sigma(0.25);
  for (int i = 0; i < inputs; ++i) {
    v1::Input* input = request.add_inputs();
    for (int id = -3; id < 300; ++id) input->mutable_sequence()->mutable_token_ids()->add_values(id);
    input->mutable_sequence()->mutable_bias()->set_buckets(std::string(10, 'b'));
    input->mutable_second()->set_text("some text");
    v1::Graph::Head* head = input->mutable_graph()->add_layers()->add_heads();
    for (uint32_t key = 0; key < 300; ++key) head->add_keys(key);
    head->add_weights(0.5F);
  }
  return request;
}

TEST(WireCheckTest, CountsThePartsHoweverTheBytesAreCut) {
  const std::string bytes = FullRequest(10).SerializeAsString();
  for (const int chunk : {-1, 1, 7, 64}) {
    WireCounts counts;
    ASSERT_TRUE(Check(bytes, counts, chunk).ok()) << chunk;
    // The model's name, budget, ensemble, override; an input, two sequences, ids, bias, buckets, text, graph, layer,
    // head.
    EXPECT_EQ(counts.parts, 4u + 10u * 10u) << chunk;
  }
}

TEST(WireCheckTest, NoMessageTakesMoreOnAnArenaThanWasCounted) {
  v1::PredictRequest empty_inputs, empty_heads, short_ids, features;
  for (int i = 0; i < 10000; ++i) empty_inputs.add_inputs();
  for (int i = 0; i < 10000; ++i) empty_inputs.mutable_inputs(i)->mutable_sequence()->mutable_token_ids();
  v1::Graph::Layer* layer = empty_heads.add_inputs()->mutable_graph()->add_layers();
  for (int i = 0; i < 10000; ++i) layer->add_heads()->add_keys(1);
  for (int i = 0; i < 70000; ++i) short_ids.add_inputs()->mutable_sequence()->mutable_token_ids()->add_values(1);
  short_ids.mutable_inputs()->DeleteSubrange(1, short_ids.inputs_size() - 1);
  for (int i = 0; i < 70000; ++i) short_ids.mutable_inputs(0)->mutable_sequence()->mutable_token_ids()->add_values(1);
  for (int i = 0; i < 70000; ++i) features.mutable_override()->add_sigma(1.0);
  std::string unknown;
  for (int i = 0; i < 10000; ++i) unknown += std::string("\xfa\x7d\x00", 3);
  for (const std::string& bytes :
       {std::string(), FullRequest(100).SerializeAsString(), empty_inputs.SerializeAsString(),
        empty_heads.SerializeAsString(), short_ids.SerializeAsString(), features.SerializeAsString(), unknown}) {
    WireCounts counts;
    ASSERT_TRUE(Check(bytes, counts).ok());
    google::protobuf::Arena arena;
    auto* message = google::protobuf::Arena::CreateMessage<v1::PredictRequest>(&arena);
    ASSERT_TRUE(message->ParseFromString(bytes));
    EXPECT_LE(message->SpaceUsedLong(), counts.parsed_bytes) << bytes.size();
    EXPECT_LE(arena.SpaceUsed(), counts.parsed_bytes + 512) << bytes.size();
  }
}

TEST(WireCheckTest, NoTensorTakesMoreOnAnArenaThanWasCounted) {
  inference::ModelInferRequest empty, full, parameters, numbers, booleans;
  for (int i = 0; i < 10000; ++i) empty.add_inputs();
  for (int i = 0; i < 1000; ++i) {
    auto& tensor = *full.add_inputs();
    tensor.set_name("input_ids");
    tensor.add_shape(i);
    tensor.mutable_contents()->add_int64_contents(-1);
    tensor.mutable_contents()->add_bytes_contents("x");
    (*tensor.mutable_parameters())["a"];
    (*full.add_outputs()->mutable_parameters())["b"].set_string_param("value");
    full.add_raw_input_contents("bytes");
  }
  for (int i = 0; i < 10000; ++i) (*parameters.mutable_parameters())[std::to_string(i)].set_int64_param(i);
  numbers.add_inputs();
  booleans.add_inputs();
  for (int i = 0; i < 70000; ++i) numbers.mutable_inputs(0)->add_shape(1);
  for (int i = 0; i < 70000; ++i) numbers.mutable_inputs(0)->mutable_contents()->add_uint64_contents(1);
  for (int i = 0; i < 70000; ++i) numbers.mutable_inputs(0)->mutable_contents()->add_fp64_contents(1.0);
  for (int i = 0; i < 70000; ++i) booleans.mutable_inputs(0)->mutable_contents()->add_bool_contents(true);
  for (const auto* message : {&empty, &full, &parameters, &numbers, &booleans}) {
    const std::string bytes = message->SerializeAsString();
    google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
    WireCounts counts;
    ASSERT_TRUE(CheckWire(stream, *inference::ModelInferRequest::descriptor(), counts).ok());
    google::protobuf::Arena arena;
    auto* parsed = google::protobuf::Arena::CreateMessage<inference::ModelInferRequest>(&arena);
    ASSERT_TRUE(parsed->ParseFromString(bytes));
    EXPECT_LE(parsed->SpaceUsedLong(), counts.parsed_bytes) << bytes.size();
    EXPECT_LE(arena.SpaceUsed(), counts.parsed_bytes + 512) << bytes.size();
  }
}

TEST(WireCheckTest, MessagesOfAChatAreCountedWithTheirTexts) {
  v1::GenerateRequest request;
  for (int i = 0; i < 1000; ++i) request.add_messages();
  for (int i = 0; i < 500; ++i) request.mutable_messages(i)->set_role("user");
  for (int i = 0; i < 500; ++i) request.mutable_messages(i)->set_content(std::string(100, 'a'));
  const std::string bytes = request.SerializeAsString();
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  WireCounts counts;
  ASSERT_TRUE(CheckWire(stream, *v1::GenerateRequest::descriptor(), counts).ok());
  EXPECT_EQ(counts.parts, 1000u + 2u * 500u);
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<v1::GenerateRequest>(&arena);
  ASSERT_TRUE(message->ParseFromString(bytes));
  EXPECT_LE(message->SpaceUsedLong(), counts.parsed_bytes);
  EXPECT_LE(arena.SpaceUsed(), counts.parsed_bytes + 512);
}

TEST(WireCheckTest, ManyEmptyPartsAreRefusedWithTheLimit) {
  std::string bytes, unknown;
  for (uint64_t i = 0; i <= kMaxParts; ++i) bytes.append("\x1a\x00", 2);  // inputs: an empty one
  for (uint64_t i = 0; i <= kMaxParts; ++i) unknown.append("\xf8\x7d\x01", 3);
  WireCounts counts;
  for (const std::string& many : {bytes, unknown}) {
    const absl::Status status = Check(many, counts);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("more than 131072 parts"));
  }
  EXPECT_TRUE(Check(bytes.substr(2), counts).ok());
  EXPECT_EQ(counts.parts, kMaxParts);
}

TEST(WireCheckTest, BytesThatAreNoMessageAreRefusedWithTheirPlace) {
  const std::pair<std::string, const char*> cases[] = {
      {"\xff\xff\xff\xff", "broken tag, at byte"},
      {FullRequest(1).SerializeAsString() + "\x1a", "broken length"},
      {FullRequest(1).SerializeAsString() + "\x1a\x05x", "broken number"},
      {std::string("\x00\x01", 2), "broken tag"},
      {"\x0a\x05x", "a field that ends behind it"},
      {"\x7c", "ends a group that it did not begin"},
      {std::string(200, '\x7b'), "nests too deep"},
      {std::string("\x1a\x02\x0a\x7f", 4), "a part that ends behind it"},
  };
  for (const auto& [bytes, message] : cases) {
    WireCounts counts;
    const absl::Status status = Check(bytes, counts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_FALSE(v1::PredictRequest().ParseFromString(bytes)) << message;
  }
}

TEST(WireCheckTest, ChangedBytesThatParseAreNeverBroken) {
  const std::string bytes = FullRequest(2).SerializeAsString();
  std::mt19937 random(1);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    if (i % 2 == 0) changed.resize(1 + random() % bytes.size());
    for (uint32_t change = random() % 3; change > 0; --change) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (!v1::PredictRequest().ParseFromString(changed)) continue;
    ++parsed;
    WireCounts counts;
    const absl::Status status = Check(changed, counts, 1 + static_cast<int>(random() % 100));
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_GT(parsed, 1000);
}

}  // namespace
}  // namespace edgewise::server
