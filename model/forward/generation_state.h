// The inside of a Generation: generation.cc decides what runs next and chooses tokens, generation_rows.cc runs layers
// and keeps the caches. Included by these two only.
#ifndef EDGEWISE_MODEL_FORWARD_GENERATION_STATE_H_
#define EDGEWISE_MODEL_FORWARD_GENERATION_STATE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/activations.h"
#include "model/forward/attention_call.h"
#include "model/forward/cancel_on_stop.h"
#include "model/forward/generated_text.h"
#include "model/forward/generation.h"
#include "model/kinds/ssa_sources.h"

namespace edgewise {

// The row of the newest token while it runs: of the shared layers one, then one of each sample.
struct RowRun {
  std::vector<std::unique_ptr<EdgeLedger>> ledgers;  // [1] or [samples]; empty: no budget binds
  std::unique_ptr<EdgeLedger> shared_ledger;         // what the samples' were copied from
  std::vector<uint64_t> least_later;                 // [layers]
  std::deque<AttentionCall> layers;
};

struct Generation::State {
  State(const Model& model, ModelSequence prompt, GenerationOptions options);

  const Model& model;
  const ModelConfig& config;
  const GenerationOptions options;
  const ModelInput choices;                 // what Model::Choose wants to know; it has no sequences
  const std::vector<AttentionSpec> layers;  // of sample 0
  const int32_t
      first_drawn;         // the samples share the layers before it, and its keys and values; layers: nothing is drawn
  const uint32_t samples;  // that differ
  const int64_t capacity;  // tokens of a cache
  std::unique_ptr<CancelOnStop> stop;  // null: nobody can stop it

  std::vector<int32_t> tokens;  // prompt and what was generated
  ModelSequence context;        // the end of it that the model sees
  int32_t cached = 0;  // tokens of `context` whose keys and values are cached, all of them once the rows have run
  std::vector<Buffer> caches;  // [layers], each [copies, capacity, keys and values]
  SourceCache sources;         // of the window that the last row was in

  // The rows before the last token of the context.
  ModelSequence before;
  int32_t layer = 0;                // next
  uint32_t wave_begin = 0;          // samples that run together: from here
  uint32_t wave_end = 0;            // to before here; 0: the shared layers run
  Activations shared, active;       // rows that the samples share, and those of each
  std::deque<AttentionCall> calls;  // theirs: nobody reads their reports, but the backend writes them

  GeneratedText text;
  uint32_t generated = 0;
  FinishReason finish = FinishReason::kNone;
  std::optional<GeneratedToken> token;

  absl::Status Allocate();
  absl::Status CheckBudget() const;
  absl::Status Step();

  // generation_rows.cc
  absl::Status StepBefore();
  absl::Status RunRow(RowEdges& edges, std::vector<double>& mean);
  // Between tokens there are only the caches.
  void ClearRows() {
    shared.Clear();
    active.Clear();
  }

  // Caches of a layer: one where its keys and values do not depend on what was drawn.
  uint32_t Copies(int32_t of_layer) const { return of_layer <= first_drawn ? 1 : samples; }
  // The row of the last token: its pairs, the edges that no cap drops, and those that one sample may use.
  uint64_t RowPairs(const ModelSequence& sequence) const;
  uint64_t RowLeast(const ModelSequence& sequence) const;
  uint64_t RowBudget(const ModelSequence& sequence) const;  // 0: none
  void Append(ModelSequence& sequence, int32_t token_id) const;

 private:
  Matrix Cache(int32_t of_layer) const;
  absl::Status Store(const Activations& rows, uint32_t first_copy, uint32_t copies, int32_t first_token);
  AttentionMember Member(uint32_t sample, const QueryRange& range) const;
  // Rows of `active`: the shared ones, once for every copy.
  absl::Status Replicate(uint32_t copies);
  absl::Status StartBefore();
  absl::Status AttendBefore(const Activations& source, Activations& rows, uint32_t first_sample, uint32_t members);
  absl::Status StartRow(const RowEdges& edges, RowRun& run);
  absl::Status SplitRow(RowRun& run);
  absl::Status AttendRow(const Activations& source, Activations& rows, RowRun& run);
  absl::Status PredictNext(std::vector<double>& mean);
  void CountEdges(RowRun& run, RowEdges& edges) const;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_GENERATION_STATE_H_
