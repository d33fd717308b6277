#include <algorithm>

#include "model/input/input.h"

namespace edgewise {

int32_t OutputRows(const ModelConfig& config, const ModelInput& input) {
  const ModelSequence& sequence = input.sequences[0];
  switch (config.task) {
    case ModelTask::kTokenClassification:
      return sequence.length();
    case ModelTask::kFillMask:
      return static_cast<int32_t>(
          std::count(sequence.token_ids.begin(), sequence.token_ids.end(), config.mask_token_id));
    default:
      return 1;
  }
}

}  // namespace edgewise
