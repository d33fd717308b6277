#include "kernels/cuda/ops/memberships.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/membership_halves.h"
#include "kernels/cuda/ops/membership_kernel.h"
#include "kernels/membership_fold.h"

namespace edgewise::cuda {
namespace {

struct CudaMembershipWeights : public MembershipWeights {
  int32_t rank() const override { return rank_; }
  // Where the weights lie; what the call reads and writes is missing.
  void Describe(SplitMembershipCall& call) const {
    call.layout = layout;
    call.heads = heads.as<SplitHead>();
    call.hidden_exponent = hidden_exponent;
    call.most_weights = most_weights;
    call.multiprocessors = multiprocessors;
  }
  void Describe(MembershipCall& call) const {
    call.weights = data.as<float>();
    call.hidden_bias = hidden_bias;
    call.heads = heads.as<MembershipHead>();
  }

  int32_t num_heads = 0, head_dim = 0, num_clusters = 0, rank_ = 0;
  bool split = false;       // else float32
  DeviceArray data;         // all weights, one behind the other
  DeviceArray heads;        // SplitHead [heads, 2] or MembershipHead [heads]
  int64_t hidden_bias = 0;  // only float32
  // Only split.
  SplitLayout layout = {};
  int32_t hidden_exponent = 0, most_weights = 0, multiprocessors = 0;
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

absl::Status PlaceSplit(const std::shared_ptr<Device>& device, const MembershipHalves& halves,
                        CudaMembershipWeights& weights) {
  weights.split = true;
  weights.layout = halves.layout;
  weights.hidden_exponent = halves.hidden_exponent;
  weights.most_weights = halves.most_weights;
  const cudaError_t error =
      cudaDeviceGetAttribute(&weights.multiprocessors, cudaDevAttrMultiProcessorCount, device->ordinal());
  if (error != cudaSuccess) return CudaStatus(error, "device attributes");
  std::vector<uint4> data;
  for (const HalvesOfHead& head : halves.heads) {
    data.insert(data.end(), head.query.begin(), head.query.end());
    data.insert(data.end(), head.key.begin(), head.key.end());
  }
  absl::StatusOr<DeviceArray> array = DeviceArray::Copy(*device, std::span<const uint4>(data));
  if (!array.ok()) return array.status();
  weights.data = *std::move(array);
  std::vector<SplitHead> heads;
  const uint4* next = weights.data.as<uint4>();
  for (const HalvesOfHead& head : halves.heads) {
    heads.push_back(head.query_side);
    heads.back().weights = next;
    heads.push_back(head.key_side);
    heads.back().weights = head.key.empty() ? next : next + head.query.size();
    next += head.query.size() + head.key.size();
  }
  array = DeviceArray::Copy(*device, std::span<const SplitHead>(heads));
  if (!array.ok()) return array.status();
  weights.heads = *std::move(array);
  return absl::OkStatus();
}

absl::Status PlaceFloats(const std::shared_ptr<Device>& device, const MembershipParameters& parameters,
                         const FoldedMemberships& folded, CudaMembershipWeights& weights) {
  const auto d = static_cast<size_t>(parameters.head_dim), k = static_cast<size_t>(parameters.num_clusters);
  Packer packer;
  packer.AddMatrix(parameters.weight0.data(), d, d, 1, d);
  weights.hidden_bias = packer.AddVector(parameters.bias0);
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
  absl::StatusOr<DeviceArray> array = DeviceArray::Copy(*device, packer.floats());
  if (!array.ok()) return array.status();
  weights.data = *std::move(array);
  array = DeviceArray::Copy(*device, std::span<const MembershipHead>(heads));
  if (!array.ok()) return array.status();
  weights.heads = *std::move(array);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(const std::shared_ptr<Device>& device,
                                                                      const MembershipParameters& parameters) {
  const FoldedMemberships folded = FoldMemberships(parameters);
  auto weights = std::make_unique<CudaMembershipWeights>();
  weights->num_heads = parameters.num_heads;
  weights->head_dim = parameters.head_dim;
  weights->num_clusters = parameters.num_clusters;
  weights->rank_ = folded.rank;
  const std::optional<MembershipHalves> halves = SplitIntoHalves(parameters, folded, device->shared_memory());
  const absl::Status status =
      halves.has_value() ? PlaceSplit(device, *halves, *weights) : PlaceFloats(device, parameters, folded, *weights);
  if (!status.ok()) return status;
  return weights;
}

absl::Status ComputeMemberships(const Device& device, const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                const Memberships& out) {
  const auto& w = static_cast<const CudaMembershipWeights&>(weights);
  const auto compute = [&](auto call, auto kernel) {
    w.Describe(call);
    call.q = q.data;
    call.k = k.data;
    call.q_stride = q.stride;
    call.k_stride = k.stride;
    call.rows = q.rows;
    call.num_heads = w.num_heads;
    call.head_dim = w.head_dim;
    call.num_clusters = w.num_clusters;
    call.rank = w.rank_;
    call.x = const_cast<float*>(out.x);
    call.y = const_cast<float*>(out.y);
    call.query_bound = const_cast<float*>(out.query_bound);
    call.key_bound = const_cast<float*>(out.key_bound);
    call.out_rows = out.rows;
    call.margin = BoundMargin(w.rank_);
    return CudaStatus(kernel(device.stream(), call), "memberships");
  };
  return w.split ? compute(SplitMembershipCall{}, ComputeSplitMembershipRows)
                 : compute(MembershipCall{}, ComputeMembershipRows);
}

}  // namespace edgewise::cuda
