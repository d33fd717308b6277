#include "tests/kernels/attention_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/reference/reference.h"

namespace edgewise::testing {
namespace {

// What the reference gave in a test, call by call, for the same test on the next device: most of a test's time is the
// reference's. A call of another case than the call of that number before is computed; were a pattern alone another,
// the comparison would fail.
template <typename Result>
class Remembered {
 public:
  Result Get(const Case& made, const std::vector<EdgeCap>& caps, const std::function<Result()>& compute) {
    const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string full = info == nullptr ? "" : std::string(info->test_suite_name()) + "." + info->name();
    const std::string test = full.substr(0, full.rfind('/'));  // without the device
    if (test != test_) calls_.clear();
    if (full != full_) next_ = 0;
    test_ = test;
    full_ = full;
    Call call{KeyOf(made, caps), {}};
    const size_t number = next_++;
    const bool ledger = std::any_of(caps.begin(), caps.end(), [](const EdgeCap& cap) { return cap.ledger != nullptr; });
    if (!ledger && number < calls_.size() && calls_[number].key == call.key) return calls_[number].result;
    call.result = compute();
    calls_.resize(std::max(calls_.size(), number + 1));
    calls_[number] = call;
    return call.result;
  }

 private:
  struct Call {
    std::vector<uint64_t> key;
    Result result;
  };

