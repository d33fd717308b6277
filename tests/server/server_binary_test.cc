// The program itself: flags, exit codes, signals, log lines.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/http_client.h"
#include "tests/server/test_server.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), tests::ServerBinary());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    errors_ = ends[0];
    fcntl(errors_, F_SETFL, O_NONBLOCK);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(errors_);
  }

  void Signal(int signal) { kill(pid_, signal); }

  // Waits until stderr holds `text`.
  ::testing::AssertionResult WaitFor(const std::string& text) {
    return WaitUntil(text, [&] {
      Drain();
      return output_.find(text) != std::string::npos;
    });
  }

  // Fills the pipe of stderr: the next line blocks until somebody reads.
  void FillErrors() const {
    const int fd = open(("/proc/self/fd/" + std::to_string(errors_)).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    while (write(fd, "\n", 1) == 1) {
    }
    close(fd);
  }

  // The exit code; -1: it did not exit of its own accord.
  int Wait(bool read_errors = true) {
    int status = 0;
    const ::testing::AssertionResult exited = WaitUntil("the exit", [&] {
      if (read_errors) Drain();
      return waitpid(pid_, &status, WNOHANG) == pid_;
    });
    if (!exited) return -1;
    pid_ = -1;
    if (read_errors) Drain();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string& output() const { return output_; }

 private:
  void Drain() {
    char buffer[4096];
    for (ssize_t n; (n = read(errors_, buffer, sizeof buffer)) > 0;) output_.append(buffer, static_cast<size_t>(n));
  }

  pid_t pid_ = -1;
  int errors_ = -1;
  std::string output_;
};

// Sets variables of the environment for the processes that start in its life.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<std::string, std::string>> variables) {
    for (const auto& [name, value] : variables) {
      const char* before = getenv(name.c_str());
      before_.emplace_back(name, before ? std::optional<std::string>(before) : std::nullopt);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    }
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

std::vector<std::string> Serving(const std::string& repository) {
  return {"--model_repository=" + repository, "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--device=cpu",
          "--threads=1"};
}

TEST(BinaryTest, BadFlagsExitWith2AndOneClearLine) {
  const std::string repository = std::string("--model_repository=") + tests::TestdataFolder();
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{}, "--model_repository is missing"},
      {{"--model_repositry=x"}, "unknown flag --model_repositry; did you mean --model_repository?"},
      {{"--model-repository=x"}, "unknown flag --model-repository; did you mean --model_repository?"},
      {{"--max-connections-per-peer", "1"}, "did you mean --max_connections_per_peer?"},
      {{"models"}, "unexpected argument \"models\"; flags start with --"},
      {{repository, "--threads=many"}, "--threads is \"many\"; expected a whole number, 0 or more"},
      {{repository, "--threads"}, "--threads needs a value: N"},
      {{repository, "--nothreads"}, "unknown flag --nothreads; did you mean --threads?"},
      {{repository, "--threads=-1"}, "--threads is \"-1\"; expected a whole number, 0 or more"},
      {{repository, "--max_samples=0"}, "--max_samples is \"0\"; expected a whole number, 1 or more"},
      {{repository, "--max_queue_requests=0"}, "--max_queue_requests is \"0\""},
      {{repository, "--max_batch_requests=0"}, "--max_batch_requests is \"0\""},
      {{repository, "--drain_timeout=-1s"}, "--drain_timeout is \"-1s\"; expected a duration from 0 to 24h"},
      {{repository, "--drain_timeout=inf"}, "--drain_timeout is \"inf\""},
      {{repository, "--drain_timeout=24h1ms"}, "--drain_timeout is \"24h1ms\""},
      {{repository, "--drain_delay=5"}, "--drain_delay is \"5\"; expected a duration from 0 to 24h"},
      {{repository, "--repository_mode=poll,none"},
       "--repository_mode is \"poll,none\"; expected none, poll, explicit"},
      {{repository, "--listen=127.0.0.1:99999"}, "--listen=127.0.0.1:99999: an address is HOST:PORT"},
      {{repository, "--listen=127.0.0.1"}, "--listen=127.0.0.1: an address is HOST:PORT"},
      {{repository, "--listen=:abc"}, "--listen=:abc: an address is HOST:PORT"},
      {{repository, "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:65536"},
       "--metrics_listen=127.0.0.1:65536: an address is HOST:PORT"},
      {{repository, "--listen=127.evil.example:0"}, "is not a loopback address"},
      {{repository, "--log_level=loud"}, "--log_level is \"loud\"; expected debug, info, warning, error, off"},
      {{repository, "--device=tpu"}, "device is \"tpu\""},
      {{repository, "--listen=0.0.0.0:0"}, "is not a loopback address"},
      {{repository, "--metrics_listen=0.0.0.0:0"}, "is not a loopback address"},
      {{repository, "--tls_certificate=x"}, "--tls_certificate and --tls_key belong together"},
      {{repository, "--auth_token_file=/nonexistent"}, "--auth_token_file /nonexistent: cannot be read"},
      {{"--model_repository=/nonexistent"}, "model repository /nonexistent: No such file or directory"},
  };
  for (const auto& [arguments, message] : cases) {
    Process process(arguments);
    EXPECT_EQ(process.Wait(), 2) << message;
    EXPECT_THAT(process.output(), HasSubstr(message));
  }
}

