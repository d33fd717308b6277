// Edges of one sample as the deadline allows, on a device whose times a test makes up: how often the deadline is met,
// and how near the choice is to the largest that meets it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "server/models/repository.h"
#include "server/schedule/degrade.h"
#include "tests/model/run_model.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

constexpr double kDensity = 0.4;  // of the inputs
constexpr int64_t kWave = 16384;  // tokens
const Time kNow = Time() + std::chrono::hours(1);

// The parameter: the standard deviation of the logarithm of times.
class FitDeadlineTest : public ::testing::TestWithParam<double> {
 protected:
  FitDeadlineTest() {
    model_->model = LoadTestModel("sbm");
    for (const double share : {1.0, 0.5, 0.125}) {
      for (const int tokens : {8, 16, 32, 48}) {
        const double pairs = 4.0 * tokens * tokens;
        Run({1, static_cast<double>(tokens), pairs, share * kDensity * pairs});
      }
    }
    model_->costs->Anchor();
    for (int i = 0; i < 300; ++i) {
      const Demand demand = Make(Time::max()).forecast.demand;
      model_->costs->ObserveEdges(demand.tokens, demand.pairs, kDensity * demand.pairs);
      Run({1, demand.tokens, demand.pairs, kDensity * demand.pairs});
    }
  }

  static double Seconds(const Demand& d) { return 0.01 + 1e-4 * d.tokens + 1e-5 * d.edges; }
  // The seconds of a request that runs.
  double Run(const Demand& demand) {
    const double seconds = Seconds(demand) * std::exp(GetParam() * normal_(random_));
    model_->costs->Observe(demand, seconds);
    return seconds;
  }
  Request Make(Time deadline) const {
    Request request;
    request.ticket.model = model_;
    request.ticket.deadline = deadline;
    request.work.inputs.push_back(testing::MakeInput(*model_->model, testing::RandomTokens(48, 39, 1)));
    request.work.tokens = 48;
    request.work.may_degrade = request.work.fits_deadline = true;
    request.forecast = MakeForecast(*model_, request.work);
    return request;
  }

  std::mt19937_64 random_{5};
  std::normal_distribution<double> normal_;
  std::shared_ptr<LoadedModel> model_ = std::make_shared<LoadedModel>();
};

TEST_P(FitDeadlineTest, MeetsDeadlinesWithEdgesNearTheMostThatMeetThem) {
  constexpr int kRequests = 2000;
  const Demand own = Make(Time::max()).forecast.demand;
  Demand least = own;
  least.edges /= 16;
  const double p99 = Seconds(least) * std::exp(2.33 * GetParam());
  for (const double factor : {1.5, 2.0, 3.0}) {
    const double deadline = factor * p99;
    const double most = std::min(own.edges, own.edges * (deadline - Seconds({1, own.tokens, own.pairs, 0.0})) /
                                                (Seconds(own) - Seconds({1, own.tokens, own.pairs, 0.0})));
    int met = 0;
    std::vector<double> edges;
    for (int i = 0; i < kRequests; ++i) {
      Request request =
          Make(kNow + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline)));
      LowerToDeadline(request, kWave, kNow);
      EXPECT_LE(request.forecast.demand.edges, own.edges);
      edges.push_back(request.forecast.demand.edges);
      if (Run(request.forecast.demand) <= deadline) ++met;
    }
    std::nth_element(edges.begin(), edges.begin() + kRequests / 2, edges.end());
    EXPECT_GE(met, 0.99 * kRequests) << factor;
    EXPECT_GE(edges[kRequests / 2], 0.7 * most) << factor;
  }
}

INSTANTIATE_TEST_SUITE_P(Noise, FitDeadlineTest, ::testing::Values(0.01, 0.03));

}  // namespace
}  // namespace edgewise::server
