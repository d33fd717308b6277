// Loading, reloading, health, draining and the gate, over real ports.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/server/generate_calls.h"

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
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("\"status\":\"model missing\""));
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

TEST(LifecycleTest, WatchSeesServingThenNotServingAndDoesNotHoldUpTheDrain) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  ASSERT_TRUE(server.WaitForHealth("sbm", 1));
  Watcher model(server.channel(), "sbm");
  EXPECT_EQ(model.Read(), 1);
  // gRPC may end a stream whose last message is not yet known to be sent without the next one.
  ASSERT_TRUE(server.WaitForHealth("sbm", 1));
  TestDrain drain(server, clock);
  EXPECT_EQ(model.Read(), 2);
  EXPECT_TRUE(drain.WaitForEnd());
  EXPECT_EQ(model.Read(), -1);
}

// Between the announcement and the drain, so that whoever sends calls here hears of it before the port closes.
TEST(LifecycleTest, AnAnnouncedDrainIsToldToAllAndTakesCalls) {
  TestFolder folder;
  folder.AddModel("sbm", "sbm", 1);
  TestServer server(TestOptions(folder.path()));
  const std::string names[] = {"", "edgewise.v1.InferenceService", "sbm"};
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (const std::string& name : names) {
    ASSERT_TRUE(server.WaitForHealth(name, 1));
    EXPECT_EQ(watchers.emplace_back(std::make_unique<Watcher>(server.channel(), name))->Read(), 1);
  }
  server.server().AnnounceDrain();
  for (const auto& watcher : watchers) EXPECT_EQ(watcher->Read(), 2);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("503"));
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("\"status\":\"draining\""));
  folder.AddModel("sbm", "late", 1);
  ASSERT_TRUE(server.server().Reload().ok());
  EXPECT_TRUE(server.WaitForMetric(R"(edgewise_model_ready{model="late",version="1"})", 1.0));
  for (const std::string& name : names) EXPECT_EQ(server.Health(name), 2) << name << ": a model has come since";
  EXPECT_EQ(server.Health("late"), 2);
  // A new connection, as of a client that has not heard of it.
  auto stub = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(server.server().port()), grpc::InsecureChannelCredentials(), [] {
        grpc::ChannelArguments own;
        own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        return own;
      }()));
  CallContext context;
  v1::PredictResponse response;
  EXPECT_TRUE(stub->Predict(&context, SmallRequest(), &response).ok());
  server.server().Drain(milliseconds(0));
  for (const auto& watcher : watchers) EXPECT_EQ(watcher->Read(), -1);
}

// As a proxy needs it that asks nobody for health.
TEST(LifecycleTest, AClosedPortLeavesTheConnectionsThatAreThere) {
  TestFolder folder;
  folder.AddModel("sbm", "sbm", 1);
  TestServer server(TestOptions(folder.path()));
  ASSERT_TRUE(server.WaitForHealth("sbm", 1));
  const auto ask = [](const std::shared_ptr<grpc::Channel>& channel) {
    CallContext context;
    v1::PredictResponse response;
    return v1::InferenceService::NewStub(channel)->Predict(&context, SmallRequest(), &response).error_code();
  };
  EXPECT_EQ(ask(server.channel()), grpc::StatusCode::OK);
  server.server().StopListening();
  EXPECT_EQ(ask(server.channel()), grpc::StatusCode::OK);
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::string address = "127.0.0.1:" + std::to_string(server.server().port());
  EXPECT_EQ(ask(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own)),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(LifecycleTest, DrainFinishesWhatRunsAndRefusesWhatComes) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  options.unread_timeout = std::chrono::hours(1);
  TestServer server(options);
  auto narrow = NarrowStub(server);
  CallContext unread_context;
  auto unread = narrow->Generate(&unread_context, ShortRequest("lm-dense", 4096));  // runs until the client reads
  v1::PredictRequest request = SlowRequest();
  request.mutable_inputs()->DeleteSubrange(100, request.inputs_size() - 100);  // seconds
  grpc::Status running_status(grpc::UNKNOWN, "");
  std::jthread running([&] {
    v1::PredictResponse answer;
    running_status = server.Predict(request, answer);
  });
  EXPECT_TRUE(server.WaitForMetric(OfSbm("executions_total"), 1));
  CallContext stream_context;
  auto stream = server.stub().PredictStream(&stream_context);
  v1::PredictStreamResponse streamed;
  ASSERT_TRUE(stream->Write(SmallRequest()));  // of the same level: it waits
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 1));
  TestDrain drain(server, clock);
  EXPECT_TRUE(server.WaitForHealth("", -grpc::UNAVAILABLE));  // the connection has had its GOAWAY, the port is closed
  v1::PredictResponse response;
  const grpc::Status refused = server.Predict(SmallRequest(), response);
  EXPECT_EQ(refused.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(server.HttpGet("/healthz"), HasSubstr("draining"));
  EXPECT_TRUE(stream->Read(&streamed));  // in flight when the drain began
  EXPECT_FALSE(stream->Read(&streamed));
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  running.join();
  EXPECT_TRUE(running_status.ok()) << running_status.error_message();
  EXPECT_FALSE(drain.ended());
  int tokens = 0;
  for (v1::GenerateResponse message; unread->Read(&message);) ++tokens;
  EXPECT_EQ(tokens, 4096);
  EXPECT_TRUE(unread->Finish().ok());
  EXPECT_TRUE(drain.WaitForEnd());
}

