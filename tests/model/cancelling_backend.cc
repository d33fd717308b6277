#include "tests/model/cancelling_backend.h"

#include <limits>
#include <vector>

namespace edgewise::testing {

absl::StatusOr<std::unique_ptr<CancelFlag>> CancellingBackend::MakeCancelFlag() {
  ++flags_;
  return DeferredBackend::MakeCancelFlag();
}

absl::Status CancellingBackend::Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                                       std::span<EdgeCap> caps, Matrix out) {
  ++calls_;
  last_problems_ = static_cast<int64_t>(problems.size());
  if (stop_after_ >= 0 && stop_after_-- == 0) stop_();
  absl::Status status = DeferredBackend::Attend(inputs, problems, caps, out);
  if (status.ok()) status = Synchronize();  // the reports are here
  if (!status.ok()) return status;
  const std::vector<float> row(out.columns, std::numeric_limits<float>::quiet_NaN());
  for (const AttentionProblem& problem : problems) {
    if (problem.cancel == nullptr || !problem.cancel->cancelled()) continue;
    ++dropped_;
    for (int64_t r = 0; r < problem.tokens - problem.first_query; ++r) {
      status = Upload(row, out.row(problem.out_row + r));
      if (!status.ok()) return status;
    }
    for (HeadReport& head : problem.report->heads) {
      head.edges = head.isolated = uint64_t{1} << 60;
      head.expected = row[0];
      head.key_degrees.assign(head.key_degrees.size(), 0xFFFFFFFFu);
    }
  }
  return absl::OkStatus();
}

}  // namespace edgewise::testing
