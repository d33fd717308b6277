#include "client/health.h"

#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/generic/generic_stub.h>

#include <optional>
#include <vector>

namespace edgewise::internal {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// message HealthCheckRequest { string service = 1; }
grpc::ByteBuffer EncodeRequest(const std::string& service) {
  UnknownFieldSet fields;
  fields.AddLengthDelimited(1, service);
  std::string bytes;
  fields.SerializeToString(&bytes);
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// message HealthCheckResponse { ServingStatus status = 1; }
std::optional<HealthState> DecodeResponse(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return std::nullopt;
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  UnknownFieldSet fields;
  if (!fields.ParseFromString(bytes)) return std::nullopt;
  uint64_t status = 0;
  for (int i = 0; i < fields.field_count(); ++i) {
    if (fields.field(i).number() != 1) continue;
    if (fields.field(i).type() != UnknownField::TYPE_VARINT) return std::nullopt;
    status = fields.field(i).varint();
  }
  return status <= 3 ? static_cast<HealthState>(status) : HealthState::kUnknown;
}

const grpc::Status& Malformed() {
  static const grpc::Status& status =
      *new grpc::Status(grpc::StatusCode::INTERNAL, "grpc.health.v1: the answer is not a HealthCheckResponse");
  return status;
}

// Waits for the one operation in flight. False when it failed.
bool Next(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

}  // namespace

grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                         const std::string& service, HealthState& state) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", EncodeRequest(service), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  Next(queue);
  if (!status.ok()) return status;
  std::optional<HealthState> decoded = DecodeResponse(response);
  if (!decoded) return Malformed();
  state = *decoded;
  return grpc::Status::OK;
}

grpc::Status WatchHealth(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                         const std::string& service, const std::function<bool(HealthState)>& on_state) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, "/grpc.health.v1.Health/Watch", &queue);
  grpc::Status status;
  auto finish = [&] {
    call->Finish(&status, nullptr);
    Next(queue);
    return status;
  };
  call->StartCall(nullptr);
  if (!Next(queue)) return finish();
  call->WriteLast(EncodeRequest(service), grpc::WriteOptions(), nullptr);
  if (!Next(queue)) return finish();
  while (true) {
    grpc::ByteBuffer response;
    call->Read(&response, nullptr);
    if (!Next(queue)) return finish();
    std::optional<HealthState> state = DecodeResponse(response);
    if (state && on_state(*state)) continue;
    context.TryCancel();
    finish();
    return state ? grpc::Status::OK : Malformed();
  }
}

}  // namespace edgewise::internal