TEST(BinaryTest, MissingDeviceExitsWith4) {
  std::vector<std::string> arguments = Serving(tests::TestdataFolder());
  arguments.push_back("--device=cuda:99");
  Process process(arguments);
  EXPECT_EQ(process.Wait(), 4);
}

// The lines of a server on `repository` up to its event "serving".
std::string LogOf(const std::string& repository) {
  Process process(Serving(repository));
  EXPECT_TRUE(process.WaitFor("\"event\":\"serving\"")) << process.output();
  return process.output();
}

TEST(BinaryTest, ModelWithoutAVersionIsToldWhereItBelongs) {
  TestFolder folder;
  folder.AddModel("sbm", "good", 1);
  folder.Write("bert/config.json", "{}");
  folder.Write("none/README", "");
  const std::string log = LogOf(folder.path());
  EXPECT_THAT(log, HasSubstr(R"("level":"warning","event":"model without a version","entry":"bert",)"
                             R"("remedy":"put bert/config.json and model.safetensors into bert/1/, )"
                             R"(or give --model=bert=)" +
                             folder.path() + R"(/bert"})"));
  EXPECT_THAT(log, HasSubstr(R"("entry":"none","remedy":"put config.json and model.safetensors into none/1/"})"));
  EXPECT_THAT(log, testing::Not(HasSubstr("repository without a model")));
  EXPECT_THAT(log, testing::Not(HasSubstr(R"("entry":"good")")));
}

TEST(BinaryTest, RepositoryThatIsAModelIsToldSo) {
  TestFolder folder;
  folder.AddModel("sbm", "m", 1);
  folder.Write("flat/config.json", "{}");
  std::filesystem::create_directory(folder.path() + "/empty");
  const std::string m = "--model=m=" + folder.path() + "/m/1", flat = "--model=flat=" + folder.path() + "/flat";
  const std::pair<const char*, std::string> cases[] = {
      {"/m", "this is a model: give the folder above m, or " + m},
      {"/m/", "this is a model: give the folder above m, or " + m},
      {"/m/1", "this is a version of a model: give the folder above m, or " + m},
      {"/flat", "this is a model: give " + flat + ", or put it into flat/1/ and give the folder above flat"},
      {"/empty", "a model is <name>/<version>/config.json and model.safetensors, such as bert/1/config.json"},
  };
  for (const auto& [path, remedy] : cases) {
    const std::string repository = folder.path() + path;
    EXPECT_THAT(LogOf(repository), HasSubstr("\"event\":\"repository without a model\",\"repository\":\"" + repository +
                                             "\",\"remedy\":\"" + remedy + "\"}"));
  }
}

TEST(BinaryTest, TakenPortIsOneLineAndExitsWith3) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  for (const char* flag : {"--listen=", "--metrics_listen=", "--http_listen="}) {
    std::vector<std::string> arguments = Serving(edgewise::tests::TestdataFolder());
    arguments.push_back(flag + port);
    Process process(arguments);
    EXPECT_EQ(process.Wait(), 3);
    EXPECT_EQ(process.output(), "edgewise-server: " + (flag + port) + ": Address already in use\n");
  }
  close(taken);
}

