// CUDA's language as C++: keywords, vector types, indices and the functions that kernels of this project may call.
// Included by cuda_runtime.h.
#ifndef EDGEWISE_TESTS_CUDA_EMULATOR_DEVICE_H_
#define EDGEWISE_TESTS_CUDA_EMULATOR_DEVICE_H_

#include <math.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#define EMULATOR_TEXT_OF(x) #x
#define EMULATOR_TEXT(x) EMULATOR_TEXT_OF(x)

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__  // GCC's own attribute of this name becomes an empty one
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// Static shared memory: one block runs at a time, so a static variable does. All go to one section, which the scheduler
// fills with 0xFF before a block. GCC refuses to mix variables of templates and others in a section, hence a name of
// its own for each, whose end is a comment to the assembler; variables of templates it leaves out (they keep what the
// block before wrote). AddressSanitizer surrounds variables by forbidden zones, but not those of such sections.
#if defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
#define __shared__ static
#else
#define __shared__ static __attribute__((section("emulated_shared,\"aw\",@nobits#" EMULATOR_TEXT(__COUNTER__))))
#endif

#define EMULATOR_VECTOR(name, type, size)                                     \
  struct alignas(2 * sizeof(type)) name##2 {                                  \
    type x, y;                                                                \
  };                                                                          \
  struct name##3 {                                                            \
    type x, y, z;                                                             \
  };                                                                          \
  struct alignas(size) name##4 {                                              \
    type x, y, z, w;                                                          \
  };                                                                          \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATOR_VECTOR(char, signed char, 4)
EMULATOR_VECTOR(uchar, unsigned char, 4)
EMULATOR_VECTOR(short, short, 8)
EMULATOR_VECTOR(ushort, unsigned short, 8)
EMULATOR_VECTOR(int, int, 16)
EMULATOR_VECTOR(uint, unsigned, 16)
EMULATOR_VECTOR(longlong, long long, 16)
EMULATOR_VECTOR(ulonglong, unsigned long long, 16)
EMULATOR_VECTOR(float, float, 16)
EMULATOR_VECTOR(double, double, 16)
#undef EMULATOR_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

// Of the thread that runs now; set by the scheduler.
inline constinit uint3 threadIdx = {}, blockIdx = {};
inline constinit dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace emulator {

struct Where {  // a std::source_location, which the clang 14 of `./dev lint` lacks
  const char* file;
  int line;
  static constexpr Where current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Where&) const = default;
};

inline constinit unsigned char* dynamic_shared = nullptr;
inline unsigned char* DynamicShared() { return dynamic_shared; }

// scheduler.cc. All threads of a block meet at the same barrier; what they meet is `name`.
struct Votes {
  int any, count, all;
};
Votes MeetBlock(const char* name, bool vote, Where where);

// All lanes in `mask` meet at the same collective. Meet returns what the lane `source` gave as `value`.
uint64_t Meet(const char* name, unsigned mask, int width, uint64_t value, int source, Where where);
// Bits of the lanes in `mask` whose vote is true.
unsigned MeetToVote(const char* name, unsigned mask, bool vote, Where where);
// D [16, 8] += A [16, 16] B [16, 8] in the fragments of kernels/cuda/device/mma.cuh. Products are exact; each
// element adds its 16 to d in ascending order, rounding to float32 after each. (A tensor core adds them in an order of
// its own.)
void MmaBf16(float d[4], const uint32_t a[4], const uint32_t b[2], Where where = Where::current());
// The same of halves, but each element is d and the 16 products added up exactly, then rounded towards zero, as far as
// is known of tensor cores.
void MmaHalf(float d[4], const uint32_t a[4], const uint32_t b[2], Where where = Where::current());
// The process fails where an operand is no tf32.
void MmaTf32(float d[4], const float a[4], const float b[2], Where where = Where::current());

// ldmatrix, four matrices [8, 8] of 16-bit elements at once: row r of matrix m begins where `row` of lane 8 m + r says.
// With g = lane / 4 and t = lane % 4, to[m] gets the columns 2t and 2t + 1 of row g of matrix m, low half first; of the
// transposed matrices the rows 2t and 2t + 1 of column g.
void LoadMatrices(bool transposed, const void* row, uint32_t to[4], Where where = Where::current());

int Lane();  // of the running thread in its warp

// A barrier in shared memory (mbarrier): a phase is over once its number of threads have arrived, and the bytes that
// they announced have been copied. See async.cc.
class SharedBarrier {
 public:
  void Init(int arrivals);
  void Arrive(int more_bytes);                            // that the phase waits for
  void AddBytes(int bytes);                               // are there
  void Wait(int parity, Where where = Where::current());  // until the phase of this parity is over; the first has 0

 private:
  friend void MeetWarpgroup(Where where);
  void EndPhase();

  int32_t arrivals_, missing_, bytes_, phase_;
};
// All 128 threads of a warpgroup meet: what they compute together, each warp computes for itself here.
void MeetWarpgroup(Where where = Where::current());
// Matrices [rows, columns] of 16-bit elements, and a copy of a box of one to shared memory as TMA makes it with a
// swizzle of 128 bytes; elements outside of the matrix are zeros. The copy is done at once.
struct TensorMap {
  const void* data;
  int64_t columns, rows, count;
  int64_t row_stride, matrix_stride;
};
void CopyBox(const TensorMap& map, int column, int64_t row, int matrix, int box_columns, int box_rows, void* to,
             SharedBarrier& barrier);

