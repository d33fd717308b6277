// The subject of a client's certificate is one principal, whether the client comes over gRPC or over HTTP.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "edgewise/v1/inference.grpc.pb.h"
#include "server/guard/principal.h"
#include "server/http/transport.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

using boost::asio::ip::tcp;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Answers with the principal of the call, as the name of a model.
class WhoAsks final : public v1::InferenceService::Service {
  grpc::Status GetModel(grpc::ServerContext* call, const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override {
    response->mutable_model()->set_name(PrincipalOf(*call, gate_)->name);
    return grpc::Status::OK;
  }

  const Gate gate_;  // without tokens
};

std::string OverGrpc(const std::string& certificate, const std::string& key) {
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = certificate;
  ssl.pem_key_cert_pairs.push_back({key, certificate});
  WhoAsks service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(ssl), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto channel =
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::SslCredentials({certificate, key, certificate}));
  grpc::ClientContext context;
  v1::GetModelResponse response;
  const grpc::Status status = v1::InferenceService::NewStub(channel)->GetModel(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.model().name();
}

std::string OverHttp(const std::string& folder, const std::string& certificate, const std::string& key) {
  boost::asio::io_context io;
  tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  std::thread client([&] {
    const std::string command = "timeout 60 openssl s_client -cert " + folder + "/certificate.pem -key " + folder +
                                "/key.pem -connect 127.0.0.1:" + std::to_string(acceptor.local_endpoint().port()) +
                                " < /dev/null > /dev/null 2>&1";
    [[maybe_unused]] const int ended = std::system(command.c_str());
  });
  std::string subject;
  {
    const auto context = MakeTlsContext({.certificate = certificate, .key = key, .client_ca = certificate});
    EXPECT_TRUE(context.ok()) << context.status();
    const std::unique_ptr<Transport> transport = MakeTlsTransport(acceptor.accept(), *context);
    transport->Handshake([&](const Transport::Error& error) {
      EXPECT_FALSE(error) << error.message();
      subject = transport->Subject();
    });
    io.run();
  }
  client.join();
  return subject;
}

TEST(TlsSubjectTest, IsTheSamePrincipalOverHttpAsOverGrpc) {
  for (const char* name :
       {"/CN=client", "/C=DE/O=Acme, Inc. + Sons/OU=a\\/b/CN= \\\"quoted\\\" <x>;#=y ", "/O=no name/CN=Jos\xC3\xA9"}) {
    TestFolder folder;
    const std::string make = "cd " + folder.path() +
                             " && openssl req -x509 -utf8 -newkey rsa:2048 -nodes -days 2 -subj \"" + name +
                             "\" -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out certificate.pem 2> /dev/null";
    if (std::system(make.c_str()) != 0) GTEST_SKIP() << "openssl is not installed";
    const std::string certificate = Read(folder.path() + "/certificate.pem"), key = Read(folder.path() + "/key.pem");
    const std::string principal = OverHttp(folder.path(), certificate, key);
    EXPECT_NE(principal, "") << name;
    EXPECT_EQ(principal, OverGrpc(certificate, key)) << name;
  }
}

}  // namespace
}  // namespace edgewise::server
