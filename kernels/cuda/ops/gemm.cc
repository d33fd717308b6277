#include "kernels/cuda/ops/gemm.h"

#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/gemm_kernels.h"
#include "kernels/cuda/ops/rows.h"

namespace edgewise::cuda {
namespace {

// Floats of the sums of slices apart. More rows add one slice to the other: those fill a GPU by themselves.
constexpr int64_t kMostApart = int64_t{1} << 23;
constexpr int64_t kTrialRows = 509;  // that differ; a prime, so that a tile of rows begins with any of them

size_t ClassOf(int64_t rows) {
  return static_cast<size_t>(std::lower_bound(kRowClasses.begin(), kRowClasses.end(), rows) - kRowClasses.begin());
}

int64_t MostRows(const GemmShape& shape, size_t row_class) { return std::min(kRowClasses[row_class], shape.most_rows); }
int64_t LeastRows(size_t row_class) { return row_class == 0 ? 1 : kRowClasses[row_class - 1] + 1; }

GemmCall CallOf(const GemmShape& shape, int64_t rows, int64_t x_stride, int64_t y_stride) {
  return {shape, rows, x_stride, y_stride, SumsApart(shape, rows) > 1};
}

// Packed, as in a trial.
GemmCall TrialOf(const GemmShape& shape, int64_t rows) {
  return CallOf(shape, rows, shape.slices * shape.in, shape.out);
}

// The plans of this process, by device: another backend of the same device, or another model, finds them again.
std::vector<std::pair<int, std::shared_ptr<const GemmPlan>>>& Plans() {
  static auto* const plans = new std::vector<std::pair<int, std::shared_ptr<const GemmPlan>>>;
  return *plans;
}

}  // namespace

int32_t SumsApart(const GemmShape& shape, int64_t rows) {
  return shape.slices * MostRows(shape, ClassOf(rows)) * shape.out <= kMostApart ? shape.slices : 1;
}

int64_t MostSums(const GemmShape& shape, int64_t most_rows) {
  int64_t most = 0;
  for (const int64_t of_class : kRowClasses) {
    const int64_t rows = std::min(of_class, most_rows);
    most = std::max(most, SumsApart(shape, rows) * rows * shape.out);
  }
  return most;
}

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(std::shared_ptr<Device> device) {
  const char* own = std::getenv("EDGEWISE_CUDA_OWN_PRODUCTS");
  if (own != nullptr && std::string_view(own) == "1")
    return std::unique_ptr<Gemm>(new Gemm(std::move(device), nullptr));
  absl::StatusOr<std::unique_ptr<GemmLibrary>> library = GemmLibrary::Create(device);
  if (!library.ok()) return library.status();
  return std::unique_ptr<Gemm>(new Gemm(std::move(device), *std::move(library)));
}

absl::StatusOr<int32_t> Gemm::RunBy(cudaStream_t stream, const GemmLibrary::Algorithm& algorithm, const GemmCall& call,
                                    const void* weight, const void* x, float* y, bool accumulate) {
  const int64_t slice_bytes = call.shape.in * call.shape.element();
  const auto of_slice = [&](const void* data, int32_t slice) {
    return static_cast<const unsigned char*>(data) + slice * slice_bytes;
  };
  for (int32_t s = 0; s < (call.apart ? 1 : call.shape.slices); ++s) {
    const absl::Status status =
        library_->Run(stream, call, algorithm, of_slice(weight, s), of_slice(x, s), y, accumulate || s > 0);
    if (!status.ok()) return status;
  }
  return call.apart ? call.shape.slices : 1;
}

absl::StatusOr<int32_t> Gemm::Run(const GemmPlan& plan, const void* weight, const void* x, int64_t x_stride,
                                  int64_t rows, float* y, int64_t y_stride, bool accumulate) {
  if (const auto& algorithm = plan.algorithms[ClassOf(rows)]; algorithm.has_value()) {
    absl::StatusOr<int32_t> sums =
        RunBy(device_->stream(), *algorithm, CallOf(plan.shape, rows, x_stride, y_stride), weight, x, y, accumulate);
    // Not every number of rows was tried.
    if (!absl::IsUnimplemented(sums.status())) return sums;
  }
  const Finish plain = {.y = {y, y_stride}, .accumulate = accumulate};
  const absl::Status status = RunFinished(plan, weight, x, x_stride, rows, plain);
  if (!status.ok()) return status;
  return 1;
}

bool Gemm::FinishesItself(const GemmPlan& plan, int64_t rows, bool apart) {
  const size_t row_class = ClassOf(rows);
  return !plan.algorithms[row_class].has_value() || (apart && plan.own_finishes[row_class]);
}

absl::Status Gemm::RunFinished(const GemmPlan& plan, const void* weight, const void* x, int64_t x_stride, int64_t rows,
                               const Finish& finish) {
  return CudaStatus(ChainProduct(device_->stream(), plan.shape, weight, x, x_stride, rows, finish), "product");
}

// Random rows, room for their products, and the first kTrialRows products of our own kernel.
struct Gemm::Trial {
  const void* weight = nullptr;
  DeviceArray x, y, expected, differs;
  bool zero = false;  // all products are: they show nothing
};

absl::StatusOr<Gemm::Trial> Gemm::MakeTrial(const GemmShape& shape, int64_t most_rows, const void* weight) {
  Trial trial = {weight};
  const int64_t of_float = sizeof(float), columns = shape.slices * shape.in;
  const std::pair<DeviceArray*, int64_t> arrays[] = {
      {&trial.x, most_rows * shape.row_bytes()},
      {&trial.y, MostSums(shape, most_rows) * of_float},
      {&trial.expected, kTrialRows * shape.out * of_float},
      {&trial.differs, of_float},
  };
  for (const auto& [array, bytes] : arrays) {
    absl::StatusOr<DeviceArray> memory = DeviceArray::Create(*device_, bytes);
    if (!memory.ok()) return memory.status();
    *array = *std::move(memory);
  }
  const cudaStream_t stream = device_->stream();
  const int64_t rows = std::min(kTrialRows, most_rows);
  cudaError_t error = FillTrial(stream, most_rows, shape.row_bytes(), kTrialRows, trial.x.data());
  if (error == cudaSuccess) {
    const Finish plain = {.y = {trial.expected.as<float>(), shape.out}};
    error = ChainProduct(stream, shape, weight, trial.x.data(), columns, rows, plain);
  }
  if (error == cudaSuccess) error = cudaMemsetAsync(trial.differs.data(), 0, sizeof(int32_t), stream);
  if (error == cudaSuccess) {
    const auto* expected = trial.expected.as<float>();
    error = CompareTrial(stream, expected, 1, rows, shape.out, expected, kTrialRows, 0.0f, trial.differs.as<int32_t>());
  }
  if (error != cudaSuccess) return CudaStatus(error, "trial of products");
  const absl::StatusOr<bool> differs = Differs(trial);
  if (!differs.ok()) return differs.status();
  trial.zero = !*differs;
  return trial;
}

absl::StatusOr<bool> Gemm::Differs(const Trial& trial) {
  int32_t differs = 0;
  const Staging::ToHost copy = {&differs, trial.differs.data(), sizeof(differs)};
  const absl::Status status = device_->staging().Download({&copy, 1});
  if (!status.ok()) return status;
  return differs != 0;
}

absl::StatusOr<bool> Gemm::HasOurBytes(const GemmLibrary::Algorithm& algorithm, const GemmShape& shape,
                                       size_t row_class, const Trial& trial) {
  const cudaStream_t stream = device_->stream();
  const int64_t least = LeastRows(row_class), most = MostRows(shape, row_class);
  cudaError_t error = cudaMemsetAsync(trial.differs.data(), 0, sizeof(int32_t), stream);
  for (const int64_t rows : {least, least + 1, (least + most) / 2 | 1, most - 1, most}) {
    if (rows < least || rows > most) continue;
    const GemmCall call = TrialOf(shape, rows);
    const int64_t y_bytes = SumsApart(shape, rows) * rows * shape.out * static_cast<int64_t>(sizeof(float));
    if (error == cudaSuccess) error = cudaMemsetAsync(trial.y.data(), 0xFF, static_cast<size_t>(y_bytes), stream);
    // y = product, and where that is what Run does y += product.
    for (int times = 1; times <= (shape.slices == 1 ? 2 : 1); ++times) {
      const absl::StatusOr<int32_t> sums =
          RunBy(stream, algorithm, call, trial.weight, trial.x.data(), trial.y.as<float>(), times == 2);
      if (absl::IsUnimplemented(sums.status())) return false;
      if (!sums.ok()) return sums.status();
      if (error != cudaSuccess) continue;
      error = CompareTrial(stream, trial.y.as<float>(), *sums, rows, shape.out, trial.expected.as<float>(), kTrialRows,
                           static_cast<float>(times), trial.differs.as<int32_t>());
    }
  }
  if (error != cudaSuccess) return CudaStatus(error, "trial of an algorithm");
  const absl::StatusOr<bool> differs = Differs(trial);
  if (!differs.ok()) return differs.status();
  return !*differs;
}

absl::StatusOr<std::shared_ptr<const GemmPlan>> Gemm::Plan(const GemmShape& shape, const void* weight) {
  for (const auto& [ordinal, plan] : Plans()) {
    if (ordinal == device_->ordinal() && plan->shape == shape) return plan;
  }
  auto plan = std::make_shared<GemmPlan>(GemmPlan{shape});
  std::array<std::vector<GemmLibrary::Algorithm>, kRowClasses.size()> offers;
  int64_t most_rows = 0;
  for (size_t c = 0; library_ != nullptr && c < kRowClasses.size() && LeastRows(c) <= shape.most_rows; ++c) {
    absl::StatusOr<std::vector<GemmLibrary::Algorithm>> offered = library_->Offer(TrialOf(shape, MostRows(shape, c)));
    if (!offered.ok()) return offered.status();
    offers[c] = *std::move(offered);
    if (!offers[c].empty()) most_rows = MostRows(shape, c);
  }
  if (most_rows > 0) {
    const absl::StatusOr<Trial> trial = MakeTrial(shape, most_rows, weight);
    if (!trial.ok()) return trial.status();
    if (trial->zero) return plan;
    for (size_t c = 0; c < kRowClasses.size(); ++c) {
      const absl::Status status = Choose(offers[c], c, *trial, *plan);
      if (!status.ok()) return status;
    }
  }
  Plans().emplace_back(device_->ordinal(), plan);
  return plan;
}

// The fastest of those with our bytes; and whether our own kernel is faster where the product is finished.
absl::Status Gemm::Choose(const std::vector<GemmLibrary::Algorithm>& offered, size_t row_class, const Trial& trial,
                          GemmPlan& plan) {
  const GemmShape& shape = plan.shape;
  const int64_t rows = MostRows(shape, row_class);
  auto* const y = trial.y.as<float>();
  float least = std::numeric_limits<float>::infinity();
  for (const GemmLibrary::Algorithm& algorithm : offered) {
    const absl::StatusOr<bool> same = HasOurBytes(algorithm, shape, row_class, trial);
    if (!same.ok()) return same.status();
    if (!*same) continue;
    const absl::StatusOr<float> milliseconds = library_->Time([&](cudaStream_t stream) {
      return RunBy(stream, algorithm, TrialOf(shape, rows), trial.weight, trial.x.data(), y, false).status();
    });
    if (!milliseconds.ok()) return milliseconds.status();
    if (*milliseconds < least) {
      least = *milliseconds;
      plan.algorithms[row_class] = algorithm;
    }
  }
  if (!plan.algorithms[row_class].has_value()) return absl::OkStatus();
  const Finish finish = {.y = {y, shape.out, Form::kFloat32, 0, shape.out}};
  const absl::StatusOr<float> own = library_->Time([&](cudaStream_t stream) {
    return CudaStatus(ChainProduct(stream, shape, trial.weight, trial.x.data(), shape.slices * shape.in, rows, finish),
                      "clock of our product");
  });
  if (!own.ok()) return own.status();
  const absl::StatusOr<float> both = library_->Time([&](cudaStream_t stream) {
    const absl::StatusOr<int32_t> sums =
        RunBy(stream, *plan.algorithms[row_class], TrialOf(shape, rows), trial.weight, trial.x.data(), y, false);
    if (!sums.ok()) return sums.status();
    return CudaStatus(FinishProduct(stream, {y, rows, shape.out}, *sums, finish, shape.out),
                      "clock of what follows a product");
  });
  if (!both.ok()) return both.status();
  plan.own_finishes[row_class] = *own <= *both;
  return absl::OkStatus();
}

void Gemm::ForgetPlans() { Plans().clear(); }

}  // namespace edgewise::cuda
