// edgewise bench as a user runs it: what it prints and writes.
#include <atomic>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/client/cli_fixture.h"
#include "tests/client/fake_service.h"

namespace edgewise::cli {
namespace {

using testing::FakeServer;

class CliBenchTest : public CliTest {};

TEST_F(CliBenchTest, MeasuresAsManyRequestsAsAskedFor) {
  const std::string json_path = ::testing::TempDir() + "edgewise_bench.json";
  const Outcome run = RunHere({"bench", "--model=toy", "--text=abc", "--requests=50", "--warmup=3",
                               "--inputs_per_request=2", "--json=" + json_path});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_HAS(run.out, "requests     50 answered, 0 failed");
  EXPECT_HAS(run.out, "server       mean queue 0.12 ms, compute 3.10 ms");
  EXPECT_HAS(run.out, "density      mean 15.62 %, 40 edges an input");
  EXPECT_EQ(calls_, 53);
  std::ifstream file(json_path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["answered"], 50);
  EXPECT_NEAR(json["inputs_per_second"].get<double>() / json["requests_per_second"].get<double>(), 2.0, 1e-9);
  EXPECT_LE(json["latency_ms"]["p50"].get<double>(), json["latency_ms"]["p99.9"].get<double>());
  std::remove(json_path.c_str());
}

TEST_F(CliBenchTest, WritesEveryCallWithItsCode) {
  const std::string path = ::testing::TempDir() + "edgewise_bench_calls.jsonl";
  const Outcome run =
      RunHere({"bench", "--model=toy", "--text=abc", "--requests=20", "--inputs_per_request=2", "--calls=" + path});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  std::ifstream file(path);
  size_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const nlohmann::json call = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(call.is_discarded()) << line;
    EXPECT_EQ(call["code"], "OK");
    EXPECT_EQ(call["outputs"], 2);
    EXPECT_EQ(call["compute_us"], 3100);
    EXPECT_EQ(call["batch_inputs"], 1);
    EXPECT_LE(call["begun"], call["end"]);
  }
  EXPECT_EQ(lines, 20u);
  std::remove(path.c_str());
}

TEST_F(CliBenchTest, CountsTheTokensOfGenerations) {
  std::atomic<int> generations = 0;
  server_.SetGenerate([&](const v1::GenerateRequest& request, const FakeServer::Emit& emit) {
    ++generations;
    EXPECT_EQ(request.prompt().text(), "abc");
    for (uint32_t token = 1; token <= request.max_new_tokens(); ++token) {
      v1::GenerateResponse message;
      message.mutable_edges()->set_edges(6);
      message.set_done(token == request.max_new_tokens());
      if (message.done()) message.mutable_timing()->set_compute_us(700);
      emit(message);
    }
    return absl::OkStatus();
  });
  const std::string path = ::testing::TempDir() + "edgewise_bench_generate.json";
  const Outcome run = RunHere(
      {"bench", "--model=toy", "--text=abc", "--new_tokens=5", "--requests=12", "--warmup=2", "--json=" + path});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_EQ(generations, 14);
  EXPECT_HAS(run.out, "requests     12 answered, 0 failed");
  EXPECT_HAS(run.out, "compute 0.70 ms");
  EXPECT_HAS(run.out, "6 edges a token");
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_NEAR(json["tokens_per_second"].get<double>() / json["requests_per_second"].get<double>(), 5.0, 1e-9);
  std::remove(path.c_str());
}

TEST_F(CliBenchTest, OpenLoopRunsForItsDuration) {
  const std::string json_path = ::testing::TempDir() + "edgewise_bench_open_loop.json";
  const Outcome run = RunHere(
      {"bench", "--model=toy", "--text=abc", "--rate=200", "--duration=500ms", "--warmup=0", "--json=" + json_path});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_HAS(run.out, "open loop, 200 requests/s");
  std::ifstream file(json_path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["answered"], calls_);
  // 100 requests are due, standard deviation 10; a busy machine does not make all of them.
  EXPECT_NEAR(json["answered"].get<double>() + json["unsent"].get<double>(), 100.0, 50.0);
  std::remove(json_path.c_str());
}

}  // namespace
}  // namespace edgewise::cli
