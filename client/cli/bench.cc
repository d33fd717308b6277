// edgewise bench: latency and throughput of a running server.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/load.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {
namespace {

constexpr double kPercentiles[] = {0.5, 0.9, 0.99, 0.999};
constexpr uint32_t kOpenLoopConcurrency = 1024;  // enough that the server is the limit, not we
// Calls at a time on one connection. Servers allow about 100; above, calls would wait in our own library, unseen by the
// server's queue.
constexpr uint32_t kCallsPerConnection = 64;

struct BenchFlags {
  RequestFlags request;
  ConnectionFlags connection;
  std::optional<uint32_t> concurrency;
  uint64_t requests = 0;
  std::optional<absl::Duration> duration;
  double rate = 0;
  uint32_t inputs_per_request = 1;
  uint32_t new_tokens = 0;
  uint32_t warmup = 8;
  std::string json;
  std::string calls;

  void Register(FlagSet& flags) {
    request.Register(flags);
    flags.Section("Load");
    flags.Add("concurrency", "N", "calls at a time (default 4; with --rate: at most, default 1024)", &concurrency);
    flags.Add("requests", "N", "stop after so many", &requests);
    flags.Add("duration", "DURATION", "stop after this long (default 10s; with --requests 10m)", &duration);
    flags.Add("rate", "R", "open loop: R requests per second, arriving at random (Poisson)", &rate);
    flags.Add("inputs_per_request", "N", "inputs of each request", &inputs_per_request);
    flags.Add("new_tokens", "N", "let a language model write N tokens after each input; 0: predict", &new_tokens);
    flags.Add("warmup", "N", "requests before, not measured; at least one for each 64 of --concurrency", &warmup);
    flags.Section("Output");
    flags.Add("json", "FILE", "also write the result as JSON", &json);
    flags.Add("calls", "FILE", "also write every call as a line of JSON: times, code, the server's timing", &calls);
    connection.Register(flags);
  }

