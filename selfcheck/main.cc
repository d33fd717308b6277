// edgewise-selfcheck: what an operator runs first on new hardware; `edgewise selfcheck` starts it. Attention of every
// pattern on the device, against cuSPARSE, the CPU and a float64 reference, and a model against itself on the CPU.
#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "selfcheck/attention_check.h"
#include "selfcheck/model_check.h"

ABSL_FLAG(std::string, device, "auto", "auto | cpu | cuda[:N].");
ABSL_FLAG(std::string, precision, "fp32", "fp32, or bf16 on a GPU.");
ABSL_FLAG(std::string, model, "",
          "Folder of one model version (config.json, model.safetensors); empty: attention only.");
ABSL_FLAG(int, tokens, 1024, "Length of the sequences.");
ABSL_FLAG(int, repeats, 5, "Timed runs of every call; their median is shown.");

namespace edgewise::selfcheck {
namespace {

enum ExitCode { kAgrees = 0, kDiffers = 1, kBadFlags = 2, kNoDevice = 4 };

constexpr int kMaxTokens = 8192;  // the reference takes time and memory by their square

int Fail(ExitCode code, const absl::Status& status) {
  std::fprintf(stderr, "edgewise selfcheck: %s\n", std::string(status.message()).c_str());
  return code;
}

// "12.3", or "-" for what was not computed.
std::string Cell(double value, const char* format) {
  if (value < 0.0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

int Main() {
  const std::string precision = absl::GetFlag(FLAGS_precision);
  AttentionCheckOptions options;
  options.tokens = absl::GetFlag(FLAGS_tokens);
  options.repeats = absl::GetFlag(FLAGS_repeats);
  options.tolerance = precision == "bf16" ? 2e-2 : 1e-4;
  if (options.tokens < 1 || options.tokens > kMaxTokens || options.repeats < 1) {
    return Fail(kBadFlags, absl::InvalidArgumentError("--tokens is 1 to 8192, --repeats 1 or more"));
  }
  absl::StatusOr<std::unique_ptr<Backend>> device = CreateBackend({absl::GetFlag(FLAGS_device), 0, "auto", precision});
  if (!device.ok()) return Fail(absl::IsInvalidArgument(device.status()) ? kBadFlags : kNoDevice, device.status());
  absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend({"cpu", 0, "auto", "fp32"});
  if (!cpu.ok()) return Fail(kNoDevice, cpu.status());
  const bool gpu = (*device)->device().rfind("cuda", 0) == 0;
  std::string without_cusparse = "cuSPARSE: only on a GPU";
  if (gpu) {
    const std::string name = absl::GetFlag(FLAGS_device);
    if (name.rfind("cuda:", 0) == 0 && !absl::SimpleAtoi(name.substr(5), &options.cuda_ordinal)) return kBadFlags;
    absl::StatusOr<CusparseAttend*> cusparse = OpenCusparse();
    if (cusparse.ok()) options.cusparse = *cusparse;
    without_cusparse = std::string(cusparse.status().message());  // empty where it is there
  }
  std::printf("%s against %s, %ld tokens, %d heads of %d, float64 reference; cuSPARSE has the graph given\n\n",
              (*device)->device().c_str(), (*cpu)->device().c_str(), static_cast<long>(options.tokens), options.heads,
              options.head_dim);
  std::printf("%-22s %10s  %-5s  %9s %9s %9s  %9s %9s %9s\n", "attention", "edges", "graph", "error", "CPU", "cuSPARSE",
              "ms", "CPU", "cuSPARSE");
  bool passed = true;
  absl::Status status = CheckAttention(options, **device, **cpu, [&](const AttentionRow& row) {
    passed &= row.passed;
    if (!row.cusparse_failure.empty()) without_cusparse = "cuSPARSE: " + row.cusparse_failure;
    std::printf("%-22s %10lu  %-5s  %9s %9s %9s  %9s %9s %9s%s\n", row.name.c_str(),
                static_cast<unsigned long>(row.edges), row.same_graph ? "same" : "OTHER",
                Cell(row.device_error, "%.1e").c_str(), Cell(row.cpu_error, "%.1e").c_str(),
                Cell(row.cusparse_error, "%.1e").c_str(), Cell(row.device_ms, "%.3f").c_str(),
                Cell(row.cpu_ms, "%.3f").c_str(), Cell(row.cusparse_ms, "%.3f").c_str(), row.passed ? "" : "  DIFFERS");
    std::fflush(stdout);
  });
  if (!status.ok()) return Fail(kDiffers, status);
  if (!without_cusparse.empty()) std::printf("%s\n", without_cusparse.c_str());
  if (const std::string model = absl::GetFlag(FLAGS_model); !model.empty()) {
    const auto rows = CheckModel(model, **device, **cpu, static_cast<int32_t>(options.tokens), 10 * options.tolerance);
    if (!rows.ok()) return Fail(kDiffers, rows.status());
    std::printf("\n%-22s %9s  %9s %9s  %9s %9s\n", "model over", "error", "density", "CPU", "ms", "CPU");
    for (const ModelRow& row : *rows) {
      passed &= row.passed;
      std::printf("%-22s %9.1e  %8.3f%% %8.3f%%  %9.2f %9.2f%s\n", row.name.c_str(), row.error,
                  100.0 * row.device_density, 100.0 * row.cpu_density, row.device_ms, row.cpu_ms,
                  row.passed ? "" : "  DIFFERS");
    }
  }
  std::printf("\n%s: differences up to %.0e of the largest output are expected\n", passed ? "agrees" : "DIFFERS",
              options.tolerance);
  return passed ? kAgrees : kDiffers;
}

}  // namespace
}  // namespace edgewise::selfcheck

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("compares attention and a model on a device with other ways to compute them");
  absl::ParseCommandLine(argc, argv);
  return edgewise::selfcheck::Main();
}
