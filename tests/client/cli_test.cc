// The commands as a user runs them, against a server in the same process: output and exit status.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "tests/client/cli_fixture.h"
#include "tests/client/fake_service.h"
#include "tests/client/tls_files.h"

namespace edgewise::cli {
namespace {

using testing::CallInfo;
using testing::FakeServer;
using testing::PlausibleAnswer;

TEST_F(CliTest, PredictShowsEverythingAPersonAsksFor) {
  const Outcome run = RunHere({"predict", "--model=toy", "--text=odd", "--samples=8", "--seed=5", "--max_edges=39"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  for (const char* part :
       {"prediction   positive (label 1)", "probability  0.7500 ± 0.0200", "entropy 0.5623 nats",
        "mutual information 0.0123 nats", "edges        40 of 256 pairs", "density      15.62 %",
        "budget       39 edges, capped", "samples      8", "queue 0.12 ms, compute 3.10 ms, total 3.30 ms",
        "device       cpu/test/fp32", "seed         5"}) {
    EXPECT_HAS(run.out, part);
  }
  EXPECT_EQ(last_.ensemble().seed(), 5u);
  EXPECT_EQ(last_.budget().max_edges(), 39u);
}

TEST(RenderTest, AnAnswerSaysWhatGaveWayAndWhy) {
  v1::PredictResponse response;
  v1::Prediction& prediction = *response.add_predictions();
  prediction.set_samples(1);
  prediction.mutable_edges()->set_budget(39);
  prediction.mutable_edges()->set_capped(true);
  response.mutable_degraded()->set_requested_samples(4);
  response.mutable_degraded()->set_samples(1);
  response.mutable_degraded()->set_reason(v1::Degraded::LOAD);
  EXPECT_HAS(RenderAnswer(response), "samples      1 of 4, as others waited\n");
  EXPECT_HAS(RenderAnswer(response), "budget       39 edges, capped\n");
  response.mutable_degraded()->mutable_budget()->set_max_density(0.1);
  response.mutable_degraded()->set_reason(v1::Degraded::DEADLINE);
  EXPECT_HAS(RenderAnswer(response),
             "budget       39 edges, capped, lower than asked, so that the answer came in time\n");
}

TEST(RenderTest, LabelsAndLogitsStandInTheirOrder) {
  v1::PredictResponse response;
  v1::Prediction& prediction = *response.add_predictions();
  prediction.set_samples(1);
  prediction.set_label("positive");
  prediction.set_label_id(1);
  for (float probability : {0.25f, 0.75f}) prediction.add_probabilities(probability);
  for (float logit : {-0.5f, 0.5f, 1.5f}) prediction.add_logits(logit);
  for (int id : {1, 0}) {
    v1::Prediction::Top& top = *prediction.add_top();
    top.set_label(id == 1 ? "positive" : "negative");
    top.set_label_id(id);
    top.set_probability(prediction.probabilities(id));
  }
  EXPECT_HAS(RenderAnswer(response), "logits       -0.5000  0.5000  1.5000\n");
  EXPECT_HAS(RenderAnswer(response),
             "top          0.7500  positive (label 1)\n             0.2500  negative (label 0)\n");
}

TEST(RenderTest, EveryLabelOfAMultiLabelModelAboveOneHalfIsShown) {
  v1::PredictResponse response;
  v1::Prediction& prediction = *response.add_predictions();
  prediction.set_multi_label(true);
  prediction.set_samples(2);
  prediction.set_label("threat");
  prediction.set_label_id(2);
  for (float probability : {0.75f, 0.5f, 0.875f}) prediction.add_probabilities(probability);
  for (float deviation : {0.125f, 0.0f, 0.0625f}) prediction.add_stddev(deviation);
  const std::vector<std::string> names = {"toxic", "insult", "threat"};
  EXPECT_HAS(RenderAnswer(response, names),
             "prediction   threat (label 2)        0.8750 ± 0.0625\n"
             "             toxic (label 0)         0.7500 ± 0.1250\n"
             "uncertainty");
  EXPECT_HAS(RenderAnswer(response), "             label 0                 0.7500 ± 0.1250\n") << "names are not known";
  LabelledInput input;
  EXPECT_HAS(RenderLine(1, response, input, names), "    1  toxic, threat         0.8750   0.0625");
  input.labels = {{2, 0, 2}};
  EXPECT_HAS(RenderLine(1, response, input, names), "  right\n");
  input.labels = {{1, 2}};
  EXPECT_HAS(RenderLine(1, response, input, names), "  wrong: insult, threat\n");
  for (float& probability : *prediction.mutable_probabilities()) probability /= 2;
  EXPECT_HAS(RenderAnswer(response, names),
             "prediction   none above 0.5; the most probable is threat (label 2): 0.4375 ± 0.0625\n");
  input.labels.emplace();
  EXPECT_HAS(RenderLine(1, response, input, names), "    1  none   ");
  EXPECT_HAS(RenderLine(1, response, input, names), "  right\n");
}

TEST_F(CliTest, JsonHasTheFieldNamesOfTheProtoFileAndItsDefaults) {
  const Outcome run = RunHere({"predict", "--model=toy", "--token_ids=1,2", "--json"});
  ASSERT_EQ(run.status, kExitOk) << run.err;
  const nlohmann::json json = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << run.out;
  EXPECT_EQ(json["predictions"][0]["label_id"], 0);
  EXPECT_EQ(json["predictions"][0]["edges"]["capped"], false);
  EXPECT_EQ(json["predictions"][0]["edges"]["pairs"], "256");
  EXPECT_EQ(json["seed"], "7");
}

TEST_F(CliTest, OutputSwitchesReachTheServer) {
  ASSERT_EQ(RunHere({"predict", "--model=toy", "--text=a", "--logits", "--each_sample", "--layer_stats",
                     "--key_degrees", "--graph", "--request_id=r1", "--dense"})
                .status,
            kExitOk);
  const v1::OutputOptions& outputs = last_.outputs();
  EXPECT_TRUE(outputs.logits() && outputs.each_sample() && outputs.layer_stats() && outputs.key_degrees() &&
              outputs.graph());
  EXPECT_EQ(last_.request_id(), "r1");
  EXPECT_EQ(last_.attention(), v1::DENSE);
}

TEST_F(CliTest, FileIsAnsweredInOrderWithItsAccuracy) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {  // right but for every fourth
    lines += "{\"text\": \"" + std::string(i + 1, 'x') +
             "\", \"label\": " + std::to_string((i + 1 + (i % 4 == 0)) % 2) + "}\n";
  }
  const Outcome run = RunHere({"predict", "--model=toy", "--input=" + WriteFile(lines), "--concurrency=7"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_HAS(run.out, "inputs       40 answered, 0 failed");
  EXPECT_HAS(run.out, "accuracy     75.00 % (30 of 40)");
  std::istringstream stream(run.out);
  std::string line;
  std::getline(stream, line);  // heading
  for (int i = 1; i <= 40; ++i) {
    std::getline(stream, line);
    EXPECT_EQ(line.substr(0, 5), PadLeft(std::to_string(i), 5));
    EXPECT_HAS(line, i % 2 == 1 ? "positive" : "negative");
  }
  EXPECT_EQ(calls_, 40);
}

TEST_F(CliTest, LabelsOfAFileMayBeNames) {
  const std::string lines = "{\"text\": \"a\", \"label\": \"positive\"}\n{\"text\": \"b\", \"label\": \"negative\"}\n";
  EXPECT_HAS(RunHere({"predict", "--model=toy", "--input=" + WriteFile(lines)}).out, "accuracy     50.00 % (1 of 2)");
  const std::string path = WriteFile(lines + "{\"text\": \"c\", \"label\": \"neutral\"}\n");
  const Outcome run = RunHere({"predict", "--model=toy", "--input=" + path});
  EXPECT_EQ(run.status, kExitUsage);
  EXPECT_HAS(run.err, path + ":3: label is \"neutral\"; the model has the labels negative, positive");
}

TEST_F(CliTest, RefusedInputOfAFileCostsNoOther) {
  const std::string path = WriteFile("{\"text\": \"a\"}\n{\"text\": \"too long\"}\n{\"text\": \"b\"}\n");
  const Outcome run = RunHere({"predict", "--model=toy", "--input=" + path, "--json"});
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_HAS(run.err, "inputs       2 answered, 1 failed");
  std::istringstream stream(run.out);
  std::vector<nlohmann::json> answers;
  for (std::string line; std::getline(stream, line);) answers.push_back(nlohmann::json::parse(line, nullptr, false));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[1]["input"], 2);
  EXPECT_EQ(answers[1]["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(answers[2]["predictions"].size(), 1u);
}

TEST_F(CliTest, FileEndsAtAnErrorThatEveryInputWouldMeet) {
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += "{\"text\": \"a\"}\n";
  const Outcome run = RunHere({"predict", "--model=ghost", "--input=" + WriteFile(lines), "--concurrency=2"});
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_HAS(run.err, "NOT_FOUND: model: no model is named \"ghost\"");
  EXPECT_LT(calls_, 500);
}

TEST_F(CliTest, ServerErrorIsOneAndWrongUsageIsTwo) {
  const Outcome refused = RunHere({"predict", "--model=ghost", "--text=a"});
  EXPECT_EQ(refused.status, kExitServer);
  EXPECT_EQ(refused.err, "edgewise: NOT_FOUND: model: no model is named \"ghost\"\n");
  EXPECT_EQ(refused.out, "");
  const Outcome absent = RunCli({"predict", "--model=toy", "--text=a", "--server=127.0.0.1:1"});
  EXPECT_EQ(absent.status, kExitServer);
  EXPECT_HAS(absent.err, "Is edgewise-server running at 127.0.0.1:1?");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"predcit"},
           {"predict"},
           {"predict", "--model=toy"},
           {"predict", "--model=toy", "--text=a", "--max_density=2"},
           {"predict", "--model=toy", "--text=a", "--timeout=0s"},
           {"predict", "--model=toy", "--text=\xff"},
           {"predict", "--model=toy", "--input=/nonexistent"},
           {"predict", "--model=toy", "--text=a", "--token_file=/nonexistent"},
           {"models", "--samples=3"},
           {"bench", "--model=toy", "--text=a", "--rate=-1"},
           {"bench", "--model=toy", "--text=a", "--concurrency=0"},
           {"bench", "--model=toy", "--text=a", "--new_tokens=2", "--inputs_per_request=2"},
           {"bench", "--model=toy", "--text=a", "--new_tokens=2", "--rate=9"}}) {
    const Outcome run = RunCli(arguments);
    EXPECT_EQ(run.status, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_NE(run.err, "") << ::testing::PrintToString(arguments);
  }
}

TEST_F(CliTest, ServerOfTheEnvironmentIsAskedUnlessAFlagNamesAnother) {
  setenv("EDGEWISE_SERVER", server_.address().c_str(), 1);
  EXPECT_EQ(RunCli({"health"}).out, "SERVING\n");
  EXPECT_HAS(RunCli({"health", "--help"}).out, "(default " + server_.address() + ")");
  EXPECT_HAS(RunCli({"health", "--server=127.0.0.1:1"}).err, "Is edgewise-server running at 127.0.0.1:1?");
  unsetenv("EDGEWISE_SERVER");
  EXPECT_EQ(RunHere({"health"}).out, "SERVING\n");
  EXPECT_EQ(RunCli({"health", "--server=http://" + server_.address() + "/"}).out, "SERVING\n");
}

TEST_F(CliTest, TlsMismatchIsToldAsOne) {
  const testing::TlsFiles files;
  if (!files.Make()) GTEST_SKIP() << "no openssl program";
  auto answer = [](const v1::PredictRequest& request, const CallInfo&) { return PlausibleAnswer(request); };
  const FakeServer encrypted(answer, files.ForServer(false)), mutual(answer, files.ForServer(true));
  const std::string ca = "--tls_ca_file=" + files.certificate(), name = "--tls_server_name=localhost";
  auto error = [](const FakeServer& server, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"models", "--server=" + server.address()});
    const Outcome run = RunCli(flags);
    EXPECT_EQ(run.status, kExitServer);
    EXPECT_EQ(run.err.find("Is edgewise-server running"), std::string::npos) << run.err;
    return run.err;
  };
  EXPECT_HAS(error(encrypted, {}), "It may want TLS: --tls_ca_file=PEM (or --tls)");
  EXPECT_HAS(error(server_, {ca, name}), "does not speak TLS: leave out --tls");
  EXPECT_HAS(error(encrypted, {"--tls"}), "--tls_ca_file=PEM names who did");
  EXPECT_HAS(error(encrypted, {ca, "--tls_server_name=elsewhere"}), "--tls_server_name=NAME gives the name to expect");
  EXPECT_HAS(error(mutual, {ca, name}), "It may want a client certificate: --tls_cert_file=PEM, --tls_key_file=PEM.");
  EXPECT_EQ(RunCli({"models", "--server=" + mutual.address(), ca, name, "--tls_cert_file=" + files.certificate(),
                    "--tls_key_file=" + files.key()})
                .status,
            kExitOk);
}

TEST_F(CliTest, ProgramOfTheSelfCheckThatIsAbsentIsNotPartOfTheInstallation) {
  const Outcome run = RunCli({"selfcheck"});  // the tests lie in a folder of their own
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_HAS(run.err, "edgewise selfcheck: not part of this installation: there is no ");
}

TEST_F(CliTest, HelpIsOnStandardOutputForEveryCommand) {
  EXPECT_HAS(RunCli({"help"}).out, "predict");
  for (const char* command : {"predict", "evaluate", "models", "health", "bench"}) {
    const Outcome run = RunCli({command, "--help"});
    EXPECT_EQ(run.status, kExitOk);
    EXPECT_HAS(run.out, std::string("Usage: edgewise ") + command);
    EXPECT_EQ(RunCli({"help", command}).out, run.out);
  }
  EXPECT_HAS(RunCli({"version"}).out, "edgewise ");
}

TEST(FormatTest, NumbersReadWell) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(18446744073709551615u), "18,446,744,073,709,551,615");
  EXPECT_EQ(MeanWithCommas(1234.5), "1,234.5");
  EXPECT_EQ(MeanWithCommas(999.96), "1,000.0");
  EXPECT_EQ(MeanWithCommas(40), "40");
  EXPECT_EQ(Percent(0.15625), "15.62 %");
  EXPECT_EQ(PadRight("\u00fc", 3), "\u00fc  ");
}

