// The forward pass of a batch, one layer at a time. Between layers the caller applies deadlines and cancellation.
#ifndef EDGEWISE_MODEL_FORWARD_PASS_H_
#define EDGEWISE_MODEL_FORWARD_PASS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/result.h"
#include "model/forward/wave.h"
#include "model/input/input.h"
#include "model/model.h"

namespace edgewise {

// Sequences are packed end to end without padding. From the first layer that draws edges each sample of an input has
// rows of its own; the layers below it are computed once. Inputs run in groups, and the samples of a group in waves, of
// at most `max_wave_tokens` valid tokens (but at least one sample of one input), so memory grows neither with the batch
// nor with the ensemble. A wave goes on with the inputs that have the fewest samples. A scored text without budget and
// graph runs in parts of as many windows as fit, so memory does not grow with its length either. The result of an input
// depends on the model and the input alone.
//
// The backend may run up to two steps behind the host: reports are read when a wave ends, and the destructor waits.
//
// One thread at a time; the model's backend is used only inside Step() and by the destructor.
class Pass {
 public:
  struct Options {
    int64_t max_wave_tokens = kMaxWaveTokens;
    // The most rows of a step. A larger layer runs in several steps: its products on this many rows at a time, its
    // attention for as many queries, and then its expected edges.
    int64_t step_rows = std::numeric_limits<int64_t>::max();
  };

  // Samples of the first wave of an input under a tolerance; each later wave has as many as ran before it. No ensemble
  // with a tolerance is smaller.
  static constexpr uint32_t kFirstToleranceWave = 4;

  // `model` and the inputs must outlive the pass.
  Pass(const Model& model, const std::vector<ModelInput>& inputs, Options options);
  Pass(const Model& model, const std::vector<InputRun>& runs, Options options);
  ~Pass();

  // All inputs have their result.
  bool done() const;
  // This input has its result.
  bool done(int64_t input) const;
  // Runs the next layer of the current wave, or a part of it. An input whose stop was requested (Draw::stopping) is
  // CANCELLED, unless it is complete. An error concerns all inputs without a result: the device failed.
  absl::Status Step();
  // The input leaves before the next step; its result becomes `reason`, unless it is complete.
  void Cancel(int64_t input, absl::Status reason);
  // Limits the result of the input to its first `samples` samples, at least one, or to those that it would have had, if
  // these are fewer. It has the bytes of an ensemble of that size. Complete at once where they have run. Before
  // TakeResult.
  void Limit(int64_t input, uint32_t samples);
  // How many samples of the input have run in full: what Limit completes it with. 0: none yet.
  uint32_t samples_done(int64_t input) const;
  // No sample is under way: a limit to what is done wastes nothing.
  bool between_waves() const;

  // Valid when done(input); moves the result out.
  InputResult TakeResult(int64_t input);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_PASS_H_
