#include "model/forward/generation_step.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <numeric>
#include <utility>

#include "model/forward/heads.h"
#include "model/forward/softmax.h"
#include "text/status_macros.h"

namespace edgewise {

GenerationRows::GenerationRows(const ModelConfig& config, const Draw& draw, uint32_t samples, KvCache& cache,
                               bool fills_cache)
    : results(samples, SampleResult(config, 1, 0, 0, false)) {
  input.draw = &draw;
  input.cache = &cache;
  input.fills_cache = fills_cache;
  input.shared = results[0];
}

void GenerationRows::Select(QueryRange range, uint64_t max_edges) {
  input.ranges.assign(1, range);
  input.max_edges = max_edges;
  input.complete = false;
  input.shared.capped = false;
  for (SampleResult& result : results) {
    result.edges = result.isolated = 0;
    result.capped = false;
  }
}

void GenerationRows::AddSamples(std::vector<Wave::Sample>& samples) {
  uint32_t sample = 0;
  for (SampleResult& result : results) samples.push_back({&input, sample++, &result});
}

absl::Status GenerationStep::Start(std::span<const Rows> rows, int32_t first_drawn, Phase phase) {
  rows_.assign(rows.begin(), rows.end());
  phase_ = phase;
  std::vector<RunningInput*> inputs;
  for (const Rows& of : rows_) {
    for (GenerationRows* part : {of.before, of.last}) {
      if (part != nullptr) inputs.push_back(&part->input);
    }
  }
  return wave_->Start(inputs, {first_drawn, phase});
}

bool GenerationStep::predicts() const {
  return std::any_of(rows_.begin(), rows_.end(), [](const Rows& of) { return of.last != nullptr; });
}

int64_t GenerationStep::rows() const {
  int64_t rows = 0;
  for (const Rows& of : rows_) {
    for (const GenerationRows* part : {of.before, of.last}) {
      if (part != nullptr) rows += part->input.rows() * (wave_->shared() ? 1 : std::ssize(part->results));
    }
  }
  return rows;
}

absl::Status GenerationStep::StepLayer() {
  RETURN_IF_ERROR(removed_);
  if (!wave_->shared() && wave_->samples().empty()) RETURN_IF_ERROR(StartSamples());
  return wave_->Step();
}

absl::Status GenerationStep::StartSamples() {
  std::vector<Wave::Sample> samples;
  for (const Rows& of : rows_) {
    if (of.before != nullptr) of.before->AddSamples(samples);
    if (of.last != nullptr) of.last->AddSamples(samples);
  }
  return wave_->StartSamples(samples);
}

void GenerationStep::Remove(size_t i) {
  const Rows gone = std::exchange(rows_[i], {});
  if (gone.before != nullptr) gone.before->input.complete = true;
  if (gone.last != nullptr) gone.last->input.complete = true;
  if (!removed_.ok()) return;
  try {
    removed_ = wave_->Record();
    if (removed_.ok()) removed_ = wave_->RemoveComplete();
  } catch (const std::bad_alloc&) {
    removed_ = absl::ResourceExhaustedError("out of memory as a generation left a step");
  }
}

absl::Status GenerationStep::Finish(absl::FunctionRef<void(size_t, const std::vector<double>&, bool)> visit) {
  RETURN_IF_ERROR(removed_);
  if (predicts() && wave_->samples().empty()) RETURN_IF_ERROR(StartSamples());
  size_t samples = 0;
  for (const Rows& of : rows_) samples += of.last == nullptr ? 0 : of.last->results.size();
  std::vector<int64_t> places(samples);  // all rows that are left
  std::iota(places.begin(), places.end(), 0);

  const size_t vocabulary = wave_->model().config().vocab_size;
  std::vector<double> mean(vocabulary), more(vocabulary);
  size_t i = 0, sample = 0;  // that come next
  bool finite = true;
  RETURN_IF_ERROR(VocabularyLogits(*wave_, places, phase_, [&](size_t, const float* logits) {
    while (rows_[i].last == nullptr) ++i;
    std::vector<double>& probabilities = sample == 0 ? mean : more;
    finite &= AllFinite(logits, vocabulary);
    Softmax(logits, probabilities);
    for (size_t c = 0; sample > 0 && c < vocabulary; ++c) mean[c] += more[c];
    const size_t of_row = rows_[i].last->results.size();
    if (++sample < of_row) return;
    for (size_t c = 0; of_row > 1 && c < vocabulary; ++c) mean[c] /= static_cast<double>(of_row);
    visit(i++, mean, finite);
    sample = 0;
    finite = true;
  }));
  return wave_->Finish();
}

}  // namespace edgewise
