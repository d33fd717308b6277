// The state of Backend::MakeTokenChooser on a GPU: cuts rows of logits that come part by part into choices.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_TOKEN_CHOOSER_H_
#define EDGEWISE_KERNELS_CUDA_OPS_TOKEN_CHOOSER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/device_array.h"
#include "kernels/tensor.h"
#include "kernels/token_choice.h"

namespace edgewise::cuda {

// One thread at a time, as Backend. Keeps the device open.
class CudaTokenChooser : public TokenChooser {
 public:
  static absl::StatusOr<std::unique_ptr<TokenChooser>> Create(std::shared_ptr<Device> device,
                                                              std::span<const TokenChoice> choices, int64_t vocabulary);
  // As Backend::AddLogits, after AddOnHost.
  absl::Status Add(Matrix logits);
  // Which of the next `rows` rows of logits go to the host too: their choices ask for what the kernels do not do.
  std::vector<int64_t> HostRows(int64_t rows) const;
  void AddOnHost(ConstMatrix logits) { host_->Add(logits); }
  // The tokens of choices whose rows have all come, [choices()] in device memory.
  const ChosenToken* chosen() const { return chosen_.as<ChosenToken>(); }
  int64_t choices() const { return static_cast<int64_t>(choices_.size()); }
  // Puts what the host has chosen in place of what chosen() has, once all rows have come.
  void TakeHost(std::span<ChosenToken> chosen);
  const std::vector<TokenAlternatives>& alternatives() const override { return alternatives_; }

 private:
  CudaTokenChooser(std::shared_ptr<Device> device, std::span<const TokenChoice> choices)
      : device_(std::move(device)), choices_(choices.begin(), choices.end()) {}

  const std::shared_ptr<Device> device_;
  const std::vector<TokenChoice> choices_;
  std::optional<HostTokenChooser> host_;  // of choices that go to the host
  std::vector<TokenAlternatives> alternatives_;
  DeviceArray chosen_;
  DeviceArray sums_;     // of the samples so far of a choice of several, [vocabulary] in float64; null: all have one
  size_t choice_ = 0;    // whose rows come next
  int64_t samples_ = 0;  // of it, that have come
};

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_TOKEN_CHOOSER_H_
