// Loading, reloading, health and the gate, over real ports.
#include <gmock/gmock.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "oip/v2/open_inference.pb.h"
#include "tests/server/generate_calls.h"
#include "tests/server/tls_client.h"
#include "tests/server/watcher.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

TEST(LifecycleTest, ReloadServesTheNewVersionAndKeepsTheOldWhenItIsBroken) {
  TestFolder folder;
  folder.AddModel("sbm", "m", 1);
  TestServer server(TestOptions(folder.path()));
  v1::PredictResponse response;
  ASSERT_TRUE(server.Predict(SmallRequest("m"), response).ok());
  EXPECT_EQ(response.version(), 1);
  folder.AddModel("dense", "m", 2);
  ASSERT_TRUE(server.server().Reload().ok());
  ASSERT_TRUE(server.server().WaitUntilLoaded(kHang));
  ASSERT_TRUE(server.Predict(SmallRequest("m"), response).ok());
  EXPECT_EQ(response.version(), 2);
  folder.AddModel("sbm", "m", 3);
  folder.Write("m/3/model.safetensors", "not a model");
  ASSERT_TRUE(server.server().Reload().ok());
  ASSERT_TRUE(server.server().WaitUntilLoaded(kHang));
  ASSERT_TRUE(server.Predict(SmallRequest("m"), response).ok());
  EXPECT_EQ(response.version(), 2);
  v1::PredictRequest broken = SmallRequest("m");
  broken.set_version(3);
  const grpc::Status status = server.Predict(broken, response);
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("model \"m\" version 3 failed to load: model.safetensors"));
  EXPECT_EQ(server.Health("m"), 1);
  EXPECT_EQ(server.Metric(R"(edgewise_model_loads_total{model="m",result="error",version="3"})"), 1.0);
  EXPECT_EQ(server.Metric(R"(edgewise_model_ready{model="m",version="2"})"), 1.0);
  EXPECT_EQ(server.Metric(R"(edgewise_model_ready{model="m",version="3"})"), 0.0);
}

TEST(LifecycleTest, ReloadUnderLoadFailsNoRequest) {
  TestFolder folder;
  folder.AddModel("sbm", "m", 1);
  TestServer server(TestOptions(folder.path()));
  std::atomic<bool> stop = false;
  std::atomic<int> answered = 0, failed = 0;
  std::jthread client([&] {
    v1::PredictResponse response;
    while (!stop) (server.Predict(SmallRequest("m"), response).ok() ? answered : failed) += 1;
  });
  for (int i = 0; i < 10; ++i) {
    folder.AddModel(i % 2 == 0 ? "dense" : "sbm", "m", 1);
    EXPECT_TRUE(server.server().Reload().ok());
    const int before = answered;
    EXPECT_TRUE(WaitUntil("two answers after a reload", [&] { return answered >= before + 2; }));
  }
  stop = true;
  client.join();
  EXPECT_EQ(failed, 0);
}

TEST(LifecycleTest, EmptyRepositoryIsNotReadyUntilAModelCame) {
  TestFolder folder;
  TestServer server(TestOptions(folder.path()));
  EXPECT_EQ(server.Health(""), 2);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("503"));
  EXPECT_EQ(server.Health("m"), -grpc::NOT_FOUND);
  folder.AddModel("sbm", "m", 1);
  ASSERT_TRUE(server.server().Reload().ok());
  ASSERT_TRUE(server.server().WaitUntilLoaded(kHang));
  EXPECT_TRUE(server.WaitForHealth("", 1));
  EXPECT_EQ(server.Health("m"), 1);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("\"status\":\"ready\""));
}

TEST(LifecycleTest, ReadyAllWaitsForEveryModelOnceAndForNoneThatComesLater) {
  TestFolder folder;
  folder.AddModel("sbm", "good", 1);
  folder.Write("bad/1/config.json", "{}");
  ServerOptions options = TestOptions(folder.path());
  options.ready = ReadyWhen::kAll;
  TestServer server(options);
  EXPECT_TRUE(server.WaitForHealth("good", 1));
  EXPECT_EQ(server.Health(""), 2);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("503"));
  EXPECT_THAT(server.HttpGet("/healthz"),
              HasSubstr("\"status\":\"model failed\",\"reason\":\"--ready=all waits for models that failed to load: "
                        "bad\""));
  folder.AddModel("sbm", "bad", 1);
  ASSERT_TRUE(server.server().Reload().ok());
  EXPECT_TRUE(server.WaitForHealth("", 1));
  folder.Write("worse/1/config.json", "{}");
  ASSERT_TRUE(server.server().Reload().ok());
  ASSERT_TRUE(server.server().WaitUntilLoaded(kHang));
  EXPECT_EQ(server.Health("worse"), 2);
  EXPECT_EQ(server.Health(""), 1);
}

