#include "selfcheck/attention_check.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/reference/reference.h"
#include "selfcheck/difference.h"
#include "selfcheck/synthetic.h"

namespace edgewise::selfcheck {
namespace {

struct NamedPattern {
  std::string name;
  AttentionPattern pattern;
  double density = 0.0;    // of the memberships; 0: none are needed
  double cap_share = 0.0;  // of the pairs; 0: no cap
  CapRule keep = CapRule::kRandom;
};

// Windows of w runs of queries whose keys are every w-th token; or blocks of 64 with the one before.
GroupedKeys Grouped(int64_t n, int64_t groups, bool blocks) {
  GroupedKeys grouped;
  grouped.key_offsets.push_back(0);
  for (int64_t g = 0; g < groups; ++g) {
    grouped.group_begin.push_back(static_cast<int32_t>(n * g / groups));
    for (int64_t key = 0; key < n; ++key) {
      const int64_t of = key * groups / n;
      if (blocks ? of == g || of == g - 1 : key % groups == g) grouped.keys.push_back(static_cast<int32_t>(key));
    }
    grouped.key_offsets.push_back(static_cast<int64_t>(grouped.keys.size()));
  }
  grouped.group_begin.push_back(static_cast<int32_t>(n));
  return grouped;
}

std::vector<NamedPattern> Patterns(int64_t n) {
  std::vector<NamedPattern> patterns = {{"all pairs", AllPairs{}},
                                        {"causal", AllPairs{true}},
                                        {"4 windows", Grouped(n, 4, false)},
                                        {"blocks of 64", Grouped(n, std::max<int64_t>(1, n / 64), true)}};
  for (const auto& [name, density] : {std::pair<const char*, double>{"drawn 1 %", 0.01},
                                      {"drawn 2.5 %", 0.025},
                                      {"drawn 10 %", 0.1},
                                      {"drawn 25 %", 0.25},
                                      {"drawn 100 %", 0.9999}}) {
    patterns.push_back({name, DrawnRows{.key = {7, 0, 0, 0}}, density});
  }
  patterns.push_back({"drawn 10 %, capped 5 %", DrawnRows{.key = {7, 0, 0, 0}}, 0.1, 0.05});
  patterns.push_back({"drawn 10 %, top 5 %", DrawnRows{.key = {7, 0, 0, 0}}, 0.1, 0.05, CapRule::kProbable});
  patterns.push_back({"poisson 10 %", DrawnRows{.law = Law::kPoissonMulti, .key = {7, 0, 0, 0}}, 0.1});
  return patterns;
}

struct Result {
  std::vector<float> out;
  AttentionReport report;
  double milliseconds = 0.0;
};

Buffer Place(Backend& backend, std::span<const float> host, absl::Status& status) {
  if (!status.ok()) return {};
  absl::StatusOr<Buffer> buffer = backend.Allocate(static_cast<int64_t>(host.size()));
  status = buffer.ok() ? backend.Upload(host, buffer->data()) : buffer.status();
  return status.ok() ? *std::move(buffer) : Buffer();
}

// Attends once unmeasured, `repeats` times for the time and the output, and once more for the graph.
absl::StatusOr<Result> Run(Backend& backend, const Operands& operands, const AttentionInputs& host,
                           const NamedPattern& pattern, uint64_t max_edges, int repeats) {
  absl::Status status;
  AttentionInputs inputs = host;
  const int64_t n = inputs.q.rows, width = inputs.q.columns;
  std::vector<Buffer> buffers;
  const auto place = [&](const float* data, int64_t count) {
    return buffers.emplace_back(Place(backend, {data, static_cast<size_t>(count)}, status)).data();
  };
  inputs.q.data = place(operands.q.data(), n * width);
  inputs.k.data = place(operands.k.data(), n * width);
  inputs.v.data = place(operands.v.data(), n * width);
  if (Memberships& m = inputs.memberships; m.x != nullptr) {
    m.x = place(m.x, inputs.num_heads * n * m.rank);
    m.y = place(m.y, inputs.num_heads * n * m.rank);
    m.query_bound = place(m.query_bound, inputs.num_heads * n);
    m.key_bound = place(m.key_bound, inputs.num_heads * n);
  }
  Result result;
  result.out.resize(static_cast<size_t>(n * width));
  const Buffer out = Place(backend, result.out, status);
  if (!status.ok()) return status;
  AttentionProblem problem;
  problem.tokens = static_cast<int32_t>(n);
  problem.pattern = pattern.pattern;
  problem.report = &result.report;
  std::vector<double> times;
  for (int run = 0; run <= repeats + 1; ++run) {
    EdgeCap cap;
    cap.max_edges = max_edges;
    cap.keep = pattern.keep;
    problem.cap = max_edges == kNoCap ? -1 : 0;
    result.report.wanted.graph = run > repeats;
    const auto start = std::chrono::steady_clock::now();
    status = backend.Attend(inputs, {&problem, 1}, {&cap, max_edges == kNoCap ? 0u : 1u}, Matrix(out.data(), n, width));
    const absl::Status done = backend.Synchronize();  // also after a failure: the report has to live until then
    if (status.ok()) status = done;
    if (!status.ok()) return status;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (run > 0 && run <= repeats) times.push_back(1e3 * seconds);
    if (run == repeats) status = backend.Download(out.data(), result.out);
    if (!status.ok()) return status;
  }
  std::sort(times.begin(), times.end());
  result.milliseconds = times.empty() ? 0.0 : times[times.size() / 2];
  return result;
}

absl::Status Where(const Backend& backend, const NamedPattern& pattern, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(backend.device(), ": ", pattern.name, ": ", std::string(status.message())));
}

}  // namespace

