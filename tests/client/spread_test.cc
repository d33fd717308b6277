// One ensemble computed by several servers. Their answers are those of fake_ensemble.h.
#include "client/spread.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/client/client_calls.h"
#include "tests/client/fake_ensemble.h"

namespace edgewise::internal {
namespace {

using testing::MakeResponse;
using testing::Names;
using testing::Task;

constexpr int kSamples = 30;

v1::PredictRequest Request(uint32_t samples = kSamples) {
  v1::PredictRequest request;
  request.set_model("toy");
  request.mutable_ensemble()->set_samples(samples);
  request.mutable_ensemble()->set_seed(7);
  request.mutable_outputs()->set_each_sample(true);
  return request;
}

// Servers that answer at once, each in its own way.
class Servers {
 public:
  // What a server says to its n-th part, where it does not say the right thing.
  using Say = std::function<absl::StatusOr<v1::PredictResponse>(v1::PredictResponse right, int n)>;

  explicit Servers(size_t number, Task task = Task::kClassification) : says_(number), counts_(number), task_(task) {}

  void Set(size_t server, Say say) { says_[server] = std::move(say); }

  absl::StatusOr<v1::PredictResponse> Ask(const v1::PredictRequest& request) {
    return PredictSpread(
        request, says_.size(),
        [this](size_t server, const v1::PredictRequest& part, const PartDone& done) {
          parts_.push_back({server, part});
          seeds_.insert(part.ensemble().seed());
          v1::PredictResponse answer = MakeResponse(task_, static_cast<int>(part.ensemble().first_sample()),
                                                    static_cast<int>(part.ensemble().samples()));
          answer.set_seed(part.ensemble().seed());
          const int n = counts_[server]++;
          done(says_[server] ? says_[server](std::move(answer), n) : answer);
        },
        [this] { ++cancels_; },
        [this](const std::string&, int64_t) -> absl::StatusOr<std::vector<std::string>> {
          ++lookups_;
          return Names();
        });
  }

  int count(size_t server) const { return counts_[server]; }
  const std::vector<std::pair<size_t, v1::PredictRequest>>& parts() const { return parts_; }
  const std::set<uint64_t>& seeds() const { return seeds_; }
  int cancels() const { return cancels_; }
  int lookups() const { return lookups_; }

 private:
  std::vector<Say> says_;
  std::vector<int> counts_;
  const Task task_;
  std::vector<std::pair<size_t, v1::PredictRequest>> parts_;
  std::set<uint64_t> seeds_;
  int cancels_ = 0, lookups_ = 0;
};

std::string Whole(Task task, int first = 0, int samples = kSamples) {
  v1::PredictResponse whole = MakeResponse(task, first, samples);
  whole.set_seed(7);
  return whole.SerializeAsString();
}

Servers::Say Lost() {
  return [](auto, int) { return absl::UnavailableError("gone"); };
}

Servers::Say Of(void (*change)(v1::PredictResponse&)) {
  return [change](v1::PredictResponse right, int) {
    change(right);
    return right;
  };
}

TEST(SpreadTest, HasTheBytesOfOneServersAnswerForAnyNumberOfServers) {
  for (const Task task : {Task::kClassification, Task::kTokens, Task::kRegression, Task::kLanguage}) {
    for (const size_t number : {1, 2, 3, 7, 29, 30, 64}) {
      Servers servers(number, task);
      const absl::StatusOr<v1::PredictResponse> merged = servers.Ask(Request());
      ASSERT_TRUE(merged.ok()) << merged.status();
      EXPECT_EQ(merged->SerializeAsString(), Whole(task)) << number;
      EXPECT_EQ(servers.parts().size(), std::min<size_t>(number, kSamples));
    }
  }
}

TEST(SpreadTest, PartsAreNearlyEqualAndBeginWhereTheRequestDoes) {
  Servers servers(4);
  v1::PredictRequest request = Request();
  request.mutable_ensemble()->set_first_sample(5);
  const absl::StatusOr<v1::PredictResponse> merged = servers.Ask(request);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->SerializeAsString(), Whole(Task::kClassification, 5));
  for (const auto& [server, part] : servers.parts()) {
    EXPECT_GE(part.ensemble().samples(), 7u);
    EXPECT_LE(part.ensemble().samples(), 8u);
    EXPECT_EQ(servers.count(server), 1);
  }
}

TEST(SpreadTest, SamplesAreLeftOutUnlessAskedFor) {
  Servers servers(3);
  v1::PredictRequest request = Request();
  request.mutable_outputs()->set_each_sample(false);
  const absl::StatusOr<v1::PredictResponse> merged = servers.Ask(request);
  ASSERT_TRUE(merged.ok()) << merged.status();
  v1::PredictResponse whole = MakeResponse(Task::kClassification, 0, kSamples);
  for (int i = 0; i < merged->predictions_size(); ++i) {
    whole.mutable_predictions(i)->clear_sample_outputs();
    EXPECT_EQ(merged->predictions(i).SerializeAsString(), whole.predictions(i).SerializeAsString());
  }
}

TEST(SpreadTest, OneSeedIsDrawnForAllParts) {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 3; ++i) {
    Servers servers(3);
    v1::PredictRequest request = Request();
    request.mutable_ensemble()->clear_seed();
    const absl::StatusOr<v1::PredictResponse> merged = servers.Ask(request);
    ASSERT_TRUE(merged.ok()) << merged.status();
    ASSERT_EQ(servers.seeds().size(), 1u);
    EXPECT_EQ(merged->seed(), *servers.seeds().begin());
    seeds.insert(merged->seed());
  }
  EXPECT_EQ(seeds.size(), 3u);
}

