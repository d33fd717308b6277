// A call of the tile kernel made by hand, so that a test says how queries are cut into items and which blocks take
// them.
#ifndef EDGEWISE_TESTS_CUDA_ATTENTION_TILES_CASE_H_
#define EDGEWISE_TESTS_CUDA_ATTENTION_TILES_CASE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention/call.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::cuda::testing {

struct TileCuts {
  std::vector<int> queries = {kTileQueries};  // of the items, in turn
  bool reversed = false;                      // the items from the last to the first
  bool one_warp = false;                      // items of at most kWarpQueries go to blocks of one warp
};

class TilesCall {
 public:
  TilesCall(const edgewise::testing::Case& from, bool bf16, TileCuts cuts = {});
  TilesCall(const TilesCall&) = delete;

  // The output: kUnwritten where nothing was written.
  std::vector<float> Run();
  static constexpr float kUnwritten = 7.0f;

 private:
  void AddProblem(const AttentionProblem& problem);
  template <typename MakeItem>
  void Cut(int32_t begin, int32_t end, const MakeItem& make_item);

  const TileCuts cuts_;
  DeviceCall call_ = {};
  std::vector<__nv_bfloat16> k16_, v16_;
  std::vector<DeviceProblem> problems_;
  std::vector<TileItem> items_, narrow_items_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> limits_;
  std::vector<float> out_;
};

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_ATTENTION_TILES_CASE_H_
