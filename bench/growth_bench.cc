// growth_bench [--json FILE] [--isa NAME] [--threads N] [--repeats R] [--most N]
//
// How time and peak memory of attention grow with the length, drawing included: at 64 edges a row, and at 0.25 % of the
// pairs; d = 64, one head, made-up memberships of rank 32. Dense attention beside it, to 16,384 tokens. Times are
// CPU times of all threads. Each length runs in a process of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/attention_calls.h"
#include "bench/flags.h"
#include "bench/provenance.h"

namespace edgewise::bench {
namespace {

using selfcheck::Operands;
using selfcheck::SyntheticMemberships;

constexpr int64_t kLongestDense = 16384;

struct Options : RunOptions {
  int most = 65536;
};

struct Row {
  int64_t n;
  double density;
  double milliseconds, dense_milliseconds;  // dense: 0 where it was not timed
  int64_t kilobytes;                        // peak memory above the inputs
};

// Kilobytes of a field of /proc/self/status.
int64_t StatusKilobytes(const char* field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(field, 0) == 0) return std::atoll(line.c_str() + std::strlen(field) + 1);
  }
  return 0;
}

double MedianMilliseconds(AttendCall& call, int repeats) {
  std::vector<double> times;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double start = CpuSeconds();
    call.Run();
    times.push_back(1e3 * (CpuSeconds() - start));
  }
  return Median(times);
}

Row Measure(int64_t n, double density, const Options& options) {
  auto backend = CreateBackend({"cpu", options.threads, options.isa, "fp32"});
  Check(backend.status());
  const Operands operands(n, 1, 64);
  const SyntheticMemberships synthetic(n, 1, density);
  DrawnRows drawn;
  drawn.law = Law::kPoissonSet;
  AttendCall sparse(**backend, operands, synthetic.memberships, drawn);
  const int64_t before = StatusKilobytes("VmRSS:");
  sparse.Run();
  Row row = {n, density, 0.0, 0.0, StatusKilobytes("VmHWM:") - before};
  row.milliseconds = MedianMilliseconds(sparse, options.repeats);
  if (n > kLongestDense) return row;
  AttendCall dense(**backend, operands, {}, AllPairs{});
  dense.Run();
  row.dense_milliseconds = MedianMilliseconds(dense, (options.repeats + 2) / 3);
  return row;
}

// In a process of its own, whose peak memory is that of this length.
Row MeasureApart(int64_t n, double density, const Options& options) {
  int fds[2];
  if (pipe(fds) != 0) std::exit(1);
  const pid_t child = fork();
  Row row = {};
  if (child == 0) {
    row = Measure(n, density, options);
    _exit(write(fds[1], &row, sizeof(row)) == sizeof(row) ? 0 : 1);
  }
  close(fds[1]);
  if (read(fds[0], &row, sizeof(row)) != sizeof(row)) std::exit(1);
  waitpid(child, nullptr, 0);
  close(fds[0]);
  return row;
}

void WriteJson(const Options& options, const std::vector<Row>& rows, const std::string& provenance) {
  std::ofstream file(options.json);
  file << "{" << provenance << ", \"threads\": " << options.threads << ", \"rows\": [";
  const char* separator = "\n";
  for (const Row& row : rows) {
    file << separator << "  {\"n\": " << row.n << ", \"density\": " << row.density
         << ", \"milliseconds\": " << row.milliseconds << ", \"dense_milliseconds\": " << row.dense_milliseconds
         << ", \"kilobytes\": " << row.kilobytes << "}";
    separator = ",\n";
  }
  file << "\n]}\n";
  if (!file) Check(absl::UnavailableError("cannot write " + options.json));
}

void Run(const Options& options, const std::string& provenance) {
  std::printf("Attention with its draw, law poisson_set, d = 64, one head, %d threads; medians of %d runs, CPU time\n",
              options.threads, options.repeats);
  std::vector<Row> rows;
  for (const double share : {0.0, 0.0025}) {
    std::printf("\n%s\n%7s %9s %10s %7s %10s %7s %10s %7s\n", share > 0.0 ? "0.25 % of the pairs" : "64 edges a row",
                "n", "density", "ms", "growth", "kB", "growth", "dense ms", "ratio");
    Row before = {};
    for (int64_t n = 1024; n <= options.most; n *= 2) {
      const Row row = MeasureApart(n, share > 0.0 ? share : 64.0 / static_cast<double>(n), options);
      const auto growth = [&](double now, double then) { return then > 0.0 ? now / then : 0.0; };
      std::printf("%7ld %9.5f %10.2f %7.2f %10ld %7.2f %10.1f %7.1f\n", static_cast<long>(n), row.density,
                  row.milliseconds, growth(row.milliseconds, before.milliseconds), static_cast<long>(row.kilobytes),
                  growth(static_cast<double>(row.kilobytes), static_cast<double>(before.kilobytes)),
                  row.dense_milliseconds, row.dense_milliseconds / row.milliseconds);
      std::fflush(stdout);
      rows.push_back(row);
      before = row;
    }
  }
  if (!options.json.empty()) WriteJson(options, rows, provenance);
}

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  using namespace edgewise::bench;
  Options options;
  options.repeats = 5;
  options.threads = 1;
  edgewise::FlagSet flags("growth_bench [flags]", "Time and peak memory of attention as the length grows.");
  options.Register(flags);
  flags.Add("most", "N", "the longest length", &options.most, {1024});
  ParseOrExit(flags, argc, argv);
  Run(options, Provenance(argc, argv));
  return 0;
}