  static uint64_t HashOf(std::span<const float> values) {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  static std::vector<uint64_t> KeyOf(const Case& made, const std::vector<EdgeCap>& caps) {
    std::vector<uint64_t> key;
    for (const auto* values : {&made.data, &made.x, &made.y, &made.query_bound, &made.key_bound}) {
      key.push_back(HashOf(*values));
    }
    for (const EdgeCap& cap : caps) {
      key.insert(key.end(), {cap.max_edges, cap.share.fraction, cap.share.forced_here, cap.share.forced_later,
                             static_cast<uint64_t>(cap.keep)});
    }
    for (const AttentionProblem& problem : made.problems) {
      key.insert(key.end(), {static_cast<uint64_t>(problem.cap), static_cast<uint64_t>(problem.first_query),
                             static_cast<uint64_t>(problem.read_queries), static_cast<uint64_t>(problem.tokens),
                             problem.pattern.index()});
      if (const auto* drawn = std::get_if<DrawnRows>(&problem.pattern)) {
        key.insert(key.end(), {static_cast<uint64_t>(drawn->law), static_cast<uint64_t>(drawn->way), drawn->key.seed,
                               drawn->key.sample, drawn->key.layer, drawn->key.side});
      }
    }
    return key;
  }

  std::string test_, full_;
  size_t next_ = 0;
  std::vector<Call> calls_;
};

}  // namespace

Case::Case(const Shape& shape) : lengths(shape.lengths) {
  std::mt19937 random(shape.seed);
  std::normal_distribution<float> normal;
  int64_t rows = 0;
  for (int length : lengths) {
    first_rows.push_back(rows);
    rows += length;
    std::vector<int32_t> places;
    int32_t next = 0;
    for (int t = 0; t < length; ++t) {
      while (std::uniform_real_distribution<>()(random) < shape.gap_share) ++next;
      places.push_back(next++);
    }
    positions.push_back(places);
  }
  const int64_t shared = shape.key_value_heads > 0 ? shape.key_value_heads : shape.heads;
  const int64_t width = static_cast<int64_t>(shape.heads) * shape.head_dim, key_width = shared * shape.head_dim;
  const int64_t value_width = shape.value_dim > 0 ? shared * shape.value_dim : key_width;
  const int64_t all = width + key_width + value_width;
  data.resize(static_cast<size_t>(rows * all));
  for (float& value : data) value = normal(random);
  inputs.num_heads = shape.heads;
  inputs.num_key_value_heads = shape.key_value_heads;
  inputs.head_dim = shape.head_dim;
  inputs.value_dim = shape.value_dim;
  inputs.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  if (shape.one_matrix) {
    inputs.q = ConstMatrix(data.data(), rows, width, all);
    inputs.k = ConstMatrix(data.data() + width, rows, key_width, all);
    inputs.v = ConstMatrix(data.data() + width + key_width, rows, value_width, all);
  } else {
    inputs.q = ConstMatrix(data.data(), rows, width);
    inputs.k = ConstMatrix(data.data() + rows * width, rows, key_width);
    inputs.v = ConstMatrix(data.data() + rows * (width + key_width), rows, value_width);
  }
  // Half normal entries around a common direction: inner products of about mean_rate.
  const double unit = std::sqrt(shape.mean_rate / shape.rank);
  for (std::vector<float>* side : {&x, &y}) {
    for (int64_t i = 0; i < shape.heads * rows; ++i) {
      const double size = unit * std::exp(0.5 * shape.spread * normal(random));
      for (int t = 0; t < shape.rank; ++t) {
        side->push_back(static_cast<float>(size * (1.0 + shape.spread * normal(random))));
      }
    }
  }
  const auto norms = [&](const std::vector<float>& side, std::vector<float>& out) {
    for (size_t i = 0; i < side.size(); i += shape.rank) {
      double square = 0.0;
      for (int t = 0; t < shape.rank; ++t) square += static_cast<double>(side[i + t]) * side[i + t];
      out.push_back(static_cast<float>(std::sqrt(square) * 1.000001));
    }
  };
  norms(x, query_bound);
  norms(y, key_bound);
  inputs.memberships = {x.data(), y.data(), query_bound.data(), key_bound.data(), rows, shape.rank};
}

void Case::AddProblems(const AttentionPattern& pattern, int32_t cap) {
  for (size_t s = 0; s < lengths.size(); ++s) {
    AttentionProblem problem;
    problem.first_row = first_rows[s];
    problem.tokens = lengths[s];
    problem.out_row = out_rows;
    problem.positions = positions[s].data();
    problem.pattern = pattern;
    problem.cap = cap;
    reports.push_back(std::make_unique<AttentionReport>());
    problem.report = reports.back().get();
    problems.push_back(problem);
    out_rows += lengths[s];
  }
}

void Case::TakeQueries(const std::vector<float>& rows) {
  const auto first = static_cast<std::ptrdiff_t>(data.size());
  const auto k_at = inputs.k.data - data.data(), v_at = inputs.v.data - data.data();
  data.insert(data.end(), rows.begin(), rows.end());
  inputs.q = ConstMatrix(data.data() + first, static_cast<int64_t>(rows.size()) / inputs.q.columns, inputs.q.columns);
  inputs.k.data = data.data() + k_at;
  inputs.v.data = data.data() + v_at;
}

void Case::AskForAll() {
  for (auto& report : reports) report->wanted.expected = report->wanted.key_degrees = report->wanted.graph = true;
}

Outcome RunReference(const Case& attention_case, std::vector<EdgeCap> caps) {
  static Remembered<Outcome> remembered;
  const Outcome outcome = remembered.Get(attention_case, caps, [&] {
    Outcome computed;
    const int64_t width = attention_case.out_columns();
    computed.out.assign(static_cast<size_t>(attention_case.out_rows * width), NAN);
    computed.caps = caps;
    reference::Attend(attention_case.inputs, attention_case.problems, computed.caps,
                      Matrix(computed.out.data(), attention_case.out_rows, width));
    for (const AttentionProblem& problem : attention_case.problems) computed.reports.push_back(*problem.report);
    return computed;
  });
  for (size_t p = 0; p < outcome.reports.size(); ++p) *attention_case.problems[p].report = outcome.reports[p];
  return outcome;
}

std::span<const float> RowsOf(const Case& attention_case, const Outcome& outcome, size_t problem) {
  const auto width = static_cast<size_t>(attention_case.out_columns());
  const AttentionProblem& of = attention_case.problems[problem];
  return std::span(outcome.out)
      .subspan(static_cast<size_t>(of.out_row) * width, static_cast<size_t>(of.tokens - of.first_query) * width);
}

std::vector<std::vector<HeadEdges>> GraphsOf(const Outcome& outcome) {
  std::vector<std::vector<HeadEdges>> graphs;
  for (const AttentionReport& report : outcome.reports) {
    graphs.emplace_back();
    for (const HeadReport& head : report.heads) graphs.back().push_back(head.graph);
  }
  return graphs;
}

uint64_t EdgesUnder(const Case& made, const Outcome& outcome, int32_t cap) {
  uint64_t edges = 0;
  for (size_t p = 0; p < outcome.reports.size(); ++p) {
    if (made.problems[p].cap != cap) continue;
    for (const HeadReport& head : outcome.reports[p].heads) edges += head.edges;
  }
  return edges;
}

uint64_t ForcedUnder(const Case& made, int32_t cap) {
  static Remembered<uint64_t> remembered;
  return remembered.Get(made, {EdgeCap{static_cast<uint64_t>(cap)}}, [&] {
    uint64_t forced = 0;
    for (const AttentionProblem& problem : made.problems) {
      for (int h = 0; h < made.inputs.num_heads && problem.cap == cap; ++h) {
        for (const reference::Edge& edge : reference::DrawEdges(made.inputs, problem, h)) forced += edge.forced ? 1 : 0;
      }
    }
    return forced;
  });
}

double LargestDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    largest = difference <= largest ? largest : difference;  // NaN counts
  }
  return largest;
}

bool SameBytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace edgewise::testing
