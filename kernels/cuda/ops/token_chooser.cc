#include "kernels/cuda/ops/token_chooser.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/cuda/device/runtime.h"
#include "kernels/cuda/ops/tokens.h"

namespace edgewise::cuda {
namespace {

bool GoesToHost(const TokenChoice& choice) { return choice.on_host() || choice.alternatives > 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<TokenChooser>> CudaTokenChooser::Create(std::shared_ptr<Device> device,
                                                                       std::span<const TokenChoice> choices,
                                                                       int64_t vocabulary) {
  std::unique_ptr<CudaTokenChooser> chooser(new CudaTokenChooser(std::move(device), choices));
  absl::StatusOr<DeviceArray> chosen =
      DeviceArray::Create(*chooser->device_, static_cast<int64_t>(choices.size() * sizeof(ChosenToken)));
  if (!chosen.ok()) return chosen.status();
  chooser->chosen_ = *std::move(chosen);
  if (std::any_of(choices.begin(), choices.end(), [](const TokenChoice& of) { return of.samples > 1; })) {
    absl::StatusOr<DeviceArray> sums =
        DeviceArray::Create(*chooser->device_, vocabulary * static_cast<int64_t>(sizeof(double)));
    if (!sums.ok()) return sums.status();
    chooser->sums_ = *std::move(sums);
  }
  std::vector<TokenChoice> on_host;
  std::copy_if(choices.begin(), choices.end(), std::back_inserter(on_host), GoesToHost);
  if (!on_host.empty()) chooser->host_.emplace(on_host, vocabulary);
  chooser->alternatives_.resize(choices.size());
  return chooser;
}

std::vector<int64_t> CudaTokenChooser::HostRows(int64_t rows) const {
  std::vector<int64_t> host;
  if (!host_) return host;
  size_t choice = choice_;
  int64_t samples = samples_;
  for (int64_t row = 0; row < rows; ++row) {
    if (GoesToHost(choices_[choice])) host.push_back(row);
    if (++samples < choices_[choice].samples) continue;
    ++choice;
    samples = 0;
  }
  return host;
}

void CudaTokenChooser::TakeHost(std::span<ChosenToken> chosen) {
  size_t next = 0;
  for (size_t i = 0; host_ && i < choices_.size(); ++i) {
    if (!GoesToHost(choices_[i])) continue;
    alternatives_[i] = host_->alternatives()[next];
    const ChosenToken& of_host = host_->chosen()[next++];
    if (choices_[i].on_host()) chosen[i] = of_host;
    for (TokenProbability& one : alternatives_[i]) {  // the same number for the same token
      if (one.id == chosen[i].id) one.log_probability = chosen[i].log_probability;
    }
  }
}

absl::Status CudaTokenChooser::Add(Matrix logits) {
  std::vector<LogitRow> all;
  std::vector<SampleRows> mixes;
  std::vector<TokenRow> whole;
  const auto first_choice = static_cast<int64_t>(choice_);
  for (int64_t row = 0; row < logits.rows;) {
    const TokenChoice& choice = choices_[choice_];
    const int64_t rows = std::min(logits.rows - row, choice.samples - samples_);
    const bool begins = samples_ == 0;
    samples_ += rows;
    const bool ends = samples_ == choice.samples;
    if (choice.samples > 1) {
      mixes.push_back({row, rows, begins ? 1 : 0, ends ? 1 : 0, static_cast<double>(choice.samples),
                       static_cast<int64_t>(choice_)});
    }
    for (int64_t r = row; r < row + rows; ++r) all.push_back({r, choice.excluded});
    if (ends) {
      whole.push_back({row, choice});
      ++choice_;
      samples_ = 0;
    }
    row += rows;
  }
  std::vector<LogitRow> mixed;
  for (const TokenRow& row : whole) mixed.push_back({row.row, row.choice.excluded});

  Staging& staging = device_->staging();
  const LogitRow* all_rows = staging.Add(std::span<const LogitRow>(all));
  const SampleRows* staged_mixes = staging.Add(std::span<const SampleRows>(mixes));
  const LogitRow* mixed_rows = staging.Add(std::span<const LogitRow>(mixed));
  const TokenRow* whole_rows = staging.Add(std::span<const TokenRow>(whole));
  absl::Status status = staging.Commit();
  if (!status.ok()) return status;
  const absl::StatusOr<DeviceArray> memory =
      DeviceArray::Create(*device_, logits.rows * PartsOfRow(logits.columns) * static_cast<int64_t>(sizeof(LogitPart)));
  if (!memory.ok()) return memory.status();
  auto* const parts = memory->as<LogitPart>();
  cudaStream_t stream = device_->stream();
  cudaError_t error = SumLogits(stream, logits, all_rows, logits.rows, parts);
  if (error == cudaSuccess && !mixes.empty()) {
    // One that goes on in the next call stores its sums where another may still read its own: a launch for each.
    const int64_t later = std::ssize(mixes) > 1 && mixes.back().ends == 0 ? 1 : 0, now = std::ssize(mixes) - later;
    const auto mix = [&](int64_t first, int64_t count) {
      return MixSamples(stream, logits, parts, staged_mixes + first, count, sums_.as<double>(),
                        chosen_.as<ChosenToken>());
    };
    error = mix(0, now);
    if (error == cudaSuccess) error = mix(now, later);
    if (error == cudaSuccess) error = SumLogits(stream, logits, mixed_rows, std::ssize(mixed), parts);
  }
  if (error == cudaSuccess) {
    error = ChooseFromLogits(stream, logits, whole_rows, std::ssize(whole), parts,
                             chosen_.as<ChosenToken>() + first_choice);
  }
  return CudaStatus(error, "choice of tokens");
}

}  // namespace edgewise::cuda
