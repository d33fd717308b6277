// Fills messages from results of a model. Any thread.
#ifndef EDGEWISE_SERVER_CALLS_RESPOND_H_
#define EDGEWISE_SERVER_CALLS_RESPOND_H_

#include "edgewise/v1/inference.pb.h"
#include "model/checkpoint/config.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"
#include "server/models/repository.h"
#include "server/validate/answer_size.h"

namespace edgewise::server {

// One input's prediction. `result.status` is OK.
void FillPrediction(const ModelConfig& config, const ModelInput& input, const InputResult& result,
                    const OutputSelection& outputs, v1::Prediction& prediction);

// `vocabulary`: whether the labels of a language model include its tokens.
void FillModelInfo(const ModelStatus& status, bool vocabulary, v1::ModelInfo& info);

// `row`: the row that predicted a generated token.
void FillRowEdges(const RowEdges& row, v1::EdgeReport& report);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_CALLS_RESPOND_H_
