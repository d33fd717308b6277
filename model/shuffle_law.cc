#include "model/shuffle_law.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

namespace edgewise {
namespace {

constexpr double kFar = 6.0;  // a normal number is not beyond
constexpr double kNegligible = 1e-8;
// Up to here the order stays: a normal number of kernels/permutation.h is below 6.8.
constexpr double kLeastScale = 0.07;
constexpr int32_t kExactPlaces = 128;  // up to so many, tables are exact
constexpr int32_t kFew = 32;           // a count

// Values that stand for a normal variable, and their weights (Gauss and Hermite).
constexpr std::pair<double, double> kNormals[] = {
    {0.0, 2.0 / 3.0}, {1.7320508075688772, 1.0 / 6.0}, {-1.7320508075688772, 1.0 / 6.0}};
constexpr std::pair<double, double> kNormalsOfFew[] = {{0.0, 8.0 / 15.0},
                                                       {1.355626179974266, 0.222075922005613},
                                                       {-1.355626179974266, 0.222075922005613},
                                                       {2.856970013872806, 0.011257411327721},
                                                       {-2.856970013872806, 0.011257411327721}};

double Density(double y) { return std::exp(-0.5 * y * y) * 0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2; }
double Cumulative(double y) { return 0.5 * std::erfc(-y * 0.5 * std::numbers::sqrt2); }

// Keys are measured in units of the scale: that of element j is j / scale plus a standard normal number. N(t) is the
// number of elements whose keys are above t.

// Cumulants of N(t). Sums over the elements are integrals by the midpoint rule, in closed form.
class CountAbove {
 public:
  CountAbove(int32_t places, double scale) : scale_(scale), first_(-0.5 / scale), last_((places - 0.5) / scale) {}

  struct Cumulants {
    double mean, variance;
    double slope;    // of the mean, per unit of t, downwards
    double crossed;  // the mean of P(key > t) over the elements, weighted by the density of their keys at t
  };
  Cumulants At(double t) const {
    const Integrals low(first_ - t), high(last_ - t);
    Cumulants at;
    at.mean = scale_ * (high.above - low.above);
    at.variance = at.mean - scale_ * (high.squared - low.squared);
    const double share = high.share - low.share;
    at.slope = scale_ * share;
    at.crossed = 0.5 * (high.share + low.share);
    return at;
  }
  // The t where the mean is this one; 0 < mean < places. Newton's method between bounds, from `guess` on.
  double Find(double mean, double guess) const {
    double low = first_ - 2.0 * kFar, high = last_ + 2.0 * kFar, t = std::clamp(guess, low, high);
    for (int i = 0; i < 100 && high - low > 1e-12 * (1.0 + std::abs(t)); ++i) {
      const Cumulants at = At(t);
      (at.mean > mean ? low : high) = t;
      const double next = t + (at.mean - mean) / at.slope;
      const bool inside = next > low && next < high;
      if (inside && std::abs(next - t) < 1e-10) return next;
      t = inside ? next : 0.5 * (low + high);
    }
    return t;
  }
  double middle() const { return 0.5 * (first_ + last_); }

 private:
  // Integrals of Phi and its square up to y, and Phi.
  struct Integrals {
    explicit Integrals(double y) : share(Cumulative(y)) {
      const double density = Density(y);
      above = y * share + density;
      squared =
          y * share * share + 2.0 * share * density - Cumulative(y * std::numbers::sqrt2) * std::numbers::inv_sqrtpi;
    }
    double share, above, squared;
  };
  double scale_, first_, last_;
};

// P(at most `most` of the others come) for each of some independent events, and for all of them.
class LeaveOneOut {
 public:
  void Compute(std::span<const double> p, int32_t most) {
    const size_t width = most + 1, events = p.size();
    // after[i]: P(exactly / at most k of the events i, i + 1, ...), k = 0 .. most.
    after_.assign((events + 1) * width, 0.0);
    double* row = after_.data() + events * width;
    row[0] = 1.0;
    for (size_t i = events; i-- > 0; row -= width) Add(p[i], row, row - width, width);
    for (size_t i = 0; i <= events; ++i) {
      for (size_t k = 1; k < width; ++k) after_[i * width + k] += after_[i * width + k - 1];
    }
    all = after_[most];
    others.resize(events);
    before_.assign(width, 0.0);
    before_[0] = 1.0;
    next_.resize(width);
    for (size_t i = 0; i < events; ++i) {
      const double* rest = after_.data() + (i + 1) * width;
      double sum = 0.0;
      for (size_t k = 0; k < width; ++k) sum += before_[k] * rest[most - k];
      others[i] = sum;
      Add(p[i], before_.data(), next_.data(), width);
      before_.swap(next_);
    }
  }
  double all = 0.0;
  std::vector<double> others;