TEST(BinaryTest, FirstLineOfAServerWithoutAGpuIsServing) {
  const Environment environment{{"EDGEWISE_CUDA_MODULE", "/nonexistent/module.so"}};
  std::vector<std::string> arguments = Serving(edgewise::tests::TestdataFolder());
  arguments.push_back("--device=auto");
  Process process(arguments);
  ASSERT_TRUE(process.WaitFor("\"event\":\"serving\"")) << process.output();
  const std::string first = process.output().substr(0, process.output().find('\n'));
  EXPECT_THAT(first, HasSubstr("\"level\":\"info\",\"event\":\"serving\""));
  EXPECT_THAT(first, HasSubstr("\"device\":\"cpu/"));
  EXPECT_THAT(first, testing::ContainsRegex("\"gpu\":\"none found: .*/nonexistent/module.so"));
  EXPECT_THAT(LogOf(edgewise::tests::TestdataFolder()), HasSubstr("\"gpu\":\"not asked for\""));
}

TEST(BinaryTest, FlagsComeFromTheEnvironmentAndTheCommandLineWins) {
  TestFolder folder;
  folder.AddModel("sbm", "m", 1);
  const Environment environment{{"EDGEWISE_MODEL_REPOSITORY", folder.path()},
                                {"EDGEWISE_LISTEN", "127.0.0.1:0"},
                                {"EDGEWISE_METRICS_LISTEN", ""},
                                {"EDGEWISE_DEVICE", "tpu"},
                                {"EDGEWISE_THREADS", "1"}};
  Process process({"--device=cpu"});
  ASSERT_TRUE(process.WaitFor("\"event\":\"model loaded\",\"model\":\"m\"")) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("\"metrics_port\":0,"));
  EXPECT_THAT(process.output(), testing::Not(HasSubstr("environment ignored")));
  Process wrong({});
  EXPECT_EQ(wrong.Wait(), 2);
  EXPECT_THAT(wrong.output(), HasSubstr("device is \"tpu\""));
}

TEST(BinaryTest, ModelsOfTheEnvironmentHaveCommasBetweenThem) {
  const std::string folder = tests::TestdataFolder();
  const Environment environment{{"EDGEWISE_MODEL", "a=" + folder + "/sbm/1,b=" + folder + "/dense/1"},
                                {"EDGEWISE_LISTEN", "127.0.0.1:0"},
                                {"EDGEWISE_METRICS_LISTEN", ""}};
  Process process({"--device=cpu"});
  EXPECT_TRUE(process.WaitFor("\"event\":\"model loaded\",\"model\":\"a\"")) << process.output();
  EXPECT_TRUE(process.WaitFor("\"event\":\"model loaded\",\"model\":\"b\"")) << process.output();
}

TEST(BinaryTest, AWrongValueInTheEnvironmentNamesItsVariable) {
  const Environment environment{{"EDGEWISE_MAX_SAMPLES", "0"}};
  Process process(Serving(tests::TestdataFolder()));
  EXPECT_EQ(process.Wait(), 2);
  EXPECT_THAT(process.output(), HasSubstr("EDGEWISE_MAX_SAMPLES is \"0\"; expected a whole number, 1 or more"));
}

// Kubernetes sets those of a Service that is called edgewise; clients and the CUDA backend have their own.
TEST(BinaryTest, OnlyMisspeltVariablesAreWarnedOf) {
  const Environment environment{{"EDGEWISE_MAX_SAMPLE", "3"},
                                {"EDGEWISE_SERVER", "host:1"},
                                {"EDGEWISE_CUDA_MODULE", "/nonexistent"},
                                {"EDGEWISE_SERVICE_HOST", "10.0.0.1"},
                                {"EDGEWISE_SERVICE_PORT", "8001"},
                                {"EDGEWISE_SERVICE_PORT_GRPC", "8001"},
                                {"EDGEWISE_PORT", "tcp://10.0.0.1:8001"},
                                {"EDGEWISE_PORT_8001_TCP", "tcp://10.0.0.1:8001"},
                                {"EDGEWISE_PORT_8001_TCP_PROTO", "tcp"},
                                {"EDGEWISE_PORT_8001_TCP_PORT", "8001"},
                                {"EDGEWISE_PORT_8001_TCP_ADDR", "10.0.0.1"}};
  const std::string log = LogOf(tests::TestdataFolder());
  EXPECT_THAT(
      log, HasSubstr("\"level\":\"warning\",\"event\":\"environment ignored\",\"reason\":\"EDGEWISE_MAX_SAMPLE is no "
                     "flag; did you mean EDGEWISE_MAX_SAMPLES?\""));
  const size_t first = log.find("environment ignored");
  EXPECT_EQ(log.find("environment ignored", first + 1), std::string::npos) << log;
}

