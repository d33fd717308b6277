// A client of grpc.health.v1's Watch.
#ifndef EDGEWISE_TESTS_SERVER_WATCHER_H_
#define EDGEWISE_TESTS_SERVER_WATCHER_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/server/test_server.h"

namespace edgewise::server {

// Reads states of a Watch until it ends.
class Watcher {
 public:
  Watcher(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) : stub_(channel) {
    call_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
    call_->StartCall(nullptr);
    Next();
    const std::string bytes = service.empty() ? "" : std::string("\x0a") + static_cast<char>(service.size()) + service;
    grpc::Slice slice(bytes);
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    Next();
  }

  // The next state: 1 SERVING, 2 NOT_SERVING, 3 SERVICE_UNKNOWN; -1: the stream ended.
  int Read() {
    grpc::ByteBuffer message;
    call_->Read(&message, nullptr);
    std::vector<grpc::Slice> slices;
    if (!Next() || !message.Dump(&slices).ok()) return -1;
    std::string bytes;
    for (const grpc::Slice& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    return bytes.size() == 2 ? bytes[1] : 0;
  }

 private:
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  CallContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_WATCHER_H_
