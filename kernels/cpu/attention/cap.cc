// Edge caps: the drawn edges that an allowance keeps (docs/maths.md, "The exact split under a cap"). The age of the
// first dropped edge is known to within about a percent before any edge is drawn. Edges that are certainly younger are
// kept as they are drawn; only the few edges near that age are compared. So memory follows the allowance. Where the
// guess was wrong, the edges are drawn again with the next guess.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/work.h"
#include "kernels/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

constexpr int kSamples = 512;

// The sum of all rates where none is clamped: <sum of x, sum of y> + exploration * n^2.
double SumOfProducts(const Head& head) {
  const int rank = head.tables.rank;
  std::vector<double> x(static_cast<size_t>(rank)), y(static_cast<size_t>(rank));
  for (int64_t r = 0; r < head.n; ++r) {
    for (int t = 0; t < rank; ++t) {
      x[t] += static_cast<double>(head.x[r * rank + t]);
      y[t] += static_cast<double>(head.tables.y[r * rank + t]);
    }
  }
  double sum = 0.0;
  for (int t = 0; t < rank; ++t) sum += x[t] * y[t];
  const double n = static_cast<double>(head.n);
  return sum + static_cast<double>(head.tables.exploration) * n * n;
}

// <x, y>, summed in a fast order: no exact rate is needed.
float Product(const float* x, const float* y, int rank) {
  float lane[kDotLanes] = {};
  for (int t = 0; t < rank; t += kDotLanes) {
    for (int l = 0; l < kDotLanes; ++l) lane[l] += x[t + l] * y[t + l];
  }
  float sum = 0.0f;
  for (float part : lane) sum += part;
  return sum;
}

bool MayClamp(const Head& head) {
  const float largest = *std::max_element(head.query_bound, head.query_bound + head.n);
  return !(largest * head.tables.key_scale + head.tables.exploration <= 1.0f);
}

// The approximate number of edges that heads are expected to have at a given tau, which tells where to look for the age
// that a cap allows. The chance of an edge at rate tau * p is a power series of tau * p, and so is the sum.
class EdgeEstimate {
 public:
  EdgeEstimate() = default;
  explicit EdgeEstimate(const Head& head);

  void Add(const EdgeEstimate& other);
  double Edges(double tau) const;
  // The tau at which `edges` are expected; 0 for none, 1 where fewer are expected at 1.
  double TauOf(double edges) const;
  double variance() const { return variance_; }  // of Edges(1)

 private:
  static constexpr int kTerms = 9;
  double terms_[kTerms] = {};  // coefficients of tau, tau^2, ...
  double variance_ = 0.0;
};

EdgeEstimate::EdgeEstimate(const Head& head) {
  const bool poisson = head.drawn->law != Law::kBernoulli;
  const double pairs = static_cast<double>(head.n) * static_cast<double>(head.n);
  terms_[0] = SumOfProducts(head);
  if (!poisson && !MayClamp(head)) return;

  const int rank = head.tables.rank;
  bool clamped = false;
  double powers[kTerms] = {};          // sums of p, p^2, ... over the sample
  double sum[2] = {}, square[2] = {};  // of chances, and of chances - p
  uint64_t state = 0;
  for (int s = 0; s < kSamples; ++s) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto row = static_cast<int64_t>((state >> 32) % static_cast<uint64_t>(head.n));
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto key = static_cast<int64_t>((state >> 32) % static_cast<uint64_t>(head.n));
    const float dot = Product(head.x + row * rank, head.tables.y + key * rank, rank);
    const float rate = EdgeRate(dot, head.tables.exploration);
    clamped |= rate != dot + head.tables.exploration;
    const double p = rate;
    double power = p, chance = p;
    for (int term = 0; term < kTerms; ++term, power *= p) powers[term] += power;
    if (poisson) chance = -std::expm1(-p);
    const double value[2] = {chance, chance - p};
    for (int i = 0; i < 2; ++i) sum[i] += value[i], square[i] += value[i] * value[i];
  }
  if (clamped) terms_[0] = pairs * powers[0] / kSamples;
  for (int term = 1; poisson && term < kTerms; ++term) {
    double factorial = 1.0;
    for (int i = 2; i <= term + 1; ++i) factorial *= i;
    terms_[term] = (term % 2 == 1 ? -1.0 : 1.0) * pairs * powers[term] / kSamples / factorial;
  }
  const int sampled = clamped ? 0 : 1;  // without clamps the mean of p is exact
  const double mean = sum[sampled] / kSamples;
  variance_ = pairs * pairs * std::max(0.0, square[sampled] / kSamples - mean * mean) / kSamples;
}

