// Calls that shall be answered.
#ifndef EDGEWISE_TESTS_SERVER_ANSWERED_H_
#define EDGEWISE_TESTS_SERVER_ANSWERED_H_

#include <gtest/gtest.h>

#include <vector>

#include "edgewise/client/ensemble.h"
#include "tests/server/test_server.h"

#define ASSERT_ANSWERED(call)                             \
  do {                                                    \
    const grpc::Status status_ = (call);                  \
    ASSERT_TRUE(status_.ok()) << status_.error_message(); \
  } while (false)

namespace edgewise::server {

// Asks for nine samples, which are `whole`, and for the first four and the other five; the parts merge to its bytes.
inline void ExpectPartsMerge(TestServer& server, v1::PredictRequest request, v1::PredictResponse& whole) {
  request.mutable_ensemble()->set_samples(9);
  ASSERT_ANSWERED(server.Predict(request, whole));
  std::vector<v1::PredictResponse> parts(2);
  for (const uint32_t first : {0u, 4u}) {
    request.mutable_ensemble()->set_first_sample(first);
    request.mutable_ensemble()->set_samples(first == 0 ? 4 : 5);
    ASSERT_ANSWERED(server.Predict(request, parts[first / 4]));
  }
  const absl::StatusOr<v1::PredictResponse> merged = MergeEnsembleParts(parts);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->predictions(0).SerializeAsString(), whole.predictions(0).SerializeAsString())
      << merged->predictions(0).DebugString() << whole.predictions(0).DebugString();
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_ANSWERED_H_
