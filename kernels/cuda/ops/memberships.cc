#include "kernels/cuda/ops/memberships.h"

#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/device/device_array.h"
#include "kernels/cuda/ops/membership_kernel.h"
#include "kernels/membership_fold.h"

namespace edgewise::cuda {
namespace {

struct CudaMembershipWeights : public MembershipWeights {
  int32_t rank() const override { return rank_; }

  int32_t num_heads = 0, head_dim = 0, num_clusters = 0, rank_ = 0;
  DeviceArray data;           // all weights, one behind the other
  size_t hidden_bias = 0;     // floats from the start of data; `hidden` is there
  DeviceArray head_pointers;  // MembershipHead [heads]
};

size_t Padded(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Weights on their way to the device; each begins at a multiple of 4 floats.
class Packer {
 public:
  // Element (i, o) of a matrix [in, out] is from[i * in_stride + o * out_stride]. Returns where it begins.
  size_t AddMatrix(const float* from, size_t in, size_t out, size_t in_stride, size_t out_stride) {
    const size_t begin = floats_.size(), width = Padded(out, kMembershipOut);
    floats_.resize(begin + Padded(in, kMembershipIn) * width, 0.0f);
    for (size_t i = 0; i < in; ++i) {
      for (size_t o = 0; o < out; ++o) floats_[begin + i * width + o] = from[i * in_stride + o * out_stride];
    }
    return begin;
  }
  size_t AddVector(std::span<const float> from) {
    const size_t begin = floats_.size();
    floats_.insert(floats_.end(), from.begin(), from.end());
    floats_.resize(begin + Padded(from.size(), kMembershipOut), 0.0f);
    return begin;
  }
  std::span<const float> floats() const { return floats_; }

 private:
  std::vector<float> floats_;
};

struct HeadPlaces {
  size_t clusters, bias, query, key, column_sums;
  bool semidefinite;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MembershipWeights>> PrepareMemberships(const std::shared_ptr<Device>& device,
                                                                      const MembershipParameters& parameters) {
  const auto d = static_cast<size_t>(parameters.head_dim), k = static_cast<size_t>(parameters.num_clusters);
  const FoldedMemberships folded = FoldMemberships(parameters);
  auto weights = std::make_unique<CudaMembershipWeights>();
  weights->num_heads = parameters.num_heads;
  weights->head_dim = parameters.head_dim;
  weights->num_clusters = parameters.num_clusters;
  weights->rank_ = folded.rank;

  Packer packer;
  packer.AddMatrix(parameters.weight0.data(), d, d, 1, d);
  weights->hidden_bias = packer.AddVector(parameters.bias0);
  std::vector<HeadPlaces> places;
  for (const FoldedHead& head : folded.heads) {
    HeadPlaces place = {};
    place.clusters = packer.AddMatrix(head.clusters.data(), d, k, 1, d);
    place.bias = packer.AddVector(head.bias);
    place.semidefinite = head.factor.semidefinite;
    // Factors of one rank: columns that a head does not have are zero.
    const auto add_factor = [&](const std::vector<float>& factor) {
      const auto own = static_cast<size_t>(head.factor.rank), rank = static_cast<size_t>(folded.rank);
      std::vector<float> wide(k * rank, 0.0f);
      for (size_t c = 0; c < k; ++c) {
        for (size_t r = 0; r < own; ++r) wide[c * rank + r] = factor[c * own + r];
      }
      return packer.AddMatrix(wide.data(), k, rank, rank, 1);
    };
    place.query = place.key = add_factor(head.factor.query);
    if (!place.semidefinite) {
      place.key = add_factor(head.factor.key);
      std::vector<float> sums = head.factor.column_sums;
      sums.resize(static_cast<size_t>(folded.rank), 0.0f);
      place.column_sums = packer.AddVector(sums);
    }
    places.push_back(place);
  }
  absl::StatusOr<DeviceArray> data = DeviceArray::Copy(*device, packer.floats());
  if (!data.ok()) return data.status();
  weights->data = *std::move(data);

  const float* base = weights->data.as<float>();
  std::vector<MembershipHead> heads;
  for (const HeadPlaces& place : places) {
    heads.push_back({base + place.clusters, base + place.bias, base + place.query, base + place.key,
                     place.semidefinite ? nullptr : base + place.column_sums});
  }
  absl::StatusOr<DeviceArray> pointers = DeviceArray::Copy(*device, std::span<const MembershipHead>(heads));
  if (!pointers.ok()) return pointers.status();
  weights->head_pointers = *std::move(pointers);
  return weights;
}

absl::Status ComputeMemberships(const Device& device, const MembershipWeights& weights, ConstMatrix q, ConstMatrix k,
                                const Memberships& out) {
  const auto& w = static_cast<const CudaMembershipWeights&>(weights);
  MembershipCall call = {};
  call.q = q.data;
  call.k = k.data;
  call.q_stride = q.stride;
  call.k_stride = k.stride;
  call.rows = q.rows;
  call.hidden = w.data.as<float>();
  call.hidden_bias = w.data.as<float>() + w.hidden_bias;
  call.heads = w.head_pointers.as<MembershipHead>();
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
  return CudaStatus(ComputeMembershipRows(device.stream(), call), "memberships");
}

}  // namespace edgewise::cuda
