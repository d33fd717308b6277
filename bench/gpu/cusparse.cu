// Unfused sparse attention by cuSPARSE: SDDMM, softmax, SpMM, one after the other, in device memory: a peer of
// attention_gpu.py. Several heads are one matrix, block after block along its diagonal.
#include <cuda_runtime.h>
#include <cusparse.h>

#include <algorithm>
#include <string>
#include <vector>

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

namespace edgewise::bench {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
constexpr auto kPlain = CUSPARSE_OPERATION_NON_TRANSPOSE, kTransposed = CUSPARSE_OPERATION_TRANSPOSE;

// One warp a row: values become their softmax.
__global__ void __launch_bounds__(kThreads) RowSoftmax(const int32_t* offsets, int64_t rows, float* values) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarpSize;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int32_t begin = offsets[row], end = offsets[row + 1];
  float largest = -INFINITY, sum = 0.0f;
  for (int32_t e = begin + lane; e < end; e += kWarpSize) largest = fmaxf(largest, values[e]);
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, step));
  for (int32_t e = begin + lane; e < end; e += kWarpSize) sum += expf(values[e] - largest);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
  for (int32_t e = begin + lane; e < end; e += kWarpSize) values[e] = expf(values[e] - largest) / sum;
}

// Handles and buffers, made once and freed at the end; the first error stays.
class Run {
 public:
  explicit Run(std::string* error) : error_(*error) {}
  ~Run() {
    for (void* memory : memory_) cudaFree(memory);
    if (scores_ != nullptr) cusparseDestroySpMat(scores_);
    for (cusparseDnMatDescr_t matrix : matrices_) cusparseDestroyDnMat(matrix);
    if (handle_ != nullptr) cusparseDestroy(handle_);
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  // Device memory, which must outlive this; once. False: see the error.
  bool Prepare(int ordinal, const EdgewiseCusparseProblem& problem);
  // The three steps.
  bool Enqueue();
  // Calls `enqueue` between two events and waits; milliseconds.
  template <typename EnqueueAll>
  double Time(const EnqueueAll& enqueue) {
    float elapsed = 0.0f;
    Cuda(cudaEventRecord(events_[0]), "event");
    enqueue();
    Cuda(cudaEventRecord(events_[1]), "event");
    Cuda(cudaEventSynchronize(events_[1]), "wait");
    Cuda(cudaEventElapsedTime(&elapsed, events_[0], events_[1]), "time");
    return elapsed;
  }

 private:
  bool Cuda(cudaError_t status, const char* what) {
    if (status != cudaSuccess && error_.empty()) error_ = std::string(what) + ": " + cudaGetErrorString(status);
    return error_.empty();
  }
  bool Sparse(cusparseStatus_t status, const char* what) {
    if (status != CUSPARSE_STATUS_SUCCESS && error_.empty()) {
      error_ = std::string(what) + ": " + cusparseGetErrorString(status);
    }
    return error_.empty();
  }
  template <typename T>
  T* Take(int64_t count) {
    void* memory = nullptr;
    if (Cuda(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)), "memory")) {
      memory_.push_back(memory);
    }
    return static_cast<T*>(memory);
  }
  // A dense matrix [rows, columns] of packed rows.
  cusparseDnMatDescr_t Dense(float* data, int64_t rows, int64_t columns) {
    cusparseDnMatDescr_t matrix = nullptr;
    if (Sparse(cusparseCreateDnMat(&matrix, rows, columns, columns, data, CUDA_R_32F, CUSPARSE_ORDER_ROW), "matrix")) {
      matrices_.push_back(matrix);
    }
    return matrix;
  }

  std::string& error_;
  EdgewiseCusparseProblem problem_ = {};
  float* values_ = nullptr;  // [edges]
  void* sddmm_buffer_ = nullptr;
  void* spmm_buffer_ = nullptr;
  cusparseHandle_t handle_ = nullptr;
  cusparseSpMatDescr_t scores_ = nullptr;
  std::vector<cusparseDnMatDescr_t> matrices_;  // q, k, v, out
  std::vector<void*> memory_;
  cudaEvent_t events_[2] = {nullptr, nullptr};
};