TEST(LifecycleTest, ModeNoneReadsTheRepositoryOnceAndModePollByItself) {
  TestFolder folder;
  folder.AddModel("sbm", "m", 1);
  ServerOptions options = TestOptions(folder.path());
  options.repository_mode = RepositoryMode::kNone;
  TestServer none(options);
  options.repository_mode = RepositoryMode::kPoll;
  options.repository_poll = milliseconds(1);
  TestServer poll(options);
  folder.AddModel("sbm", "later", 1);
  EXPECT_EQ(none.server().Reload().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(poll.WaitForHealth("later", 1));
  EXPECT_EQ(none.Health("later"), -grpc::NOT_FOUND);
}

TEST(LifecycleTest, NamedFoldersServeWithoutARepositoryAndAWrongOneStopsTheStart) {
  TestFolder folder;
  folder.AddModel("sbm", "m", 1);
  ServerOptions options = TestOptions("");
  options.models = {{"named", folder.path() + "/m/1"}};
  TestServer server(options);
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest("named"), response).ok());
  EXPECT_EQ(response.version(), 1);
  options.models.push_back({"other", folder.path() + "/missing"});
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kNotFound);
  options.models.back() = options.models.front();
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LifecycleTest, RemovedModelIsNotServingAnyMore) {
  TestFolder folder;
  folder.AddModel("sbm", "m", 1);
  TestServer server(TestOptions(folder.path()));
  ASSERT_TRUE(server.WaitForHealth("m", 1));
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest("m"), response).ok());
  std::filesystem::remove_all(folder.path() + "/m");
  ASSERT_TRUE(server.server().Reload().ok());
  EXPECT_TRUE(server.WaitForHealth("m", 2));
  EXPECT_TRUE(server.WaitForHealth("", 2));
  EXPECT_EQ(server.Predict(SmallRequest("m"), response).error_code(), grpc::NOT_FOUND);
  EXPECT_TRUE(server.WaitForMetric(R"(edgewise_model_ready{model="m",version="1"})", -1.0));
  EXPECT_EQ(server.HttpGet("/metrics").find(R"(model="m")"), std::string::npos);
}