void EdgeEstimate::Add(const EdgeEstimate& other) {
  for (int term = 0; term < kTerms; ++term) terms_[term] += other.terms_[term];
  variance_ += other.variance_;
}

double EdgeEstimate::Edges(double tau) const {
  double sum = 0.0;
  for (int term = kTerms - 1; term >= 0; --term) sum = (sum + terms_[term]) * tau;
  return sum;
}

double EdgeEstimate::TauOf(double edges) const {
  if (edges <= 0.0) return 0.0;
  if (Edges(1.0) <= edges) return 1.0;
  double low = 0.0, high = 1.0;
  for (int step = 0; step < 48; ++step) {
    const double middle = (low + high) / 2;
    (Edges(middle) < edges ? low : high) = middle;
  }
  return high;
}

// Where a word has this many edges on average, bits take no more memory than lists.
constexpr int64_t kManyPerWord = 2;

// One block of rows under a cap.
struct CapBlock {
  const Head* head = nullptr;
  int64_t row0 = 0;
  int rows = 0;
  EdgeLists* kept = nullptr;
  uint64_t certain = 0;        // edges younger than the span, forced ones included: in `kept`, or
  std::vector<uint64_t> bits;  // [rows, words], where they are many
  std::vector<ParallelEdge> parallel;
  std::vector<OpenPair> open;
  std::vector<double> ages;  // as open; -1: forced
};

// Copies the lists of a worker, which have room for more.
void TakeLists(const EdgeLists& lists, int rows, EdgeLists& kept) {
  kept.offsets = lists.offsets;
  kept.keys.assign(lists.keys.begin(), lists.keys.begin() + lists.offsets[rows]);
}

void DrawCapBlock(const Call& call, float low, float high, Worker& worker, CapBlock& block) {
  const Law law = block.head->drawn->law;
  DrawBlock(call, *block.head, block.row0, block.rows, SpanOf(law, low, high), worker);
  DrawnBlock& drawn = worker.drawn;
  const auto count = static_cast<int64_t>(drawn.count);
  const int64_t words = block.head->tables.words;
  const bool many = drawn.bits != nullptr && count >= block.rows * words * kManyPerWord;
  block.certain = drawn.count;
  block.parallel = std::move(drawn.parallel);
  block.open.clear();
  block.ages.clear();
  for (const OpenPair& pair : drawn.open) {
    double age = -1.0;
    if (!pair.forced) {
      if (!IsEdge(law, pair.uniform, pair.rate)) continue;
      age = EdgeAge(law, pair.uniform, pair.rate);
      if (high < 1.0f && !(age < static_cast<double>(high))) continue;  // not all edges of that age are here
    }
    block.open.push_back(pair);
    block.ages.push_back(age);
  }
  block.bits.clear();
  if (many) {
    block.bits.assign(drawn.bits, drawn.bits + block.rows * words);
    return;
  }
  if (drawn.bits != nullptr) ListBits(call, *block.head, block.rows, drawn.bits, worker.lists);
  block.kept->keys.reserve(static_cast<size_t>(count) + block.open.size());
  TakeLists(worker.lists, block.rows, *block.kept);
}

// A drawn edge in the order in which edges are kept.
using AgedEdge = std::tuple<double, size_t, int32_t, int32_t>;  // age, block, row, key