bool Run::Prepare(int ordinal, const EdgewiseCusparseProblem& problem) {
  problem_ = problem;
  const int64_t rows = problem.rows, d = problem.head_dim, edges = problem.edges;
  if (!Cuda(cudaSetDevice(ordinal), "device") || !Sparse(cusparseCreate(&handle_), "cuSPARSE")) return false;
  values_ = Take<float>(edges);
  float* const dense[] = {const_cast<float*>(problem.q), const_cast<float*>(problem.k), const_cast<float*>(problem.v),
                          problem.out};
  for (float* data : dense) {
    if (!error_.empty()) return false;
    Dense(data, rows, d);
  }
  if (!error_.empty() ||
      !Sparse(cusparseCreateCsr(&scores_, rows, rows, edges, const_cast<int32_t*>(problem.row_offsets),
                                const_cast<int32_t*>(problem.keys), values_, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                                CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F),
              "graph")) {
    return false;
  }
  const float one = 1.0f, zero = 0.0f;
  size_t sddmm_bytes = 0, spmm_bytes = 0;
  Sparse(cusparseSDDMM_bufferSize(handle_, kPlain, kTransposed, &problem_.scale, matrices_[0], matrices_[1], &zero,
                                  scores_, CUDA_R_32F, CUSPARSE_SDDMM_ALG_DEFAULT, &sddmm_bytes),
         "SDDMM");
  Sparse(cusparseSpMM_bufferSize(handle_, kPlain, kPlain, &one, scores_, matrices_[2], &zero, matrices_[3], CUDA_R_32F,
                                 CUSPARSE_SPMM_ALG_DEFAULT, &spmm_bytes),
         "SpMM");
  if (!error_.empty()) return false;
  sddmm_buffer_ = Take<unsigned char>(static_cast<int64_t>(sddmm_bytes));
  spmm_buffer_ = Take<unsigned char>(static_cast<int64_t>(spmm_bytes));
  for (cudaEvent_t& event : events_) Cuda(cudaEventCreate(&event), "event");
  return error_.empty() && Cuda(cudaMemset(values_, 0, static_cast<size_t>(edges) * sizeof(float)), "memset");
}

bool Run::Enqueue() {
  const float one = 1.0f, zero = 0.0f;
  Sparse(cusparseSDDMM(handle_, kPlain, kTransposed, &problem_.scale, matrices_[0], matrices_[1], &zero, scores_,
                       CUDA_R_32F, CUSPARSE_SDDMM_ALG_DEFAULT, sddmm_buffer_),
         "SDDMM");
  const int64_t threads = problem_.rows * kWarpSize;
  RowSoftmax<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads>>>(problem_.row_offsets,
                                                                                       problem_.rows, values_);
  Cuda(cudaGetLastError(), "softmax");
  return Sparse(cusparseSpMM(handle_, kPlain, kPlain, &one, scores_, matrices_[2], &zero, matrices_[3], CUDA_R_32F,
                             CUSPARSE_SPMM_ALG_DEFAULT, spmm_buffer_),
                "SpMM");
}

}  // namespace
}  // namespace edgewise::bench

struct EdgewiseCusparse {
  std::string error;
  edgewise::bench::Run run{&error};
};

#define EDGEWISE_CUSPARSE_EXPORT extern "C" __attribute__((visibility("default")))

EDGEWISE_CUSPARSE_EXPORT EdgewiseCusparse* EdgewiseCusparseOpen(int ordinal, const EdgewiseCusparseProblem* problem) {
  auto* opened = new EdgewiseCusparse;
  opened->run.Prepare(ordinal, *problem);
  return opened;
}

EDGEWISE_CUSPARSE_EXPORT void EdgewiseCusparseClose(EdgewiseCusparse* opened) { delete opened; }

EDGEWISE_CUSPARSE_EXPORT const char* EdgewiseCusparseError(const EdgewiseCusparse* opened) {
  return opened->error.c_str();
}

EDGEWISE_CUSPARSE_EXPORT int EdgewiseCusparseTime(EdgewiseCusparse* const* opened, int count, int first, int repeats,
                                                  double* milliseconds) {
  EdgewiseCusparse& timer = *opened[0];
  *milliseconds = timer.run.Time([&] {
    for (int r = 0; r < repeats; ++r) opened[(first + r) % count]->run.Enqueue();
  }) / repeats;
  for (int i = 0; i < count; ++i) {
    if (!opened[i]->error.empty()) return 1;
  }
  return 0;
}
