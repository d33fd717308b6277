// Certificates: intervals that hold <x, y> of memberships, from one byte an element. Events that the interval settles
// (events.h) need no exact rate; the graph is the same.
//
// Along a unit vector u, v = along u + rest, and rest = scale rounded + left, with `rounded` of whole numbers up to 127
// in size. With D = <rounded_x, rounded_y>, which is exact,
//
//   <x, y> = along_x along_y + scale_x scale_y D + (<rest_x, left_y> + <left_x, rest_y> - <left_x, left_y>) + small.
//
// By Cauchy and Schwarz the bracket is at most across_x left_y + left_x across_y + left_x left_y, where `across` bounds
// |rest|, and left = 0.5001 sqrt(rank) scale bounds |left|: an element is off by half a scale. `small` is rounding.
// With e = 2^-24, k = rank / 16 and sums in 16 or more chains, it is at most |x| |y| times the sum of
//
//   2 (k + 5) e + 6 e  for the products of one vector's along with the other's rest along u: `along` is a rounded sum,
//                      and |u|^2 is 1 within 2 e;
//   (k + 5) e          for MembershipDot, whose value is wanted, not that of the real numbers;
//   8 e                for the rounding of the interval itself.
//
// That is less than (4 k + 32) e = CertificateMargin.
//
// Plain C++17, compiled for the host and for the device. Internal linkage: files of several instruction sets include
// it.
#ifndef EDGEWISE_KERNELS_DRAW_CERTIFICATE_H_
#define EDGEWISE_KERNELS_DRAW_CERTIFICATE_H_

#include <cmath>
#include <cstdint>

#include "kernels/draw/philox.h"

namespace edgewise {

inline constexpr float kLeastCertificateScale = 1e-32f;

// Bounds one vector, beside its rounded rest. A useless one has `along` 0 and `across` infinity: its intervals hold
// everything.
struct Certificate {
  float along;
  float scale;
  float across;
  int32_t sum;  // of the rounded rest, for products that take the other side's numbers + 128
};

EDGEWISE_HOST_DEVICE static inline float CertificateMargin(int rank) {
  const int chain = rank / 16;
  return static_cast<float>(chain + 8) * 0x1p-22f;
}
// `left` of a vector over its scale.
EDGEWISE_HOST_DEVICE static inline float CertificateLeft(int rank) { return 0.5001f * sqrtf(static_cast<float>(rank)); }

// The divisor of a rest before it is rounded to the nearest whole numbers, from its largest size.
EDGEWISE_HOST_DEVICE static inline float CertificateScale(float largest) {
  const float scale = largest * (1.0f / 127.0f);
  return scale > kLeastCertificateScale ? scale : kLeastCertificateScale;  // also for NaN
}

// The certificate of v, except for `sum`, from <v, u>, <v, v> and the largest size of an element of v - along u, which
// are rounded once each.
EDGEWISE_HOST_DEVICE static inline Certificate MakeCertificate(float along, float square, float largest, int rank) {
  const float rest = square - along * along;
  const int chain = rank / 16;
  const float margin = static_cast<float>(chain + 16) * 0x1p-20f * square;  // of `rest`, ample
  // Fails for NaN. Numbers this far from the ends of float32 neither vanish nor overflow in products.
  const bool useful = square >= 1e-24f && square <= 1e24f && along * along <= 1.001f * square;
  const float across = sqrtf((rest > 0.0f ? rest : 0.0f) + margin) * 1.00001f;
  return {useful ? along : 0.0f, useful ? CertificateScale(largest) : kLeastCertificateScale,
          useful ? across : INFINITY, 0};
}

// low <= MembershipDot(x, y) <= high, from the product of the rounded rests. Neither is NaN.
struct ProductInterval {
  float low, high;
};
EDGEWISE_HOST_DEVICE static inline ProductInterval BoundProduct(const Certificate& x, const Certificate& y, int32_t dot,
                                                                int rank) {
  const float left_x = CertificateLeft(rank) * x.scale, left_y = CertificateLeft(rank) * y.scale;
  const float norms = (fabsf(x.along) + x.across) * (fabsf(y.along) + y.across);
  const float half = fmaf(CertificateMargin(rank), norms, fmaf(x.across, left_y, left_x * (y.across + left_y)));
  const float middle = fmaf(x.along, y.along, x.scale * y.scale * static_cast<float>(dot));
  return {middle - half, middle + half};
}

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_DRAW_CERTIFICATE_H_
