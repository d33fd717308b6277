#include "kernels/cpu/attention/probable.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cpu/attention/draw.h"
#include "kernels/cpu/attention/estimate.h"
#include "kernels/cpu/attention/report.h"
#include "kernels/host/pattern_count.h"

namespace edgewise::cpu_attention {
namespace {

constexpr float kForcedRate = 2.0f;  // above every rate: forced edges are never dropped

// Rates in (0, 1] are ordered as their bits, which are below 2^30: three digits.
constexpr int kDigitBits = 10;
constexpr int kTopDigit = 20;  // where the highest digit begins
constexpr uint32_t kDigits = 1u << kDigitBits;
using DigitCounts = std::array<uint64_t, kDigits>;

// Edges are drawn until twice the allowance and this many are held; then the beaten ones are dropped.
constexpr uint64_t kHeldRoom = 1 << 15;
constexpr int64_t kDrawnPairs = 1 << 18;  // at least this many pairs are asked between two looks at the held
constexpr int64_t kBlocksAThread = 4;     // and this many blocks of each thread, so that threads end together

// One block of rows under a cap, and the edges of it that are held.
struct HeldBlock {
  const HeadPlan* head = nullptr;
  int64_t row0 = 0;
  int rows = 0;
  BlockEdges* kept = nullptr;  // of the call
  EdgeLists edges;
  std::vector<float> rates;  // as edges.keys
  uint64_t ties = 0;         // edges whose rate is the cut's
};

// Keeps the edges whose rate is above `rate`, and of those that have it the first `ties`.
void KeepAbove(float rate, uint64_t ties, int rows, EdgeLists& lists, float* rates) {
  const bool multiple = !lists.multiplicity.empty();
  int64_t kept = 0, begin = 0;
  for (int r = 0; r < rows; ++r) {
    const int64_t end = lists.offsets[r + 1];
    for (int64_t e = begin; e < end; ++e) {
      const bool tie = rates[e] == rate && ties > 0;
      ties -= tie ? 1 : 0;
      lists.keys[kept] = lists.keys[e];
      if (multiple) lists.multiplicity[kept] = lists.multiplicity[e];
      const float of_edge = rates[e];
      rates[kept] = of_edge;
      kept += of_edge > rate || tie ? 1 : 0;
    }
    lists.offsets[r + 1] = kept;
    begin = end;
  }
}

// The edges of a block that are not forced.
struct DrawnCounts {
  uint64_t held = 0, dropped = 0;
};

// Draws a block and holds the edges whose rate is above `floor`. `rates` is the worker's.
DrawnCounts DrawHeld(const Call& call, float floor, Worker& worker, std::vector<float>& rates, HeldBlock& block) {
  const HeadPlan& head = *block.head;
  const BlockEdges drawn = DrawnEdges(call, head, block.row0, block.rows, worker);
  EdgeLists& lists = worker.lists;
  if (drawn.offsets == nullptr) ListBits(call, head, block.rows, drawn.bits, lists);
  const int64_t count = lists.offsets[block.rows];
  rates.resize(static_cast<size_t>(count) + 16);
  uint64_t forced = 0;
  for (int r = 0; r < block.rows; ++r) {
    const int64_t row = block.row0 + r, begin = lists.offsets[r], end = lists.offsets[r + 1];
    call.kernels->edge_rates(head.tables, head.x + row * head.tables.rank, lists.keys.data() + begin, end - begin,
                             rates.data() + begin);
    const auto [first, last] = ForcedKeys(head, row);
    if (first == last) continue;
    const auto* const keys = lists.keys.data();
    const int64_t place = std::lower_bound(keys + begin, keys + end, static_cast<int32_t>(first)) - keys;
    std::fill_n(rates.begin() + place, last - first, kForcedRate);  // all of them are edges
    forced += static_cast<uint64_t>(last - first);
  }
  if (floor > 0.0f) KeepAbove(floor, 0, block.rows, lists, rates.data());
  const int64_t held = lists.offsets[block.rows];
  EdgeLists& edges = block.edges;
  edges.offsets.assign(lists.offsets.begin(), lists.offsets.begin() + block.rows + 1);
  edges.keys.assign(lists.keys.begin(), lists.keys.begin() + held);
  edges.multiplicity.clear();
  if (!lists.multiplicity.empty()) {
    edges.multiplicity.assign(lists.multiplicity.begin(), lists.multiplicity.begin() + held);
  }
  block.rates.assign(rates.begin(), rates.begin() + held);
  return {static_cast<uint64_t>(held) - forced, static_cast<uint64_t>(count - held)};
}

}  // namespace

// The blocks under one cap, drawn in the order in which edges of one rate are kept.
class ProbableCap {
 public:
  ProbableCap(EdgeCap* cap, uint64_t allowed) : cap_(cap), allowed_(allowed) {}

