#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace edgewise::reference {
namespace {

double Activate(double x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::kNone:
      break;
  }
  return x;
}

// W x + b, W [out, in].
std::vector<double> Affine(std::span<const float> weight, std::span<const float> bias, const std::vector<double>& x) {
  std::vector<double> y(bias.size());
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = bias[o];
    for (size_t i = 0; i < x.size(); ++i) y[o] += static_cast<double>(weight[o * x.size() + i]) * x[i];
  }
  return y;
}

// sigmoid(MLP(z) C^T) of one row z [head_dim].
std::vector<double> Membership(const MembershipParameters& parameters, int head, const float* z) {
  const int d = parameters.head_dim;
  const int k = parameters.num_clusters;
  std::vector<double> hidden = Affine(parameters.weight0, parameters.bias0, std::vector<double>(z, z + d));
  for (double& value : hidden) value = std::max(value, 0.0);
  const std::vector<double> node = Affine(parameters.weight1, parameters.bias1, hidden);
  std::vector<double> membership(k);
  const float* clusters = parameters.clusters.data() + static_cast<int64_t>(head) * k * d;
  for (int c = 0; c < k; ++c) {
    double dot = 0.0;
    for (int i = 0; i < d; ++i) dot += node[i] * clusters[c * d + i];
    membership[c] = 1.0 / (1.0 + std::exp(-dot));
  }
  return membership;
}

int32_t Position(const AttentionProblem& problem, int32_t token) {
  return problem.positions == nullptr ? token : problem.positions[token];
}

const float* MembershipRow(const Memberships& memberships, const float* data, int head, int64_t row) {
  return data + (head * memberships.rows + row) * memberships.rank;
}

std::vector<Edge> DrawRows(const AttentionInputs& inputs, const AttentionProblem& problem, const DrawnRows& drawn,
                           int head) {
  const Memberships& m = inputs.memberships;
  std::vector<Edge> edges;
  for (int32_t i = 0; i < problem.tokens; ++i) {
    const int32_t query = Position(problem, i);
    for (int32_t j = 0; j < problem.tokens; ++j) {
      const int32_t key = Position(problem, j);
      const bool forced =
          (drawn.self_loops && i == j) || (drawn.local_window > 0 && std::abs(query - key) <= drawn.local_window / 2);
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
      const bool forced =
          (drawn->self_loops && i == j) ||
          (drawn->local_window > 0 && std::abs(Position(problem, i) - Position(problem, j)) <= drawn->local_window / 2);
      const float dot = MembershipDot(MembershipRow(m, m.x, head, problem.first_row + i),
                                      MembershipRow(m, m.y, head, problem.first_row + j), m.rank);
      sum += forced ? 1.0 : EdgeProbability(drawn->law, EdgeRate(dot, drawn->exploration));
    }
  }
  return sum;
}

// Keeps what each cap allows. `edges` [problems][heads].
void ApplyCaps(std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
               std::vector<std::vector<std::vector<Edge>>>& edges) {
  for (size_t c = 0; c < caps.size(); ++c) {
    using Key = std::tuple<double, size_t, size_t, int32_t, int32_t>;  // the order in which edges are kept
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
            drawn.emplace_back(edge.age, p, h, edge.query, edge.key);
          }
        }
      }
    }
    const uint64_t allowance = caps[c].max_edges - std::min(forced, caps[c].max_edges);
    caps[c].capped = drawn.size() > allowance;
    if (!caps[c].capped) continue;
    std::sort(drawn.begin(), drawn.end());
    const Key first_dropped = drawn[allowance];
    const double tau = std::get<0>(first_dropped);
    for (size_t p = 0; p < problems.size(); ++p) {
      const auto* pattern = std::get_if<DrawnRows>(&problems[p].pattern);
      if (problems[p].cap != static_cast<int32_t>(c) || pattern == nullptr) continue;
      for (size_t h = 0; h < edges[p].size(); ++h) {
        std::erase_if(edges[p][h], [&](const Edge& edge) {
          return !edge.forced && Key(edge.age, p, h, edge.query, edge.key) >= first_dropped;
        });
        if (pattern->law != Law::kPoissonMulti) continue;
        for (Edge& edge : edges[p][h]) {
          edge.multiplicity = std::max(1, EdgeMultiplicity(edge.uniform, tau * static_cast<double>(edge.rate)));
        }
      }
    }
  }
}

