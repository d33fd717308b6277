// GemmLibrary (gemm_library.h) by cuBLASLt.
//
// cuBLASLt counts in columns: y [rows, out] in rows is its D [out, rows] with leading dimension y_stride, x is its B
// [in, rows], W [out, in] its A [in, out], transposed: D = A^T B. So m is `out`, n is `rows`, k is `in`.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/gemm_library.h"

namespace edgewise::cuda {
namespace {

constexpr int kCandidates = 12;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kAlignment = 16;  // bytes, of every pointer given to Run
constexpr int kTimed = 8;            // products
// Algorithms for products of few rows, in orders of their own.
constexpr std::array<int32_t, 3> kLeftOut = {11, 13, 16};

absl::Status LtStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(text);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    return absl::UnimplementedError(text);
  }
  absl::Status result = absl::InternalError(text);
  if (status == CUBLAS_STATUS_EXECUTION_FAILED) result.SetPayload(kDeviceLost, absl::Cord("1"));
  return result;
}

// The four matrices and the operation, as cuBLASLt describes them.
struct Description {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, y;
};

// A product as it is prepared.
struct Prepared {
  Description description;
  cublasLtMatmulAlgo_t algorithm;
};

absl::Status FirstError(std::initializer_list<cublasStatus_t> statuses, const char* what) {
  const auto* failed = std::ranges::find_if(statuses, [](cublasStatus_t s) { return s != CUBLAS_STATUS_SUCCESS; });
  return failed == statuses.end() ? absl::OkStatus() : LtStatus(*failed, what);
}

absl::Status Describe(const GemmCall& call, Description& d) {
  const GemmShape& shape = call.shape;
  const cudaDataType_t type = shape.bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto in = static_cast<uint64_t>(shape.in), out = static_cast<uint64_t>(shape.out),
             rows = static_cast<uint64_t>(call.rows);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  // CUBLAS_COMPUTE_32F multiplies float32 as float32; TF32 would be CUBLAS_COMPUTE_32F_FAST_TF32.
  const absl::Status status = FirstError(
      {cublasLtMatmulDescInit(&d.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
       cublasLtMatmulDescSetAttribute(&d.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
       cublasLtMatrixLayoutInit(&d.weight, type, in, out, shape.slices * shape.in),
       cublasLtMatrixLayoutInit(&d.x, type, in, rows, call.x_stride),
       cublasLtMatrixLayoutInit(&d.y, CUDA_R_32F, out, rows, call.y_stride)},
      "description of a product");
  if (!status.ok() || !call.apart) return status;
  const auto batch = [&](cublasLtMatrixLayoutOpaque_t& matrix, int64_t offset) {  // of slices
    return FirstError({cublasLtMatrixLayoutSetAttribute(&matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &shape.slices,
                                                        sizeof(shape.slices)),
                       cublasLtMatrixLayoutSetAttribute(&matrix, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                                        sizeof(offset))},
                      "description of slices");
  };
  absl::Status batched = batch(d.weight, shape.in);
  batched.Update(batch(d.x, shape.in));
  batched.Update(batch(d.y, call.rows * call.y_stride));
  return batched;
}

// Gives the description of one call of a shape the rows and strides of another, `apart` as it is.
absl::Status Fit(const GemmCall& call, Description& d) {
  const auto rows = static_cast<uint64_t>(call.rows);
  const auto set = [](cublasLtMatrixLayoutOpaque_t& matrix, cublasLtMatrixLayoutAttribute_t attribute,
                      const auto& value) {
    return cublasLtMatrixLayoutSetAttribute(&matrix, attribute, &value, sizeof(value));
  };
  const absl::Status status =
      FirstError({set(d.x, CUBLASLT_MATRIX_LAYOUT_COLS, rows), set(d.x, CUBLASLT_MATRIX_LAYOUT_LD, call.x_stride),
                  set(d.y, CUBLASLT_MATRIX_LAYOUT_COLS, rows), set(d.y, CUBLASLT_MATRIX_LAYOUT_LD, call.y_stride)},
                 "rows of a product");
  if (!status.ok() || !call.apart) return status;
  const int64_t offset = call.rows * call.y_stride;
  return FirstError({set(d.y, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, offset)}, "rows of slices");
}

absl::Status DescribePreference(cublasLtMatmulPreferenceOpaque_t& preference) {
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = kAlignment;
  const uint64_t workspace = kWorkspaceBytes;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value));
  };
  return FirstError(
      {cublasLtMatmulPreferenceInit(&preference), set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions),
       set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace),
       set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment),
       set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment),
       set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment),
       set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment)},
      "preferences of a product");
}