TEST(SpreadTest, AnotherServerComputesThePartsOfOneThatIsLost) {
  for (const std::vector<size_t>& lost : {std::vector<size_t>{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}}) {
    Servers servers(3);
    for (const size_t one : lost) servers.Set(one, Lost());
    const absl::StatusOr<v1::PredictResponse> merged = servers.Ask(Request());
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_EQ(merged->SerializeAsString(), Whole(Task::kClassification));
    for (const size_t one : lost) EXPECT_LE(servers.count(one), 2) << "is asked nothing more, once it is known";
  }
  Servers none(3);
  for (size_t s = 0; s < 3; ++s) none.Set(s, Lost());
  EXPECT_EQ(none.Ask(Request()).status(), absl::UnavailableError("gone"));
}

TEST(SpreadTest, PartsOfAnotherOriginAreComputedAgainOnTheFirstPartsServer) {
  const std::vector<void (*)(v1::PredictResponse&)> kChanges = {
      [](v1::PredictResponse& response) { response.set_version(9); },
      [](v1::PredictResponse& response) { response.set_device("other"); },
      [](v1::PredictResponse& response) { response.set_build("other"); },
      [](v1::PredictResponse& response) { response.set_sha256("other"); },
      [](v1::PredictResponse& response) { response.mutable_settings()->set_profile("other"); }};
  for (const auto change : kChanges) {
    Servers servers(3);
    servers.Set(1, Of(change));
    servers.Set(2, Of(change));
    const absl::StatusOr<v1::PredictResponse> merged = servers.Ask(Request());
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_EQ(merged->SerializeAsString(), Whole(Task::kClassification));
    EXPECT_EQ(servers.count(0), 3);
  }
}

TEST(SpreadTest, TheOthersBeginAgainWhereTheFirstPartsServerIsLost) {
  Servers servers(3);
  servers.Set(0, [](v1::PredictResponse right, int n) -> absl::StatusOr<v1::PredictResponse> {
    if (n > 0) return absl::UnavailableError("gone");
    right.set_version(9);
    return right;
  });
  const absl::StatusOr<v1::PredictResponse> merged = servers.Ask(Request());
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->SerializeAsString(), Whole(Task::kClassification));
}