// It is the flag that is missing, perhaps.
TEST(BinaryTest, AMisspeltVariableIsNamedBeforeTheErrorThatItMakes) {
  const Environment environment{{"EDGEWISE_MODEL_REPOSITRY", "x"}, {"EDGEWISE_MAX_INPUTS", "0"}};
  Process wrong({});
  EXPECT_EQ(wrong.Wait(), 2);
  EXPECT_THAT(wrong.output(),
              testing::StartsWith("edgewise-server: EDGEWISE_MODEL_REPOSITRY is no flag; did you mean "
                                  "EDGEWISE_MODEL_REPOSITORY?\nedgewise-server: EDGEWISE_MAX_INPUTS is \"0\""));
  Process missing({"--max_inputs=1"});
  EXPECT_EQ(missing.Wait(), 2);
  EXPECT_THAT(missing.output(), HasSubstr("did you mean EDGEWISE_MODEL_REPOSITORY?\nedgewise-server: "
                                          "--model_repository is missing"));
}

// Whose "port" the line of the event "serving" says.
std::string AddressOf(const Process& process) {
  const size_t port = process.output().find("\"port\":") + 7;
  return "127.0.0.1:" + process.output().substr(port, process.output().find(',', port) - port);
}

TEST(BinaryTest, SigtermBeginsTheDelayAndASecondOneEndsIt) {
  std::vector<std::string> arguments = Serving(tests::TestdataFolder());
  arguments.push_back("--drain_delay=24h");
  Process process(arguments);
  ASSERT_TRUE(process.WaitFor("\"event\":\"model loaded\",\"model\":\"sbm\"")) << process.output();
  process.Signal(SIGTERM);
  ASSERT_TRUE(process.WaitFor("\"event\":\"drain announced\"")) << process.output();
  auto stub =
      v1::InferenceService::NewStub(grpc::CreateChannel(AddressOf(process), grpc::InsecureChannelCredentials()));
  CallContext context;
  v1::PredictResponse response;
  EXPECT_TRUE(stub->Predict(&context, SmallRequest(), &response).ok());
  EXPECT_THAT(process.output(), testing::Not(HasSubstr("\"event\":\"draining\"")));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.output(), HasSubstr("\"event\":\"draining\""));
}

TEST(BinaryTest, TheDelayEndsByItself) {
  std::vector<std::string> arguments = Serving(tests::TestdataFolder());
  arguments.push_back("--drain_delay=10ms");
  Process process(arguments);
  ASSERT_TRUE(process.WaitFor("\"event\":\"serving\"")) << process.output();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  const size_t announced = process.output().find("\"event\":\"drain announced\"");
  EXPECT_LT(announced, process.output().find("\"event\":\"draining\""));
}

TEST(BinaryTest, SigtermDrainsAndExitsWith0) {
  Process process(Serving(tests::TestdataFolder()));
  ASSERT_TRUE(process.WaitFor("\"event\":\"serving\"")) << process.output();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.output(), HasSubstr("\"event\":\"stopped\""));
}

// As a process manager does that stops what it has just started.
TEST(BinaryTest, SigtermBeforeMainDrainsToo) {
  TestFolder folder;
  setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 0);  // it wants to be first
  setenv("LD_PRELOAD", TERM_AT_START, 1);
  Process process(Serving(folder.path()));
  unsetenv("LD_PRELOAD");
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.output(), HasSubstr("\"event\":\"draining\""));
}

