#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>

namespace edgewise::reference {
namespace {

double Activate(double x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kQuickGelu:
      return x / (1.0 + std::exp(-1.702 * x));
    case Activation::kMish:
      return x * std::tanh(std::log1p(std::exp(x)));
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

void RmsNorm(ConstMatrix x, const float* weight, float epsilon, int64_t group, Matrix y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t first = 0; first < x.columns; first += group) {
      double squares = 0.0;
      for (int64_t c = first; c < first + group; ++c) squares += static_cast<double>(x.row(r)[c]) * x.row(r)[c];
      const double size = std::sqrt(squares / static_cast<double>(group) + epsilon);
      for (int64_t c = 0; c < group; ++c) {
        y.row(r)[first + c] = static_cast<float>(x.row(r)[first + c] / size * weight[c]);
      }
    }
  }
}

void Rotate(Matrix x, ConstMatrix table, std::span<const int32_t> positions) {
  const int64_t half = table.columns / 2;
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* cosine = table.row(positions[r]);
    for (int64_t first = 0; first < x.columns; first += 2 * half) {
      for (int64_t i = 0; i < half; ++i) {
        const double a = x.row(r)[first + i], b = x.row(r)[first + half + i];
        x.row(r)[first + i] = static_cast<float>(a * cosine[i] - b * cosine[half + i]);
        x.row(r)[first + half + i] = static_cast<float>(b * cosine[i] + a * cosine[half + i]);
      }
    }
  }
}

void Gate(ConstMatrix wide, Activation activation, Matrix y) {
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t c = 0; c < y.columns; ++c) {
      y.row(r)[c] = static_cast<float>(Activate(wide.row(r)[c], activation) * wide.row(r)[y.columns + c]);
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

}  // namespace edgewise::reference