  void Add(const HeadPlan& head, Call& call) {
    for (int64_t b = 0; b < head.blocks(); ++b) {
      HeldBlock& block = blocks_.emplace_back();
      block.head = &head;
      block.row0 = b * head.block_rows;
      block.rows = static_cast<int>(std::min<int64_t>(head.block_rows, head.n - block.row0));
      block.kept = &call.kept[head.first_block + b];
    }
  }
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }

  // Draws about the next `count` blocks. True: all are drawn, and what is held is what the cap keeps.
  bool Draw(ThreadPool& pool, std::span<Worker> workers, int64_t count, const Call& call) {
    const size_t end = std::min(blocks_.size(), next_ + static_cast<size_t>(count));
    while (next_ < end) {
      DrawSome(pool, workers, end, call);
      if (held_ > 2 * allowed_ + kHeldRoom) DropBeaten(pool);
    }
    if (next_ < blocks_.size()) return false;
    if (held_ > allowed_) DropBeaten(pool);
    for (HeldBlock& block : blocks_) {  // where no edge is multiple, the same edges given back say nothing of it
      block.rates = {};
      EdgeLists& edges = block.edges;
      std::vector<float>& multiplicity = edges.multiplicity;
      if (std::none_of(multiplicity.begin(), multiplicity.end(), [](float m) { return m > 1.0f; })) {
        multiplicity.clear();
      }
      *block.kept = {nullptr, edges.offsets.data(), edges.keys.data(),
                     multiplicity.empty() ? nullptr : multiplicity.data(), edges.keys.size()};
    }
    cap_->capped = dropped_;
    return true;
  }

 private:
  void DrawSome(ThreadPool& pool, std::span<Worker> workers, size_t end, const Call& call) {
    const auto wanted = static_cast<int64_t>(std::min<uint64_t>(2 * allowed_, uint64_t{1} << 40));
    const size_t first = next_, least = first + static_cast<size_t>(kBlocksAThread * pool.num_threads());
    int64_t pairs = 0;
    while (next_ < end && (next_ < least || pairs < std::max(wanted, kDrawnPairs))) {
      pairs += blocks_[next_].rows * blocks_[next_].head->n;
      ++next_;
    }
    std::vector<std::vector<float>> rates(static_cast<size_t>(pool.num_threads()));
    std::vector<DrawnCounts> counts(next_ - first);
    pool.For(static_cast<int64_t>(counts.size()), pairs, [&](int64_t i, int worker) {
      counts[i] = DrawHeld(call, floor_, workers[worker], rates[worker], blocks_[first + static_cast<size_t>(i)]);
    });
    for (const DrawnCounts& of_block : counts) {
      held_ += of_block.held;
      dropped_ |= of_block.dropped > 0;
    }
  }