template <typename T>
T Shuffle(const char* name, unsigned mask, T value, int source, int width, Where where) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Meet(name, mask, width, bits, source, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace emulator

#define EMULATOR_WHERE emulator::Where where = emulator::Where::current()

inline void __syncthreads(EMULATOR_WHERE) { emulator::MeetBlock("__syncthreads", false, where); }
inline int __syncthreads_or(int p, EMULATOR_WHERE) { return emulator::MeetBlock("__syncthreads_or", p, where).any; }
inline int __syncthreads_and(int p, EMULATOR_WHERE) { return emulator::MeetBlock("__syncthreads_and", p, where).all; }
inline int __syncthreads_count(int p, EMULATOR_WHERE) {
  return emulator::MeetBlock("__syncthreads_count", p, where).count;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, EMULATOR_WHERE) {
  emulator::Meet("__syncwarp", mask, 32, 0, emulator::Lane(), where);
}
inline unsigned __ballot_sync(unsigned mask, int p, EMULATOR_WHERE) {
  return emulator::MeetToVote("__ballot_sync", mask, p, where);
}
inline int __any_sync(unsigned mask, int p, EMULATOR_WHERE) {
  return emulator::MeetToVote("__any_sync", mask, p, where) != 0;
}
inline int __all_sync(unsigned mask, int p, EMULATOR_WHERE) {
  return emulator::MeetToVote("__all_sync", mask, p, where) == mask;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_WHERE) {
  const int first = emulator::Lane() & ~(width - 1);
  return emulator::Shuffle("__shfl_sync", mask, value, first + (source & (width - 1)), width, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATOR_WHERE) {
  // Reading from a later group of `width` lanes is undefined on the device: it gives the lane's own value.
  const int lane = emulator::Lane(), source = lane ^ bits;
  return emulator::Shuffle("__shfl_xor_sync", mask, value, source <= (lane | (width - 1)) ? source : lane, width,
                           where);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_WHERE) {
  const int lane = emulator::Lane(), place = lane & (width - 1);
  return emulator::Shuffle("__shfl_up_sync", mask, value, place >= static_cast<int>(delta) ? lane - delta : lane, width,
                           where);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_WHERE) {
  const int lane = emulator::Lane(), place = lane & (width - 1);
  return emulator::Shuffle("__shfl_down_sync", mask, value,
                           place + static_cast<int>(delta) < width ? lane + delta : lane, width, where);
}
#undef EMULATOR_WHERE

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }
inline unsigned __float_as_uint(float x) { return emulator::BitCast<unsigned>(x); }
inline int __float_as_int(float x) { return emulator::BitCast<int>(x); }
inline float __uint_as_float(unsigned x) { return emulator::BitCast<float>(x); }
inline float __int_as_float(int x) { return emulator::BitCast<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::BitCast<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::BitCast<double>(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned to = 0;
  for (int i = 0; i < 4; ++i) to |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7u)) & 0xFFu) << (8 * i);
  return to;
}
inline int __dp4a(int a, int b, int c) {
  for (int byte = 0; byte < 4; ++byte) {
    c += static_cast<int8_t>(static_cast<unsigned>(a) >> (8 * byte)) *
         static_cast<int8_t>(static_cast<unsigned>(b) >> (8 * byte));
  }
  return c;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define __expf(x) expf(x)  // glibc declares functions of these names
#define __logf(x) logf(x)

template <typename T>
T __ldg(const T* p) {
  return *p;
}

// As CUDA's: of two numbers of different types, the usual common type.
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> min(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return y < x ? y : x;
}
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> max(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return x < y ? y : x;
}

// Atomics: no thread runs in between, so plain accesses do. None on floats: sums would depend on the order.
#define EMULATOR_ATOMIC(name, type, result)     \
  inline type name(type* address, type value) { \
    const type old = *address;                  \
    *address = result;                          \
    return old;                                 \
  }
#define EMULATOR_ATOMICS(type)                                        \
  EMULATOR_ATOMIC(atomicAdd, type, static_cast<type>(old + value))    \
  EMULATOR_ATOMIC(atomicMin, type, value < old ? value : old)         \
  EMULATOR_ATOMIC(atomicMax, type, old < value ? value : old)         \
  EMULATOR_ATOMIC(atomicAnd, type, old& value)                        \
  EMULATOR_ATOMIC(atomicOr, type, old | value)                        \
  EMULATOR_ATOMIC(atomicExch, type, value)                            \
  inline type atomicCAS(type* address, type expected, type desired) { \
    const type old = *address;                                        \
    if (old == expected) *address = desired;                          \
    return old;                                                       \
  }
EMULATOR_ATOMICS(int)
EMULATOR_ATOMICS(unsigned)
EMULATOR_ATOMICS(unsigned long long)
#undef EMULATOR_ATOMICS
#undef EMULATOR_ATOMIC

#endif  // EDGEWISE_TESTS_CUDA_EMULATOR_DEVICE_H_
