// Memory for what lives no longer than a step of a pass.
#ifndef EDGEWISE_MODEL_FORWARD_SCRATCH_H_
#define EDGEWISE_MODEL_FORWARD_SCRATCH_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <vector>

namespace edgewise {

// Nothing is freed before Reset, which keeps the memory: a step like an earlier one takes none from the system. One
// thread at a time.
class Scratch : public std::pmr::memory_resource {
 public:
  // Nothing that was allocated is used any more. Keeps at most kMostKept bytes.
  void Reset() {
    size_t kept = 0;
    for (const Block& block : blocks_) kept += block.size;
    if (kept > kMostKept) blocks_.clear();
    block_ = used_ = 0;
  }

 private:
  static constexpr size_t kFirstBlock = 1 << 14, kMostKept = 64 << 20;
  struct Block {
    std::unique_ptr<std::byte[]> data;
    size_t size;
  };

  void* do_allocate(size_t bytes, size_t alignment) override {
    for (;; ++block_, used_ = 0) {
      if (block_ == blocks_.size()) {
        const size_t size = std::max(bytes, blocks_.empty() ? kFirstBlock : 2 * blocks_.back().size);
        blocks_.push_back({std::make_unique_for_overwrite<std::byte[]>(size), size});
      }
      const size_t begin = (used_ + alignment - 1) / alignment * alignment;
      if (begin + bytes > blocks_[block_].size) continue;
      used_ = begin + bytes;
      return blocks_[block_].data.get() + begin;
    }
  }
  void do_deallocate(void*, size_t, size_t) override {}
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::vector<Block> blocks_;
  size_t block_ = 0, used_ = 0;  // the next free place
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_SCRATCH_H_
