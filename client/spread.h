// One ensemble computed by several servers. Internal to the library.
#ifndef EDGEWISE_CLIENT_SPREAD_H_
#define EDGEWISE_CLIENT_SPREAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::internal {

using PartDone = std::function<void(const absl::StatusOr<v1::PredictResponse>&)>;

// Asks server `server` for a part. `done` is called once, in any thread; the request lives until then.
using AskPart = std::function<void(size_t server, const v1::PredictRequest& part, PartDone done)>;

// ModelInfo.labels of a version.
using FindLabels = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& model, int64_t version)>;

// Client::PredictSpread. cancel: ends the parts under way early. Blocks; `servers` >= 1.
absl::StatusOr<v1::PredictResponse> PredictSpread(const v1::PredictRequest& request, size_t servers, const AskPart& ask,
                                                  const std::function<void()>& cancel, const FindLabels& labels);

}  // namespace edgewise::internal

#endif  // EDGEWISE_CLIENT_SPREAD_H_
