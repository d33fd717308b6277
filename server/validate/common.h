// Checks that Predict and Generate share. Errors: as in validate.h. Any thread.
#ifndef EDGEWISE_SERVER_VALIDATE_COMMON_H_
#define EDGEWISE_SERVER_VALIDATE_COMMON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/work_bounds.h"
#include "edgewise/v1/inference.pb.h"
#include "model/model.h"
#include "server/base/options.h"
#include "server/request/request.h"
#include "server/validate/validate.h"

namespace edgewise::server {

inline constexpr uint32_t kMaxAlternatives = 20;  // that a request may ask for beside a token

// The fields that both messages (v1::PredictRequest, v1::GenerateRequest) have and that depend on nothing else but the
// model's profiles and limits.
template <typename Message>
absl::Status ValidateCommon(const Message& message, const Model& model, const Profiles& profiles,
                            const RequestLimits& limits, const CallTerms& terms, Work& work, Draw& draw);

absl::StatusOr<TruncateMode> ParseTruncate(v1::Truncate truncate, const std::string& field);

// The token ids of a sequence that has text or token_ids. `field`: "inputs[0].sequence". INVALID_ARGUMENT: a text that
// is to be refused where it is longer than the model takes (`refuses`) is so.
absl::StatusOr<std::vector<int32_t>> ParseTokens(const v1::Sequence& sequence, const Model& model,
                                                 const std::string& field, bool refuses, WorkBounds& bounds);

// The prompt that goes before the text of a sequence: the one that it names, or else the model's default for a text.
// Null: none. It lives as long as the model. INVALID_ARGUMENT: there is none of that name, or no text.
absl::StatusOr<const Prompt*> FindPrompt(const v1::Sequence& sequence, const Model& model, const std::string& field);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_VALIDATE_COMMON_H_
