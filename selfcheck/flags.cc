#include "selfcheck/flags.h"

namespace edgewise::selfcheck {

// The float64 reference takes time and memory by the square of the tokens.
void Flags::Register(FlagSet& set) {
  set.Add("device", "DEVICE", "auto, cpu or cuda[:N]", &device);
  set.Add("precision", "NAME", "fp32, or bf16 on a GPU", &precision);
  set.Add("weights", "FORMAT", "of the model, on the CPU: float32, bfloat16 or int8; compared with float32", &weights);
  set.Add("model", "FOLDER", "one model version (config.json, model.safetensors); empty: attention only", &model);
  set.Add("tokens", "N", "length of the sequences, 1 to 8192; a model's are at most as long as it takes", &tokens,
          {1, 8192});
  set.Add("repeats", "N", "timed runs of every call of attention, 1 to 1000; their median is shown", &repeats,
          {1, 1000});
}

}  // namespace edgewise::selfcheck
