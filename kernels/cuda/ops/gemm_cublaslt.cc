// Gemm (gemm.h) by cuBLASLt.
//
// cuBLASLt counts in columns: y [rows, out] in rows is its D [out, rows] with leading dimension y_stride, x is its B
// [in, rows], W [out, in] its A [in, out], transposed: D = A^T B. So m is `out`, n is `rows`, k is `in`.
//
// One algorithm is chosen per shape, for kPlanRows rows, and used for every number of rows: the order in which an
// element of y is summed is part of the algorithm (its tile of k, no parts of k summed apart). An algorithm is taken
// only if it accepts all of kTriedRows.
#include <cublasLt.h>

#include <array>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/gemm.h"

namespace edgewise::cuda {
namespace {

constexpr int64_t kPlanRows = 1024;
constexpr std::array<int64_t, 9> kTriedRows = {1, 2, 3, 17, 64, 129, 1000, 4099, kGemmRows};
constexpr int kCandidates = 64;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kAlignment = 16;  // bytes, of every pointer given to Run

absl::Status LtStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(text);
  absl::Status result = absl::InternalError(text);
  if (status == CUBLAS_STATUS_EXECUTION_FAILED) result.SetPayload(kDeviceLost, absl::Cord("1"));
  return result;
}

// The four matrices and the operation, as cuBLASLt describes them.
struct Description {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, y;
};

absl::Status Describe(const GemmShape& shape, int64_t rows, int64_t x_stride, int64_t y_stride, Description& d) {
  const cudaDataType_t type = shape.bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto in = static_cast<uint64_t>(shape.in), out = static_cast<uint64_t>(shape.out);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  // CUBLAS_COMPUTE_32F multiplies float32 as float32; TF32 would be CUBLAS_COMPUTE_32F_FAST_TF32.
  cublasStatus_t status = cublasLtMatmulDescInit(&d.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulDescSetAttribute(&d.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  }
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatrixLayoutInit(&d.weight, type, in, out, shape.in);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatrixLayoutInit(&d.x, type, in, static_cast<uint64_t>(rows), x_stride);
  }
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatrixLayoutInit(&d.y, CUDA_R_32F, out, static_cast<uint64_t>(rows), y_stride);
  }
  return LtStatus(status, "description of a product");
}

absl::Status DescribePreference(cublasLtMatmulPreferenceOpaque_t& preference) {
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
  const uint64_t workspace = kWorkspaceBytes;
  cublasStatus_t status = cublasLtMatmulPreferenceInit(&preference);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                  sizeof(reductions));
  }
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                  sizeof(workspace));
  }
  for (const auto matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    if (status != CUBLAS_STATUS_SUCCESS) break;
    status = cublasLtMatmulPreferenceSetAttribute(&preference, matrix, &kAlignment, sizeof(kAlignment));
  }
  return LtStatus(status, "preferences of a product");
}

// Whether an element's sum is one part, made by one block of threads.
bool SumsInOnePart(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 0;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
  size_t written = 0;
  cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                               sizeof(parts), &written);
  if (status != CUBLAS_STATUS_SUCCESS) return false;
  status = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                sizeof(reduction), &written);
  return status == CUBLAS_STATUS_SUCCESS && (parts == 0 || parts == 1) && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

struct LtPlan : GemmPlan {
  GemmShape shape;
  cublasLtMatmulAlgo_t algorithm = {};
};

class LtGemm : public Gemm {
 public:
  LtGemm(std::shared_ptr<Device> device, cublasLtHandle_t handle, DeviceArray workspace)
      : device_(std::move(device)), handle_(handle), workspace_(std::move(workspace)) {}
  ~LtGemm() override { cublasLtDestroy(handle_); }

  absl::StatusOr<std::unique_ptr<GemmPlan>> Plan(const GemmShape& shape) override {
    Description d = {};
    absl::Status described = Describe(shape, kPlanRows, shape.in, shape.out, d);
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
    for (int i = 0; i < count; ++i) {
      if (candidates[i].state != CUBLAS_STATUS_SUCCESS || !SumsInOnePart(candidates[i].algo)) continue;
      absl::StatusOr<bool> accepts = AcceptsAllRows(shape, candidates[i].algo);
      if (!accepts.ok()) return accepts.status();
      if (!*accepts) continue;
      auto plan = std::make_unique<LtPlan>();
      plan->shape = shape;
      plan->algorithm = candidates[i].algo;
      return plan;
    }
    return absl::NotFoundError(absl::StrCat(
        "cuBLASLt: no algorithm for ", shape.in, " by ", shape.out, shape.bf16 ? " in bf16" : " in float32",
        " that sums in one part and takes any number of rows; ", count, " offered"));
  }

  absl::Status Run(const GemmPlan& plan, const void* weight, const void* x, int64_t x_stride, int64_t rows, float* y,
                   int64_t y_stride, bool accumulate) override {
    const LtPlan& p = static_cast<const LtPlan&>(plan);
    Description d = {};
    absl::Status described = Describe(p.shape, rows, x_stride, y_stride, d);
    if (!described.ok()) return described;
    const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;  // read before the call returns
    return LtStatus(cublasLtMatmul(handle_, &d.operation, &alpha, weight, &d.weight, x, &d.x, &beta, y, &d.y, y, &d.y,
                                   &p.algorithm, workspace_.data(), kWorkspaceBytes, device_->stream()),
                    "product");
  }

 private:
  absl::StatusOr<bool> AcceptsAllRows(const GemmShape& shape, const cublasLtMatmulAlgo_t& algorithm) {
    for (const int64_t rows : kTriedRows) {
      Description d = {};
      absl::Status described = Describe(shape, rows, shape.in, shape.out, d);
      if (!described.ok()) return described;
      cublasLtMatmulHeuristicResult_t result = {};
      const cublasStatus_t status =
          cublasLtMatmulAlgoCheck(handle_, &d.operation, &d.weight, &d.x, &d.y, &d.y, &algorithm, &result);
      if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) return false;
    }
    return true;
  }

  const std::shared_ptr<Device> device_;
  const cublasLtHandle_t handle_;
  const DeviceArray workspace_;  // of products of this stream, which run one after the other
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(std::shared_ptr<Device> device) {
  if (absl::Status status = device->Use(); !status.ok()) return status;
  absl::StatusOr<DeviceArray> workspace = DeviceArray::Create(*device, kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  cublasLtHandle_t handle = nullptr;
  if (absl::Status status = LtStatus(cublasLtCreate(&handle), "start"); !status.ok()) return status;
  return std::make_unique<LtGemm>(std::move(device), handle, *std::move(workspace));
}

}  // namespace edgewise::cuda
