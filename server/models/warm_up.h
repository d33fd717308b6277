// The first forward passes of a model that was loaded.
#ifndef EDGEWISE_SERVER_MODELS_WARM_UP_H_
#define EDGEWISE_SERVER_MODELS_WARM_UP_H_

#include "model/checkpoint/weights.h"
#include "model/model.h"
#include "server/request/cost_model.h"

namespace edgewise::server {

// Runs made-up inputs, short ones first, alone, with a cap, with their expected edges and several together, so that
// `costs` predicts the first requests. Ends with the longest input of the model, or earlier where the next one would go
// beyond `seconds` of the device in all; 0: runs nothing. An input that fails is left out. `use_backend`: as LoadModel.
void WarmUp(const Model& model, double seconds, const RunWork& use_backend, CostModel& costs);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_MODELS_WARM_UP_H_
