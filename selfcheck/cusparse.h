// Unfused sparse attention by cuSPARSE: SDDMM, softmax, SpMM, one after the other. The second opinion of the
// self-check, in a module of its own that is opened only there.
#ifndef EDGEWISE_SELFCHECK_CUSPARSE_H_
#define EDGEWISE_SELFCHECK_CUSPARSE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"

namespace edgewise::selfcheck {

inline constexpr char kCusparseModuleName[] = "libedgewise_cusparse.so";
inline constexpr char kCusparseModuleSymbol[] = "EdgewiseCusparseAttend";

// One head of one sequence; host memory, float32, row-major.
struct CsrAttention {
  int64_t n = 0;
  int32_t head_dim = 0;
  float scale = 1.0f;
  const float* q = nullptr;  // [n, head_dim], rows `stride` floats apart; k and v likewise
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
  const HeadEdges* edges = nullptr;
};

// Attends over the given edges. out [n, head_dim]; milliseconds: the median of `repeats` runs of the three steps, the
// matrices and the rows of the graph being on the device already. An empty error: done.
using CusparseAttend = void(int ordinal, const CsrAttention& problem, int repeats, float* out, double* milliseconds,
                            std::string* error);

// The module is $EDGEWISE_CUSPARSE_MODULE, or else lies beside the program. UNAVAILABLE: the module, or cuSPARSE, is
// not there.
absl::StatusOr<CusparseAttend*> OpenCusparse();

}  // namespace edgewise::selfcheck

// The module's other function: the same three steps in device memory, for bench/gpu/peers.py. Several heads are one
// matrix, block after block along its diagonal.
extern "C" {
struct EdgewiseCusparseProblem {
  int64_t rows, edges;  // of all heads
  int32_t head_dim;
  float scale;
  const int32_t* row_offsets;  // [rows + 1]
  const int32_t* keys;         // [edges], rows of k and v
  const float *q, *k, *v;      // [rows, head_dim]
  float* out;                  // as q
};
}

#endif  // EDGEWISE_SELFCHECK_CUSPARSE_H_