// Adds the open edges before `first_dropped`, whose age is tau, to the certain ones.
void FinishBlock(const Call& call, const AgedEdge& first_dropped, double tau, size_t index, Worker& worker,
                 CapBlock& block) {
  std::vector<OpenPair> kept_open;
  kept_open.reserve(block.open.size());
  for (size_t i = 0; i < block.open.size(); ++i) {
    const OpenPair& pair = block.open[i];
    if (pair.forced || AgedEdge(block.ages[i], index, pair.row, pair.key) < first_dropped) kept_open.push_back(pair);
  }
  const Head& head = *block.head;
  EdgeLists& kept = *block.kept;
  uint64_t* bits = block.bits.empty() ? nullptr : block.bits.data();
  AddOpenPairs(head, block.rows, kept_open, tau, bits, kept, block.parallel, worker.added);
  if (bits != nullptr) {
    ListBits(call, head, block.rows, bits, worker.lists);
    TakeLists(worker.lists, block.rows, kept);
  }
  if (!block.parallel.empty()) SetMultiplicity(head, block.rows, block.parallel, bits, kept);
  block = CapBlock();  // frees its memory for the next
}

// The ages between which the first dropped edge is looked for.
struct AgeSpan {
  float low = 0.0f, high = 1.0f;
};

AgeSpan GuessSpan(const EdgeEstimate& estimate, uint64_t allowed) {
  const double edges = static_cast<double>(allowed);
  const double all = estimate.Edges(1.0);
  const double error = all > edges ? edges / all * std::sqrt(estimate.variance()) : std::sqrt(estimate.variance());
  const double room = 5.0 * (std::sqrt(edges) + error) + 32.0;
  return {static_cast<float>(estimate.TauOf(edges - room)), static_cast<float>(estimate.TauOf(edges + room))};
}

}  // namespace

// The search of one cap: runs over its blocks that draw between two ages, until the first dropped edge is found between
// them, and a last run that keeps the edges before it.
struct CapWork {
  EdgeCap* cap = nullptr;
  std::vector<Head*> heads;
  std::vector<CapBlock> blocks;  // in the order in which edges of one age are kept
  uint64_t forced = 0;
  uint64_t allowed = 0;  // beside the forced edges
  EdgeEstimate estimate;

  AgeSpan span;
  size_t next = 0;  // block of this run
  bool found = false;
  AgedEdge first_dropped{INFINITY, 0, 0, 0};
  double tau = 1.0;

  // Once all blocks are drawn: sets `found`, or the next span.
  void Look();
};

namespace {

// Open edges that are not forced.
std::vector<AgedEdge> OpenEdges(const CapWork& work) {
  std::vector<AgedEdge> edges;
  for (size_t b = 0; b < work.blocks.size(); ++b) {
    const CapBlock& block = work.blocks[b];
    for (size_t i = 0; i < block.open.size(); ++i) {
      if (!block.open[i].forced) edges.emplace_back(block.ages[i], b, block.open[i].row, block.open[i].key);
    }
  }
  return edges;
}

}  // namespace

void CapWork::Look() {
  uint64_t certain = 0;
  for (const CapBlock& block : blocks) certain += block.certain;
  certain -= forced;
  std::vector<AgedEdge> open = OpenEdges(*this);
  const bool drops = certain + open.size() > allowed;
  const double edges = static_cast<double>(allowed);
  if (drops && certain <= allowed) {
    const auto place = open.begin() + static_cast<int64_t>(allowed - certain);
    std::nth_element(open.begin(), place, open.end());
    first_dropped = *place;
  }
  tau = drops ? std::get<0>(first_dropped) : 1.0;
  if (drops && (certain > allowed || tau < static_cast<double>(span.low))) {
    // More edges are younger than `low` than may stay.
    const double wanted = std::max(0.0, edges - 6.0 * std::sqrt(edges) - 64.0);
    const double share = std::min(0.8, wanted / static_cast<double>(std::max<uint64_t>(certain, 1)));
    span = {static_cast<float>(share * static_cast<double>(span.low)), span.low};
  } else if (!drops && span.high < 1.0f) {
    // Fewer edges are younger than `high` than may stay.
    const double wanted = 1.1 * (edges + 6.0 * std::sqrt(edges) + 64.0);
    const double share = std::max(1.25, wanted / static_cast<double>(certain + open.size() + 1));
    span = {span.high, static_cast<float>(std::min(1.0, share * static_cast<double>(span.high)))};
  } else {
    found = true;
    cap->capped = drops;
    return;
  }
  first_dropped = {INFINITY, 0, 0, 0};
}

