// Fills messages from results of a model. Any thread.
#ifndef EDGEWISE_SERVER_HANDLER_RESPOND_H_
#define EDGEWISE_SERVER_HANDLER_RESPOND_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "edgewise/v1/inference.pb.h"
#include "model/config/config.h"
#include "model/forward/generation.h"
#include "model/forward/result.h"
#include "model/input/input.h"
#include "model/tokenizers/hf_tokenizer.h"
#include "server/models/repository.h"
#include "server/request/request.h"

namespace edgewise::server {

// The answer to a computed request, without the timing. Sums the edges and pairs of its inputs up. Between inputs it
// asks whether the answer is still wanted, and ends with that status if not.
absl::Status FillResponse(const Request& request, absl::FunctionRef<absl::Status()> wanted,
                          v1::PredictResponse& response);
// The message of the latest token, without the timing.
void FillToken(const Request& request, const GeneratedToken& token, FinishReason finish, v1::GenerateResponse& message);

// One input's prediction. `result.status` is OK. `tokenizer`: Model::tokenizer, which names the tokens of fill-mask.
void FillPrediction(const ModelConfig& config, const HfTokenizer* tokenizer, const InputRun& run,
                    const InputResult& result, const OutputSelection& outputs, v1::Prediction& prediction);

// `row`: the row that predicted a generated token.
void FillRowEdges(const RowEdges& row, v1::EdgeReport& report);

// `vocabulary`: whether the labels of a language model include its tokens.
void FillModelInfo(const ModelStatus& status, bool vocabulary, v1::ModelInfo& info);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HANDLER_RESPOND_H_
