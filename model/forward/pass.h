// The forward pass of a batch, one layer at a time. The caller decides after every layer what goes on: deadlines,
// cancellation, early stop and batching all live on this seam.
#ifndef EDGEWISE_MODEL_FORWARD_PASS_H_
#define EDGEWISE_MODEL_FORWARD_PASS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "model/forward/result.h"
#include "model/forward/wave.h"
#include "model/input/input.h"
#include "model/model.h"

namespace edgewise {

// Sequences are packed end to end without padding. Every sample of an input is a member of the batch of its own from
// the first layer that draws edges; what lies before it is computed once. Inputs run in groups, and the samples of a
// group in waves, of at most `max_wave_tokens` valid tokens (always at least one sample of one input), so memory does
// not grow with the batch nor with the ensemble. A scored text without budget and graph runs as so many windows at a
// time as fit, so memory does not grow with its length either. An input's result depends on the model and the input
// only.
//
// The backend may run behind the host, by two steps at most: counts are read when a wave is classified, and a pass that
// goes earlier waits until nothing is written to it any more.
//
// One thread at a time; the model's backend is used only inside Step() and by the destructor.
class Pass {
 public:
  struct Options {
    int64_t max_wave_tokens = kMaxWaveTokens;
    // Filled with the keys and values of the one input, which is one sequence; its result then says only whether it was
    // cancelled. Null: none. Must outlive the pass.
    KvCache* cache = nullptr;
  };

  // `model` and `inputs` must outlive the pass.
  Pass(const Model& model, const std::vector<ModelInput>& inputs, Options options);
  ~Pass();

  // All inputs have their result.
  bool done() const;
  // Runs the next layer of the current wave. An input whose stop was asked for (ModelInput::stopping) is dropped before
  // and after it with CANCELLED, unless it is complete. An error concerns all inputs without a result: the device
  // failed.
  absl::Status Step();
  // Drops an input before the next step; its result becomes `reason` unless it is complete.
  void Cancel(int64_t input, absl::Status reason);

  // Valid when done(); moves the result out.
  InputResult TakeResult(int64_t input);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_PASS_H_