TEST(SpreadTest, ServersThatKeepChangingAreRefusedByName) {
  Servers servers(2);
  int64_t version = 1;
  for (size_t s = 0; s < 2; ++s) {
    servers.Set(s, [&](v1::PredictResponse right, int) {
      right.set_version(++version);
      return right;
    });
  }
  const absl::Status status = servers.Ask(Request()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_NE(status.message().find("parts[1].version is "), std::string::npos) << status;
}

TEST(SpreadTest, AnErrorIsTheAnswerAndEndsTheOtherParts) {
  Servers servers(3);
  servers.Set(1, [](auto, int) { return absl::ResourceExhaustedError("queue: full"); });
  EXPECT_EQ(servers.Ask(Request()).status(), absl::ResourceExhaustedError("queue: full"));
  EXPECT_EQ(servers.cancels(), 1);
}

TEST(SpreadTest, WhatDoesNotGoWithItIsRefusedByName) {
  const std::pair<const char*, void (*)(v1::PredictRequest&)> kCases[] = {
      {"ensemble.tolerance", [](v1::PredictRequest& request) { request.mutable_ensemble()->set_tolerance(0.1); }},
      {"budget.allow_degraded",
       [](v1::PredictRequest& request) { request.mutable_budget()->set_allow_degraded(true); }},
      {"budget.fit_deadline", [](v1::PredictRequest& request) { request.mutable_budget()->set_fit_deadline(true); }},
      {"outputs.token_scores", [](v1::PredictRequest& request) { request.mutable_outputs()->set_token_scores(true); }},
      {"outputs.token_embeddings",
       [](v1::PredictRequest& request) { request.mutable_outputs()->set_token_embeddings(true); }},
      {"outputs.graph", [](v1::PredictRequest& request) { request.mutable_outputs()->set_graph(true); }},
      {"ensemble.first_sample",
       [](v1::PredictRequest& request) { request.mutable_ensemble()->set_first_sample(0xffffffff); }},
      {"ensemble.samples", [](v1::PredictRequest& request) { request.mutable_ensemble()->set_samples(0); }}};
  for (const auto& [field, set] : kCases) {
    Servers servers(2);
    v1::PredictRequest request = Request();
    set(request);
    const absl::Status status = servers.Ask(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find(field), std::string::npos) << status;
    EXPECT_TRUE(servers.parts().empty()) << "nothing is asked";
  }
}

TEST(SpreadTest, AToleranceOfAProfileIsRefused) {
  Servers servers(2);
  servers.Set(1, [](v1::PredictResponse right, int) {
    right.mutable_settings()->set_profile("sure");
    right.mutable_settings()->set_tolerance(0.1);
    return right;
  });
  const absl::Status status = servers.Ask(Request()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tolerance of profile \"sure\""), std::string::npos) << status;
}

TEST(SpreadTest, OnlyLabelsThatNoPartNamesAreLookedUp) {
  Servers named(30);  // each sample's best three of five labels
  ASSERT_TRUE(named.Ask(Request()).ok());
  EXPECT_EQ(named.lookups(), 0);
  // Two parts that are sure of another label each; the mean's best is a third.
  Servers unnamed(2);
  for (size_t s = 0; s < 2; ++s) {
    unnamed.Set(s, [s](v1::PredictResponse right, int) {
      for (v1::Prediction& prediction : *right.mutable_predictions()) {
        const std::vector<float> row =
            s == 0 ? std::vector<float>{0.55f, 0.45f, 0, 0, 0} : std::vector<float>{0, 0.45f, 0.55f, 0, 0};
        for (v1::SampleOutput& sample : *prediction.mutable_sample_outputs()) {
          sample.mutable_probabilities()->Assign(row.begin(), row.end());
        }
        prediction.clear_top();
        prediction.set_label_id(s == 0 ? 0 : 2);
        prediction.set_label(Names()[prediction.label_id()]);
      }
      return right;
    });
  }
  const absl::StatusOr<v1::PredictResponse> merged = unnamed.Ask(Request(2));
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->predictions(0).label(), Names()[1]);
  EXPECT_EQ(unnamed.lookups(), 1);
}

// Through Client: the servers are asked by themselves.
TEST(SpreadClientTest, EachServerComputesItsPart) {
  std::atomic<int> first = 0, second = 0;
  const auto answer = [](std::atomic<int>& calls) {
    return [&calls](const v1::PredictRequest& request, const testing::CallInfo&) {
      ++calls;
      v1::PredictResponse response =
          MakeResponse(Task::kRegression, static_cast<int>(request.ensemble().first_sample()),
                       static_cast<int>(request.ensemble().samples()));
      response.set_seed(request.ensemble().seed());
      return response;
    };
  };
  testing::FakeServer one(answer(first));
  auto two = std::make_unique<testing::FakeServer>(answer(second));
  const std::unique_ptr<Client> client =
      testing::Connect({.address = one.address() + "," + two->address(), .wait_for_ready = true});
  const absl::StatusOr<v1::PredictResponse> merged = client->PredictSpread(Request());
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->SerializeAsString(), Whole(Task::kRegression));
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  two.reset();
  const absl::StatusOr<v1::PredictResponse> alone = client->PredictSpread(Request());
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->SerializeAsString(), Whole(Task::kRegression));
  EXPECT_EQ(first, 3);
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_EQ(client->PredictSpread(Request(), {.cancellation = &cancellation}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(client->PredictSpread(Request(), {.timeout = -absl::Hours(1)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace edgewise::internal
