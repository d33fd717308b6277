// Certificates (kernels/draw/certificate.h) with AVX-512 VNNI.
#ifndef EDGEWISE_KERNELS_CPU_SIMD_CERTIFICATES_AVX512_INL_
#define EDGEWISE_KERNELS_CPU_SIMD_CERTIFICATES_AVX512_INL_

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/squeeze_avx512.inl"
#include "kernels/cpu/simd/vector.h"
#include "kernels/draw/certificate.h"

namespace edgewise::EDGEWISE_SIMD_NAMESPACE {

// Halve8 to Halve1 of whole numbers.
EDGEWISE_INLINE V AddHalves8(V a, V b) {
  return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xEE));
}
EDGEWISE_INLINE V AddHalves4(V a, V b) {
  return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xDD));
}
EDGEWISE_INLINE V AddHalves2(V a, V b) {
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
EDGEWISE_INLINE V AddHalves1(V a, V b) {
  const F x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xDD)));
}

// Transposing sums and maxima of 16 vectors.
EDGEWISE_INLINE F SumRows16(const F* rows) {
  F four[4];
  for (int s = 0; s < 4; ++s) four[s] = Halve4(Halve8(rows[s], rows[s + 4]), Halve8(rows[s + 8], rows[s + 12]));
  return Halve1(Halve2(four[0], four[1]), Halve2(four[2], four[3]));
}
EDGEWISE_INLINE V AddRows16(const V* rows) {
  V four[4];
  for (int s = 0; s < 4; ++s) {
    four[s] = AddHalves4(AddHalves8(rows[s], rows[s + 4]), AddHalves8(rows[s + 8], rows[s + 12]));
  }
  return AddHalves1(AddHalves2(four[0], four[1]), AddHalves2(four[2], four[3]));
}
EDGEWISE_INLINE F LargestOf(F a, F b, F c, F d) {  // of lanes l, l + 4, ..
  const F ab = _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const F cd = _mm512_max_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_max_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}
EDGEWISE_INLINE F LargestRows16(const F* rows) {
  F four[4];
  for (int s = 0; s < 4; ++s) four[s] = LargestOf(rows[s], rows[s + 4], rows[s + 8], rows[s + 12]);
  const F a = _mm512_max_ps(_mm512_unpacklo_ps(four[0], four[1]), _mm512_unpackhi_ps(four[0], four[1]));
  const F b = _mm512_max_ps(_mm512_unpacklo_ps(four[2], four[3]), _mm512_unpackhi_ps(four[2], four[3]));
  return _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
}

// 16 certificates as four vectors.
struct Certificates {
  F along, scale, across;
  V sum;
};
EDGEWISE_INLINE F FourRows(const Certificate* rows, const uint32_t* places) {
  const auto load = [&](int i) { return _mm_loadu_ps(&rows[places[i]].along); };
  const F two = _mm512_insertf32x4(_mm512_castps128_ps512(load(0)), load(4), 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(two, load(8), 2), load(12), 3);
}
EDGEWISE_INLINE Certificates LoadCertificates(const Certificate* rows, const uint32_t* places) {
  const F a = FourRows(rows, places), b = FourRows(rows, places + 1);
  const F c = FourRows(rows, places + 2), d = FourRows(rows, places + 3);
  const F ab_low = _mm512_unpacklo_ps(a, b), ab_high = _mm512_unpackhi_ps(a, b);  // along, scale; across, sum
  const F cd_low = _mm512_unpacklo_ps(c, d), cd_high = _mm512_unpackhi_ps(c, d);
  return {_mm512_shuffle_ps(ab_low, cd_low, 0x44), _mm512_shuffle_ps(ab_low, cd_low, 0xEE),
          _mm512_shuffle_ps(ab_high, cd_high, 0x44), _mm512_castps_si512(_mm512_shuffle_ps(ab_high, cd_high, 0xEE))};
}

