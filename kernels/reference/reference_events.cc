// Events as kernels/draw/events.h defines them, one after the other.
#include <algorithm>
#include <map>
#include <utility>

#include "kernels/draw/events.h"
#include "kernels/host/event_tables.h"
#include "kernels/reference/reference.h"

namespace edgewise::reference {
namespace {

// Tables of one head, and the memory that they point to.
struct Head {
  Head(const AttentionInputs& inputs, const AttentionProblem& problem, const DrawnRows& drawn, int head)
      : problem(problem), drawn(drawn), head(static_cast<uint32_t>(head)), rank(inputs.memberships.rank) {
    const Memberships& m = inputs.memberships;
    const int64_t n = problem.tokens;
    x = m.x + (head * m.rows + problem.first_row) * rank;
    y = m.y + (head * m.rows + problem.first_row) * rank;
    for (int64_t i = 0; i < n; ++i) {
      queries.push_back(MembershipDot(x + i * rank, x + i * rank, rank));
      keys.push_back(MembershipDot(y + i * rank, y + i * rank, rank));
    }
    places.resize(n + 2);
    guide.resize(EventGuideSize(n));
    heavy.resize(n);
    tables = {n, queries.data(), keys.data(), queries.data(), places.data(), guide.data(), heavy.data()};
    means = MeasureEvents(drawn, tables);
  }

  uint32_t Position(int64_t token) const {
    return static_cast<uint32_t>(problem.positions == nullptr ? token : problem.positions[token]);
  }
  float Rate(int64_t i, int64_t j) const {
    return EdgeRate(MembershipDot(x + i * rank, y + j * rank, rank), drawn.exploration);
  }
  PhiloxBlock Words(uint32_t stream, uint32_t counter, int64_t i) const {
    return Philox4x32(drawn.key.seed, {{counter, Position(i), CounterWord(drawn.key, head, stream), drawn.key.sample}});
  }

  const AttentionProblem& problem;
  const DrawnRows& drawn;
  const uint32_t head;
  const int rank;
  const float *x, *y;
  std::vector<float> queries, keys;
  std::vector<uint32_t> places;
  std::vector<uint64_t> guide;
  std::vector<int32_t> heavy;
  EventTables tables;
  EventMeans means;
};

using AgesOfKeys = std::map<int32_t, std::vector<uint32_t>>;  // ascending

void AddEvents(const Head& head, int64_t i, AgesOfKeys& ages) {
  const float mean_gap = head.tables.mean_gap[i];
  uint64_t age = 0;
  for (uint32_t e = 0; mean_gap > 0.0f; ++e) {
    const PhiloxBlock block = head.Words(kStreamEvents, e / 2, i);
    age += EventGap(block.word[e % 2 * 2], mean_gap);
    if (age >= kEventAgeOne) return;
    const uint32_t place = block.word[e % 2 * 2 + 1];
    const auto end = std::upper_bound(head.places.begin(), head.places.end() - 1, place);
    const int64_t key = end - head.places.begin() - 1;
    if (key >= head.tables.tokens) continue;
    const float rate = head.Rate(i, key);
    const Law law = head.drawn.law;
    const auto now = static_cast<uint32_t>(age);
    const uint32_t distance = *end - 1 - place;
    const EventFate fate = JudgeEvent(law, rate, mean_gap, now, distance);
    if (fate == EventFate::kRejected) continue;
    if (fate == EventFate::kOpen &&
        !AcceptOpenEvent(law, rate, mean_gap, now, distance, head.Words(kStreamEventFractions, e, i).word[0])) {
      continue;
    }
    ages[static_cast<int32_t>(key)].push_back(now);
  }
}

void AddHeavyPair(const Head& head, int64_t i, int64_t j, AgesOfKeys& ages) {
  const float rate = head.Rate(i, j);
  const uint64_t uniform = PairUniform(head.drawn.key, head.head, head.Position(i), head.Position(j));
  if (uniform < EdgeThreshold(static_cast<double>(rate))) {
    ages[static_cast<int32_t>(j)].push_back(HeavyPairAge(uniform, rate));
  }
}

}  // namespace

bool UsesEvents(const AttentionInputs& inputs, const AttentionProblem& problem, int head) {
  const auto* drawn = std::get_if<DrawnRows>(&problem.pattern);
  if (drawn == nullptr || !MayUseEvents(*drawn, problem.tokens, inputs.memberships.rank)) return false;
  const Head made(inputs, problem, *drawn, head);
  return edgewise::UsesEvents(*drawn, made.means, made.tables);
}

std::vector<Edge> DrawByEvents(const AttentionInputs& inputs, const AttentionProblem& problem, int head) {
  const auto& drawn = std::get<DrawnRows>(problem.pattern);
  Head made(inputs, problem, drawn, head);
  FillEventTables(drawn, made.means, made.tables);
  std::vector<Edge> edges;
  for (int32_t i = 0; i < problem.tokens; ++i) {
    AgesOfKeys ages;
    AddEvents(made, i, ages);
    const bool heavy_query = !(made.tables.mean_gap[i] > 0.0f);
    for (int32_t j = 0; heavy_query && j < problem.tokens; ++j) AddHeavyPair(made, i, j, ages);
    for (int64_t h = 0; !heavy_query && h < made.tables.heavy_keys; ++h) {
      AddHeavyPair(made, i, made.tables.heavy[h], ages);
    }
    for (int32_t j = 0; j < problem.tokens; ++j) {
      if (IsForced(problem, drawn, i, j)) ages[j];
    }
    for (auto& [j, events] : ages) {
      const bool forced = IsForced(problem, drawn, i, j);
      Edge edge = {i, j, forced, forced ? 0.0 : static_cast<double>(events[0]) * 0x1p-31, 1, 0, made.Rate(i, j), true};
      if (drawn.law == Law::kPoissonMulti) {
        for (uint32_t age : events) edge.event_ages.push_back(static_cast<double>(age) * 0x1p-31);
        edge.multiplicity = std::max(1, static_cast<int>(events.size()));
      }
      edges.push_back(std::move(edge));
    }
  }
  return edges;
}

}  // namespace edgewise::reference
