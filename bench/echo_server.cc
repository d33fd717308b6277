// A server that answers every Predict with an empty message at once: what a call costs without inference. It prints its
// port as edgewise-server does, on standard error, and ends at a signal.
#include <grpcpp/grpcpp.h>

#include <csignal>
#include <cstdio>
#include <memory>

#include "edgewise/v1/inference.grpc.pb.h"

namespace edgewise::bench {
namespace {

class Echo final : public v1::InferenceService::CallbackService {
  grpc::ServerUnaryReactor* Predict(grpc::CallbackServerContext* call, const v1::PredictRequest*,
                                    v1::PredictResponse*) override {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

int Run() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // in the threads of gRPC too
  grpc::EnableDefaultHealthCheckService(true);
  Echo service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) return 1;
  std::fprintf(stderr, "{\"event\":\"serving\",\"port\":%d}\n", port);
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown();
  return 0;
}

}  // namespace
}  // namespace edgewise::bench

int main() { return edgewise::bench::Run(); }