EDGEWISE_INLINE void StoreCertificates(const Certificates& made, int count, Certificate* out) {
  const F ab_low = _mm512_unpacklo_ps(made.along, made.scale), ab_high = _mm512_unpackhi_ps(made.along, made.scale);
  const F sum = _mm512_castsi512_ps(made.sum);
  const F cd_low = _mm512_unpacklo_ps(made.across, sum), cd_high = _mm512_unpackhi_ps(made.across, sum);
  alignas(64) float all[4][16];  // certificates i, i + 4, i + 8 and i + 12
  Store(all[0], _mm512_shuffle_ps(ab_low, cd_low, 0x44));
  Store(all[1], _mm512_shuffle_ps(ab_low, cd_low, 0xEE));
  Store(all[2], _mm512_shuffle_ps(ab_high, cd_high, 0x44));
  Store(all[3], _mm512_shuffle_ps(ab_high, cd_high, 0xEE));
  for (int r = 0; r < count; ++r) __builtin_memcpy(out + r, all[r % 4] + r / 4 * 4, sizeof(*out));
}

// MakeCertificate of 16 vectors.
EDGEWISE_INLINE Certificates MakeCertificates(F along, F square, F largest, int rank) {
  const __mmask16 useful = _mm512_cmp_ps_mask(square, Broadcast(1e-24f), _CMP_GE_OQ) &
                           _mm512_cmp_ps_mask(square, Broadcast(1e24f), _CMP_LE_OQ) &
                           _mm512_cmp_ps_mask(along * along, Broadcast(1.001f) * square, _CMP_LE_OQ);
  const F rest = _mm512_max_ps(square - along * along, Zero());
  const F margin = Broadcast(static_cast<float>(rank / 16 + 16) * 0x1p-20f) * square;
  const F across = _mm512_sqrt_ps(rest + margin) * Broadcast(1.00001f);
  const F least = Broadcast(kLeastCertificateScale);
  const F scale = _mm512_max_ps(largest * Broadcast(1.0f / 127.0f), least);
  return {_mm512_maskz_mov_ps(useful, along), _mm512_mask_mov_ps(least, useful, scale),
          _mm512_mask_mov_ps(Broadcast(__builtin_inff()), useful, across), _mm512_setzero_si512()};
}

// Squares, certificates and rounded rests of rows, `lift` added to each number: CertificateBytes(rank) a row, with
// zeros behind. Passes over 16 rows at a time, so that sums fill vectors.
template <int kRank>
static void CertifyRowsOf(const float* rows, int64_t count, const float* unit, int any_rank, int lift, float* squares,
                          Certificate* certificates, uint8_t* rests) {
  const int rank = kRank > 0 ? kRank : any_rank;
  const int64_t bytes = CertificateBytes(rank);
  for (int64_t first = 0; first < count; first += 16) {
    const int some = count - first < 16 ? static_cast<int>(count - first) : 16;
    const auto place = [&](int r) { return first + (r < some ? r : 0); };
    F products[16], sums[16];
    for (int r = 0; r < 16; ++r) {
      const float* const v = rows + place(r) * rank;
      F product = Zero(), square = Zero();
#pragma GCC unroll 8
      for (int t = 0; t < rank; t += 16) {
        const F part = Load(v + t);
        product = Fma(part, Load(unit + t), product);
        square = Fma(part, part, square);
      }
      products[r] = product;
      sums[r] = square;
    }
    const F product = SumRows16(products), square = SumRows16(sums);
    StoreFirst(squares + first, square, some);
    alignas(64) float along[16], inverse[16];
    Store(along, product);
    for (int r = 0; r < 16; ++r) {
      const float* const v = rows + place(r) * rank;
      const F part = Broadcast(along[r]);
      F size = Zero();
#pragma GCC unroll 8
      for (int t = 0; t < rank; t += 16) {
        size = _mm512_max_ps(_mm512_abs_ps(_mm512_fnmadd_ps(part, Load(unit + t), Load(v + t))), size);
        _mm_prefetch(reinterpret_cast<const char*>(v + 16 * rank + t), _MM_HINT_T0);
      }
      sums[r] = size;
    }
    Certificates made = MakeCertificates(product, square, LargestRows16(sums), rank);
    Store(inverse, Broadcast(1.0f) / made.scale);
    V totals[16];
    for (int r = 0; r < 16; ++r) {
      const float* const v = rows + place(r) * rank;
      uint8_t* const out = rests + place(r) * bytes;
      const F part = Broadcast(along[r]), times = Broadcast(inverse[r]);
      V total = _mm512_setzero_si512();
      if (rank % 64 != 0) _mm512_storeu_si512(out + bytes - 64, _mm512_setzero_si512());
#pragma GCC unroll 8
      for (int t = 0; t < rank; t += 16) {
        const V whole = _mm512_cvtps_epi32(_mm512_fnmadd_ps(part, Load(unit + t), Load(v + t)) * times);
        total = _mm512_add_epi32(total, whole);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + t),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(lift))));
      }
      totals[r] = total;
    }
    made.sum = AddRows16(totals);
    StoreCertificates(made, some, certificates + first);
  }
}
static void CertifyRows(const float* rows, int64_t count, const float* unit, int rank, int lift, float* squares,
                        Certificate* certificates, uint8_t* rests) {
  const auto certify = rank == 128 ? CertifyRowsOf<128> : CertifyRowsOf<0>;
  certify(rows, count, unit, rank, lift, squares, certificates, rests);
}

