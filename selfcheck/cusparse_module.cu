// The module of cusparse.h.
#include <cuda_runtime.h>
#include <cusparse.h>

#include <algorithm>
#include <string>
#include <vector>

#include "selfcheck/cusparse.h"

namespace edgewise::selfcheck {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

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

// What is made once, freed at the end; the first error stays.
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

  void Attend(int ordinal, const CsrAttention& problem, int repeats, float* out, double* milliseconds);

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
  template <typename T>
  T* Place(const std::vector<T>& host) {
    T* device = Take<T>(static_cast<int64_t>(host.size()));
    if (device != nullptr && !host.empty()) {
      Cuda(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    }
    return device;
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
  cusparseHandle_t handle_ = nullptr;
  cusparseSpMatDescr_t scores_ = nullptr;
  std::vector<cusparseDnMatDescr_t> matrices_;
  std::vector<void*> memory_;
  cudaEvent_t events_[2] = {nullptr, nullptr};
};

std::vector<float> Packed(const float* from, const CsrAttention& problem) {
  std::vector<float> rows;
  for (int64_t r = 0; r < problem.n; ++r) {
    rows.insert(rows.end(), from + r * problem.stride, from + r * problem.stride + problem.head_dim);
  }
  return rows;
}

void Run::Attend(int ordinal, const CsrAttention& problem, int repeats, float* out, double* milliseconds) {
  const int64_t n = problem.n, d = problem.head_dim;
  const auto edges = static_cast<int64_t>(problem.edges->keys.size());
  if (!Cuda(cudaSetDevice(ordinal), "device") || !Sparse(cusparseCreate(&handle_), "cuSPARSE")) return;
  const std::vector<int32_t> host_offsets(problem.edges->row_offsets.begin(), problem.edges->row_offsets.end());
  float* values = Take<float>(edges);
  float* result = Take<float>(n * d);
  int32_t* offsets = Place(host_offsets);
  int32_t* keys = Place(problem.edges->keys);
  float* q = Place(Packed(problem.q, problem));
  float* k = Place(Packed(problem.k, problem));
  float* v = Place(Packed(problem.v, problem));
  if (!error_.empty()) return;
  cusparseDnMatDescr_t q_matrix = Dense(q, n, d), k_matrix = Dense(k, n, d), v_matrix = Dense(v, n, d);
  cusparseDnMatDescr_t out_matrix = Dense(result, n, d);
  if (!error_.empty() ||
      !Sparse(cusparseCreateCsr(&scores_, n, n, edges, offsets, keys, values, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                                CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F),
              "graph")) {
    return;
  }
  const auto none = CUSPARSE_OPERATION_NON_TRANSPOSE, transposed = CUSPARSE_OPERATION_TRANSPOSE;
  const float scale = problem.scale, one = 1.0f, zero = 0.0f;
  size_t sddmm_bytes = 0, spmm_bytes = 0;
  Sparse(cusparseSDDMM_bufferSize(handle_, none, transposed, &scale, q_matrix, k_matrix, &zero, scores_, CUDA_R_32F,
                                  CUSPARSE_SDDMM_ALG_DEFAULT, &sddmm_bytes),
         "SDDMM");
  Sparse(cusparseSpMM_bufferSize(handle_, none, none, &one, scores_, v_matrix, &zero, out_matrix, CUDA_R_32F,
                                 CUSPARSE_SPMM_ALG_DEFAULT, &spmm_bytes),
         "SpMM");
  if (!error_.empty()) return;
  unsigned char* sddmm_buffer = Take<unsigned char>(static_cast<int64_t>(sddmm_bytes));
  unsigned char* spmm_buffer = Take<unsigned char>(static_cast<int64_t>(spmm_bytes));
  for (cudaEvent_t& event : events_) Cuda(cudaEventCreate(&event), "event");
  Cuda(cudaMemset(values, 0, static_cast<size_t>(edges) * sizeof(float)), "memset");
  std::vector<double> times;
  for (int repeat = 0; repeat < repeats && error_.empty(); ++repeat) {
    Cuda(cudaEventRecord(events_[0]), "event");
    Sparse(cusparseSDDMM(handle_, none, transposed, &scale, q_matrix, k_matrix, &zero, scores_, CUDA_R_32F,
                         CUSPARSE_SDDMM_ALG_DEFAULT, sddmm_buffer),
           "SDDMM");
    RowSoftmax<<<static_cast<unsigned>((n * kWarpSize + kThreads - 1) / kThreads), kThreads>>>(offsets, n, values);
    Cuda(cudaGetLastError(), "softmax");
    Sparse(cusparseSpMM(handle_, none, none, &one, scores_, v_matrix, &zero, out_matrix, CUDA_R_32F,
                        CUSPARSE_SPMM_ALG_DEFAULT, spmm_buffer),
           "SpMM");
    Cuda(cudaEventRecord(events_[1]), "event");
    Cuda(cudaEventSynchronize(events_[1]), "wait");
    float elapsed = 0.0f;
    Cuda(cudaEventElapsedTime(&elapsed, events_[0], events_[1]), "time");
    times.push_back(elapsed);
  }
  if (!error_.empty()) return;
  Cuda(cudaMemcpy(out, result, static_cast<size_t>(n * d) * sizeof(float), cudaMemcpyDeviceToHost), "copy");
  std::sort(times.begin(), times.end());
  *milliseconds = times.empty() ? 0.0 : times[times.size() / 2];
}

}  // namespace
}  // namespace edgewise::selfcheck

extern "C" __attribute__((visibility("default"))) void EdgewiseCusparseAttend(
    int ordinal, const edgewise::selfcheck::CsrAttention& problem, int repeats, float* out, double* milliseconds,
    std::string* error) {
  edgewise::selfcheck::Run(error).Attend(ordinal, problem, repeats, out, milliseconds);
}
