#include "kernels/cuda/ops/memberships.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/membership_halves.h"
#include "kernels/cuda/ops/membership_kernel.h"
#include "kernels/host/membership_fold.h"

namespace edgewise::cuda {
namespace {

struct CudaMembershipWeights : public MembershipWeights {
  int32_t rank() const override { return split ? halves.rank : floats.rank; }

  bool split = false;  // else float32
  DeviceArray data;    // all weights, one behind the other
  DeviceArray heads;   // SplitHead [heads, 2] or MembershipHead [heads]
  // A call without rows; one of them.
  SplitMembershipCall halves = {};
  MembershipCall floats = {};
};

size_t Padded(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Weights on their way to the device; each begins at a multiple of 4 floats.
class Packer {
 public:
  // Element (i, o) of a matrix [in, out] is from[i * in_stride + o * out_stride]. Returns where it begins.
  int64_t AddMatrix(const float* from, size_t in, size_t out, size_t in_stride, size_t out_stride) {
    const size_t begin = floats_.size(), width = Padded(out, kMembershipOut);
    floats_.resize(begin + Padded(in, kMembershipIn) * width, 0.0f);
    for (size_t i = 0; i < in; ++i) {
      for (size_t o = 0; o < out; ++o) floats_[begin + i * width + o] = from[i * in_stride + o * out_stride];
    }
    return static_cast<int64_t>(begin);
  }
  int64_t AddVector(std::span<const float> from) {
    const size_t begin = floats_.size();
    floats_.insert(floats_.end(), from.begin(), from.end());
    floats_.resize(begin + Padded(from.size(), kMembershipOut), 0.0f);
    return static_cast<int64_t>(begin);
  }
  std::span<const float> floats() const { return floats_; }

 private:
  std::vector<float> floats_;
};

// To weights.data and weights.heads.
template <typename T, typename Head>
absl::Status Place(Device& device, std::span<const T> data, const std::vector<Head>& heads,
                   CudaMembershipWeights& weights) {
  absl::StatusOr<DeviceArray> array = DeviceArray::Copy(device, data);
  if (!array.ok()) return array.status();
  weights.data = *std::move(array);
  array = DeviceArray::Copy(device, std::span<const Head>(heads));
  if (!array.ok()) return array.status();
  weights.heads = *std::move(array);
  return absl::OkStatus();
}

absl::Status PlaceSplit(Device& device, const MembershipHalves& halves, CudaMembershipWeights& weights) {
  weights.split = true;
  weights.halves = halves.call;
  const cudaError_t error =
      cudaDeviceGetAttribute(&weights.halves.multiprocessors, cudaDevAttrMultiProcessorCount, device.ordinal());
  if (error != cudaSuccess) return CudaStatus(error, "device attributes");
  absl::Status status = Place(device, std::span<const uint4>(halves.weights), halves.heads, weights);
  weights.halves.weights = weights.data.as<uint4>();
  weights.halves.heads = weights.heads.as<SplitHead>();
  return status;
}

absl::Status PlaceFloats(Device& device, const MembershipParameters& parameters, const FoldedMemberships& folded,
                         CudaMembershipWeights& weights) {
  const auto d = static_cast<size_t>(parameters.head_dim), k = static_cast<size_t>(parameters.num_clusters);
  Packer packer;
  packer.AddMatrix(parameters.weight0.data(), d, d, 1, d);
  weights.floats.hidden_bias = packer.AddVector(parameters.bias0);
  std::vector<MembershipHead> heads;
  for (const FoldedHead& head : folded.heads) {
    MembershipHead& to = heads.emplace_back();
    to.clusters = packer.AddMatrix(head.clusters.data(), d, k, 1, d);
    to.cluster_bias = packer.AddVector(head.bias);
    // Factors of one rank: columns that a head does not have are zero.
    const auto add_factor = [&](const std::vector<float>& factor) {
      const auto own = static_cast<size_t>(head.factor.rank), rank = static_cast<size_t>(folded.rank);
      std::vector<float> wide(k * rank, 0.0f);
      for (size_t c = 0; c < k; ++c) {
        for (size_t r = 0; r < own; ++r) wide[c * rank + r] = factor[c * own + r];
      }
      return packer.AddMatrix(wide.data(), k, rank, rank, 1);
    };
    to.query_factor = to.key_factor = add_factor(head.factor.query);
    to.column_sums = -1;
    if (head.factor.semidefinite) continue;
    to.key_factor = add_factor(head.factor.key);
    std::vector<float> sums = head.factor.column_sums;
    sums.resize(static_cast<size_t>(folded.rank), 0.0f);
    to.column_sums = packer.AddVector(sums);
  }
  absl::Status status = Place(device, packer.floats(), heads, weights);
  weights.floats.weights = weights.data.as<float>();
  weights.floats.heads = weights.heads.as<MembershipHead>();
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(const std::shared_ptr<Device>& device,
                                                                      const MembershipParameters& parameters) {
  const FoldedMemberships folded = FoldMemberships(parameters);
  auto weights = std::make_unique<CudaMembershipWeights>();
  const std::optional<MembershipHalves> halves = SplitIntoHalves(parameters, folded, device->shared_memory());
  const absl::Status status =
      halves.has_value() ? PlaceSplit(*device, *halves, *weights) : PlaceFloats(*device, parameters, folded, *weights);
  if (!status.ok()) return status;
  for (MembershipRows* of :
       {static_cast<MembershipRows*>(&weights->halves), static_cast<MembershipRows*>(&weights->floats)}) {
    of->num_heads = parameters.num_heads;
    of->head_dim = parameters.head_dim;
    of->num_clusters = parameters.num_clusters;
    of->rank = folded.rank;
    of->margin = BoundMargin(folded.rank);
  }
  return weights;
}

absl::Status ComputeMemberships(const Device& device, const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                const Memberships& out) {
  const auto& w = static_cast<const CudaMembershipWeights&>(weights);
  const auto compute = [&](auto call, auto kernel) {
    call.q = q.data;
    call.k = k.data;
    call.q_stride = q.stride;
    call.k_stride = k.stride;
    call.rows = q.rows;
    call.x = const_cast<float*>(out.x);
    call.y = const_cast<float*>(out.y);
    call.query_bound = const_cast<float*>(out.query_bound);
    call.key_bound = const_cast<float*>(out.key_bound);
    call.out_rows = out.rows;
    return CudaStatus(kernel(device.stream(), call), "memberships");
  };
  return w.split ? compute(w.halves, ComputeSplitMembershipRows) : compute(w.floats, ComputeMembershipRows);
}

}  // namespace edgewise::cuda