CapSearch::CapSearch() = default;
CapSearch::~CapSearch() = default;

void CapSearch::Start(ThreadPool& pool, std::span<EdgeCap> caps, bool optimistic, Call& call) {
  works_.clear();
  next_ = 0;
  unchecked_ = false;
  if (caps.empty()) return;
  works_.resize(caps.size());
  for (Head& head : call.heads) {
    if (head.problem->cap >= 0 && head.drawn == nullptr) {
      works_[head.problem->cap].forced += CountHeadEdges(*head.problem, head.index);
    }
    if (!head.capped) continue;
    if (caps[head.problem->cap].max_edges == kNoCap) {
      head.capped = false;
      continue;
    }
    works_[head.problem->cap].heads.push_back(&head);
  }
  for (size_t c = 0; c < caps.size(); ++c) {
    CapWork& work = works_[c];
    if (work.heads.empty()) continue;
    work.cap = &caps[c];
    const uint64_t others = work.forced;
    std::vector<EdgeEstimate> estimates(work.heads.size());
    pool.For(static_cast<int64_t>(work.heads.size()),
             [&](int64_t h, int) { estimates[h] = EdgeEstimate(*work.heads[h]); });
    work.forced = 0;
    for (size_t h = 0; h < work.heads.size(); ++h) {
      work.estimate.Add(estimates[h]);
      work.forced += static_cast<uint64_t>(CountForced(*work.heads[h]));
    }
    const uint64_t taken = others + work.forced;
    work.allowed = caps[c].max_edges > taken ? caps[c].max_edges - taken : 0;
    const double expected = work.estimate.Edges(1.0);
    const double error = std::sqrt(expected) + std::sqrt(work.estimate.variance());
    call.kept.resize(call.block_head.size());
    if (optimistic && expected + 8.0 * error + 64.0 <= static_cast<double>(work.allowed)) {
      for (Head* head : work.heads) head->capped = false;
      work.heads.clear();
      unchecked_ = true;
      continue;
    }
    work.span = GuessSpan(work.estimate, work.allowed);
    for (Head* head : work.heads) {
      for (int64_t b = 0; b < head->blocks(); ++b) {
        CapBlock& block = work.blocks.emplace_back();
        block.head = head;
        block.row0 = b * head->block_rows;
        block.rows = static_cast<int>(std::min<int64_t>(head->block_rows, head->n - block.row0));
        block.kept = &call.kept[head->first_block + b];
      }
    }
  }
  std::erase_if(works_, [](const CapWork& work) { return work.blocks.empty(); });
}

bool CapSearch::done() const { return next_ == works_.size(); }

int64_t CapSearch::blocks() const { return static_cast<int64_t>(works_[next_].blocks.size()); }

void CapSearch::Next(ThreadPool& pool, std::span<Worker> workers, int64_t blocks, const Call& call) {
  CapWork& work = works_[next_];
  const size_t first = work.next;
  work.next = std::min(work.blocks.size(), first + static_cast<size_t>(blocks));
  pool.For(static_cast<int64_t>(work.next - first), [&](int64_t i, int worker) {
    const size_t b = first + static_cast<size_t>(i);
    if (work.found) return FinishBlock(call, work.first_dropped, work.tau, b, workers[worker], work.blocks[b]);
    DrawCapBlock(call, work.span.low, work.span.high, workers[worker], work.blocks[b]);
  });
  if (work.next < work.blocks.size()) return;
  work.next = 0;
  if (!work.found) return work.Look();
  work = CapWork();  // frees its memory
  ++next_;
}

}  // namespace edgewise::cpu_attention