  // Keeps the `allowed_` first of the edges that are held, in the order of (rate, block, row, key). An edge that comes
  // later is kept only if its rate is above the last one's.
  void DropBeaten(ThreadPool& pool) {
    const auto work = static_cast<int64_t>(held_);
    uint32_t cut = 0;    // bits of the first dropped edge's rate, as far as they are known
    uint64_t above = 0;  // edges whose rate is surely above it
    std::vector<DigitCounts> counts(static_cast<size_t>(pool.num_threads()));
    for (int digit = kTopDigit; digit >= 0; digit -= kDigitBits) {
      for (DigitCounts& of_worker : counts) of_worker.fill(0);
      pool.For(blocks_held(), work, [&](int64_t b, int worker) {
        for (const float rate : blocks_[b].rates) {
          const auto bits = std::bit_cast<uint32_t>(rate);
          if ((bits ^ cut) >> digit < kDigits && rate <= 1.0f) ++counts[worker][bits >> digit & (kDigits - 1)];
        }
      });
      for (uint32_t value = kDigits; value-- > 0;) {
        uint64_t edges = 0;
        for (const DigitCounts& of_worker : counts) edges += of_worker[value];
        if (above + edges > allowed_) {
          cut |= value << digit;
          break;
        }
        above += edges;
      }
    }
    floor_ = std::bit_cast<float>(cut);
    pool.For(blocks_held(), work, [&](int64_t b, int) {
      blocks_[b].ties = static_cast<uint64_t>(std::count(blocks_[b].rates.begin(), blocks_[b].rates.end(), floor_));
    });
    uint64_t stay = allowed_ - above;  // of the edges at the cut
    for (int64_t b = 0; b < blocks_held(); ++b) {
      blocks_[b].ties = std::min(blocks_[b].ties, stay);
      stay -= blocks_[b].ties;
    }
    pool.For(blocks_held(), work, [&](int64_t b, int) {
      HeldBlock& block = blocks_[b];
      EdgeLists& edges = block.edges;
      KeepAbove(floor_, block.ties, block.rows, edges, block.rates.data());
      const auto kept = static_cast<size_t>(edges.offsets[block.rows]);
      edges.keys.resize(kept);
      if (!edges.multiplicity.empty()) edges.multiplicity.resize(kept);
      block.rates.resize(kept);
    });
    held_ = allowed_;
    dropped_ = true;
  }

  int64_t blocks_held() const { return static_cast<int64_t>(next_); }

  EdgeCap* cap_;
  uint64_t allowed_;  // beside the forced edges
  std::vector<HeldBlock> blocks_;
  size_t next_ = 0;     // block to be drawn
  uint64_t held_ = 0;   // edges that are not forced
  float floor_ = 0.0f;  // edges to come that have this rate, or less, are beaten
  bool dropped_ = false;
};

ProbableSearch::ProbableSearch() = default;
ProbableSearch::~ProbableSearch() = default;

void ProbableSearch::Start(ThreadPool& pool, std::span<EdgeCap> caps, bool optimistic, Call& call) {
  caps_.clear();
  next_ = 0;
  unchecked_ = false;
  for (size_t c = 0; c < caps.size(); ++c) {
    if (caps[c].keep != CapRule::kProbable) continue;
    std::vector<HeadPlan*> heads;
    uint64_t never_dropped = 0;
    for (HeadPlan& head : call.heads) {
      if (head.problem->cap != static_cast<int32_t>(c)) continue;
      if (head.drawn == nullptr) {
        never_dropped += CountHeadEdges(*head.problem, head.index);
      } else {
        never_dropped += CountForced(head, 0, head.n);
        head.capped = caps[c].max_edges != kNoCap;
        if (head.capped) heads.push_back(&head);
      }
    }
    if (heads.empty()) continue;
    const uint64_t allowed = caps[c].max_edges > never_dropped ? caps[c].max_edges - never_dropped : 0;
    if (optimistic) {
      if (EstimateHeads(pool, *call.kernels, heads).IsSlack(static_cast<double>(allowed))) {
        for (HeadPlan* head : heads) head->capped = false;
        unchecked_ = true;
        continue;
      }
    }
    call.kept.resize(call.block_head.size());
    ProbableCap& cap = caps_.emplace_back(&caps[c], allowed);
    for (const HeadPlan* head : heads) cap.Add(*head, call);
  }
}

bool ProbableSearch::done() const { return next_ == caps_.size(); }

int64_t ProbableSearch::blocks() const { return caps_[next_].blocks(); }

void ProbableSearch::Next(ThreadPool& pool, std::span<Worker> workers, int64_t blocks, const Call& call) {
  if (caps_[next_].Draw(pool, workers, blocks, call)) ++next_;
}

}  // namespace edgewise::cpu_attention