absl::Status CheckAttention(const AttentionCheckOptions& options, Backend& device, Backend& cpu,
                            const std::function<void(const AttentionRow&)>& visit) {
  const Operands operands(options.tokens, options.heads, options.head_dim);
  for (const NamedPattern& pattern : Patterns(options.tokens)) {
    AttentionInputs host = operands.inputs;
    const SyntheticMemberships memberships(options.tokens, options.heads, std::max(pattern.density, 0.01));
    if (pattern.density > 0.0) host.memberships = memberships.memberships;
    const double pairs = static_cast<double>(options.tokens) * static_cast<double>(options.tokens) * options.heads;
    const uint64_t max_edges = pattern.cap_share > 0.0 ? static_cast<uint64_t>(pairs * pattern.cap_share) : kNoCap;

    // The reference, in float64.
    std::vector<float> want(operands.q.size());
    AttentionReport report;
    report.wanted.graph = true;
    AttentionProblem problem;
    problem.tokens = static_cast<int32_t>(options.tokens);
    problem.pattern = pattern.pattern;
    problem.report = &report;
    problem.cap = max_edges == kNoCap ? -1 : 0;
    EdgeCap cap;
    cap.max_edges = max_edges;
    cap.keep = pattern.keep;
    reference::Attend(host, {&problem, 1}, {&cap, max_edges == kNoCap ? 0u : 1u},
                      Matrix(want.data(), options.tokens, host.q.columns));
    AttentionRow row;
    row.name = pattern.name;
    for (const HeadReport& head : report.heads) row.edges += head.edges;
    const absl::StatusOr<Result> on_device = Run(device, operands, host, pattern, max_edges, options.repeats);
    if (!on_device.ok()) return Where(device, pattern, on_device.status());
    row.same_graph = SameGraph(on_device->report, report);
    row.device_error = RelativeError(on_device->out, want);
    row.device_ms = on_device->milliseconds;
    const absl::StatusOr<Result> on_cpu = Run(cpu, operands, host, pattern, max_edges, options.repeats);
    if (!on_cpu.ok()) return Where(cpu, pattern, on_cpu.status());
    row.cpu_error = RelativeError(on_cpu->out, want);
    row.cpu_ms = on_cpu->milliseconds;
    row.passed = row.same_graph && row.device_error <= options.tolerance;
    visit(row);
  }
  return absl::OkStatus();
}

}  // namespace edgewise::selfcheck
