// Rows on their way through the layers: those that the samples of an input share, then those of each sample. The one
// place where a layer runs, for whole sequences and for single new tokens.
#ifndef EDGEWISE_MODEL_FORWARD_WAVE_H_
#define EDGEWISE_MODEL_FORWARD_WAVE_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/activations.h"
#include "model/forward/attention_call.h"
#include "model/forward/kv_cache.h"

namespace edgewise {

// The most rows of a wave that has more than one sample.
inline constexpr int64_t kMaxWaveTokens = 16384;

// Start; RunLayer until the shared layers have run; then, as often as there are samples: StartSamples, RunLayer for all
// other layers, Finish.
//
// The backend may still run what was enqueued; nothing is read before Finish. The inputs must outlive the wave, whose
// destructor waits for the backend. One thread at a time. Errors of all methods: those of the backend.
class Wave {
 public:
  // `first_drawn`: the samples share the layers below it. `cache`: null, or the cache of the one input. In kPrefill its
  // layers are filled, and the last layer runs only as far as its keys and values; in kDecode the one query of the
  // input attends to it, and is added.
  Wave(const Model& model, int32_t first_drawn, Phase phase, KvCache* cache);

  // Drops all that ran before, and embeds the rows of `inputs`.
  absl::Status Start(std::span<RunningInput* const> inputs);
  // Makes members of these samples; their rows begin as the shared ones. Not before the shared layers have run.
  struct Sample {
    RunningInput* input;
    uint32_t sample;
  };
  absl::Status StartSamples(std::span<const Sample> samples);
  // The samples of inputs that are complete leave.
  absl::Status RemoveComplete();
  // Runs the next layer.
  absl::Status RunLayer();
  // Waits, and makes the members' results whole, but not those of inputs that are gone.
  absl::Status Finish();
  // The samples leave.
  void RemoveSamples() { samples_.clear(); }
  // Waits, and frees all memory.
  void Clear();

  bool shared() const { return layer_ < first_drawn_; }  // the next layer is one that samples share
  bool done() const { return layer_ == num_layers_; }
  const Members& samples() const { return samples_; }
  // Of the samples. Where the model reads only the first row of a sequence (Pooling::kCls), in the end these alone.
  Activations& rows() { return own_; }

 private:
  bool FillsCache() const { return cache_ != nullptr && phase_ == Phase::kPrefill; }
  std::shared_ptr<Member> MakeMember(RunningInput* input, uint32_t sample, int64_t row) const;
  absl::Status MakeLedger(RunningInput& input) const;
  absl::Status Project(Activations& rows);
  absl::Status Attend(const Activations& source, Activations& rows);
  // The rows of an input's sample: in the end, those that the head reads.
  int64_t RowsOf(const RunningInput& input) const;
  absl::Status KeepFirstRows(Activations& rows, Members& members);
  absl::Status Record();

  const Model& model_;
  const Phase phase_;
  KvCache* const cache_;
  const int32_t num_layers_, first_drawn_;
  Activations shared_, own_;
  int32_t layer_ = 0;       // next
  bool projected_ = false;  // the shared rows have the queries, keys and values of the first drawn layer
  Members prefixes_, samples_;
  std::deque<AttentionCall> unrecorded_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_WAVE_H_
