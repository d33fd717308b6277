#include "tests/model/deferred_backend.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <variant>

namespace edgewise::testing {
namespace {

constexpr uint64_t kAbsurd = ~uint64_t{0};

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "deferred backend: %s\n", what);
  std::abort();
}

struct DeferredLedger : EdgeLedger {
  explicit DeferredLedger(std::unique_ptr<EdgeLedger> inner) : inner(std::move(inner)) {}
  ~DeferredLedger() override { Require(uses == 0, "a ledger is gone before the work that names it is done"); }
  std::unique_ptr<EdgeLedger> inner;
  int64_t uses = 0;  // caps that are held back
};

absl::StatusOr<std::unique_ptr<EdgeLedger>> Wrap(absl::StatusOr<std::unique_ptr<EdgeLedger>> inner) {
  if (!inner.ok()) return inner;
  return std::make_unique<DeferredLedger>(*std::move(inner));
}

// Fills a report with what nobody may read before its time.
void Poison(size_t heads, AttentionReport& report) {
  report.heads.assign(heads, {});
  for (HeadReport& head : report.heads) {
    head.edges = head.isolated = kAbsurd;
    head.expected = -1.0;
    if (report.wanted.key_degrees) head.key_degrees = {0xFFFFFFFFu};
  }
}

bool IsPoisoned(size_t heads, const AttentionReport& report) {
  bool poisoned = report.heads.size() == heads;
  for (size_t h = 0; poisoned && h < heads; ++h) poisoned = report.heads[h].edges == kAbsurd;
  return poisoned;
}

}  // namespace

struct DeferredBackend::Flag : CancelFlag {
  explicit Flag(std::unique_ptr<CancelFlag> inner) : inner(std::move(inner)) {}
  ~Flag() override { Require(uses == 0, "a flag is gone before the work that names it is done"); }
  void Cancel() override {
    inner->Cancel();
    CancelFlag::Cancel();
  }
  const std::unique_ptr<CancelFlag> inner;
  mutable int64_t uses = 0;  // problems that are held back
};

DeferredBackend::DeferredBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

DeferredBackend::~DeferredBackend() { Require(reports_.empty(), "someone left without waiting for the reports"); }

void DeferredBackend::Tell() {
  for (Report& report : reports_) {
    Require(IsPoisoned(report.value.heads.size(), *report.to), "a report is gone, or was touched before its time");
    *report.to = std::move(report.value);
  }
  reports_.clear();
  for (const Capped& capped : capped_) {
    Require(capped.to->capped, "a cap is gone, or was touched before its time");
    capped.to->capped = capped.value;
    if (capped.to->ledger != nullptr) --static_cast<DeferredLedger*>(capped.to->ledger)->uses;
  }
  capped_.clear();
  for (const Flag* flag : flags_) --flag->uses;
  flags_.clear();
}

absl::Status DeferredBackend::Download(const float* device, std::span<float> host) {
  Tell();
  return inner_->Download(device, host);
}

absl::Status DeferredBackend::Synchronize() {
  Tell();
  return inner_->Synchronize();
}

absl::Status DeferredBackend::Throttle() {
  ++throttles_;
  return inner_->Throttle();
}

absl::StatusOr<std::unique_ptr<CancelFlag>> DeferredBackend::MakeCancelFlag() {
  absl::StatusOr<std::unique_ptr<CancelFlag>> inner = inner_->MakeCancelFlag();
  if (!inner.ok()) return inner;
  return std::make_unique<Flag>(*std::move(inner));
}

absl::StatusOr<std::unique_ptr<EdgeLedger>> DeferredBackend::MakeLedger(uint64_t edges) {
  return Wrap(inner_->MakeLedger(edges));
}

absl::StatusOr<std::unique_ptr<EdgeLedger>> DeferredBackend::CopyLedger(const EdgeLedger& ledger) {
  return Wrap(inner_->CopyLedger(*static_cast<const DeferredLedger&>(ledger).inner));
}

absl::StatusOr<uint64_t> DeferredBackend::Remaining(const EdgeLedger& ledger) {
  Tell();
  return inner_->Remaining(*static_cast<const DeferredLedger&>(ledger).inner);
}

// No rate is above the product of its bounds, by which backends leave pairs out.
static void CheckBounds(const AttentionInputs& inputs, const AttentionProblem& problem) {
  const Memberships& m = inputs.memberships;
  for (int h = 0; h < inputs.num_heads; ++h) {
    const int64_t first = h * m.rows + problem.first_row;
    for (int64_t i = first; i < first + problem.tokens; ++i) {
      for (int64_t j = first; j < first + problem.tokens; ++j) {
        const float* const y = m.y + j * m.rank;
        const double rate = std::inner_product(y, y + m.rank, m.x + i * m.rank, 0.0);
        const double bound = static_cast<double>(m.query_bound[i]) * m.key_bound[j];
        Require(!(rate > bound * (1.0 + 1e-5)), "a rate is above the product of its bounds");
      }
    }
  }
}

absl::Status DeferredBackend::Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                                     std::span<EdgeCap> caps, Matrix out) {
  std::vector<AttentionProblem> inner_problems(problems.begin(), problems.end());
  std::vector<EdgeCap> inner_caps(caps.begin(), caps.end());
  std::vector<AttentionReport> reports(problems.size());
  bool graph = false;
  for (size_t p = 0; p < problems.size(); ++p) {
    const AttentionReport& report = *problems[p].report;
    reports[p].wanted = report.wanted;
    graph |= report.wanted.graph;
    if (std::holds_alternative<DrawnRows>(problems[p].pattern)) CheckBounds(inputs, problems[p]);
    inner_problems[p].report = &reports[p];
    if (problems[p].cancel != nullptr)
      inner_problems[p].cancel = static_cast<const Flag*>(problems[p].cancel)->inner.get();
  }
  for (EdgeCap& cap : inner_caps) {
    if (cap.ledger != nullptr) cap.ledger = static_cast<DeferredLedger*>(cap.ledger)->inner.get();
  }
  absl::Status status = inner_->Attend(inputs, inner_problems, inner_caps, out);
  // `inner` may run behind the host too, and fills what goes with this call.
  const absl::Status told = inner_->Synchronize();
  if (status.ok()) status = told;
  if (!status.ok()) return status;
  for (size_t p = 0; p < problems.size(); ++p) {
    Poison(reports[p].heads.size(), *problems[p].report);
    reports_.push_back({problems[p].report, std::move(reports[p])});
    if (problems[p].cancel == nullptr) continue;
    flags_.push_back(static_cast<const Flag*>(problems[p].cancel));
    ++flags_.back()->uses;
  }
  for (size_t c = 0; c < caps.size(); ++c) {
    caps[c].capped = true;
    if (caps[c].ledger != nullptr) ++static_cast<DeferredLedger*>(caps[c].ledger)->uses;
    capped_.push_back({&caps[c], inner_caps[c].capped});
  }
  if (graph) Tell();
  if (fail_after_ >= 0 && fail_after_-- == 0) return absl::InternalError("the device failed, as the test asked");
  return absl::OkStatus();
}

}  // namespace edgewise::testing
