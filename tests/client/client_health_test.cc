// What the client library says of the health of a server and its models.
#include <gtest/gtest.h>

#include <vector>

#include "tests/client/client_calls.h"

namespace edgewise {
namespace {

using testing::Answer;
using testing::Connect;
using testing::FakeServer;
using testing::kHang;

TEST(HealthTest, StateOfServerAndModels) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  EXPECT_EQ(*client->Health(), HealthState::kServing);
  EXPECT_EQ(*client->Health("toy"), HealthState::kServing);
  EXPECT_EQ(*client->Health("other"), HealthState::kNotServing);
  EXPECT_EQ(client->Health("ghost").status().code(), absl::StatusCode::kNotFound);
}

TEST(HealthTest, WatchSeesEachChangeAndEndsWhenTold) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  std::vector<HealthState> seen;
  absl::Status status = client->WatchHealth("toy",
                                            [&](HealthState state) {
                                              seen.push_back(state);
                                              if (seen.size() < 3) server.SetServing("toy", seen.size() != 1);
                                              return seen.size() < 3;
                                            },
                                            {.timeout = kHang});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen, (std::vector<HealthState>{HealthState::kServing, HealthState::kNotServing, HealthState::kServing}));
}

TEST(HealthTest, WatchOfAnUnknownServiceSaysSoAndEndsAtItsDeadline) {
  FakeServer server(Answer);
  std::unique_ptr<Client> client = Connect({.address = server.address()});
  std::vector<HealthState> seen;
  // A busy machine may take longer than the first deadlines to say anything.
  for (absl::Duration timeout = absl::Milliseconds(200); seen.empty() && timeout < kHang; timeout *= 4) {
    absl::Status status = client->WatchHealth("ghost",
                                              [&](HealthState state) {
                                                seen.push_back(state);
                                                return true;
                                              },
                                              {.timeout = timeout});
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(seen, std::vector<HealthState>{HealthState::kServiceUnknown});
}

}  // namespace
}  // namespace edgewise
