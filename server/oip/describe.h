// The methods of the Open Inference Protocol that tell of the server and its models. `version` is a decimal number, or
// empty for the latest that is ready. Errors: Repository::Resolve, INVALID_ARGUMENT for a version that is no number.
// Any thread.
#ifndef EDGEWISE_SERVER_OIP_DESCRIBE_H_
#define EDGEWISE_SERVER_OIP_DESCRIBE_H_

#include <string>

#include "absl/status/statusor.h"
#include "oip/v2/open_inference.pb.h"
#include "server/base/options.h"
#include "server/models/repository.h"

namespace edgewise::server {

inference::ServerMetadataResponse DescribeServer();
// False: the model is known, and does not serve.
absl::StatusOr<inference::ModelReadyResponse> DescribeReady(const Repository& repository, const std::string& name,
                                                            const std::string& version);
absl::StatusOr<inference::ModelMetadataResponse> DescribeModel(const Repository& repository, const std::string& name,
                                                               const std::string& version);
absl::StatusOr<inference::ModelConfigResponse> DescribeConfig(const Repository& repository,
                                                              const ServerOptions& options, const std::string& name,
                                                              const std::string& version);
// Without a name: of every version that serves.
absl::StatusOr<inference::ModelStatisticsResponse> DescribeStatistics(const Repository& repository,
                                                                      const std::string& name,
                                                                      const std::string& version);
inference::RepositoryIndexResponse DescribeRepository(const Repository& repository, bool ready);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OIP_DESCRIBE_H_
