// Edge caps that keep the youngest of the drawn edges (CapRule::kRandom).
#ifndef EDGEWISE_KERNELS_CPU_ATTENTION_CAP_H_
#define EDGEWISE_KERNELS_CPU_ATTENTION_CAP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/attention/cap_block.h"
#include "kernels/cpu/attention/work.h"

namespace edgewise::cpu_attention {

struct CapWork;  // cap.cc

// Finds the first edge that each cap drops, and sets EdgeCap::capped, in parts; then gives the edges that are kept. It
// keeps its memory between calls: short ones would feel it.
class CapSearch {
 public:
  // Most runs over the blocks of a cap.
  static constexpr int kMostRuns = 6;

  CapSearch();
  CapSearch(CapSearch&&) noexcept;
  CapSearch& operator=(CapSearch&&) noexcept;
  ~CapSearch();
  // With `optimistic`, heads under a cap far above the expected edges are left to be drawn without it, which saves
  // storing their edges; the caller then checks that they stayed below.
  void Start(ThreadPool& pool, std::span<EdgeCap> caps, bool optimistic, Call& call);
  bool unchecked() const { return unchecked_; }  // there are such heads
  bool done() const;
  // While the search goes on: the blocks of the cap that is searched, and a run over the next `count` of them.
  int64_t blocks() const;
  void Next(ThreadPool& pool, std::span<Worker> workers, int64_t blocks, const Call& call);
  // When done: the edges that are kept of a block of the call, of a head whose edges a cap of kRandom drops; once for
  // each. They stay until the next call.
  BlockEdges Take(const Call& call, int64_t block, Worker& worker);
  // Forgets the call, and gives back what is not small; throws nothing.
  void ReleaseAbove(size_t bytes);

 private:
  void SkipIdle();  // caps that need no search

  std::vector<CapWork> works_;  // [caps], and older ones
  size_t caps_ = 0;
  std::vector<CapBlock> blocks_;  // [blocks of the call]
  size_t next_ = 0;               // of works_
  bool unchecked_ = false;
};

}  // namespace edgewise::cpu_attention

#endif  // EDGEWISE_KERNELS_CPU_ATTENTION_CAP_H_
