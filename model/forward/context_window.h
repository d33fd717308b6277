// The end of a growing text that a language model sees.
#ifndef EDGEWISE_MODEL_FORWARD_CONTEXT_WINDOW_H_
#define EDGEWISE_MODEL_FORWARD_CONTEXT_WINDOW_H_

#include <cstdint>

#include "model/config/config.h"
#include "model/input/input.h"

namespace edgewise {

// The next token of a full context: the oldest token leaves; or the older half leaves; or there is none.
enum class Overflow { kSlide, kHalve, kStop };

// Copies are independent. One thread at a time.
class ContextWindow {
 public:
  // `config` must outlive the window; the prompt fits the context. Pads at its end are no part of the text.
  ContextWindow(const ModelConfig& config, Overflow overflow, const ModelSequence& prompt);

  // Positions from 0.
  const ModelSequence& sequence() const { return sequence_; }
  bool full() const { return sequence_.length() == config_->max_position_embeddings; }
  uint32_t text_length() const { return text_length_; }  // prompt and all tokens since
  // Adds a token that is no pad. Returns whether the tokens before it have left their positions: what was computed of
  // them belongs to another text now.
  bool Append(int32_t token);

 private:
  const ModelConfig* config_;
  Overflow overflow_;
  ModelSequence sequence_;
  uint32_t text_length_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_CONTEXT_WINDOW_H_
