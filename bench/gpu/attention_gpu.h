// The C interface by which bench/gpu/ours.py times this project's attention on memory that PyTorch owns, so that
// ours and its peers run in one process, in turns, on the same tensors. A library and not a program for that reason.
#ifndef EDGEWISE_BENCH_GPU_ATTENTION_GPU_H_
#define EDGEWISE_BENCH_GPU_ATTENTION_GPU_H_

#include <stdint.h>

extern "C" {

// The computation of one timed call. kDrawn, kAllPairs and kMemberships do the server's work, its host's part included;
// kGiven is the kernels alone, over rows of edges that are on the device already.
enum EdgewiseBenchKind { kEdgewiseDrawn = 0, kEdgewiseAllPairs = 1, kEdgewiseGiven = 2, kEdgewiseMemberships = 3 };

// `batch` sequences of n tokens one behind the other. All pointers are to device memory, float32 unless they say
// otherwise.
struct EdgewiseBenchCall {
  int64_t n;
  int32_t batch, heads, head_dim, rank;
  uint64_t seed;                         // sequence b draws with seed + b, law bernoulli, no exploration
  const float *q, *k, *v;                // [batch * n, heads * head_dim]
  float* out;                            // as q
  const float *x, *y;                    // [heads, batch * n, rank]
  const float *query_bound, *key_bound;  // [heads, batch * n]
  const int64_t* row_offsets;            // kGiven: [batch, heads, n + 1], into keys
  const int32_t* keys;                   // kGiven
};

// Functions that return an int give 0, or 1 after an error, which EdgewiseBenchError then tells.
typedef struct EdgewiseBench EdgewiseBench;
// Never null; the error says whether it can be used.
EdgewiseBench* EdgewiseBenchOpen(int ordinal, int bf16);
void EdgewiseBenchClose(EdgewiseBench* bench);
const char* EdgewiseBenchError(const EdgewiseBench* bench);

// Runs `kind` `repeats` times between two events, on calls[(first + r) % num_calls], and waits. milliseconds: of one
// run.
int EdgewiseBenchTime(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* calls, int num_calls, int first,
                      int repeats, double* milliseconds);
// The most memory that one run takes besides its operands and its output, bytes; -1: not known.
int EdgewiseBenchPeakBytes(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* call, int64_t* bytes);
// Runs it once, into an output of NaN, and compares some rows with float64 attention on the host over the edges that
// kernels/draw/draw.h defines. error: the largest difference, relative to the largest value.
int EdgewiseBenchCheck(EdgewiseBench* bench, int kind, const EdgewiseBenchCall* call, double* error);

// Edges for kGiven: draws those of kDrawn. Where there are at most `most`, they stay in host memory until ListEdges has
// copied them: how many each row has [batch, heads, n], and their keys, row by row.
int EdgewiseBenchDraw(EdgewiseBench* bench, const EdgewiseBenchCall* call, int64_t most, int64_t* edges);
int EdgewiseBenchListEdges(EdgewiseBench* bench, int32_t* row_edges, int32_t* keys);

}  // extern "C"

#endif  // EDGEWISE_BENCH_GPU_ATTENTION_GPU_H_