TEST(LifecycleTest, OneBrokenModelLeavesTheOthersServing) {
  TestFolder folder;
  folder.AddModel("sbm", "good", 1);
  folder.Write("broken/1/config.json", "{}");
  TestServer server(TestOptions(folder.path()));
  v1::PredictResponse response;
  EXPECT_TRUE(server.Predict(SmallRequest("good"), response).ok());
  EXPECT_EQ(server.Predict(SmallRequest("broken"), response).error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_TRUE(server.WaitForHealth("", 1));
  EXPECT_EQ(server.Health("broken"), 2);
}

TEST(LifecycleTest, HealthOfWhatIsNotThereAndBadRequestsOfIt) {
  TestServer server;
  EXPECT_EQ(server.Health("nothing"), -grpc::NOT_FOUND);
  Watcher watcher(server.channel(), "nothing");
  EXPECT_EQ(watcher.Read(), 3);
  const grpc::Status broken = server.Call("/grpc.health.v1.Health/Check", "\x0a\x7f");
  EXPECT_EQ(broken.error_code(), grpc::INVALID_ARGUMENT);
  const grpc::Status large = server.Call("/grpc.health.v1.Health/Check", std::string(5000, '\0'));
  EXPECT_EQ(large.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(large.error_message(), "the message has 5000 bytes; at most 4096 are allowed");
  EXPECT_EQ(server.Health("sbm"), 1);
}

TEST(LifecycleTest, EveryMethodNeedsTheTokenWhenThereIsOne) {
  TestFolder folder;
  folder.Write("tokens", "a-token-of-the-test\n");
  ServerOptions options = TestOptions();
  options.security.auth_token_file = folder.path() + "/tokens";
  options.reflection = true;
  TestServer server(options);
  std::vector<std::string> paths = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
                                    "/no.such.Service/Method",
                                    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
  for (const google::protobuf::FileDescriptor* file :
       {v1::PredictRequest::descriptor()->file(), inference::ModelInferRequest::descriptor()->file()}) {
    const google::protobuf::ServiceDescriptor* service = file->service(0);
    for (int i = 0; i < service->method_count(); ++i) {
      paths.push_back("/" + service->full_name() + "/" + service->method(i)->name());
    }
  }
  EXPECT_EQ(paths.size(), 19u);
  for (const std::string& path : paths) {
    EXPECT_EQ(server.Call(path, "").error_code(), grpc::UNAUTHENTICATED) << path;
    EXPECT_EQ(server.Call(path, "", nullptr, "a-token-of-the-tesT").error_code(), grpc::UNAUTHENTICATED) << path;
  }
  EXPECT_TRUE(server.Call("/grpc.health.v1.Health/Check", "", nullptr, "a-token-of-the-test").ok());
  std::string answer;
  EXPECT_TRUE(server
                  .Call("/edgewise.v1.InferenceService/Predict", SmallRequest().SerializeAsString(), &answer,
                        "a-token-of-the-test")
                  .ok());
  EXPECT_EQ(server.Call("/no.such.Service/Method", "", nullptr, "a-token-of-the-test").error_code(),
            grpc::UNIMPLEMENTED);
}

TEST(LifecycleTest, ChangedTokensAreReadAndBrokenOnesLeaveThoseFromBefore) {
  TestFolder folder;
  folder.Write("tokens", "a-token-of-the-test\n");
  ServerOptions options = TestOptions();
  options.security.auth_token_file = folder.path() + "/tokens";
  TestServer server(options);
  const auto code = [&](const char* token) {
    return server.Call("/grpc.health.v1.Health/Check", "", nullptr, token).error_code();
  };
  EXPECT_EQ(code("a-token-of-the-test"), grpc::OK);
  EXPECT_EQ(code("the-token-that-follows"), grpc::UNAUTHENTICATED);
  folder.Write("tokens", "the-token-that-follows\n");
  EXPECT_TRUE(WaitUntil("the new token", [&] { return code("the-token-that-follows") == grpc::OK; }));
  EXPECT_EQ(code("a-token-of-the-test"), grpc::UNAUTHENTICATED);
  folder.Write("tokens", "short\n");
  std::this_thread::sleep_for(milliseconds(1500));  // long enough to be read
  EXPECT_EQ(code("the-token-that-follows"), grpc::OK);
}

TEST(LifecycleTest, ChangedCertificatesAreServedToNewConnections) {
  TestFolder folder;
  const auto make = [&](const char* name) {
    const std::string command = "cd " + folder.path() + " && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj " +
                                "/CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout key.new -out " + name +
                                " 2> /dev/null && cp " + name + " certificate.new && mv key.new key.pem && " +
                                "mv certificate.new certificate.pem";
    return std::system(command.c_str()) == 0;
  };
  if (!make("first.pem")) GTEST_SKIP() << "openssl is not installed";
  ServerOptions options = TestOptions();
  options.security.tls_certificate = folder.path() + "/certificate.pem";
  options.security.tls_key = folder.path() + "/key.pem";
  TestServer server(options);
  const auto trusted = [&](const std::string& name) {
    grpc::SslCredentialsOptions ssl;
    std::ifstream file(folder.path() + "/" + name);
    ssl.pem_root_certs = std::string(std::istreambuf_iterator<char>(file), {});
    auto channel =
        grpc::CreateChannel("127.0.0.1:" + std::to_string(server.server().port()), grpc::SslCredentials(ssl));
    CallContext context;
    v1::ListModelsResponse models;
    return v1::InferenceService::NewStub(channel)->ListModels(&context, {}, &models).ok();
  };
  EXPECT_TRUE(trusted("first.pem"));
  ASSERT_TRUE(make("second.pem"));
  EXPECT_TRUE(WaitUntil("the new certificate", [&] {
    std::this_thread::sleep_for(milliseconds(200));  // each failure is a line in the log
    return trusted("second.pem");
  }));
  EXPECT_FALSE(trusted("first.pem"));
}

// A crash between the two renames, or a copy that was cut, is no outage.
TEST(LifecycleTest, BrokenCertificatesLeaveThoseFromBefore) {
  TestFolder folder;
  const auto run = [&](const std::string& command) {
    return std::system(("cd " + folder.path() + " && " + command + " 2> /dev/null").c_str()) == 0;
  };
  const auto make = [&](const std::string& name) {
    return run("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=" + name +
               " -addext subjectAltName=IP:127.0.0.1 -keyout " + name + ".key -out " + name + ".pem");
  };
  if (!make("first") || !make("second")) GTEST_SKIP() << "openssl is not installed";
  ASSERT_TRUE(run("cp first.pem certificate.pem && cp first.key key.pem && cp first.pem ca.pem"));
  ServerOptions options = TestOptions();
  options.security = {.tls_certificate = folder.path() + "/certificate.pem",
                      .tls_key = folder.path() + "/key.pem",
                      .tls_client_ca = folder.path() + "/ca.pem"};
  TestServer server(options);
  const auto read = [&](const std::string& name) {
    std::ifstream file(folder.path() + "/" + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  // Whether a new connection of the client with this certificate is served, by a server with that one.
  const auto served = [&](const std::string& client, const std::string& by) {
    grpc::SslCredentialsOptions ssl{read(by + ".pem"), read(client + ".key"), read(client + ".pem")};
    grpc::ChannelArguments alone;
    alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server.server().port()),
                                             grpc::SslCredentials(ssl), alone);
    CallContext context;
    v1::ListModelsResponse models;
    return v1::InferenceService::NewStub(channel)->ListModels(&context, {}, &models).ok();
  };
  const auto loads = [&](const char* result) {
    return server.Metric(absl::StrCat("edgewise_secret_loads_total{kind=\"certificates\",result=\"", result, "\"}"));
  };
  EXPECT_TRUE(served("first", "first"));
  double errors = 0.0;
  for (const char* broken : {"head -c 100 first.pem > certificate.pem", "cp second.pem certificate.pem",
                             "head -c 100 first.key > key.pem && cp first.pem certificate.pem",
                             "head -c 100 second.pem > ca.pem && cp first.key key.pem",
                             "(cat first.pem; head -c 100 second.pem) > certificate.pem && cp first.pem ca.pem"}) {
    ASSERT_TRUE(run(broken));
    EXPECT_TRUE(WaitUntil(broken, [&] { return loads("error") > errors; }));
    errors = loads("error");
    EXPECT_TRUE(served("first", "first")) << broken;
  }
  EXPECT_EQ(loads("ok"), 0.0);
  ASSERT_TRUE(run("cp second.pem certificate.pem && cp second.key key.pem && cp second.pem ca.pem"));
  EXPECT_TRUE(WaitUntil("the second pair", [&] { return loads("ok") > 0.0 && served("second", "second"); }));
  EXPECT_FALSE(served("first", "second")) << "the client CA is another too";
}

// As over HTTP (http_tls_test.cc). gRPC resumes sessions by itself, and does not look at the certificate again.
TEST(LifecycleTest, NoTlsSessionOutlivesTheCertificateOfItsClient) {
  const Identity identity("server", 86400), ca("ca", 86400);
  TestFolder folder;
  folder.Write("certificate.pem", identity.certificate_pem());
  folder.Write("key.pem", identity.key_pem());
  folder.Write("ca.pem", ca.certificate_pem());
  ServerOptions options = TestOptions();
  options.security = {.tls_certificate = folder.path() + "/certificate.pem",
                      .tls_key = folder.path() + "/key.pem",
                      .tls_client_ca = folder.path() + "/ca.pem"};
  TestServer server(options);
  std::unique_ptr<Identity> client;
  std::unique_ptr<grpc_ssl_session_cache, decltype(&grpc_ssl_session_cache_destroy)> sessions(
      nullptr, grpc_ssl_session_cache_destroy);
  struct Outcome {
    grpc::Status status;
    bool resumed;
  };
  const auto call = [&]() -> Outcome {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const grpc_arg cache = grpc_ssl_session_cache_create_channel_arg(sessions.get());
    own.SetPointerWithVtable(cache.key, cache.value.pointer.p, cache.value.pointer.vtable);
    const auto channel = grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(server.server().port()),
        grpc::SslCredentials({identity.certificate_pem(), client->key_pem(), client->certificate_pem()}), own);
    CallContext context;
    v1::ListModelsResponse models;
    const grpc::Status status = v1::InferenceService::NewStub(channel)->ListModels(&context, {}, &models);
    const auto connection = context.auth_context();  // null: there was none
    if (!connection) return {status, false};
    const auto reused = connection->FindPropertyValues(GRPC_SSL_SESSION_REUSED_PROPERTY);
    return {status, !reused.empty() && reused[0] == "true"};
  };
  Outcome resumed{};
  for (long seconds = 2; !resumed.resumed && seconds < 100; seconds *= 2) {  // a busy machine may need more
    client = std::make_unique<Identity>("client", seconds, &ca);
    sessions.reset(grpc_ssl_session_cache_create_lru(1));
    if (call().status.ok()) resumed = call();
  }
  ASSERT_TRUE(resumed.resumed);
  EXPECT_TRUE(resumed.status.ok()) << resumed.status.error_message();
  ASSERT_TRUE(WaitUntil("the certificate to expire", [&] { return client->expired(); }));
  EXPECT_EQ(call().status.error_code(), grpc::UNAUTHENTICATED);
}

TEST(LifecycleTest, TakenPortIsAnErrorNotAShare) {
  TestServer server;
  ServerOptions options = TestOptions();
  options.listen = "127.0.0.1:" + std::to_string(server.server().port());
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kAlreadyExists);
  options = TestOptions();
  options.metrics_listen = "127.0.0.1:" + std::to_string(server.server().metrics_port());
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace edgewise::server
