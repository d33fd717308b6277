// Certificates hold the products of memberships, whatever these are, and settle nearly all events.
#include "kernels/draw/certificate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/draw/draw.h"
#include "kernels/host/factorization.h"

namespace edgewise {
namespace {

// In the order of MembershipDot.
float Dot(std::span<const float> a, std::span<const float> b) {
  return MembershipDot(a.data(), b.data(), static_cast<int>(a.size()));
}

// Rows of one side, [count, rank], zeros behind the columns that count.
struct Side {
  int rank;
  std::vector<float> values;
  std::span<const float> row(int64_t i) const { return std::span(values).subspan(i * rank, rank); }
  int64_t rows() const { return static_cast<int64_t>(values.size()) / rank; }
};

std::vector<float> UnitOf(const Side& keys) {
  std::vector<double> sum(keys.rank);
  for (int64_t j = 0; j < keys.rows(); ++j) {
    for (int t = 0; t < keys.rank; ++t) sum[t] += static_cast<double>(keys.row(j)[t]);
  }
  double square = 0.0;
  for (const double value : sum) square += value * value;
  std::vector<float> unit;
  for (const double value : sum) unit.push_back(static_cast<float>(value / std::sqrt(square)));
  return unit;
}

// What a maker of certificates gives of the rows of a side.
struct Certified {
  std::vector<Certificate> certificates;
  std::vector<int> rounded;  // [rows, rank]
};
using Maker = std::function<Certified(const Side&, std::span<const float> unit, bool keys)>;

Certified ByDefinition(const Side& side, std::span<const float> unit, bool) {
  Certified made;
  for (int64_t i = 0; i < side.rows(); ++i) {
    const std::span<const float> v = side.row(i);
    const float along = Dot(v, unit);
    std::vector<float> rest;
    float largest = 0.0f;
    for (size_t t = 0; t < v.size(); ++t) {
      rest.push_back(std::fma(-along, unit[t], v[t]));
      largest = std::max(largest, std::fabs(rest[t]));
    }
    made.certificates.push_back(MakeCertificate(along, Dot(v, v), largest, side.rank));
    for (const float part : rest) {
      const float whole = std::nearbyint(part * (1.0f / made.certificates.back().scale));
      made.rounded.push_back(std::isnan(whole) ? 0 : static_cast<int>(std::clamp(whole, -127.0f, 127.0f)));
    }
  }
  return made;
}

Certified ByKernel(const Side& side, std::span<const float> unit, bool keys) {
  const CpuKernels& kernels = KernelsFor(Isa::kAvx512);
  const int64_t bytes = CertificateBytes(side.rank);
  const int lift = keys ? 128 : 0;
  const auto rows = static_cast<size_t>(side.rows());
  std::vector<float> squares(rows), norms(rows);
  std::vector<uint8_t> rests(rows * static_cast<size_t>(bytes), 1);
  Certified made;
  made.certificates.resize(rows);
  kernels.certify_rows(side.values.data(), side.rows(), unit.data(), side.rank, lift, squares.data(),
                       made.certificates.data(), rests.data());
  kernels.square_norms(side.values.data(), side.rows(), side.rank, norms.data());
  EXPECT_EQ(std::memcmp(squares.data(), norms.data(), rows * sizeof(float)), 0);
  for (size_t i = 0; i < rows; ++i) {
    int sum = 0;
    for (int t = 0; t < bytes; ++t) {
      const uint8_t byte = rests[i * static_cast<size_t>(bytes) + static_cast<size_t>(t)];
      if (t >= side.rank) {
        EXPECT_EQ(byte, 0);
        continue;
      }
      made.rounded.push_back(keys ? byte - lift : static_cast<int8_t>(byte));
      sum += made.rounded.back();
    }
    if (std::isfinite(made.certificates[i].across)) {
      EXPECT_EQ(made.certificates[i].sum, sum);
    }
  }
  return made;
}

// Checks every pair. Returns the share that certificates leave open of events that fall on keys as often as their norms
// say.
double ExpectHeld(const Side& queries, const Side& keys, std::span<const float> unit, const Maker& maker,
                  const std::string& what) {
  const Certified x = maker(queries, unit, false), y = maker(keys, unit, true);
  double open = 0.0, all = 0.0;
  for (int64_t i = 0; i < queries.rows(); ++i) {
    const double norm = std::sqrt(static_cast<double>(Dot(queries.row(i), queries.row(i))));
    for (int64_t j = 0; j < keys.rows(); ++j) {
      const int dot = std::inner_product(&x.rounded[static_cast<size_t>(i * keys.rank)],
                                         &x.rounded[static_cast<size_t>(i * keys.rank)] + keys.rank,
                                         &y.rounded[static_cast<size_t>(j * keys.rank)], 0);
      const auto [low, high] =
          BoundProduct(x.certificates[static_cast<size_t>(i)], y.certificates[static_cast<size_t>(j)], dot, keys.rank);
      const float product = Dot(queries.row(i), keys.row(j));
      EXPECT_FALSE(product < low || product > high || std::isnan(low) || std::isnan(high))
          << what << ", " << i << " and " << j << ": " << low << " " << product << " " << high;
      const double bound = norm * std::sqrt(static_cast<double>(Dot(keys.row(j), keys.row(j))));
      if (!std::isfinite(bound)) continue;
      const auto settle = [&](float end) { return std::clamp(static_cast<double>(end), 0.0, bound); };
      open += settle(high) - settle(low);
      all += bound;
    }
  }
  return open / all;
}

Side Noise(int rows, int columns, double common, double noise, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Side side{(columns + 15) / 16 * 16, {}};
  side.values.assign(static_cast<size_t>(rows) * side.rank, 0.0f);
  for (int i = 0; i < rows; ++i) {
    for (int t = 0; t < columns; ++t) {
      side.values[static_cast<size_t>(i) * side.rank + t] = static_cast<float>(common + noise * normal(random));
    }
  }
  return side;
}

struct Made {
  const char* name;
  Maker maker;
};
void PrintTo(const Made& made, std::ostream* out) { *out << made.name; }

std::vector<Made> Makers() {
  std::vector<Made> makers = {{"definition", ByDefinition}};
  if (SelectIsa("avx512").ok()) makers.push_back({"avx512", ByKernel});
  return makers;
}

class CertificateTest : public ::testing::TestWithParam<Made> {};
INSTANTIATE_TEST_SUITE_P(Makers, CertificateTest, ::testing::ValuesIn(Makers()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CertificateTest, HoldsProductsAroundOneDirection) {
  for (const int rank : {4, 16, 20, 32, 64, 100, 128, 256, 512}) {
    const double common = 1.0 / std::sqrt(rank), noise = std::sqrt((1.0 / 0.9 - 1.0) / rank);
    const Side x = Noise(160, rank, common, noise, 1), y = Noise(160, rank, common, noise, 2);
    EXPECT_LT(ExpectHeld(x, y, UnitOf(y), GetParam().maker, "rank " + std::to_string(rank)), 0.007) << rank;
  }
}

// Memberships of a trained layer: sigmoids of logits for clusters of this squared norm, times a factor of the block
// matrix of the clusters.
struct ModelLike {
  ModelLike(int clusters, double square, int rows, uint32_t seed) {
    constexpr int kDim = 64;
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::vector<double> c(static_cast<size_t>(clusters) * kDim);
    for (double& value : c) value = normal(random) * std::sqrt(square / kDim);
    const auto dot = [](const double* a, const double* b) { return std::inner_product(a, a + kDim, b, 0.0); };
    std::vector<double> s;
    double sum = 0.0;
    for (int a = 0; a < clusters; ++a) {
      for (int b = 0; b < clusters; ++b) {
        s.push_back(std::exp(dot(&c[static_cast<size_t>(a) * kDim], &c[static_cast<size_t>(b) * kDim])));
        sum += s.back();
      }
    }
    for (double& value : s) value /= sum;
    const BlockFactor factor = FactorBlockMatrix(s, clusters);
    for (Side* side : {&queries, &keys}) {
      side->rank = (factor.rank + 15) / 16 * 16;
      side->values.assign(static_cast<size_t>(rows) * side->rank, 0.0f);
      for (int i = 0; i < rows; ++i) {
        std::vector<double> z(kDim);
        for (double& value : z) value = normal(random);
        for (int a = 0; a < clusters; ++a) {
          const double membership = 1.0 / (1.0 + std::exp(-dot(z.data(), &c[static_cast<size_t>(a) * kDim])));
          for (int t = 0; t < factor.rank; ++t) {
            side->values[static_cast<size_t>(i) * side->rank + t] += static_cast<float>(
                membership * static_cast<double>(factor.query[static_cast<size_t>(a) * factor.rank + t]));
          }
        }
      }
    }
  }
  Side queries, keys;
};

TEST_P(CertificateTest, HoldsProductsOfMembershipsOfAModel) {
  for (const auto& [square, open] : {std::pair(1.0, 0.004), std::pair(3.0, 0.008), std::pair(9.0, 0.03)}) {
    const ModelLike made(128, square, 300, 5);
    EXPECT_LT(ExpectHeld(made.queries, made.keys, UnitOf(made.keys), GetParam().maker, std::to_string(square)), open);
  }
}

// Both rests lie along what rounding left of the other, which is nearly half of the scale everywhere: the most that the
// inequality of Cauchy and Schwarz allows.
TEST_P(CertificateTest, HoldsProductsWhereEveryRoundingGoesOneWay) {
  for (const int rank : {16, 64, 128, 512}) {
    std::vector<float> unit(static_cast<size_t>(rank), 0.0f);
    unit[0] = 1.0f;
    Side x{rank, {}}, y{rank, {}};
    for (const float size : {120.49f, -120.49f}) {
      for (Side* side : {&x, &y}) {
        for (int t = 0; t < rank; ++t)
          side->values.push_back(t == 0 ? 200.0f : t == 1 ? std::copysign(127.0f, size) : size);
      }
    }
    ExpectHeld(x, y, unit, GetParam().maker, "rank " + std::to_string(rank));
  }
}

// Makes a vector one of kinds that intervals may fail for.
constexpr int kHostileKinds = 14;
void MakeHostile(int kind, std::span<const float> unit, std::span<float> v) {
  constexpr float kFactors[] = {0.0f, -1.0f, 1e4f, 1e-9f, 1e-18f, 1e-42f, 1e12f, 1e30f};
  for (size_t t = 0; t < v.size(); ++t) {
    if (kind < 8) {
      v[t] *= kFactors[kind];
    } else if (kind == 8) {
      v[t] = t == 3 ? v[t] : 0.0f;
    } else if (kind < 12) {
      constexpr float kOdd[] = {NAN, INFINITY, -INFINITY};
      v[t] = t == 3 ? kOdd[kind - 9] : v[t];
    } else if (kind == 12) {
      v[t] = unit[t];  // no rest
    } else {
      v[t] = t == 5 ? 100.0f * v[t] : v[t];  // one element takes all of the scale
    }
  }
}

TEST_P(CertificateTest, HoldsProductsOfHostileRows) {
  std::mt19937 random(11);
  for (const int rank : {16, 64, 128, 512}) {
    for (const double noise : {0.0, 1e-6, 0.01, 0.3, 3.0}) {
      const double root = 1.0 / std::sqrt(rank);
      Side x = Noise(2 * kHostileKinds, rank, root, noise * root, random());
      Side y = Noise(2 * kHostileKinds, rank, root, noise * root, random());
      const std::vector<float> unit = UnitOf(y);
      for (int i = 0; i < kHostileKinds; ++i) {
        for (Side* side : {&x, &y}) MakeHostile(i, unit, std::span(side->values).subspan(i * rank, rank));
      }
      ExpectHeld(x, y, unit, GetParam().maker, "rank " + std::to_string(rank) + ", noise " + std::to_string(noise));
    }
  }
}

// NaN in the direction, and directions across all rows.
TEST_P(CertificateTest, HoldsAlongAnyDirection) {
  for (const int kind : {0, 1, 2}) {
    const Side x = Noise(40, 64, 0.1, 0.1, 1), y = Noise(40, 64, 0.1, 0.1, 2);
    std::vector<float> unit(64, 0.0f);
    for (int t = 0; t < 64; ++t)
      unit[t] = kind == 0 ? NAN : kind == 1 ? (t == 0 ? 1.0f : 0.0f) : t % 2 == 0 ? 0.125f : -0.125f;
    ExpectHeld(x, y, unit, GetParam().maker, std::to_string(kind));
  }
}

}  // namespace
}  // namespace edgewise
