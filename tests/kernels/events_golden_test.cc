// Heads that are drawn by events, against tests/testdata/events-v2.txt, which an independent implementation wrote
// (tests/reference/events.py): tables, every accepted event, and what the rule says.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/host/event_tables.h"
#include "kernels/reference/reference.h"
#include "tests/support/paths.h"

namespace edgewise {
namespace {

// Memberships as the file's, and one problem that draws from them.
struct Golden {
  Golden(int tokens, int rank, int shift, bool hot, int longest = 1) {
    const float unit = std::ldexp(1.0f, -shift);
    for (int i = 0; i < tokens; ++i) {
      for (int t = 0; t < rank; ++t) {
        x.push_back(
            static_cast<float>((1 + (i * 5 + t * 3) % 7) * (hot && i % 13 == 0 ? 8 : 1) * (i == 1 ? longest : 1)) *
            unit);
        y.push_back(static_cast<float>((1 + (i * 5 + t * 3 + 2) % 7) * (hot && i % 11 == 0 ? 8 : 1)) * unit);
      }
    }
    inputs.memberships = {x.data(), y.data(), nullptr, nullptr, tokens, rank};
    inputs.num_heads = 1;
    problem.tokens = tokens;
  }
  AttentionInputs Head(int index) {  // memberships of head 0 as those of another
    AttentionInputs moved = inputs;
    moved.memberships.x -= static_cast<int64_t>(index) * problem.tokens * inputs.memberships.rank;
    moved.memberships.y -= static_cast<int64_t>(index) * problem.tokens * inputs.memberships.rank;
    return moved;
  }

  std::vector<float> x, y;
  std::vector<int32_t> positions;
  AttentionInputs inputs;
  AttentionProblem problem;
};

// Tables and their memory.
struct Tables {
  Tables(const Golden& golden, const DrawnRows& drawn) {
    const int64_t n = golden.problem.tokens;
    const int rank = golden.inputs.memberships.rank;
    for (int64_t i = 0; i < n; ++i) {
      queries.push_back(MembershipDot(&golden.x[i * rank], &golden.x[i * rank], rank));
      keys.push_back(MembershipDot(&golden.y[i * rank], &golden.y[i * rank], rank));
    }
    places.resize(n + 2);
    guide.resize(EventGuideSize(n));
    heavy.resize(n);
    all = {n, queries.data(), keys.data(), queries.data(), places.data(), guide.data(), heavy.data()};
    FillEventTables(drawn, MeasureEvents(drawn, all), all);
  }
  std::vector<float> queries, keys;
  std::vector<uint32_t> places;
  std::vector<uint64_t> guide;
  std::vector<int32_t> heavy;
  EventTables all;
};

using Ages = std::map<std::pair<int, int>, std::vector<uint32_t>>;  // of events, by query and key

void ExpectEdges(const std::vector<reference::Edge>& edges, const Ages& ages, Law law) {
  ASSERT_EQ(edges.size(), ages.size());
  for (const reference::Edge& edge : edges) {
    const auto found = ages.find({edge.query, edge.key});
    ASSERT_NE(found, ages.end()) << edge.query << " " << edge.key;
    EXPECT_EQ(edge.age, found->second[0] * 0x1p-31);
    if (law == Law::kPoissonMulti) {
      EXPECT_EQ(edge.multiplicity, static_cast<int>(found->second.size()));
    }
  }
}

TEST(EventsGoldenTest, TablesEventsAndTheRuleMatchTheGoldenFile) {
  std::ifstream file(tests::TestdataFolder() + "/events-v2.txt");
  ASSERT_TRUE(file.is_open());
  std::unique_ptr<Golden> golden;
  std::unique_ptr<Tables> tables;
  std::vector<reference::Edge> edges;
  Ages ages;
  Law law = Law::kBernoulli;
  int cases = 0, rules[2] = {0, 0};
  const auto finish = [&] {
    if (golden != nullptr) ExpectEdges(edges, ages, law);
    ages.clear();
  };
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string kind;
    fields >> kind;
    if (kind == "case") {
      finish();
      int number, tokens, rank, shift, hot, step, head;
      DrawnRows drawn;
      fields >> number >> drawn.exploration >> tokens >> rank >> shift >> hot >> step >> drawn.key.seed >>
          drawn.key.sample >> drawn.key.layer >> head >> drawn.key.side;
      ASSERT_FALSE(fields.fail()) << line;
      drawn.law = law = static_cast<Law>(number);
      golden = std::make_unique<Golden>(tokens, rank, shift, hot != 0);
      for (int i = 0; i < tokens; ++i) golden->positions.push_back(step * i);
      golden->problem.positions = golden->positions.data();
      golden->problem.pattern = drawn;
      tables = std::make_unique<Tables>(*golden, drawn);
      edges = reference::DrawByEvents(golden->Head(head), golden->problem, head);
      ++cases;
    } else if (kind == "token") {
      int i, heavy;
      uint32_t gap, end;
      fields >> i >> gap >> end >> heavy;
      EXPECT_EQ(std::bit_cast<uint32_t>(tables->all.mean_gap[i]), gap) << line;
      EXPECT_EQ(tables->places[i + 1], end) << line;
      EXPECT_EQ(std::count(tables->heavy.begin(), tables->heavy.begin() + tables->all.heavy_keys, i), heavy) << line;
    } else if (kind == "event") {
      int i, j;
      uint32_t age;
      fields >> i >> j >> age;
      ages[{i, j}].push_back(age);
    } else if (kind == "rule") {
      int tokens, rank, shift, hot, longest, events;
      fields >> tokens >> rank >> shift >> hot >> longest >> events;
      Golden head(tokens, rank, shift, hot != 0, longest);
      head.problem.pattern = DrawnRows{};
      EXPECT_EQ(reference::UsesEvents(head.inputs, head.problem, 0), events != 0) << line;
      ++rules[events];
    }
  }
  finish();
  EXPECT_EQ(cases, 4);
  EXPECT_GT(rules[0], 0);
  EXPECT_GT(rules[1], 0);
}

}  // namespace
}  // namespace edgewise
