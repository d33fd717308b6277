// The law of a locally biased shuffle: who is among the last places of argsort(j + scale * z_j), the z_j independent
// standard normal numbers.
#ifndef EDGEWISE_MODEL_SHUFFLE_LAW_H_
#define EDGEWISE_MODEL_SHUFFLE_LAW_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace edgewise {

// Where elements 0 .. places - 1 end up: how many of the first ones are expected among the last `count` places.
class ShuffleLaw {
 public:
  // Elements below `element` (0 .. places) that are expected there.
  double Before(int32_t element) const;

 private:
  friend class ShuffleLaws;
  // Sums of shares, known every `step` elements from `begin` on, with their slopes. Shares are 0 before the first and 1
  // behind the last.
  struct Table {
    double Before(int32_t element) const;
    double begin = 0.0, step = 1.0;
    std::vector<double> sums, slopes;
  };
  static Table ExactTable(int32_t places, int32_t count, double scale);
  static Table SmoothTable(int32_t places, int32_t count, double scale);
  static void ScaleTo(int32_t count, Table& table);

  std::shared_ptr<const Table> table_;  // of the last count_ of places_; mirrored: of the first, read backwards
  bool mirrored_ = false;
  int32_t places_ = 0, count_ = 0;
  int32_t below_ = 0;  // elements that are never there, before those of the table
};

// The laws of one scale. Exact to 1e-6 up to a scale of 12 + 36 / count, or of up to 128 places. Beyond, the edges of a
// window are within 2e-4, and the share of one of its elements within 6e-4; the errors fall with the scale. A law takes
// 10 to 50 us, an exact one up to 0.6 ms; neighbours whose borders are equally far from both ends, or too far to
// matter, share one.
class ShuffleLaws {
 public:
  explicit ShuffleLaws(double scale) : scale_(scale) {}
  // 0 < count <= places.
  ShuffleLaw Last(int32_t places, int32_t count);

 private:
  ShuffleLaw::Table MakeTable(int32_t places, int32_t count) const;

  double scale_;
  std::pair<int32_t, int32_t> last_near_;  // the places and the count of the last table
  std::shared_ptr<const ShuffleLaw::Table> last_table_;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_SHUFFLE_LAW_H_