TEST(LifecycleTest, DrainWaitsForAnswersThatAreBeingSent) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  v1::PredictRequest request = SmallRequest();
  for (int i = 1; i < 512; ++i) *request.add_inputs() = request.inputs(0);
  request.mutable_ensemble()->set_samples(64);
  request.mutable_outputs()->set_each_sample(true);
  CallContext context;
  grpc::CompletionQueue queue;
  void* tag;
  bool ok;
  auto stub = NarrowStub(server);
  auto call = stub->PrepareAsyncPredict(&context, request, &queue);
  call->StartCall();
  call->ReadInitialMetadata(nullptr);  // and not the message: most of it stays at the server
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  EXPECT_TRUE(server.WaitForMetric(OfSbm("requests_in_flight"), 0));  // all of it is computed
  TestDrain drain(server, clock);
  // Nobody but a drain that waits reads the clock now.
  const int64_t reads = clock.reads();
  EXPECT_TRUE(WaitUntil("the drain to look at the clock", [&] { return clock.reads() > reads + 100; }));
  EXPECT_FALSE(server.server().calls_ended());
  v1::PredictResponse response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(drain.WaitForEnd());
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.ByteSizeLong(), 500000u);
  EXPECT_EQ(response.predictions_size(), 512);
}

TEST(LifecycleTest, DrainThatTakesTooLongGivesEveryCallItsStatus) {
  TestClock clock;
  ServerOptions options = TestOptions();
  options.clock = clock.read();
  TestServer server(options);
  std::vector<grpc::Status> statuses(4);
  std::vector<std::jthread> clients;
  for (grpc::Status& status : statuses) {
    clients.emplace_back([&] {
      v1::PredictResponse answer;
      status = server.Predict(SlowRequest(), answer);
    });
  }
  EXPECT_TRUE(server.WaitForMetric(OfSbm("queue_requests"), 3));
  TestDrain drain(server, clock, seconds(30));
  EXPECT_TRUE(server.WaitForHealth("", -grpc::UNAVAILABLE));
  drain.RunOutOfPatience();
  EXPECT_TRUE(drain.WaitForEnd());
  for (std::jthread& client : clients) client.join();
  for (const grpc::Status& status : statuses)
    EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
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
  const google::protobuf::ServiceDescriptor* service =
      v1::PredictRequest::descriptor()->file()->FindServiceByName("InferenceService");
  for (int i = 0; i < service->method_count(); ++i) {
    paths.push_back("/" + service->full_name() + "/" + service->method(i)->name());
  }
  EXPECT_EQ(paths.size(), 10u);
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
                             "cp first.pem certificate.pem && head -c 100 first.key > key.pem",
                             "cp first.key key.pem && head -c 100 second.pem > ca.pem",
                             "cp first.pem ca.pem && (cat first.pem; head -c 100 second.pem) > certificate.pem"}) {
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