// softmax over `edges` (one head, ascending in query), times v, into the problem's output rows.
void AttendHead(const AttentionInputs& inputs, const AttentionProblem& problem, int head,
                const std::vector<Edge>& edges, Matrix out, HeadReport& report) {
  const int d = inputs.head_dim;
  const int64_t column = static_cast<int64_t>(head) * d;
  const auto* drawn = std::get_if<DrawnRows>(&problem.pattern);
  const auto* given = std::get_if<ExplicitEdges>(&problem.pattern);
  const bool multi = (drawn != nullptr && drawn->law == Law::kPoissonMulti) ||
                     (given != nullptr && !(*given->heads)[head].multiplicity.empty());
  report.edges = edges.size();
  report.isolated = 0;
  if (problem.report->want_expected) report.expected = ExpectedEdges(inputs, problem, head, edges.size());
  if (problem.report->want_key_degrees) report.key_degrees.assign(problem.tokens, 0);
  report.graph = {};
  if (problem.report->want_graph) report.graph.row_offsets.push_back(0);

  size_t begin = 0;
  for (int32_t i = 0; i < problem.tokens; ++i) {
    size_t end = begin;
    while (end < edges.size() && edges[end].query == i) ++end;
    const float* q = inputs.q.row(problem.first_row + i) + column;
    std::vector<double> weights(end - begin);
    double largest = -INFINITY;
    for (size_t e = begin; e < end; ++e) {
      const float* k = inputs.k.row(problem.first_row + edges[e].key) + column;
      double score = 0.0;
      for (int t = 0; t < d; ++t) score += static_cast<double>(q[t]) * k[t];
      weights[e - begin] = score * inputs.scale;
      largest = std::max(largest, weights[e - begin]);
    }
    double total = 0.0;
    for (size_t e = begin; e < end; ++e) {
      weights[e - begin] = edges[e].multiplicity * std::exp(weights[e - begin] - largest);
      total += weights[e - begin];
    }
    std::vector<double> sum(d, 0.0);
    for (size_t e = begin; e < end; ++e) {
      const float* v = inputs.v.row(problem.first_row + edges[e].key) + column;
      for (int t = 0; t < d; ++t) sum[t] += weights[e - begin] / total * v[t];
      if (problem.report->want_key_degrees) ++report.key_degrees[edges[e].key];
      if (!problem.report->want_graph) continue;
      report.graph.keys.push_back(edges[e].key);
      report.graph.weights.push_back(static_cast<float>(weights[e - begin] / total));
      if (multi) report.graph.multiplicity.push_back(edges[e].multiplicity);
    }
    for (int t = 0; t < d; ++t) out.row(problem.out_row + i)[column + t] = static_cast<float>(sum[t]);
    if (begin == end) ++report.isolated;
    if (problem.report->want_graph) report.graph.row_offsets.push_back(static_cast<int64_t>(end));
    begin = end;
  }
}

}  // namespace

void Linear(ConstMatrix x, std::span<const float> weight, std::span<const float> bias, Activation activation,
            bool accumulate, Matrix y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t o = 0; o < y.columns; ++o) {
      double sum = bias.empty() ? 0.0 : bias[o];
      for (int64_t i = 0; i < x.columns; ++i) sum += static_cast<double>(x.row(r)[i]) * weight[o * x.columns + i];
      sum = Activate(sum, activation);
      y.row(r)[o] = static_cast<float>(accumulate ? sum + y.row(r)[o] : sum);
    }
  }
}

void LayerNorm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    double mean = 0.0, variance = 0.0;
    for (int64_t c = 0; c < x.columns; ++c) mean += x.row(r)[c];
    mean /= static_cast<double>(x.columns);
    for (int64_t c = 0; c < x.columns; ++c) variance += (x.row(r)[c] - mean) * (x.row(r)[c] - mean);
    variance /= static_cast<double>(x.columns);
    for (int64_t c = 0; c < x.columns; ++c) {
      y.row(r)[c] = static_cast<float>((x.row(r)[c] - mean) / std::sqrt(variance + epsilon) * weight[c] + bias[c]);
    }
  }
}

