#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/reference/reference.h"

namespace edgewise::reference {
namespace {

int32_t Position(const AttentionProblem& problem, int32_t token) {
  return problem.positions == nullptr ? token : problem.positions[token];
}

const float* MembershipRow(const Memberships& memberships, const float* data, int head, int64_t row) {
  return data + (head * memberships.rows + row) * memberships.rank;
}

// Every pair is asked.
std::vector<Edge> DrawPairs(const AttentionInputs& inputs, const AttentionProblem& problem, const DrawnRows& drawn,
                            int head) {
  const Memberships& m = inputs.memberships;
  std::vector<Edge> edges;
  for (int32_t i = 0; i < problem.tokens; ++i) {
    const int32_t query = Position(problem, i);
    for (int32_t j = 0; j < problem.tokens; ++j) {
      const int32_t key = Position(problem, j);
      const bool forced = IsForced(problem, drawn, i, j);
      const float dot = MembershipDot(MembershipRow(m, m.x, head, problem.first_row + i),
                                      MembershipRow(m, m.y, head, problem.first_row + j), m.rank);
      const float rate = EdgeRate(dot, drawn.exploration);
      const uint64_t uniform = PairUniform(drawn.key, head, query, key);
      const bool hit = uniform < EdgeThreshold(EdgeProbability(drawn.law, rate));
      if (!forced && !hit) continue;
      const double age = forced ? 0.0 : EdgeAge(drawn.law, uniform, rate);
      const int multiplicity = drawn.law == Law::kPoissonMulti ? std::max(1, EdgeMultiplicity(uniform, rate)) : 1;
      edges.push_back({i, j, forced, age, multiplicity, uniform, rate});
    }
  }
  return edges;
}

double ExpectedEdges(const AttentionInputs& inputs, const AttentionProblem& problem, int head, uint64_t edges) {
  const auto* drawn = std::get_if<DrawnRows>(&problem.pattern);
  if (drawn == nullptr) return static_cast<double>(edges);
  const Memberships& m = inputs.memberships;
  double sum = 0.0;
  for (int32_t i = 0; i < problem.tokens; ++i) {
    for (int32_t j = 0; j < problem.tokens; ++j) {
      const bool forced = IsForced(problem, *drawn, i, j);
      const float dot = MembershipDot(MembershipRow(m, m.x, head, problem.first_row + i),
                                      MembershipRow(m, m.y, head, problem.first_row + j), m.rank);
      sum += forced ? 1.0 : EdgeProbability(drawn->law, EdgeRate(dot, drawn->exploration));
    }
  }
  return sum;
}

int MultiplicityAt(const Edge& edge, double tau) {
  if (!edge.by_events) return EdgeMultiplicity(edge.uniform, tau * static_cast<double>(edge.rate));
  return static_cast<int>(
      std::count_if(edge.event_ages.begin(), edge.event_ages.end(), [&](double age) { return age < tau; }));
}

// Keeps the edges that each cap allows. `edges` [problems][heads].
void ApplyCaps(std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
               std::vector<std::vector<std::vector<Edge>>>& edges) {
  for (size_t c = 0; c < caps.size(); ++c) {
    using Key = std::tuple<double, size_t, size_t, int32_t, int32_t>;  // the order in which edges are kept
    const bool probable = caps[c].keep == CapRule::kProbable;
    const auto key_of = [&](const Edge& edge, size_t p, size_t h) {
      return Key(probable ? -static_cast<double>(edge.rate) : edge.age, p, h, edge.query, edge.key);
    };
    uint64_t forced = 0;
    std::vector<Key> drawn;
    for (size_t p = 0; p < problems.size(); ++p) {
      if (problems[p].cap != static_cast<int32_t>(c)) continue;
      const bool droppable = std::holds_alternative<DrawnRows>(problems[p].pattern);
      for (size_t h = 0; h < edges[p].size(); ++h) {
        for (const Edge& edge : edges[p][h]) {
          if (!droppable || edge.forced) {
            ++forced;
          } else {
            drawn.push_back(key_of(edge, p, h));
          }
        }
      }
    }
    const uint64_t allowance = caps[c].max_edges - std::min(forced, caps[c].max_edges);
    caps[c].capped = drawn.size() > allowance;
    if (!caps[c].capped) continue;
    std::sort(drawn.begin(), drawn.end());
    const Key first_dropped = drawn[allowance];
    const double tau = probable ? 1.0 : std::get<0>(first_dropped);
    for (size_t p = 0; p < problems.size(); ++p) {
      const auto* pattern = std::get_if<DrawnRows>(&problems[p].pattern);
      if (problems[p].cap != static_cast<int32_t>(c) || pattern == nullptr) continue;
      for (size_t h = 0; h < edges[p].size(); ++h) {
        std::erase_if(edges[p][h],
                      [&](const Edge& edge) { return !edge.forced && key_of(edge, p, h) >= first_dropped; });
        if (pattern->law != Law::kPoissonMulti) continue;
        for (Edge& edge : edges[p][h]) {
          edge.multiplicity = std::max(1, MultiplicityAt(edge, tau));
        }
      }
    }
  }
}

// Given edges of the queries; there may be rows for the tokens before the queries too.
std::vector<Edge> GivenEdges(const AttentionProblem& problem, const HeadEdges& given) {
  std::vector<Edge> edges;
  const auto rows = static_cast<int32_t>(given.row_offsets.size()) - 1;
  const int32_t first = rows == problem.tokens ? 0 : problem.first_query;
  for (int32_t i = problem.first_query; i < problem.tokens; ++i) {
    for (int64_t e = given.row_offsets[i - first]; e < given.row_offsets[i - first + 1]; ++e) {
      edges.push_back({i, given.keys[e], true, 0.0, given.multiplicity.empty() ? 1 : given.multiplicity[e], 0, 1.0f});
    }
  }
  return edges;
}

std::vector<Edge> GroupEdges(const GroupedKeys& grouped) {
  std::vector<Edge> edges;
  for (size_t g = 0; g + 1 < grouped.group_begin.size(); ++g) {
    for (int32_t i = grouped.group_begin[g]; i < grouped.group_begin[g + 1]; ++i) {
      for (int64_t e = grouped.key_offsets[g]; e < grouped.key_offsets[g + 1]; ++e) {
        const int32_t key = grouped.keys[e];
        if (!grouped.causal || key <= i) edges.push_back({i, key, true, 0.0, 1, 0, 1.0f});
      }
    }
  }
  return edges;
}

// Bias of the scaled score of a pair of tokens.
double Bias(const AttentionInputs& inputs, const AttentionProblem& problem, int head, int32_t query, int32_t key) {
  const int64_t i = Position(problem, query), j = Position(problem, key);
  double sum = 0.0;
  if (inputs.distance_bias != nullptr) {
    const int64_t span = inputs.distance_span;
    sum += inputs.distance_bias[head * (2 * span - 1) + j - i + span - 1];
  }
  if (problem.bias == nullptr) return sum;
  const PairwiseBias& bias = *problem.bias;
  const int64_t pair = i * bias.length + j;
  return sum + (bias.values != nullptr ? bias.values[pair] : bias.table[head * 256 + bias.buckets[pair]]);
}

// softmax over `edges` (one head, ascending in query), times v, into the problem's output rows.
void AttendHead(const AttentionInputs& inputs, const AttentionProblem& problem, int head,
                const std::vector<Edge>& edges, double (*round)(double), Matrix out, HeadReport& report) {
  const int d = inputs.head_dim;
  const int value_dim = inputs.value_dim > 0 ? inputs.value_dim : d;
  const int64_t column = static_cast<int64_t>(head) * d, value_column = static_cast<int64_t>(head) * value_dim;
  const int64_t key_column = int64_t{inputs.KeyValueHead(head)} * d;
  const int64_t v_column = int64_t{inputs.KeyValueHead(head)} * value_dim;
  const auto* drawn = std::get_if<DrawnRows>(&problem.pattern);
  const auto* given = std::get_if<ExplicitEdges>(&problem.pattern);
  const bool multi = (drawn != nullptr && drawn->law == Law::kPoissonMulti) ||
                     (given != nullptr && !(*given->heads)[head].multiplicity.empty());
  report.edges = edges.size();
  report.isolated = 0;
  if (problem.report->wanted.expected) report.expected = ExpectedEdges(inputs, problem, head, edges.size());
  if (problem.report->wanted.key_degrees) report.key_degrees.assign(problem.tokens, 0);
  report.graph = {};
  if (problem.report->wanted.graph) report.graph.row_offsets.push_back(0);

  size_t begin = 0;
  for (int32_t i = problem.first_query; i < problem.tokens; ++i) {
    size_t end = begin;
    while (end < edges.size() && edges[end].query == i) ++end;
    const float* q = inputs.q.row(problem.first_row + problem.query_shift + i) + column;
    std::vector<double> weights(end - begin);
    double largest = -INFINITY;
    for (size_t e = begin; e < end; ++e) {
      const float* k = inputs.k.row(problem.first_row + edges[e].key) + key_column;
      double score = 0.0;
      for (int t = 0; t < d; ++t) score += static_cast<double>(q[t]) * k[t];
      weights[e - begin] = score * inputs.scale + Bias(inputs, problem, head, i, edges[e].key);
      largest = std::max(largest, weights[e - begin]);
    }
    double total = 0.0;
    for (size_t e = begin; e < end; ++e) {
      weights[e - begin] = edges[e].multiplicity * std::exp(weights[e - begin] - largest);
      total += weights[e - begin];
    }
    std::vector<double> sum(value_dim, 0.0);
    for (size_t e = begin; e < end; ++e) {
      const float* v = inputs.v.row(problem.first_row + edges[e].key) + v_column;
      const double weight = round == nullptr ? weights[e - begin] : round(weights[e - begin]);
      for (int t = 0; t < value_dim; ++t) sum[t] += weight / total * v[t];
      if (problem.report->wanted.key_degrees) ++report.key_degrees[edges[e].key];
      if (!problem.report->wanted.graph) continue;
      report.graph.keys.push_back(edges[e].key);
      report.graph.weights.push_back(static_cast<float>(weights[e - begin] / total));
      if (multi) report.graph.multiplicity.push_back(edges[e].multiplicity);
    }
    float* row = out.row(problem.out_row + i - problem.first_query) + value_column;
    for (int t = 0; t < value_dim; ++t) row[t] = static_cast<float>(sum[t]);
    if (begin == end) ++report.isolated;
    if (problem.report->wanted.graph) report.graph.row_offsets.push_back(static_cast<int64_t>(end));
    begin = end;
  }
}

}  // namespace

bool IsForced(const AttentionProblem& problem, const DrawnRows& drawn, int32_t query, int32_t key) {
  if (drawn.self_loops && query == key) return true;
  const int32_t distance = std::abs(Position(problem, query) - Position(problem, key));
  return drawn.local_window > 0 && distance <= drawn.local_window / 2;
}

std::vector<Edge> DrawEdges(const AttentionInputs& inputs, const AttentionProblem& problem, int head) {
  if (const auto* drawn = std::get_if<DrawnRows>(&problem.pattern)) {
    return UsesEvents(inputs, problem, head) ? DrawByEvents(inputs, problem, head)
                                             : DrawPairs(inputs, problem, *drawn, head);
  }
  if (const auto* given = std::get_if<ExplicitEdges>(&problem.pattern))
    return GivenEdges(problem, (*given->heads)[head]);
  if (const auto* grouped = std::get_if<GroupedKeys>(&problem.pattern)) return GroupEdges(*grouped);
  const auto& all = std::get<AllPairs>(problem.pattern);
  std::vector<Edge> edges;
  for (int32_t i = problem.first_query; i < problem.tokens; ++i) {
    for (int32_t j = 0; j < (all.causal ? i + 1 : problem.tokens); ++j) {
      const bool near = std::abs(Position(problem, i) - Position(problem, j)) <= all.reach;
      if (near) edges.push_back({i, j, true, 0.0, 1, 0, 1.0f});
    }
  }
  return edges;
}

void Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
            Matrix out, double (*round)(double)) {
  std::vector<std::vector<std::vector<Edge>>> edges(problems.size());
  for (size_t p = 0; p < problems.size(); ++p) {
    for (int h = 0; h < inputs.num_heads; ++h) edges[p].push_back(DrawEdges(inputs, problems[p], h));
  }
  ApplyCaps(problems, caps, edges);
  for (size_t p = 0; p < problems.size(); ++p) {
    problems[p].report->heads.assign(inputs.num_heads, {});
    for (int h = 0; h < inputs.num_heads; ++h) {
      AttendHead(inputs, problems[p], h, edges[p][h], round, out, problems[p].report->heads[h]);
    }
  }
}

}  // namespace edgewise::reference
