// Attention in parts: none has much more than its share of the work, and the bytes are those of one call.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::PlacedCase;
using testing::SameBytes;
using testing::Shape;

class PartsTest : public testing::DeviceTest {};
EDGEWISE_TEST_ON(Cpus, PartsTest);

// The rows of heads that have an output, which is NaN before.
int64_t RowsWith(const PlacedCase& placed, int heads) {
  const Matrix out = placed.Out();
  const int64_t columns = out.columns / heads;
  int64_t rows = 0;
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int head = 0; head < heads; ++head) rows += std::isnan(out.row(r)[head * columns]) ? 0 : 1;
  }
  return rows;
}

// Blocks of so long a sequence have more rows than a part.
TEST_P(PartsTest, OfAllPairsHaveTheirShareOfTheRows) {
  Shape shape;
  shape.lengths = {2100};
  shape.head_dim = 64;
  const int64_t all = 2100 * shape.heads;
  for (const bool causal : {false, true}) {
    Case made(shape);
    made.AddProblems(AllPairs{causal});
    const std::vector<float> whole = Run(made).out;
    for (const int threads : {1, 3}) {
      const auto backend = *Make(threads);
      for (const int64_t rows : {24, 130, 700}) {
        SCOPED_TRACE(std::to_string(causal) + " " + std::to_string(threads) + " " + std::to_string(rows));
        const PlacedCase placed(*backend, made);
        const auto parts = *backend->AttendInParts(placed.inputs, made.problems, {}, placed.Out());
        int64_t before = 0, most = 0, count = 0;
        for (bool done = false; !done; ++count) {
          done = *parts->Next(static_cast<double>(rows) / static_cast<double>(all));
          most = std::max(most, RowsWith(placed, shape.heads) - std::exchange(before, RowsWith(placed, shape.heads)));
        }
        EXPECT_EQ(before, all);
        EXPECT_LE(most, rows + 12 * threads) << "a part has whole strips of 12 rows, of each thread";
        EXPECT_LE(count, 3 * all / rows + 3) << "preparing keys and values takes parts too";
        EXPECT_TRUE(SameBytes(testing::Fetch(*backend, placed.out), whole));
      }
    }
  }
}

}  // namespace
}  // namespace edgewise
