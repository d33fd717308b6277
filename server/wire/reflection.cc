#include "server/wire/reflection.h"

#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reflection/v1/reflection.pb.h"
#include "server/wire/message.h"

namespace edgewise::server {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ExtensionRequest;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

constexpr size_t kMostBytes = 4096;  // of a request: a name
constexpr const char* kServices[] = {"edgewise.v1.InferenceService", "grpc.health.v1.Health",
                                     "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
                                     "inference.GRPCInferenceService"};

void SetError(grpc::StatusCode code, const std::string& message, ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(message);
}

// The file and what it imports, each once.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& added, ServerReflectionResponse& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, response);
}

const FieldDescriptor* FindExtension(const DescriptorPool& pool, const ExtensionRequest& asked) {
  const google::protobuf::Descriptor* type = pool.FindMessageTypeByName(asked.containing_type());
  return type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
}

void Answer(const DescriptorPool& pool, const ServerReflectionRequest& request, ServerReflectionResponse& response) {
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const FileDescriptor* file = nullptr;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      for (const char* name : kServices) response.mutable_list_services_response()->add_service()->set_name(name);
      return;
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      const google::protobuf::Descriptor* type = pool.FindMessageTypeByName(name);
      if (type == nullptr) return SetError(grpc::StatusCode::NOT_FOUND, "there is no type of this name", response);
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      response.mutable_all_extension_numbers_response()->set_base_type_name(name);
      for (const FieldDescriptor* extension : extensions) {
        response.mutable_all_extension_numbers_response()->add_extension_number(extension->number());
      }
      return;
    }
    case ServerReflectionRequest::kFileByFilename:
      file = pool.FindFileByName(request.file_by_filename());
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      file = pool.FindFileContainingSymbol(request.file_containing_symbol());
      break;
    case ServerReflectionRequest::kFileContainingExtension:
      if (const auto* extension = FindExtension(pool, request.file_containing_extension())) file = extension->file();
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      return SetError(grpc::StatusCode::INVALID_ARGUMENT, "message_request is not set", response);
  }
  if (file == nullptr) return SetError(grpc::StatusCode::NOT_FOUND, "there is no such file or symbol", response);
  std::set<const FileDescriptor*> added;
  AddFile(*file, added, response);
}

}  // namespace

// Answers one request after the other. Each is awaited no longer than any message, so an idle call ends.
class ReflectionService::Call final : public RawReactor, private AwaitedCall {
 public:
  Call(ReflectionService& service, RawCall& call) : RawReactor(call), service_(service) {}

  void OnBegun() override { Await(); }

 private:
  void Await() {
    RpcContext& context = service_.context_;
    const absl::Status status = context.awaited.Add(*this, context.options.message_timeout, nullptr);
    status.ok() ? StartRead(&message_) : GiveUp(status);
  }
  void OnReadDone(bool ok) override {
    if (!service_.context_.awaited.Remove(*this)) return;
    if (!ok) return GiveUp(absl::OkStatus());  // the client has asked all that it wants
    if (message_.Length() > kMostBytes) {
      return GiveUp(absl::InvalidArgumentError(
          absl::StrCat("the message has ", message_.Length(), " bytes; at most ", kMostBytes, " are allowed")));
    }
    ServerReflectionRequest request;
    grpc::ProtoBufferReader reader(&message_);
    if (!request.ParseFromZeroCopyStream(&reader)) {
      return GiveUp(absl::InvalidArgumentError("the message is no ServerReflectionRequest"));
    }
    ServerReflectionResponse response;
    Answer(service_.pool_, request, response);
    answer_ = Serialize(response);
    StartWrite(&answer_);
  }
  void OnWriteDone(bool ok) override { ok ? Await() : GiveUp(absl::CancelledError("the client is gone")); }
  void GiveUp(const absl::Status& status) override {
    Record(status);
    Finish(ToGrpc(status));
  }

  ReflectionService& service_;
  grpc::ByteBuffer message_, answer_;
};

ReflectionService::ReflectionService(RpcContext& context) : context_(context), pool_(DescriptorPool::generated_pool()) {
  const FileDescriptor& v1 = *ServerReflectionRequest::descriptor()->file();
  google::protobuf::FileDescriptorProto alpha;
  v1.CopyTo(&alpha);
  alpha.set_name("reflection/v1alpha/reflection.proto");
  alpha.set_package("grpc.reflection.v1alpha");
  alpha.clear_message_type();
  alpha.add_dependency(v1.name());
  pool_.BuildFile(alpha);
  const auto make = [this](RawCall& call) { return std::make_unique<Call>(*this, call); };
  Add("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", make);
  Add("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", make);
}

}  // namespace edgewise::server
