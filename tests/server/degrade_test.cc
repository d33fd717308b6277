// Fewer samples under pressure: what a request may give up, and what the scheduler makes of it.
#include "server/schedule/degrade.h"

#include <gtest/gtest.h>

#include <limits>

#include "server/schedule/scheduler.h"

namespace edgewise::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Time kStart = Time() + seconds(100);
constexpr uint32_t kLevel = kDefaultPriority - 1;

// 16 samples that take 0.16 s, of which one takes 0.01 s.
RequestPtr Ensemble(bool consent, Time deadline = Time::max()) {
  auto request = std::make_unique<Request>();
  request->cost = 1;
  request->deadline = deadline;
  request->inputs.resize(2);
  for (ModelInput& input : request->inputs) input.samples = 16;
  request->demand = {32, 3200, 6400, 640};
  request->predicted_seconds = 0.16;
  request->consent = {.given = consent, .asked = 16, .samples = 16, .least = {2, 200, 400, 40}, .least_seconds = 0.01};
  return request;
}

const Request* Add(Scheduler& scheduler, RequestPtr request) {
  const Request* address = request.get();
  std::vector<EndedRequest> ended;
  EXPECT_TRUE(scheduler.Add(request, kStart, ended).ok());
  return address;
}

// The requests that start next where nothing runs.
std::vector<RequestPtr> NextBatch(Scheduler& scheduler, Time now = kStart) {
  scheduler.SetRunning({});
  const Turn turn = scheduler.Next({}, now);
  return turn.kind == Turn::kStart ? scheduler.TakeBatch(turn.level, now) : std::vector<RequestPtr>();
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
  LowerSamples(*request, 4, DegradedBy::kLoad);
  EXPECT_EQ(request->inputs[0].samples, 16u);
  EXPECT_EQ(request->consent.reason, DegradedBy::kNothing);
}

TEST(DegradeTest, OnlyWhatFitsBeforeTheDeadlineCanBeGivenUp) {
  EXPECT_NEAR(SpareSeconds(*Ensemble(true, kStart + milliseconds(50)), kStart), 0.04, 1e-9);
  EXPECT_EQ(SpareSeconds(*Ensemble(true, kStart), kStart), 0.0);
}

TEST(DegradeTest, LowerSamplesLowersAllThatDependsOnThemAndNeverRaises) {
  const RequestPtr request = Ensemble(true);
  LowerSamples(*request, 4, DegradedBy::kDeadline);
  for (const ModelInput& input : request->inputs) EXPECT_EQ(input.samples, 4u);
  EXPECT_EQ(request->consent.samples, 4u);
  EXPECT_EQ(request->consent.asked, 16u);
  EXPECT_EQ(request->consent.reason, DegradedBy::kDeadline);
  EXPECT_NEAR(request->predicted_seconds, 0.04, 1e-12);
  EXPECT_NEAR(request->demand.passes, 8, 1e-9);
  EXPECT_NEAR(request->demand.edges, 160, 1e-9);
  LowerSamples(*request, 8, DegradedBy::kLoad);
  EXPECT_EQ(request->consent.samples, 4u);
  EXPECT_EQ(request->consent.reason, DegradedBy::kDeadline);
  LowerSamples(*request, 0, DegradedBy::kLoad);
  EXPECT_EQ(request->consent.samples, 1u);
}

TEST(DegradeTest, ConsentIsAdmittedWhereItsLeastIsInTime) {
  for (const bool consent : {false, true}) {
    Scheduler scheduler({});
    Add(scheduler, Ensemble(consent));
    RequestPtr next = Ensemble(consent, kStart + milliseconds(250));
    std::vector<EndedRequest> ended;
    EXPECT_EQ(scheduler.Add(next, kStart, ended).ok(), consent);
  }
}

TEST(DegradeTest, WithTimeForAllNobodyIsDegraded) {
  Scheduler scheduler({});
  for (int i = 0; i < 3; ++i) Add(scheduler, Ensemble(true, kStart + seconds(2)));
  for (int i = 0; i < 3; ++i) {
    const std::vector<RequestPtr> batch = NextBatch(scheduler);
    ASSERT_EQ(batch.size(), 1u);
    EXPECT_EQ(batch[0]->consent.samples, 16u);
    EXPECT_EQ(batch[0]->consent.reason, DegradedBy::kNothing);
  }
}

TEST(DegradeTest, UnderLoadEachKeepsWhatMakesNobodyLate) {
  Scheduler scheduler({});
  constexpr int kRequests = 10;
  for (int i = 0; i < kRequests; ++i) Add(scheduler, Ensemble(true, kStart + milliseconds(800)));
  Time now = kStart;
  double samples = 0.0;
  for (std::vector<RequestPtr> batch = NextBatch(scheduler, now); !batch.empty(); batch = NextBatch(scheduler, now)) {
    for (const RequestPtr& request : batch) {
      const double left = SlackOf(*request, now);  // a pass looks after the deadlines of its own requests
      LowerSamples(*request, SamplesWithin(*request, left), DegradedBy::kDeadline);
      EXPECT_LT(request->consent.samples, 16u);
      samples += request->consent.samples;
      now += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request->predicted_seconds));
      EXPECT_LE(now, request->deadline);
    }
  }
  EXPECT_EQ(scheduler.size(), 0u);
  EXPECT_GT(samples / kRequests, 3.0) << "0.8 s are 80 samples; not all are given away";
}

TEST(DegradeTest, ARequestWithoutConsentMakesThoseBeforeItGiveWay) {
  Scheduler scheduler({});
  const Request* flexible = Add(scheduler, Ensemble(true));
  Add(scheduler, Ensemble(false, kStart + milliseconds(250)));
  const std::vector<RequestPtr> batch = NextBatch(scheduler);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].get(), flexible);
  EXPECT_LE(batch[0]->predicted_seconds, 0.09);
  EXPECT_EQ(NextBatch(scheduler)[0]->inputs[0].samples, 16u);
}

TEST(DegradeTest, ARequestThatIsLateAnywayDegradesNobody) {
  Scheduler scheduler({});
  Add(scheduler, Ensemble(true));
  Add(scheduler, Ensemble(false, kStart + milliseconds(300)));
  const std::vector<RequestPtr> batch = NextBatch(scheduler, kStart + milliseconds(200));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0]->consent.samples, 16u);
}

TEST(DegradeTest, APassThatRunsGivesWayToo) {
  Scheduler scheduler({});
  RunningPass pass{.level = kLevel, .remaining = 0.3, .stepped = kStart, .spare = 0.3};
  scheduler.SetRunning({&pass, 1});
  EXPECT_EQ(scheduler.Next({}, kStart).share, 1.0) << "nobody waits";
  Add(scheduler, Ensemble(false, kStart + milliseconds(350)));
  scheduler.SetRunning({&pass, 1});
  const Turn turn = scheduler.Next({}, kStart);
  EXPECT_EQ(turn.kind, Turn::kStep);
  EXPECT_LT(turn.share, 0.5);
  EXPECT_GT(turn.share, 0.0);
}

}  // namespace
}  // namespace edgewise::server