  absl::StatusOr<LoadOptions> MakeLoad() const {
    LoadOptions load;
    load.rate = rate;
    load.keep_calls = !calls.empty();
    load.requests = requests;
    load.concurrency = concurrency.value_or(rate > 0 ? kOpenLoopConcurrency : 4);
    load.duration = duration.value_or(requests > 0 ? absl::Minutes(10) : absl::Seconds(10));
    if (load.concurrency < 1 || load.concurrency > 8192) {
      return absl::InvalidArgumentError(absl::StrCat("--concurrency is ", load.concurrency, "; expected 1 to 8192"));
    }
    if (!(rate >= 0) || std::isinf(rate)) {
      return absl::InvalidArgumentError(absl::StrCat("--rate is ", rate, "; expected >= 0"));
    }
    if (load.duration <= absl::ZeroDuration() || load.duration > absl::Hours(24 * 7)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--duration is ", absl::FormatDuration(load.duration), "; expected above 0, at most 168h"));
    }
    if (inputs_per_request < 1 || inputs_per_request > 65536) {
      return absl::InvalidArgumentError(
          absl::StrCat("--inputs_per_request is ", inputs_per_request, "; expected 1 to 65536"));
    }
    if (new_tokens > 0 && (inputs_per_request != 1 || rate > 0)) {
      return absl::InvalidArgumentError("--new_tokens excludes --inputs_per_request and --rate");
    }
    return load;
  }
};

// Begins the call of this index on a connection, as LoadCall. The result lives as long as its calls.
using Ask = std::function<void(Client& client, uint64_t index, LoadDone done)>;

void SetTiming(const v1::Timing& timing, LoadAnswer& answer) {
  answer.queue_us = static_cast<double>(timing.queue_us());
  answer.compute_us = static_cast<double>(timing.compute_us());
  answer.batch_inputs = timing.batch_inputs();
}

void AddOutput(const v1::EdgeReport& report, LoadAnswer& answer) {
  ++answer.outputs;
  answer.density += report.density();
  answer.edges += report.edges();
}

absl::StatusOr<LoadAnswer> Answer(const absl::StatusOr<v1::PredictResponse>& response) {
  if (!response.ok()) return response.status();
  LoadAnswer answer;
  SetTiming(response->timing(), answer);
  for (const v1::Prediction& prediction : response->predictions()) AddOutput(prediction.edges(), answer);
  if (response->predictions_size() > 0) answer.samples = response->predictions(0).samples();
  return answer;
}

// The requests to send in turn: each input is part of one of them.
Ask MakePredicts(const v1::PredictRequest& base, const std::vector<LabelledInput>& inputs, uint32_t per_request,
                 bool open_loop) {
  std::vector<v1::PredictRequest> requests;
  const size_t count = (inputs.size() + per_request - 1) / per_request;
  for (size_t r = 0; r < count; ++r) {
    requests.push_back(base);
    for (size_t i = 0; i < per_request; ++i) {
      *requests.back().add_inputs() = inputs[(r * per_request + i) % inputs.size()].input;
    }
  }
  return [requests = std::move(requests), open_loop](Client& client, uint64_t index, LoadDone done) {
    const v1::PredictRequest& request = requests[index % requests.size()];
    if (!open_loop) return done(Answer(client.Predict(request)));
    client.PredictAsync(request, [done = std::move(done)](const absl::StatusOr<v1::PredictResponse>& response) {
      done(Answer(response));
    });
  };
}

// A generation after each input in turn.
Ask MakeGenerations(const v1::GenerateRequest& base, const std::vector<LabelledInput>& prompts,
                    absl::Duration timeout) {
  std::vector<v1::GenerateRequest> requests(prompts.size(), base);
  for (size_t r = 0; r < prompts.size(); ++r) *requests[r].mutable_prompt() = prompts[r].input.sequence();
  return [requests = std::move(requests), timeout](Client& client, uint64_t index, const LoadDone& done) {
    LoadAnswer answer;
    const absl::Status status = client.Generate(requests[index % requests.size()],
                                                [&](const v1::GenerateResponse& message) {
                                                  AddOutput(message.edges(), answer);
                                                  if (message.done()) SetTiming(message.timing(), answer);
                                                  return true;
                                                },
                                                {.timeout = timeout});
    done(status.ok() ? absl::StatusOr<LoadAnswer>(answer) : status);
  };
}

absl::StatusOr<Ask> MakeAsk(const BenchFlags& flags) {
  const absl::StatusOr<v1::PredictRequest> predict = flags.request.MakeRequest();
  if (!predict.ok()) return predict.status();
  const absl::StatusOr<std::vector<LabelledInput>> inputs = flags.request.ReadInputs();
  if (!inputs.ok()) return inputs.status();
  if (flags.new_tokens == 0) return MakePredicts(*predict, *inputs, flags.inputs_per_request, flags.rate > 0);
  v1::GenerateRequest generate;
  if (absl::Status status = flags.request.Apply(generate); !status.ok()) return status;
  generate.set_max_new_tokens(flags.new_tokens);
  return MakeGenerations(generate, *inputs, flags.connection.timeout);
}

std::string LoopText(const LoadOptions& load) {
  if (load.rate > 0)
    return absl::StrFormat("open loop, %g requests/s, at most %d at a time", load.rate, load.concurrency);
  return absl::StrFormat("closed loop, %d at a time", load.concurrency);
}

std::string PercentileName(double share) { return absl::StrFormat("p%g", 100.0 * share); }

uint64_t Failed(const LoadResult& result) {
  uint64_t failed = 0;
  for (const auto& [code, count] : result.errors) failed += count;
  return failed;
}

// Named after BenchFlags::new_tokens.
const char* OutputName(uint32_t new_tokens) { return new_tokens > 0 ? "tokens" : "inputs"; }

void Print(const BenchFlags& flags, const LoadOptions& load, const LoadResult& result, std::ostream& out) {
  const double ok = static_cast<double>(result.latency_ms.size());
  const double seconds = std::max(result.seconds, 1e-9);
  out << "load         " << LoopText(load) << absl::StrFormat(", %.2f s\n", result.seconds);
  out << "requests     " << WithCommas(result.latency_ms.size()) << " answered, " << WithCommas(Failed(result))
      << " failed\n";
  for (const auto& [code, count] : result.errors)
    out << "             " << CodeName(code) << " " << WithCommas(count) << "\n";
  if (!result.first_error.ok()) out << "             first: " << std::string(result.first_error.message()) << "\n";
  if (ok == 0) return;
  out << absl::StrFormat("throughput   %.1f requests/s, %.1f %s/s\n", ok / seconds,
                         static_cast<double>(result.sum.outputs) / seconds, OutputName(flags.new_tokens));
  out << "latency      ";
  for (double share : kPercentiles) {
    out << absl::StrFormat("%s %.2f  ", PercentileName(share), Percentile(result.latency_ms, share));
  }
  out << absl::StrFormat("max %.2f  mean %.2f ms\n", result.latency_ms.back(), Mean(result.latency_ms));
  out << absl::StrFormat("server       mean queue %s, compute %s\n", Milliseconds(result.sum.queue_us / ok),
                         Milliseconds(result.sum.compute_us / ok));
  const double outputs = std::max<double>(1.0, static_cast<double>(result.sum.outputs));
  out << absl::StrFormat("density      mean %s, %s edges %s\n", Percent(result.sum.density / outputs),
                         MeanWithCommas(result.sum.edges / outputs), flags.new_tokens > 0 ? "a token" : "an input");
  if (result.unsent > 0) {
    out << absl::StrFormat("unsent       %s requests were due while %d calls ran; latency would be higher\n",
                           WithCommas(result.unsent), load.concurrency);
  }
  if (result.late > 0) {
    out << absl::StrFormat(
        "late         %s requests began over 1 ms after they were due; their latency counts the wait\n",
        WithCommas(result.late));
  }
}

nlohmann::json ToJson(const BenchFlags& flags, const LoadOptions& load, const LoadResult& result) {
  const double ok = static_cast<double>(result.latency_ms.size());
  const double seconds = std::max(result.seconds, 1e-9);
  nlohmann::json latency = {{"max", result.latency_ms.empty() ? 0.0 : result.latency_ms.back()},
                            {"mean", Mean(result.latency_ms)}};
  for (double share : kPercentiles) latency[PercentileName(share)] = Percentile(result.latency_ms, share);
  nlohmann::json errors = nlohmann::json::object();
  for (const auto& [code, count] : result.errors) errors[CodeName(code)] = count;
  const double calls = std::max(1.0, ok);
  const double outputs = std::max<double>(1.0, static_cast<double>(result.sum.outputs));
  return {
      {"model", flags.request.model},
      {"loop", load.rate > 0 ? "open" : "closed"},
      {"rate", load.rate},
      {"concurrency", load.concurrency},
      {"inputs_per_request", flags.inputs_per_request},
      {"samples", flags.request.samples.value_or(0)},
      {"seconds", result.seconds},
      {"answered", result.latency_ms.size()},
      {"failed", Failed(result)},
      {"errors", errors},
      {"requests_per_second", ok / seconds},
      {absl::StrCat(OutputName(flags.new_tokens), "_per_second"), static_cast<double>(result.sum.outputs) / seconds},
      {"latency_ms", latency},
      {"server_ms",
       {{"queue", result.sum.queue_us / calls / 1000.0}, {"compute", result.sum.compute_us / calls / 1000.0}}},
      {"density", result.sum.density / outputs},
      {"edges", result.sum.edges / outputs},
      {"late", result.late},
      {"unsent", result.unsent}};
}

nlohmann::json ToJson(const CallRecord& call) {
  return {{"due", call.due},
          {"begun", call.begun},
          {"end", call.end},
          {"code", CodeName(call.code)},
          {"outputs", call.answer.outputs},
          {"queue_us", call.answer.queue_us},
          {"compute_us", call.answer.compute_us},
          {"batch_inputs", call.answer.batch_inputs},
          {"samples", call.answer.samples},
          {"edges", call.answer.edges}};
}

// Opens the file that a flag names, where it names one.
absl::Status OpenFile(const char* flag, const std::string& path, std::ofstream& file) {
  if (!path.empty()) file.open(path);
  if (file) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("--", flag, ": cannot write \"", path, "\""));
}

}  // namespace