// Bounds along and across the direction, of the vector that the certificate is of.
EDGEWISE_INLINE Split SplitOf(const Certificate& certificate, int rank) {
  const auto [along, scale, across, sum] = certificate;
  if (!(along >= 0.3f * across)) return {0.0f, __builtin_inff()};
  return {along * (1.0f - static_cast<float>(rank / 16 + 16) * 0x1p-20f), across};
}
static void SplitKeys(const Certificate* certificates, int64_t count, int rank, uint32_t* split) {
  for (int64_t key = 0; key < count; ++key) split[key] = PackSplit(SplitOf(certificates[key], rank));
}

// Products of rounded rests, those of y + 128, of 16 pairs.
template <int kBytes>
EDGEWISE_INLINE V DotRests4(const uint8_t* x, const uint32_t* queries, const uint8_t* y, const uint32_t* keys,
                            int64_t all_bytes) {
  const int64_t bytes = kBytes > 0 ? kBytes : all_bytes;
  V sum[4];
  for (int i = 0; i < 4; ++i) {
    const uint8_t* const a = x + queries[4 * i] * bytes;
    const uint8_t* const b = y + keys[4 * i] * bytes;
    sum[i] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int64_t t = 0; t < bytes; t += 64) {
      sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_load_si512(b + t), _mm512_load_si512(a + t));
    }
  }
  return AddHalves4(AddHalves8(sum[0], sum[1]), AddHalves8(sum[2], sum[3]));
}
template <int kBytes>
EDGEWISE_INLINE V DotRests16(const uint8_t* x, const uint32_t* queries, const uint8_t* y, const uint32_t* keys,
                             int64_t bytes) {
  const V s0 = DotRests4<kBytes>(x, queries, y, keys, bytes),
          s1 = DotRests4<kBytes>(x, queries + 1, y, keys + 1, bytes);
  const V s01 = AddHalves2(s0, s1);
  const V s2 = DotRests4<kBytes>(x, queries + 2, y, keys + 2, bytes);
  const V s3 = DotRests4<kBytes>(x, queries + 3, y, keys + 3, bytes);
  return AddHalves1(s01, AddHalves2(s2, s3));
}

// BoundProduct of 16 pairs, as bounds of rates.
EDGEWISE_INLINE RateBounds BoundRates(const Certificates& x, const Certificates& y, V dot, int rank,
                                      float exploration) {
  const F part = Broadcast(CertificateLeft(rank)), margin = Broadcast(CertificateMargin(rank));
  const F left_x = part * x.scale, left_y = part * y.scale;
  const F norms = (_mm512_abs_ps(x.along) + x.across) * (_mm512_abs_ps(y.along) + y.across);
  const F half = Fma(margin, norms, Fma(x.across, left_y, left_x * (y.across + left_y)));
  const F middle = Fma(x.along, y.along, x.scale * y.scale * _mm512_cvtepi32_ps(dot));
  const F least = Broadcast(exploration), most = Broadcast(1.0f);
  return {_mm512_min_ps(_mm512_max_ps(middle - half, Zero()) + least, most),
          _mm512_min_ps(_mm512_max_ps(middle + half, Zero()) + least, most)};
}

}  // namespace edgewise::EDGEWISE_SIMD_NAMESPACE

#endif  // EDGEWISE_KERNELS_CPU_SIMD_CERTIFICATES_AVX512_INL_
