// Generate calls as tests make them. Includes gRPC.
#ifndef EDGEWISE_TESTS_SERVER_GENERATE_CALLS_H_
#define EDGEWISE_TESTS_SERVER_GENERATE_CALLS_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/server/test_server.h"

namespace edgewise::server {

using GenerateStream = grpc::ClientReader<v1::GenerateResponse>;

inline v1::GenerateRequest ShortRequest(const std::string& model = "lm-dense", uint32_t tokens = 8) {
  v1::GenerateRequest request;
  request.set_model(model);
  for (int id : {3, 1, 4, 1, 5}) request.mutable_prompt()->mutable_token_ids()->add_values(id);
  request.set_max_new_tokens(tokens);
  request.set_temperature(1.0);
  request.mutable_ensemble()->set_seed(7);
  return request;
}

// To a client that reads little: at most 64 KiB of an answer are on their way to it.
inline std::unique_ptr<v1::InferenceService::Stub> NarrowStub(TestServer& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // else the window grows
  return v1::InferenceService::NewStub(grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server.server().port()),
                                                                 grpc::InsecureChannelCredentials(), arguments));
}

// Seconds of work: beyond the context every token computes all of it anew.
inline v1::GenerateRequest LongRequest() {
  v1::GenerateRequest request = ShortRequest("lm-ssa-local", 4096);
  request.mutable_ensemble()->set_samples(16);
  return request;
}

struct Generated {
  std::vector<v1::GenerateResponse> messages;
  grpc::Status status;

  std::vector<int32_t> tokens() const {
    std::vector<int32_t> ids;
    for (const v1::GenerateResponse& message : messages) ids.push_back(message.token_id());
    return ids;
  }
  std::string text() const {
    std::string all;
    for (const v1::GenerateResponse& message : messages) all += message.text();
    return all;
  }
};

inline Generated Generate(TestServer& server, const v1::GenerateRequest& request, milliseconds timeout = 2 * kHang) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  std::unique_ptr<GenerateStream> stream = server.stub().Generate(&context, request);
  Generated generated;
  for (v1::GenerateResponse message; stream->Read(&message);) generated.messages.push_back(message);
  generated.status = stream->Finish();
  if (generated.status.ok() && generated.messages.empty()) generated.status = {grpc::INTERNAL, "no token came"};
  return generated;
}

// A generation of which the first token has come, and how many came.
struct Started {
  Started(v1::InferenceService::StubInterface& stub, const v1::GenerateRequest& request)
      : stream(stub.Generate(&context, request)) {
    EXPECT_TRUE(stream->Read(&message)) << "no token came";
  }
  // Reads to the end.
  grpc::Status Finish() {
    while (stream->Read(&message)) ++messages;
    return stream->Finish();
  }

  CallContext context;
  std::unique_ptr<grpc::ClientReaderInterface<v1::GenerateResponse>> stream;
  v1::GenerateResponse message;  // the last one
  int messages = 1;
};

inline std::string Of(const std::string& model, const std::string& name) {
  return "edgewise_" + name + R"({model=")" + model + R"(",version="1"})";
}
inline std::string Ended(const std::string& model, const std::string& code) {
  return R"(edgewise_generations_total{code=")" + code + R"(",model=")" + model + R"(",version="1"})";
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_GENERATE_CALLS_H_