TEST_F(CliTest, ModelsAreListedWithTheErrorOfTheFailed) {
  const Outcome run = RunHere({"models"});
  EXPECT_EQ(run.status, kExitOk);
  EXPECT_HAS(run.out, "1,234,567");
  EXPECT_HAS(run.out, "config.json: hidden_size is missing");
  EXPECT_HAS(RunHere({"models", "--json"}).out, "\"max_tokens\": 512");
}

TEST_F(CliTest, HealthTellsByItsExitStatus) {
  EXPECT_EQ(RunHere({"health"}).out, "SERVING\n");
  EXPECT_EQ(RunHere({"health", "--model=toy"}).status, kExitOk);
  const Outcome down = RunHere({"health", "--model=other"});
  EXPECT_EQ(down.status, kExitServer);
  EXPECT_EQ(down.out, "NOT_SERVING\n");
  EXPECT_EQ(RunHere({"health", "--model=ghost"}).err, "edgewise: NOT_FOUND: model: no model is named \"ghost\"\n");
}

TEST_F(CliTest, HealthWaitsUntilItServes) {
  std::jthread later([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    server_.SetServing("other", true);
  });
  const Outcome run = RunHere({"health", "--model=other", "--wait", "--timeout=60s"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_EQ(run.out, "SERVING\n");
  const Outcome never = RunHere({"health", "--model=ghost", "--wait", "--timeout=200ms"});
  EXPECT_EQ(never.status, kExitServer);
  EXPECT_HAS(never.err, "DEADLINE_EXCEEDED");
}

}  // namespace
}  // namespace edgewise::cli
