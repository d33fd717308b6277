#include "model/forward/context_window.h"

#include <vector>

namespace edgewise {

ContextWindow::ContextWindow(const ModelConfig& config, Overflow overflow, const ModelSequence& prompt)
    : config_(&config), overflow_(overflow), text_length_(prompt.positions.back() + 1) {
  sequence_.token_ids.assign(prompt.token_ids.begin(), prompt.token_ids.begin() + text_length_);
  sequence_.positions = prompt.positions;
}

bool ContextWindow::Append(int32_t token) {
  const bool moves = full();
  if (moves) {
    std::vector<int32_t>& tokens = sequence_.token_ids;
    tokens.erase(tokens.begin(), tokens.begin() + (overflow_ == Overflow::kHalve ? (sequence_.length() + 1) / 2 : 1));
    sequence_.positions.clear();
    for (int32_t i = 0; i < sequence_.length(); ++i) {
      if (tokens[i] != config_->pad_token_id) sequence_.positions.push_back(i);
    }
  }
  sequence_.positions.push_back(sequence_.length());
  sequence_.token_ids.push_back(token);
  ++text_length_;
  return moves;
}

}  // namespace edgewise
