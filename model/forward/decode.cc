#include "model/forward/decode.h"

#include <iterator>

#include "model/forward/heads.h"
#include "model/forward/softmax.h"
#include "text/status_macros.h"

namespace edgewise {

GenerationRows::GenerationRows(const ModelConfig& config, const Draw& draw, uint32_t samples, KvCache& cache)
    : results(samples, SampleResult(config, 1, 0, 0, false)) {
  input.draw = &draw;
  input.cache = &cache;
  input.shared = results[0];
}

void GenerationRows::Select(QueryRange range, uint64_t max_edges) {
  input.ranges.assign(1, range);
  input.max_edges = max_edges;
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

absl::Status DecodeRows(const Model& model, int32_t first_drawn, std::span<const DecodedRow> rows,
                        absl::FunctionRef<void(size_t, const std::vector<double>&, bool)> visit) {
  std::vector<RunningInput*> inputs;
  std::vector<Wave::Sample> samples;
  std::vector<int64_t> places;  // of the last tokens, among the samples' rows
  int64_t wave_rows = 0;
  for (const DecodedRow& row : rows) {
    for (GenerationRows* of : {row.before, row.last}) {
      if (of == nullptr) continue;
      inputs.push_back(&of->input);
      of->AddSamples(samples);
      const auto more = of->input.rows() * std::ssize(of->results);
      for (int64_t place = wave_rows; of == row.last && place < wave_rows + more; ++place) places.push_back(place);
      wave_rows += more;
    }
  }
  const auto wave = Wave::Take(model);
  RETURN_IF_ERROR(wave->Start(inputs, {first_drawn, Phase::kDecode}));
  while (wave->shared()) RETURN_IF_ERROR(wave->Step());
  RETURN_IF_ERROR(wave->StartSamples(samples));
  while (!wave->done()) RETURN_IF_ERROR(wave->Step());

  const size_t vocabulary = model.config().vocab_size;
  std::vector<double> mean(vocabulary), more(vocabulary);
  size_t row = 0, sample = 0;  // that come next
  bool finite = true;
  RETURN_IF_ERROR(VocabularyLogits(*wave, places, Phase::kDecode, [&](size_t, const float* logits) {
    std::vector<double>& probabilities = sample == 0 ? mean : more;
    finite &= AllFinite(logits, vocabulary);
    Softmax(logits, probabilities);
    for (size_t c = 0; sample > 0 && c < vocabulary; ++c) mean[c] += more[c];
    const size_t of_row = rows[row].last->results.size();
    if (++sample < of_row) return;
    for (size_t c = 0; of_row > 1 && c < vocabulary; ++c) mean[c] /= static_cast<double>(of_row);
    visit(row++, mean, finite);
    sample = 0;
    finite = true;
  }));
  return wave->Finish();
}

}  // namespace edgewise