 private:
  static void Add(double p, const double* from, double* to, size_t width) {
    to[0] = from[0] * (1.0 - p);
    for (size_t k = 1; k < width; ++k) to[k] = from[k] * (1.0 - p) + from[k - 1] * p;
  }
  std::vector<double> after_, before_, next_;
};

}  // namespace

double ShuffleLaw::Before(int32_t element) const {
  if (!mirrored_) return table_->Before(element - below_);
  return element - count_ + table_->Before(places_ - element - below_);
}

double ShuffleLaw::Table::Before(int32_t element) const {
  const double x = (element - begin) / step, last = static_cast<double>(sums.size() - 1);
  if (x <= 0.0) return 0.0;
  if (x >= last) return sums.back() + (x - last) * step;
  const auto cell = static_cast<size_t>(x);
  const double u = x - static_cast<double>(cell);
  if (u == 0.0) return sums[cell];
  // The cubic through both sums with both slopes.
  const double rise = sums[cell + 1] - sums[cell];
  const double from = slopes[cell] * step - rise, to = rise - slopes[cell + 1] * step;
  return sums[cell] + u * rise + u * (1.0 - u) * ((1.0 - u) * from + u * to);
}

// The shares sum to the count.
void ShuffleLaw::ScaleTo(int32_t count, Table& table) {
  const double scaled = count / table.sums.back();
  for (double& sum : table.sums) sum *= scaled;
  for (double& slope : table.slopes) slope *= scaled;
  table.sums.back() = count;
}

// Element j is among the last `count` places when at most count - 1 others have larger keys: an integral over its own
// key t, by the trapezoidal rule, of a probability that is worked out from those of the others.
ShuffleLaw::Table ShuffleLaw::ExactTable(int32_t places, int32_t count, double scale) {
  const CountAbove above(places, scale);
  const double center = above.Find(count - 0.5, above.middle());  // about where this probability is a half
  // The rule is as good as exact while its step is not longer than the deviation of what decides.
  const CountAbove::Cumulants at = above.At(center);
  const double step = std::min(0.5, std::sqrt(at.variance) / at.slope);

  std::vector<double> shares(places, 0.0), p;
  LeaveOneOut leave;
  const auto element = [&](double t) {  // the first one at or behind t
    return static_cast<int32_t>(std::clamp(std::ceil(t * scale), 0.0, static_cast<double>(places)));
  };
  const auto add = [&](double t) {  // returns P(N(t) < count)
    const int32_t first = element(t - kFar), end = element(t + kFar), most = count - 1 - (places - end);
    if (most < 0) return 0.0;
    p.clear();
    for (int32_t j = first; j < end; ++j) p.push_back(Cumulative(j / scale - t));
    leave.Compute(p, std::min<int32_t>(most, end - first));
    for (int32_t j = first; j < end; ++j) shares[j] += step * Density(j / scale - t) * leave.others[j - first];
    return leave.all;
  };
  for (double t = center; add(t) > kNegligible; t -= step) {
  }
  int64_t node = 1;
  while (add(center + static_cast<double>(node) * step) < 1.0 - kNegligible) ++node;
  // From here on the probability is 1.
  for (int32_t j = element(center + static_cast<double>(node) * step - kFar); j < places; ++j) {
    const double own = j / scale - center;
    const auto from = static_cast<int64_t>(std::ceil((own - kFar) / step));
    if (from > node) {
      shares[j] = 1.0;
      continue;
    }
    for (int64_t k = node + 1; static_cast<double>(k) * step < own + kFar; ++k) {
      shares[j] += step * Density(static_cast<double>(k) * step - own);
    }
  }
  Table table;
  table.sums.resize(places + 1);
  for (int32_t j = 0; j < places; ++j) table.sums[j + 1] = table.sums[j] + shares[j];
  table.slopes.assign(places + 1, 0.0);
  ScaleTo(count, table);
  return table;
}

// Where few normal numbers decide, but many elements are near: let T be the count-th largest key of all others. The
// mean of N(T) is a random number of known moments (a gamma variable in the limit of few, a normal one of many), so T
// is one of a few values, and element j is above it with a probability in closed form. That j is not among the others
// moves T by a little.
ShuffleLaw::Table ShuffleLaw::SmoothTable(int32_t places, int32_t count, double scale) {
  const CountAbove above(places, scale);
  double center = above.Find(count - 0.5, above.middle());
  CountAbove::Cumulants at = above.At(center);
  for (int i = 0; i < 2; ++i) {
    center = above.Find(count - at.crossed, center);
    at = above.At(center);
  }
  const double mean = count - at.crossed, deviation = std::sqrt(at.variance);
  const double skew = (1.0 - 2.0 * at.crossed) / deviation;  // half of it
  struct Value {
    double t, weight;
    CountAbove::Cumulants at;
  };
  std::vector<Value> values;
  const std::span<const std::pair<double, double>> normals =
      count <= kFew ? std::span<const std::pair<double, double>>(kNormalsOfFew) : kNormals;
  for (const auto& [z, weight] : normals) {
    double gamma = z;  // by Wilson and Hilferty
    if (std::abs(skew) > 1e-6) gamma = (std::pow(1.0 - skew * skew / 9.0 + skew * z / 3.0, 3.0) - 1.0) / skew;
    const double wanted = std::clamp(mean + deviation * gamma, 1e-3, places - 1e-3);
    const double t = above.Find(wanted, center - (wanted - mean) / at.slope);
    values.push_back({t, weight, above.At(t)});
  }
  const auto share = [&](double own) {
    double sum = 0.0;
    for (const Value& value : values) {
      const double p = Cumulative(own - value.t), density = Density(own - value.t);
      const double slope = value.at.slope - density;  // without j
      const double moved = (p - density * (value.at.crossed - p) / slope) / slope;
      sum += value.weight * Cumulative(own - value.t + moved);
    }
    return sum;
  };
  // Simpson's rule with the neighbours of every cell.
  const auto cells = static_cast<int32_t>(std::max(8.0, std::ceil(4.0 * places / scale)));
  Table table;
  table.step = static_cast<double>(places) / cells;
  std::vector<double> shares;  // from one cell before the first to one behind the last
  for (int32_t k = -1; k <= cells + 1; ++k) shares.push_back(share((k * table.step - 0.5) / scale));
  table.sums.push_back(0.0);
  for (int32_t k = 0; k < cells; ++k) {
    const double cell = 13.0 * (shares[k + 1] + shares[k + 2]) - shares[k] - shares[k + 3];
    table.sums.push_back(table.sums.back() + table.step * cell / 24.0);
  }
  table.slopes.assign(shares.begin() + 1, shares.end() - 1);
  ScaleTo(count, table);
  return table;
}

ShuffleLaw ShuffleLaws::Last(int32_t places, int32_t count) {
  ShuffleLaw law;
  law.mirrored_ = count > places / 2;  // then count those among the first places, from the other side
  law.places_ = places;
  law.count_ = law.mirrored_ ? places - count : count;
  // Elements this far from the border are on their side of it.
  const auto reach = static_cast<int32_t>(std::min(std::ceil(2.0 * kFar * scale_) + 8.0, static_cast<double>(places)));
  law.below_ = std::max(0, places - law.count_ - reach);
  const int32_t above = std::max(0, law.count_ - reach);
  const std::pair<int32_t, int32_t> near{places - law.below_ - above, law.count_ - above};
  if (last_table_ == nullptr || near != last_near_) {
    last_table_ = std::make_shared<ShuffleLaw::Table>(MakeTable(near.first, near.second));
    last_near_ = near;
  }
  law.table_ = last_table_;
  return law;
}

ShuffleLaw::Table ShuffleLaws::MakeTable(int32_t places, int32_t count) const {
  if (scale_ <= kLeastScale || count == 0) {
    ShuffleLaw::Table none;
    none.begin = places - count;
    none.sums = {0.0};
    return none;
  }
  // The fewer there are, the larger is the scale from which on moments tell enough.
  const bool exact = places <= kExactPlaces || scale_ <= 12.0 + 36.0 / count;
  return exact ? ShuffleLaw::ExactTable(places, count, scale_) : ShuffleLaw::SmoothTable(places, count, scale_);
}

}  // namespace edgewise
