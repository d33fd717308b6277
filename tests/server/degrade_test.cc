// Fewer samples and edges under pressure: what a request may give up, and what the scheduler makes of it.
#include "server/schedule/degrade.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/server/scheduler_fixture.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;

// 16 samples that take 0.16 s, of which one takes 0.01 s.
RequestPtr Ensemble(bool consent, Time deadline = Time::max()) {
  auto request = std::make_unique<Request>();
  request->work.cost = 1;
  request->ticket.deadline = deadline;
  request->work.inputs.resize(2);
  for (ModelInput& input : request->work.inputs) input.samples = 16;
  request->forecast.demand = {32, 3200, 6400, 640};
  request->forecast.seconds = 0.16;
  request->work.may_degrade = consent;
  request->forecast.samples = 16;
  request->forecast.one = {2, 200, 400, 40};
  request->forecast.one_seconds = request->forecast.least_seconds = 0.01;
  return request;
}

// The same; with a cap of 1/8 of the edges a sample takes 0.003 s.
RequestPtr WithCaps(bool by_density, Time deadline = Time::max()) {
  RequestPtr request = Ensemble(true, deadline);
  request->forecast.least_seconds = 0.003;
  CapRange& caps = request->forecast.caps;
  caps = {.by_density = by_density, .inputs = {{100, 24.0}, {160, 16.0}}};
  caps.most = by_density ? 0.24 : 24.0;
  caps.least = caps.most / 8;
  return request;
}

uint32_t SamplesWithin(const Request& request, double seconds) {
  const Choice choice = ChoiceWithin(request, seconds, std::numeric_limits<double>::infinity());
  EXPECT_EQ(choice.cap, 0.0);
  return choice.samples;
}

const Request* AddTo(TestScheduler& scheduler, RequestPtr request) {
  const Request* address = request.get();
  std::vector<EndedRequest> ended;
  EXPECT_TRUE(scheduler.Add(request, kStart, ended).ok());
  return address;
}

// The requests that start next where nothing runs.
std::vector<RequestPtr> TakeFrom(TestScheduler& scheduler, Time now = kStart) {
  scheduler.Run({});
  Turn turn = scheduler.Next({}, now);
  return turn.kind == Turn::kStart ? scheduler.TakeBatch(turn, now) : std::vector<RequestPtr>();
}

TEST(DegradeTest, ARequestGivesUpSamplesDownToOne) {
  const RequestPtr request = Ensemble(true);
  EXPECT_DOUBLE_EQ(LeastSeconds(*request), 0.01);
  EXPECT_DOUBLE_EQ(SpareSeconds(*request, kStart), 0.15);
  EXPECT_EQ(SamplesWithin(*request, 0.16), 16u);
  EXPECT_EQ(SamplesWithin(*request, 0.0801), 8u);
  EXPECT_EQ(SamplesWithin(*request, 0.0799), 7u);
  EXPECT_EQ(SamplesWithin(*request, 0.0), 1u);
  EXPECT_EQ(SamplesWithin(*request, -std::numeric_limits<double>::infinity()), 1u);
}

TEST(DegradeTest, NothingIsGivenUpWithoutConsent) {
  const RequestPtr request = Ensemble(false);
  EXPECT_DOUBLE_EQ(LeastSeconds(*request), 0.16);
  EXPECT_EQ(SpareSeconds(*request, kStart), 0.0);
  Lower(*request, {4}, DegradedBy::kLoad);
  EXPECT_EQ(RunOf(*request, 0).samples, 16u);
  EXPECT_EQ(request->forecast.reason, DegradedBy::kNothing);
}

TEST(DegradeTest, OnlyWhatFitsBeforeTheDeadlineCanBeGivenUp) {
  EXPECT_NEAR(SpareSeconds(*Ensemble(true, kStart + milliseconds(50)), kStart), 0.04, 1e-9);
  EXPECT_EQ(SpareSeconds(*Ensemble(true, kStart), kStart), 0.0);
}

TEST(DegradeTest, LoweringLowersAllThatDependsOnThemAndNeverRaises) {
  const RequestPtr request = Ensemble(true);
  Lower(*request, {4}, DegradedBy::kDeadline);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(RunOf(*request, i).samples, 4u);
  EXPECT_EQ(request->forecast.samples, 4u);
  EXPECT_EQ(request->work.inputs.front().samples, 16u);
  EXPECT_EQ(request->forecast.reason, DegradedBy::kDeadline);
  EXPECT_NEAR(request->forecast.seconds, 0.04, 1e-12);
  EXPECT_NEAR(request->forecast.demand.passes, 8, 1e-9);
  EXPECT_NEAR(request->forecast.demand.edges, 160, 1e-9);
  Lower(*request, {8}, DegradedBy::kLoad);
  EXPECT_EQ(request->forecast.samples, 4u);
  EXPECT_EQ(request->forecast.reason, DegradedBy::kDeadline);
  Lower(*request, {0}, DegradedBy::kLoad);
  EXPECT_EQ(request->forecast.samples, 1u);
}

