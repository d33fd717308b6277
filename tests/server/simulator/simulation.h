// One run of queue, scheduler, passes, generations and engine on one thread, on a clock that only the simulated device
// moves, with clients, faults and reloads drawn from a seed. After every turn of the engine the run checks what must
// always hold (invariants.cc), and stops at the first violation.
#ifndef EDGEWISE_TESTS_SERVER_SIMULATOR_SIMULATION_H_
#define EDGEWISE_TESTS_SERVER_SIMULATOR_SIMULATION_H_

#include <array>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/models/repository.h"
#include "server/schedule/engine.h"
#include "tests/server/simulator/catalogue.h"
#include "tests/server/simulator/device.h"
#include "tests/server/simulator/loading.h"

namespace edgewise::server {

class Simulation {
 public:
  // `catalogue` must outlive the simulation.
  Simulation(uint64_t seed, Catalogue& catalogue);
  ~Simulation();

  // Runs to the end, or to the first violation. Once.
  void Run();

  // Empty: everything held.
  const std::string& violation() const { return violation_; }
  // A line for everything that happened, in order.
  const std::vector<std::string>& trace() const { return trace_; }
  struct Counts {
    int64_t turns = 0, arrivals = 0, refused = 0, answered = 0, failed = 0, tokens = 0, loads = 0;
    int64_t faults = 0;                     // of the device
    int64_t degraded = 0, fewer_edges = 0;  // of the answers
    int64_t shadows = 0;                    // answers in the background
    Counts& operator+=(const Counts& other);
  };
  const Counts& counts() const { return counts_; }

 private:
  // A request from its client's point of view.
  struct Call {
    int64_t number = 0;
    const SimulatedWork* work = nullptr;
    const LoneAnswer* alone = nullptr;
    size_t version = 0;  // of the weights
    uint32_t level = 0;
    std::string principal;
    Time pushed, deadline = Time::max(), cancelled = Time::max();
    std::stop_source client;
    double predicted = 0.0;  // seconds, of the least that it may get
    bool consents = false;   // to fewer samples and edges
    // Predicted seconds of its principal on its level: of what waits or runs when it comes, itself included, each with
    // the others of its batch; and of the longest so far.
    double before = 0.0;
    double overtaken = 0.0;      // predicted seconds of others on its level that came later and started before it
    Request* request = nullptr;  // until it has ended
    bool started = false;
    int answers = 0;
    Time ended;

    // Of a generation.
    size_t tokens = 0, unread = 0;
    double seconds_to_read = 0.0;
    Time last_token;
    bool finished = false;     // the last token came
    bool ever_unread = false;  // as many tokens were unread as may be: it may have been parked
  };
  // What a seed draws for the whole run.
  struct Scenario {
    ServerOptions options;
    int64_t arrivals = 0;
    size_t principals = 1;
    double greedy = 0.0;         // part of the requests that the first principal has to itself
    uint32_t highest_level = 1;  // of the first principal
    double interval = 0.0;       // mean seconds between arrivals
    double generating = 0.0, faulty = 0.0, cancelling = 0.0, urgent = 0.0, consenting = 0.0, shadowed = 0.0;
    double misjudged = 1.0;  // predictions are off by this factor
    size_t unread_limit = 0;
    bool cancel_all = false;
  };

  // Events (simulation.cc).
  Scenario Draw();
  double Uniform(double from, double to);
  bool Chance(double probability) { return Uniform(0.0, 1.0) < probability; }
  void Pass(double seconds);
  void After(double seconds, std::function<void()> event);
  void NextEvent();
  void Arrive();
  void Ask(size_t model);
  RequestPtr MakeRequest(Call& call);
  void AddPredict(Call& call, Request& request);
  void AddGeneration(Call& call, Request& request);
  void AddShadow(const Call& call);
  void Read(Call& call);
  void Change(size_t model);
  void LoadPiece();
  void End();
  Call* Find(int64_t number);  // null: it has ended

  // Invariants (invariants.cc).
  void Require(bool holds, const std::string& what);
  void Say(const std::string& what);
  void OnRefused(const Call& call, const absl::Status& status);
  void OnToken(Call& call, const GeneratedToken& token, FinishReason finish);
  void OnEnd(Call& call, const Request& request, const absl::Status& status);
  void OnShadowEnd(const LoneAnswer& alone, const Request& request, const absl::Status& status);
  void CheckAnswer(const Call& call, const Request& request);
  void CheckCap(const Call& call, const Request& request);
  void CheckResults(const Request& request, const LoneAnswer& alone);
  void CheckError(const Call& call, const absl::Status& status);
  double LikelySeconds(const Call& call) const;
  void NoteStart(Call& call);
  void NoteOvertaken(const Call& started);
  static double SlackOf(const Call& call, Time at);  // seconds to its deadline
  void BeforeTurn();
  void AfterTurn(const Turn& turn);
  void CheckLimits();
  void CheckWorkIsDone(const Turn& turn);
  void CheckWorkIsForSomeone(const Turn& turn);
  void CheckShares(const Turn& turn);
  void CheckEnd();

  Catalogue& catalogue_;
  std::mt19937_64 random_;
  static constexpr Time kBegin = Time() + std::chrono::seconds(1000);
  Time now_ = kBegin;
  std::multimap<Time, std::function<void()>> events_;
  const Scenario scenario_;

  SimulatedDevice device_;
  Metrics metrics_;
  std::array<std::shared_ptr<const LoadedModel>, Catalogue::kModels> models_;
  std::array<size_t, Catalogue::kModels> versions_ = {};  // of the weights
  struct NextModel {
    size_t model = 0, version = 0;
    std::unique_ptr<Loading> loading;
  };
  std::deque<NextModel> loading_;  // one after the other
  std::unique_ptr<RequestQueue> queue_;
  std::unique_ptr<Engine> engine_;

  std::list<Call> calls_;  // that were accepted and have not ended
  std::list<Call> ended_;
  int64_t requests_alive_ = 0;    // objects
  int64_t background_ = 0;        // shadows that have not ended
  const Call* asking_ = nullptr;  // inside RequestQueue::Push
  bool closed_ = false, cancelled_all_ = false;
  bool between_turns_ = false;    // while a piece of a model is loaded
  int64_t blamed_on_device_ = 0;  // errors of requests that succeed alone

  Time turn_began_;
  double longest_turn_ = 0.0;
  std::map<std::pair<uint32_t, std::string>, double> longest_predicted_;  // by level and principal
  bool changed_ = false;           // a request started or ended in this turn, or a model was loaded before it
  bool cancelled_before_ = false;  // cancelled_all_ before this turn
  int64_t newest_ = 0;             // call before this turn
  PerLevel<double> served_ = {};   // seconds over weight
  // served_ of one level less that of another, when both began to have work at once.
  PerLevel<PerLevel<std::optional<double>>> lead_ = {};

  std::string violation_;
  std::vector<std::string> trace_;
  Counts counts_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_SIMULATOR_SIMULATION_H_