TEST(BinaryTest, StderrThatNobodyReadsDoesNotHoldUpTheExit) {
  Process process(Serving(tests::TestdataFolder()));
  ASSERT_TRUE(process.WaitFor("\"event\":\"serving\"")) << process.output();
  process.FillErrors();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(false), 0);
}

TEST(BinaryTest, SecondSignalLeavesAtOnceWith1) {
  Process process(Serving(tests::TestdataFolder()));
  ASSERT_TRUE(process.WaitFor("\"event\":\"model loaded\",\"model\":\"sbm\"")) << process.output();
  auto stub =
      v1::InferenceService::NewStub(grpc::CreateChannel(AddressOf(process), grpc::InsecureChannelCredentials()));
  CallContext context;
  auto stream = stub->PredictStream(&context);
  v1::PredictRequest slow = SlowRequest();
  slow.set_request_id("x");
  v1::PredictRequest same = SmallRequest();
  same.set_request_id("x");
  v1::PredictStreamResponse response;
  ASSERT_TRUE(stream->Write(slow));
  ASSERT_TRUE(stream->Write(same));
  ASSERT_TRUE(stream->Read(&response));  // x is in flight
  ASSERT_EQ(response.error().code(), grpc::INVALID_ARGUMENT);
  process.Signal(SIGTERM);
  ASSERT_TRUE(process.WaitFor("\"event\":\"draining\",\"in_flight\":1")) << process.output();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 1);
  context.TryCancel();
  stream->Finish();
}

TEST(BinaryTest, SighupReadsTheRepositoryAgain) {
  TestFolder folder;
  Process process(Serving(folder.path()));
  ASSERT_TRUE(process.WaitFor("\"event\":\"serving\""));
  folder.AddModel("sbm", "late", 1);
  process.Signal(SIGHUP);
  EXPECT_TRUE(process.WaitFor("\"event\":\"model loaded\",\"model\":\"late\"")) << process.output();
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 0);
}

// A client of https that is given the port of http.
TEST(BinaryTest, TlsToAPlainPortIsClosedAtOnceAndLogged) {
  std::vector<std::string> arguments = Serving(tests::TestdataFolder());
  arguments.push_back("--http_listen=127.0.0.1:0");
  Process process(arguments);
  ASSERT_TRUE(process.WaitFor("\"event\":\"model loaded\"")) << process.output();
  const std::string key = "\"http_port\":";
  const size_t at = process.output().find(key);
  ASSERT_NE(at, std::string::npos) << process.output();
  const int port = std::atoi(process.output().c_str() + at + key.size());
  for (int i = 0; i < 30; ++i) {
    HttpClient client(port);
    client.Send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
    EXPECT_TRUE(client.Ended());
  }
  EXPECT_TRUE(process.WaitFor(
      "a client speaks TLS to --http_listen, where plain text is expected\",\"peer\":\"ipv4:127.0.0.1\""));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  size_t lines = 0;
  for (size_t line = 0; (line = process.output().find("speaks TLS", line + 1)) != std::string::npos;) ++lines;
  EXPECT_LT(lines, 30u) << "at most ten a second";
}

TEST(BinaryTest, EveryLogLineIsOneJsonObject) {
  TestFolder folder;
  folder.AddModel("sbm", "good", 1);
  folder.Write("bad/1/config.json", "{\"task\": \"\\u001b[31m\\n\"}");
  folder.Write("we\"ird\nname/1/config.json", "{}");
  Process process(Serving(folder.path()));
  ASSERT_TRUE(process.WaitFor("\"event\":\"model loaded\",\"model\":\"good\"")) << process.output();  // after "bad"
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  size_t lines = 0;
  for (size_t begin = 0; begin < process.output().size();) {
    const size_t end = process.output().find('\n', begin);
    const std::string line = process.output().substr(begin, end - begin);
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << line;
    if (parsed.is_object()) {
      EXPECT_TRUE(parsed.contains("time") && parsed.contains("level") && parsed.contains("event")) << line;
    }
    ++lines;
    begin = end + 1;
  }
  EXPECT_GE(lines, 6u);
}

}  // namespace
}  // namespace edgewise::server
