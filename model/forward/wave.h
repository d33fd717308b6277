// Rows on their way through the layers: those that the samples of an input share, then those of each sample. The one
// place where a layer runs, for whole sequences and for single new tokens.
#ifndef EDGEWISE_MODEL_FORWARD_WAVE_H_
#define EDGEWISE_MODEL_FORWARD_WAVE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/activations.h"
#include "model/forward/attention_call.h"
#include "model/forward/scratch.h"

namespace edgewise {

// The most rows of a wave that has more than one sample.
inline constexpr int64_t kMaxWaveTokens = 16384;

// Start; Step until the shared layers have run; then, as often as there are samples: StartSamples, Step until all other
// layers have run, Finish.
//
// The backend may still run what was enqueued; nothing is read before Finish. The inputs must outlive what was started
// with them; Clear and the destructor wait for the backend. One thread at a time. Errors of all methods: those of the
// backend.
class Wave : public WaveCache {
 public:
  // Gives a wave back to its model, with its host memory.
  struct Return {
    void operator()(Wave* wave) const;
  };
  // A wave of the model, with the memory of one that ran before: a pass of the same shape takes none from the system.
  static std::unique_ptr<Wave, Return> Take(const Model& model);
  ~Wave() override { Clear(); }

  struct Options {
    int32_t first_drawn = 0;  // the samples share the layers below it
    Phase phase = Phase::kPrefill;
    // The most rows of a step: a larger layer runs in several, its projections and its attention alike.
    int64_t step_rows = std::numeric_limits<int64_t>::max();
  };
  // Drops all that ran before, and embeds the rows of `inputs`.
  absl::Status Start(std::span<RunningInput* const> inputs, const Options& options);
  // Makes members of these samples; their rows begin as the shared ones. Not before the shared layers have run. Where
  // all layers have, inputs that fill caches have no rows left.
  struct Sample {
    RunningInput* input;
    uint32_t sample;
    SampleResult* result;  // outlives the sample
  };
  absl::Status StartSamples(std::span<const Sample> samples);
  // The inputs that are complete leave, unless a layer is under way. After Record() they need not live on.
  absl::Status RemoveComplete();
  // Runs the next layer, or a part of it.
  absl::Status Step();
  // Waits, and adds what has run to the members' results, but not to those of inputs that are gone.
  absl::Status Record();
  // Waits, and makes the members' results whole, but not those of inputs that are gone.
  absl::Status Finish();
  // The samples leave.
  void RemoveSamples() { samples_.clear(); }
  // Waits, and frees the memory of the backend.
  void Clear();

  const Model& model() const { return model_; }
  bool shared() const { return layer_ < first_drawn_; }  // the next layer is one that samples share
  bool done() const { return layer_ == num_layers_; }
  const Members& samples() const { return samples_; }
  // The rows of the samples. In the end only those that are read: where the model reads one row of a sequence
  // (ReadsOneRow) or leaves rows out of the pooling, these, and none of inputs that fill caches; all of inputs with
  // `token_rows`, until KeepHeadRows.
  Activations& rows() { return own_; }
  // Once all layers have run: the rows leave that the model's head does not read.
  absl::Status KeepHeadRows();
  Scratch* scratch() { return &scratch_; }  // for what is used before the next layer

 private:
  enum class Stage { kProject, kAttend, kFinish };

  explicit Wave(const Model& model) : model_(model) {}
  // The first row of a sequence that the head reads, and how many.
  struct ReadRows {
    int64_t first, count;
  };
  ReadRows ReadByHead(const QueryRange& range) const;
  // Likewise of the rows that are left in the end.
  ReadRows Left(const RunningInput& input, const QueryRange& range) const;
  // The rows of an input's sample: in the end, those that are left.
  int64_t RowsOf(const RunningInput& input) const;
  absl::Status MakeLedger(RunningInput& input) const;
  // The next part of the layer; the end of a stage leads to the next one.
  absl::Status StepProject(Activations& source);
  absl::Status StepAttend(const Activations& source, Activations& rows);
  absl::Status StepFinish(Activations& rows);
  void EndLayer();
  // The next rows of a stage of `rows`.
  Activations::Part TakeRows(int64_t rows);
  absl::Status StoreKeys(const Activations& rows);
  Members& running() { return shared() ? prefixes_ : samples_; }
  absl::Status SelectRows(Activations& rows, const Members& members);
  absl::Status RemoveComplete(Members& members, Activations* rows);

  const Model& model_;
  const int32_t num_layers_ = model_.config().num_hidden_layers;
  Options options_;
  int32_t first_drawn_ = 0;
  Scratch scratch_;
  Activations shared_{model_, &scratch_}, own_{model_, &scratch_};
  int32_t layer_ = 0;              // next, or the one that runs
  Stage stage_ = Stage::kProject;  // of the layer
  int64_t row_ = 0;                // of the stage: the next
  bool amid_layer_ = false;
  double share_ = 1.0;      // of the layer's rows: step_rows
  bool projected_ = false;  // the shared rows have the queries, keys and values of the first drawn layer
  std::vector<Member> all_prefixes_, all_samples_;
  Members prefixes_, samples_;        // of these, those that run
  std::vector<AttentionCall> calls_;  // the backend may write to the first `unrecorded_`
  size_t unrecorded_ = 0;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_WAVE_H_
