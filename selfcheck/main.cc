// edgewise-selfcheck, the first program to run on new hardware; `edgewise selfcheck` starts it. It compares attention
// of every pattern on the device with the CPU and a float64 reference, and a model with itself on the CPU.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "model/load/load.h"
#include "model/model.h"
#include "selfcheck/attention_check.h"
#include "selfcheck/flags.h"
#include "selfcheck/model_check.h"

namespace edgewise::selfcheck {
namespace {

enum ExitCode { kAgrees = 0, kDiffers = 1, kBadFlags = 2, kNoDevice = 4 };

ExitCode Fail(ExitCode code, absl::string_view message) {
  std::fflush(stdout);
  std::fprintf(stderr, "edgewise selfcheck: %s\n", std::string(message).c_str());
  return code;
}

// A check that could not be finished says nothing of what the device computes.
ExitCode FailOn(const Backend& device, const absl::Status& status) {
  if (!device.lost()) return Fail(kNoDevice, status.message());
  Fail(kNoDevice, absl::StrCat("the device was lost: ", std::string(status.message())));
  _exit(kNoDevice);  // a driver in that state may not come back from freeing memory
}

struct Devices {
  std::unique_ptr<Backend> device, cpu;
};

// Opens the device and the CPU, and prints a line where both are the CPU.
ExitCode OpenDevices(const Flags& flags, Devices& devices) {
  std::string why_cpu;
  absl::StatusOr<std::unique_ptr<Backend>> device =
      CreateBackend({flags.device, 0, "auto", flags.precision, flags.weights}, &why_cpu);
  if (!device.ok() && !why_cpu.empty() && flags.precision == "bf16") {
    return Fail(kNoDevice, absl::StrCat("bf16 needs a GPU: ", why_cpu));
  }
  if (!device.ok()) {
    return Fail(absl::IsInvalidArgument(device.status()) ? kBadFlags : kNoDevice, device.status().message());
  }
  devices.device = *std::move(device);
  absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend({"cpu", 0, "auto", "fp32"});
  if (!cpu.ok()) return Fail(kNoDevice, cpu.status().message());
  devices.cpu = *std::move(cpu);
  if (!why_cpu.empty()) std::printf("no GPU: %s; ", why_cpu.c_str());
  if (!absl::StartsWith(devices.device->device(), "cuda")) std::printf("the CPU is compared with itself\n");
  return kAgrees;
}

struct Models {
  std::unique_ptr<Model> on_device, on_cpu;
};

// Loads on the CPU first: a model that the CPU refuses is at fault itself; where only the device refuses, the device
// is.
ExitCode LoadModels(const std::string& directory, const Devices& devices, Models& models) {
  absl::StatusOr<std::unique_ptr<Model>> on_cpu = LoadModel(directory, *devices.cpu);
  if (!on_cpu.ok()) {
    const bool of_files = !absl::IsResourceExhausted(on_cpu.status()) && !absl::IsInternal(on_cpu.status());
    return Fail(of_files ? kBadFlags : kNoDevice,
                absl::StrCat("--model=", directory, ": ", std::string(on_cpu.status().message())));
  }
  models.on_cpu = *std::move(on_cpu);
  absl::StatusOr<std::unique_ptr<Model>> on_device = LoadModel(directory, *devices.device);
  if (!on_device.ok()) {
    const std::string message = absl::StrCat("the CPU takes the model, ", devices.device->device(),
                                             " does not: ", std::string(on_device.status().message()));
    return FailOn(*devices.device, absl::InternalError(message));
  }
  models.on_device = *std::move(on_device);
  return kAgrees;
}

// Prints a row for every pattern.
absl::Status RunAttention(const AttentionCheckOptions& options, const Devices& devices, bool& passed) {
  std::printf("%-22s %10s  %-5s  %9s %9s  %9s %9s\n", "attention", "edges", "graph", "error", "CPU", "ms", "CPU");
  return CheckAttention(options, *devices.device, *devices.cpu, [&](const AttentionRow& row) {
    passed &= row.passed;
    std::printf("%-22s %10lu  %-5s  %9.1e %9.1e  %9.3f %9.3f%s\n", row.name.c_str(),
                static_cast<unsigned long>(row.edges), row.same_graph ? "same" : "OTHER", row.device_error,
                row.cpu_error, row.device_ms, row.cpu_ms, row.passed ? "" : "  DIFFERS");
    std::fflush(stdout);
  });
}

absl::Status RunModel(const Models& models, int32_t tokens, double tolerance, bool& passed) {
  const auto rows = CheckModel(*models.on_device, *models.on_cpu, tokens, tolerance);
  if (!rows.ok()) return rows.status();
  std::printf("\n%-22s %9s %9s  %9s %9s  %9s %9s\n", "model over", "error", "allowed", "density", "CPU", "ms", "CPU");
  for (const ModelRow& row : *rows) {
    passed &= row.passed;
    char allowed[32] = "-";
    if (!row.judged_by_density) std::snprintf(allowed, sizeof(allowed), "%.0e", tolerance);
    std::printf("%-22s %9.1e %9s  %8.3f%% %8.3f%%  %9.2f %9.2f%s\n", row.name.c_str(), row.error, allowed,
                100.0 * row.device_density, 100.0 * row.cpu_density, row.device_ms, row.cpu_ms,
                row.passed ? "" : "  DIFFERS");
  }
  return absl::OkStatus();
}

// By what is rounded. A model may lose more with int8 and still be well computed; the row shows its error.
double LogitTolerance(const Flags& flags) {
  if (flags.weights == "int8") return 2e-1;
  return flags.precision == "bf16" || flags.weights == "bfloat16" ? 5e-2 : 1e-3;
}

ExitCode Check(const Flags& flags) {
  const bool bf16 = flags.precision == "bf16";
  const double logit_tolerance = LogitTolerance(flags);
  AttentionCheckOptions options;
  options.tokens = flags.tokens;
  options.repeats = flags.repeats;
  options.tolerance = bf16 ? 2e-2 : 1e-4;
  Devices devices;
  if (const ExitCode code = OpenDevices(flags, devices); code != kAgrees) return code;
  Models models;
  if (!flags.model.empty()) {
    if (const ExitCode code = LoadModels(flags.model, devices, models); code != kAgrees) return code;
  }
  std::printf("%s against %s, %d tokens, %d heads of %d, float64 reference\n\n", devices.device->device().c_str(),
              devices.cpu->device().c_str(), flags.tokens, options.heads, options.head_dim);
  bool passed = true;
  absl::Status status = RunAttention(options, devices, passed);
  if (status.ok() && models.on_cpu != nullptr) status = RunModel(models, flags.tokens, logit_tolerance, passed);
  if (!status.ok()) return FailOn(*devices.device, status);
  std::printf("\n%s; allowed: outputs %.0e of the largest, a model's logits %.0e of the largest, its density %.0f %%\n",
              passed ? "agrees" : "DIFFERS", options.tolerance, logit_tolerance, 100.0 * kDensityTolerance);
  return passed ? kAgrees : kDiffers;
}

ExitCode Main(const std::vector<std::string>& arguments) {
  Flags flags;
  FlagSet set(
      "edgewise selfcheck [flags]",
      "Compares attention, and a model, on a device with other ways to compute them.\n"
      "Exit codes: 0 it agrees, 1 it differs, 2 a flag or a file of the model is wrong, 4 the device cannot be\n"
      "used, or failed on the way.");
  flags.Register(set);
  set.LetLastWin();
  if (FlagSet::AsksForHelp(arguments)) {
    std::fputs(set.Help().c_str(), stdout);
    return kAgrees;
  }
  if (const absl::Status status = set.Parse(arguments); !status.ok()) return Fail(kBadFlags, status.message());
  if (flags.weights != "float32" && flags.model.empty()) {
    return Fail(kBadFlags, absl::StrCat("--weights=", flags.weights, " needs --model: attention has no weights"));
  }
  return Check(flags);
}

}  // namespace
}  // namespace edgewise::selfcheck

int main(int argc, char** argv) { return edgewise::selfcheck::Main({argv + 1, argv + argc}); }