std::vector<double> BlockMatrix(std::span<const float> clusters, int num_clusters, int head_dim) {
  const int k = num_clusters;
  std::vector<double> s(static_cast<size_t>(k) * k);
  double largest = -INFINITY;
  for (int a = 0; a < k; ++a) {
    for (int b = 0; b < k; ++b) {
      double dot = 0.0;
      for (int t = 0; t < head_dim; ++t) {
        dot += static_cast<double>(clusters[a * head_dim + t]) * clusters[b * head_dim + t];
      }
      s[a * k + b] = dot;
      largest = std::max(largest, dot);
    }
  }
  double total = 0.0;
  for (double& value : s) total += value = std::exp(value - largest);
  for (double& value : s) value /= total;
  return s;
}

std::vector<double> EdgeRates(const MembershipParameters& parameters, int head, ConstMatrix q, ConstMatrix k) {
  const int clusters = parameters.num_clusters;
  const int64_t square = static_cast<int64_t>(clusters) * clusters;
  std::vector<double> s;
  if (parameters.block_matrix.empty()) {
    s = BlockMatrix(parameters.clusters.subspan(static_cast<int64_t>(head) * clusters * parameters.head_dim,
                                                static_cast<int64_t>(clusters) * parameters.head_dim),
                    clusters, parameters.head_dim);
  } else {
    s.assign(parameters.block_matrix.begin() + head * square, parameters.block_matrix.begin() + (head + 1) * square);
  }
  std::vector<std::vector<double>> query_side, key_side;  // rows of Q_hat S, rows of K_hat
  for (int64_t r = 0; r < q.rows; ++r) {
    const std::vector<double> membership = Membership(parameters, head, q.row(r));
    std::vector<double> row(clusters, 0.0);
    for (int a = 0; a < clusters; ++a) {
      for (int b = 0; b < clusters; ++b) row[b] += membership[a] * s[a * clusters + b];
    }
    query_side.push_back(row);
    key_side.push_back(Membership(parameters, head, k.row(r)));
  }
  std::vector<double> rates;
  for (const auto& x : query_side) {
    for (const auto& y : key_side) {
      double dot = 0.0;
      for (int c = 0; c < clusters; ++c) dot += x[c] * y[c];
      rates.push_back(dot);
    }
  }
  return rates;
}

std::vector<Edge> DrawEdges(const AttentionInputs& inputs, const AttentionProblem& problem, int head) {
  if (const auto* drawn = std::get_if<DrawnRows>(&problem.pattern)) return DrawRows(inputs, problem, *drawn, head);
  std::vector<Edge> edges;
  if (const auto* given = std::get_if<ExplicitEdges>(&problem.pattern)) {
    const HeadEdges& rows = (*given->heads)[head];
    for (int32_t i = 0; i < problem.tokens; ++i) {
      for (int64_t e = rows.row_offsets[i]; e < rows.row_offsets[i + 1]; ++e) {
        edges.push_back({i, rows.keys[e], true, 0.0, rows.multiplicity.empty() ? 1 : rows.multiplicity[e], 0, 1.0f});
      }
    }
    return edges;
  }
  for (int32_t i = 0; i < problem.tokens; ++i) {
    for (int32_t j = 0; j < problem.tokens; ++j) edges.push_back({i, j, true, 0.0, 1, 0, 1.0f});
  }
  return edges;
}

void Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
            Matrix out) {
  std::vector<std::vector<std::vector<Edge>>> edges(problems.size());
  for (size_t p = 0; p < problems.size(); ++p) {
    for (int h = 0; h < inputs.num_heads; ++h) edges[p].push_back(DrawEdges(inputs, problems[p], h));
  }
  ApplyCaps(problems, caps, edges);
  for (size_t p = 0; p < problems.size(); ++p) {
    problems[p].report->heads.assign(inputs.num_heads, {});
    for (int h = 0; h < inputs.num_heads; ++h) {
      AttendHead(inputs, problems[p], h, edges[p][h], out, problems[p].report->heads[h]);
    }
  }
}

}  // namespace edgewise::reference
