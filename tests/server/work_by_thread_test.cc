// Which threads work on a long message: none that serve calls do anything that grows with it but to read its bytes,
// whatever the method is and whichever field is long.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "server/handler/long_work_threads.h"
#include "tests/server/test_server.h"
#include "tests/server/thread_allocations.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using tests::kLittle;

constexpr int kBytes = 256 << 10;  // of a long field

// A message in which one field is long, and its bytes.
struct LongField {
  std::string name;
  std::string bytes;
};

void AddNumbers(Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& set = *message.GetReflection();
  for (int i = 0; i < kBytes / 2; ++i) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        set.AddInt32(&message, &field, 1);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        set.AddUInt32(&message, &field, 1);
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        set.AddFloat(&message, &field, 1.0f);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        set.AddDouble(&message, &field, 1.0);
        break;
      default:
        FAIL() << field.full_name() << " has a type that this test does not know";
    }
  }
}

// One for every field of `message` that can be long, a part of `root`. `name`: of `message`.
void AddLongFields(const Message& root, Message& message, const std::string& name, std::vector<LongField>& fields) {
  const google::protobuf::Reflection& set = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::unique_ptr<Message> before(message.New());
    before->CopyFrom(message);
    const std::string path = name + "." + field->name();
    const auto add = [&](const std::string& what) {
      fields.push_back({path + what, root.SerializeAsString()});
      message.CopyFrom(*before);
    };
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (field->is_repeated()) {
        for (int part = 0; part < kBytes / 4; ++part) set.AddMessage(&message, field);
        add(", many");
      }
      Message* part = field->is_repeated() ? set.AddMessage(&message, field) : set.MutableMessage(&message, field);
      AddLongFields(root, *part, path, fields);
      message.CopyFrom(*before);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      if (field->is_repeated()) {
        for (int part = 0; part < kBytes / 64; ++part) set.AddString(&message, field, std::string(64, 'a'));
        add(", many");
        set.AddString(&message, field, std::string(kBytes, 'a'));
      } else {
        set.SetString(&message, field, std::string(kBytes, 'a'));
      }
      add("");
    } else if (field->is_repeated()) {
      AddNumbers(message, *field);
      add("");
    }
  }
}

std::vector<LongField> LongFields(Message& root) {
  std::vector<LongField> fields;
  AddLongFields(root, root, root.GetDescriptor()->name(), fields);
  // What a newer client may send: field 1000.
  const std::string length = {static_cast<char>(0x80), static_cast<char>(0x80), kBytes >> 14};
  fields.push_back({"an unknown field", root.SerializeAsString() + "\xc2\x3e" + length + std::string(kBytes, 'a')});
  return fields;
}

class WorkByThreadTest : public ::testing::Test {
 protected:
  static ServerOptions Options() {
    ServerOptions options = TestOptions(tests::TestdataFolder() + "_hugging_face");
    options.limits.allow_graphs = true;
    return options;
  }

  // What a connection and its thread take once is no work of a message.
  WorkByThreadTest() { server_.Call("/edgewise.v1.InferenceService/Predict", ""); }

  // The bytes that each thread allocates for one call.
  std::pair<uint64_t, uint64_t> Allocated(const std::string& method, const std::string& bytes) {
    const tests::Allocations allocated =
        tests::AllocationsDuring([&] { server_.Call("/edgewise.v1.InferenceService/" + method, bytes); });
    return {allocated.calls, allocated.preparation};
  }

  void ExpectWorkApart(const std::string& method, Message& root, size_t least) {
    const std::vector<LongField> fields = LongFields(root);
    EXPECT_GE(fields.size(), least) << "of " << method;
    for (const LongField& field : fields) {
      ASSERT_GE(field.bytes.size(), size_t{kBytes} / 2) << field.name;
      const auto [calls, preparation] = Allocated(method, field.bytes);
      EXPECT_LT(calls, kLittle) << method << " of " << field.name << ", on the thread of calls";
      EXPECT_GT(preparation, field.bytes.size() / 2) << method << " of " << field.name << ", where it belongs";
    }
  }

  TestServer server_{Options()};
};

TEST_F(WorkByThreadTest, WhateverIsLongInAMessageIsNoWorkForTheThreadsOfCalls) {
  v1::PredictRequest predict;
  predict.set_model("bert_sequence");
  ExpectWorkApart("Predict", predict, 25);
  ExpectWorkApart("PredictStream", predict, 25);
  v1::GenerateRequest generate;
  generate.set_model("gpt2_untied");  // which has a chat template
  generate.set_max_new_tokens(1);
  ExpectWorkApart("Generate", generate, 15);
  v1::GetModelRequest get;
  ExpectWorkApart("GetModel", get, 2);
  v1::ListModelsRequest list;
  ExpectWorkApart("ListModels", list, 1);
}

TEST_F(WorkByThreadTest, AShortMessageThatIsMuchWorkIsLeftAndBegunAgainApart) {
  v1::PredictRequest request;  // 15,000 windows of 40 positions
  request.set_model("gpt2_causal");
  v1::TokenIds* ids = request.add_inputs()->mutable_sequence()->mutable_token_ids();
  for (int i = 0; i < 15000; ++i) ids->add_values(1);
  request.mutable_outputs()->set_stride(1);
  request.mutable_budget()->set_max_density(0.5);  // under which so many are refused, once they are made
  ASSERT_LE(request.ByteSizeLong(), kShortMessage);
  const auto [calls, preparation] = Allocated("Predict", request.SerializeAsString());
  EXPECT_GT(preparation, uint64_t{4} << 20);
  EXPECT_LT(calls, preparation / 8);
}

TEST_F(WorkByThreadTest, AShortMessageTakesNoOtherThread) {
  v1::PredictRequest predict;
  predict.set_model("bert_sequence");
  predict.add_inputs()->mutable_sequence()->set_text("to be");
  EXPECT_EQ(Allocated("Predict", predict.SerializeAsString()).second, 0u);
  EXPECT_EQ(Allocated("PredictStream", predict.SerializeAsString()).second, 0u);
  v1::GenerateRequest generate;
  generate.set_model("gpt2_untied");
  generate.mutable_prompt()->set_text("to be");
  generate.set_max_new_tokens(1);
  EXPECT_EQ(Allocated("Generate", generate.SerializeAsString()).second, 0u);
}

}  // namespace
}  // namespace edgewise::server