// Whether an element's sum is one part, made by one block of threads.
bool SumsInOnePart(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t id = 0, parts = 0;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
  size_t written = 0;
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written) ==
           CUBLAS_STATUS_SUCCESS;
  };
  return get(CUBLASLT_ALGO_CONFIG_ID, id) && get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) &&
         get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction) && std::ranges::count(kLeftOut, id) == 0 &&
         (parts == 0 || parts == 1) && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

class LtLibrary : public GemmLibrary {
 public:
  LtLibrary(std::shared_ptr<Device> device, cublasLtHandle_t handle, DeviceArray workspace)
      : device_(std::move(device)), handle_(handle), workspace_(std::move(workspace)) {}
  ~LtLibrary() override { cublasLtDestroy(handle_); }

  absl::StatusOr<std::vector<Algorithm>> Offer(const GemmCall& call) override {
    Description d = {};
    absl::Status described = Describe(call, d);
    if (!described.ok()) return described;
    cublasLtMatmulPreferenceOpaque_t preference = {};
    described = DescribePreference(preference);
    if (!described.ok()) return described;
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, &d.operation, &d.weight, &d.x, &d.y, &d.y,
                                                                 &preference, kCandidates, candidates.data(), &count);
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED) {
      return LtStatus(status, "choice of an algorithm");
    }
    std::vector<Algorithm> offered;
    for (int i = 0; i < count; ++i) {
      if (candidates[i].state != CUBLAS_STATUS_SUCCESS || candidates[i].workspaceSize > kWorkspaceBytes ||
          !SumsInOnePart(candidates[i].algo)) {
        continue;
      }
      const Prepared prepared = {d, candidates[i].algo};
      static_assert(sizeof(Prepared) <= sizeof(Algorithm) && std::is_trivially_copyable_v<Prepared>);
      std::memcpy(&offered.emplace_back(), &prepared, sizeof(prepared));
    }
    return offered;
  }

  absl::Status Run(cudaStream_t stream, const GemmCall& call, const Algorithm& algorithm, const void* weight,
                   const void* x, float* y, bool accumulate) override {
    Prepared prepared;
    std::memcpy(&prepared, &algorithm, sizeof(prepared));
    Description& d = prepared.description;
    absl::Status fitted = Fit(call, d);
    if (!fitted.ok()) return fitted;
    const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;  // read before the call returns
    return LtStatus(cublasLtMatmul(handle_, &d.operation, &alpha, weight, &d.weight, x, &d.x, &beta, y, &d.y, y, &d.y,
                                   &prepared.algorithm, workspace_.data(), kWorkspaceBytes, stream),
                    "product");
  }

  // From a graph, since the host would take longer to launch small products one by one; on a stream of its own, since
  // others may free memory on the device's meanwhile.
  absl::StatusOr<float> Time(const std::function<absl::Status(cudaStream_t)>& run) override {
    if (absl::Status status = device_->Synchronize(); !status.ok()) return status;
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t timed = nullptr;
    const absl::Cleanup destroy = [&] {
      if (timed != nullptr) cudaGraphExecDestroy(timed);
      if (graph != nullptr) cudaGraphDestroy(graph);
      if (end != nullptr) cudaEventDestroy(end);
      if (begin != nullptr) cudaEventDestroy(begin);
      if (stream != nullptr) cudaStreamDestroy(stream);
    };
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaEventCreate(&begin);
    if (error == cudaSuccess) error = cudaEventCreate(&end);
    if (error == cudaSuccess) error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) return CudaStatus(error, "clock of a product");
    absl::Status ran;
    for (int i = 0; i < kTimed && ran.ok(); ++i) ran = run(stream);
    error = cudaStreamEndCapture(stream, &graph);
    if (!ran.ok()) return ran;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&timed, graph, 0);
    if (error == cudaSuccess) error = cudaGraphLaunch(timed, stream);
    if (error == cudaSuccess) error = cudaEventRecord(begin, stream);
    if (error == cudaSuccess) error = cudaGraphLaunch(timed, stream);
    if (error == cudaSuccess) error = cudaEventRecord(end, stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(end);
    float milliseconds = 0.0f;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, begin, end);
    if (error != cudaSuccess) return CudaStatus(error, "clock of a product");
    return milliseconds / kTimed;
  }

 private:
  const std::shared_ptr<Device> device_;
  const cublasLtHandle_t handle_;
  const DeviceArray workspace_;  // of products that run one after the other
};

}  // namespace

absl::StatusOr<std::unique_ptr<GemmLibrary>> GemmLibrary::Create(std::shared_ptr<Device> device) {
  if (absl::Status status = device->Use(); !status.ok()) return status;
  absl::StatusOr<DeviceArray> workspace = DeviceArray::Create(*device, kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  cublasLtHandle_t handle = nullptr;
  if (absl::Status status = LtStatus(cublasLtCreate(&handle), "start"); !status.ok()) return status;
  return std::make_unique<LtLibrary>(std::move(device), handle, *std::move(workspace));
}

}  // namespace edgewise::cuda