int RunBench(Arguments arguments, std::ostream& out, std::ostream& err) {
  BenchFlags values;
  FlagSet flags("edgewise bench --model NAME (--text TEXT | --token_ids 1,2,3 | --input FILE.jsonl) [flags]",
                "Measures a running server: latency percentiles, throughput, edges, errors.");
  values.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "bench", arguments, out, err, exit_code)) return exit_code;
  absl::StatusOr<LoadOptions> load = values.MakeLoad();
  if (!load.ok()) return ReportUsageError(load.status(), "bench", err);
  absl::StatusOr<Ask> ask = MakeAsk(values);
  if (!ask.ok()) return ReportUsageError(ask.status(), "bench", err);
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t c = 0; c < load->concurrency; c += kCallsPerConnection) {
    absl::StatusOr<std::unique_ptr<Client>> client = values.connection.Connect(/*own_connection=*/true);
    if (!client.ok()) return ReportUsageError(client.status(), "bench", err);
    clients.push_back(*std::move(client));
  }
  std::ofstream json_file, calls_file;
  absl::Status files = OpenFile("json", values.json, json_file);
  files.Update(OpenFile("calls", values.calls, calls_file));
  if (!files.ok()) return ReportUsageError(files, "bench", err);

  // Some for each connection, so that none is made while we measure.
  const size_t warmup = values.warmup == 0 ? 0 : std::max<size_t>(values.warmup, clients.size());
  for (size_t w = 0; w < warmup; ++w) {
    absl::Status status;
    absl::Notification ended;
    (*ask)(*clients[w % clients.size()], w, [&](const absl::StatusOr<LoadAnswer>& answer) {
      status = answer.status();
      ended.Notify();
    });
    ended.WaitForNotification();
    if (!status.ok()) return ReportServerError(status, values.connection, err);
  }
  const bool terminal = isatty(STDERR_FILENO) != 0;
  double last_line = 0;
  LoadResult result = RunLoad(
      *load, [&](uint64_t index, LoadDone done) { (*ask)(*clients[index % clients.size()], index, std::move(done)); },
      [&](uint64_t ok, uint64_t failed, double seconds) {
        if (!terminal && seconds - last_line < 5) return;  // a log wants fewer lines
        last_line = seconds;
        err << (terminal ? "\r" : "")
            << absl::StrFormat("%6.1f s  %s answered, %s failed, %.1f requests/s", seconds, WithCommas(ok),
                               WithCommas(failed), static_cast<double>(ok) / seconds)
            << (terminal ? "   " : "\n") << std::flush;
      });
  if (terminal) err << "\n";
  Print(values, *load, result, out);
  if (json_file.is_open()) json_file << ToJson(values, *load, result).dump(2) << "\n";
  for (const CallRecord& call : result.calls) calls_file << ToJson(call).dump() << "\n";
  return result.latency_ms.empty() || Failed(result) > 0 ? kExitServer : kExitOk;
}

}  // namespace edgewise::cli