TEST(DegradeTest, SamplesAreGivenUpBeforeEdges) {
  for (const bool by_density : {false, true}) {
    const RequestPtr request = WithCaps(by_density);
    EXPECT_DOUBLE_EQ(LeastSeconds(*request), 0.003);
    EXPECT_DOUBLE_EQ(SpareSeconds(*request, kStart), 0.157);
    for (const double seconds : {0.16, 0.08, 0.01}) EXPECT_EQ(ChoiceWithin(*request, seconds, seconds).cap, 0.0);
    EXPECT_EQ(ChoiceWithin(*request, 0.01, 0.01).samples, 1u);
    double before = request->forecast.caps.most;
    for (const double seconds : {0.0099, 0.007, 0.005, 0.0031}) {
      const Choice choice = ChoiceWithin(*request, seconds, seconds);
      EXPECT_EQ(choice.samples, 1u);
      EXPECT_LT(choice.cap, before);
      before = choice.cap;
    }
    EXPECT_GE(before, request->forecast.caps.least);
    EXPECT_EQ(ChoiceWithin(*request, 0.002, 0.002).cap, request->forecast.caps.least) << "there is nothing less";
  }
}

TEST(DegradeTest, ALowerCapIsTheLargestOfTheLadderThatIsInTime) {
  const RequestPtr request = WithCaps(true);
  // With so much density the inputs have min(24, floor(100 d)) and min(16, floor(160 d)) edges.
  const double least = 3 + 4, seconds_per_edge = (0.01 - 0.003) / (40 - least);
  for (const double seconds : {0.0095, 0.008, 0.006, 0.004}) {
    const double cap = ChoiceWithin(*request, seconds, seconds).cap;
    const auto takes = [&](double d) {
      const double edges = std::min(24.0, std::floor(100 * d)) + std::min(16.0, std::floor(160 * d));
      return 0.003 + seconds_per_edge * (edges - least);
    };
    EXPECT_LE(takes(cap), seconds);
    EXPECT_GT(takes(cap * std::exp2(0.125)), seconds);
    EXPECT_NEAR(8 * std::log2(cap), std::round(8 * std::log2(cap)), 1e-9) << "eight caps to each half";
  }
}

TEST(DegradeTest, LoweringTheCapLowersAllThatDependsOnItAndNeverRaises) {
  for (const bool by_density : {false, true}) {
    const RequestPtr request = WithCaps(by_density);
    request->work.inputs[1].max_edges = 5;  // of the limits of the model
    Lower(*request, {1, by_density ? 0.12 : 12.0}, DegradedBy::kLoad);
    const double edges = 12 + (by_density ? 16 : 12);
    EXPECT_EQ(RunOf(*request, 0).samples, 1u);
    EXPECT_EQ(RunOf(*request, 0).max_edges, 12u);
    EXPECT_EQ(RunOf(*request, 1).max_edges, 5u);
    EXPECT_EQ(request->forecast.samples, 1u);
    EXPECT_EQ(request->forecast.reason, DegradedBy::kLoad);
    EXPECT_DOUBLE_EQ(request->forecast.demand.edges, edges);
    EXPECT_DOUBLE_EQ(request->forecast.demand.tokens, 200);
    const double least = by_density ? 7 : 6;
    EXPECT_DOUBLE_EQ(request->forecast.seconds, 0.003 + 0.007 * (edges - least) / (40 - least));
    Lower(*request, {1, by_density ? 0.2 : 20.0}, DegradedBy::kDeadline);
    EXPECT_EQ(RunOf(*request, 0).max_edges, 12u);
    EXPECT_EQ(request->forecast.reason, DegradedBy::kLoad);
    EXPECT_EQ(ChoiceWithin(*request, 0.16, 0.16).cap, 0.0);
    Lower(*request, ChoiceWithin(*request, 0.0, 0.0), DegradedBy::kDeadline);
    EXPECT_EQ(RunOf(*request, 0).max_edges, 3u);
    EXPECT_DOUBLE_EQ(request->forecast.seconds, 0.003);
    EXPECT_EQ(ChoiceWithin(*request, 0.0, 0.0).cap, 0.0) << "there is nothing to give up";
  }
}

TEST(DegradeTest, UnderLoadOneSampleGivesUpEdges) {
  TestScheduler scheduler;
  AddTo(scheduler, WithCaps(true));
  AddTo(scheduler, Ensemble(false, kStart + milliseconds(220)));
  const std::vector<RequestPtr> batch = TakeFrom(scheduler);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0]->forecast.samples, 1u);
  EXPECT_GT(batch[0]->forecast.cap, 0.0);
  EXPECT_LT(batch[0]->forecast.seconds, 0.01);
}

TEST(DegradeTest, ConsentIsAdmittedWhereItsLeastIsInTime) {
  for (const bool consent : {false, true}) {
    TestScheduler scheduler;
    AddTo(scheduler, Ensemble(consent));
    RequestPtr next = Ensemble(consent, kStart + milliseconds(250));
    std::vector<EndedRequest> ended;
    EXPECT_EQ(scheduler.Add(next, kStart, ended).ok(), consent);
  }
}

TEST(DegradeTest, WithTimeForAllNobodyIsDegraded) {
  TestScheduler scheduler;
  for (int i = 0; i < 3; ++i) AddTo(scheduler, Ensemble(true, kStart + milliseconds(2000)));
  for (int i = 0; i < 3; ++i) {
    const std::vector<RequestPtr> batch = TakeFrom(scheduler);
    ASSERT_EQ(batch.size(), 1u);
    EXPECT_EQ(batch[0]->forecast.samples, 16u);
    EXPECT_EQ(batch[0]->forecast.reason, DegradedBy::kNothing);
  }
}

TEST(DegradeTest, UnderLoadEachKeepsWhatMakesNobodyLate) {
  TestScheduler scheduler;
  constexpr int kRequests = 10;
  for (int i = 0; i < kRequests; ++i) AddTo(scheduler, Ensemble(true, kStart + milliseconds(800)));
  Time now = kStart;
  double samples = 0.0;
  for (std::vector<RequestPtr> batch = TakeFrom(scheduler, now); !batch.empty(); batch = TakeFrom(scheduler, now)) {
    for (const RequestPtr& request : batch) {
      const double left = SlackOf(request->ticket, now);  // a pass looks after the deadlines of its own requests
      Lower(*request, ChoiceWithin(*request, left, left), DegradedBy::kDeadline);
      EXPECT_LT(request->forecast.samples, 16u);
      samples += request->forecast.samples;
      now += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request->forecast.seconds));
      EXPECT_LE(now, request->ticket.deadline);
    }
  }
  EXPECT_EQ(scheduler.size(), 0u);
  EXPECT_GT(samples / kRequests, 3.0) << "0.8 s are 80 samples; not all are given away";
}

TEST(DegradeTest, ARequestWithoutConsentMakesThoseBeforeItGiveWay) {
  TestScheduler scheduler;
  const Request* flexible = AddTo(scheduler, Ensemble(true));
  AddTo(scheduler, Ensemble(false, kStart + milliseconds(250)));
  const std::vector<RequestPtr> batch = TakeFrom(scheduler);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].get(), flexible);
  EXPECT_LE(batch[0]->forecast.seconds, 0.09);
  EXPECT_EQ(RunOf(*TakeFrom(scheduler)[0], 0).samples, 16u);
}

TEST(DegradeTest, ARequestThatIsLateAnywayDegradesNobody) {
  TestScheduler scheduler;
  AddTo(scheduler, Ensemble(true));
  AddTo(scheduler, Ensemble(false, kStart + milliseconds(300)));
  const std::vector<RequestPtr> batch = TakeFrom(scheduler, kStart + milliseconds(200));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0]->forecast.samples, 16u);
}

TEST(DegradeTest, APassThatHasJustStartedDelaysOthersByItsLeastOnly) {
  for (const bool consent : {true, false}) {
    TestScheduler scheduler;
    AddTo(scheduler, Ensemble(consent));
    ASSERT_EQ(TakeFrom(scheduler, kStart).size(), 1u);
    RequestPtr other = Ensemble(true, kStart + milliseconds(45));
    std::vector<EndedRequest> ended;
    const absl::Status status = scheduler.Add(other, kStart, ended);
    EXPECT_EQ(status.ok(), consent) << status;
  }
}

TEST(DegradeTest, APassThatRunsGivesWayToo) {
  TestScheduler scheduler;
  RunningPass pass{.level = kLevel, .progress = {0.3, 0.3, kStart}};
  scheduler.Run({pass});
  EXPECT_EQ(scheduler.Next({}, kStart).kept, 1.0) << "nobody waits";
  AddTo(scheduler, Ensemble(false, kStart + milliseconds(350)));
  scheduler.Run({pass});
  const Turn turn = scheduler.Next({}, kStart);
  EXPECT_EQ(turn.kind, Turn::kStep);
  EXPECT_LT(turn.kept, 0.5);
  EXPECT_GT(turn.kept, 0.0);
}

}  // namespace
}  // namespace edgewise::server
