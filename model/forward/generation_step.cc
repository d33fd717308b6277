#include "model/forward/generation_step.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "model/checkpoint/decoder.h"
#include "model/checkpoint/weights.h"
#include "model/forward/heads.h"

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

absl::Status GenerationStep::Start(std::span<const Rows> rows, int32_t first_drawn, Phase phase, bool decoded) {
  rows_.assign(rows.begin(), rows.end());
  phase_ = phase;
  if (decoded) {
    SelectDecoded();
    return absl::OkStatus();
  }
  std::vector<RunningInput*> inputs;
  for (const Rows& of : rows_) {
    for (GenerationRows* part : {of.before, of.last}) {
      if (part != nullptr) inputs.push_back(&part->input);
    }
  }
  return wave_->Start(inputs, {first_drawn, phase});
}

void GenerationStep::SelectDecoded() {
  const ModelConfig& config = wave_->model().config();
  RowsOfDecoder& decoded = decoded_.emplace();
  for (size_t i = 0; i < rows_.size(); ++i) {
    for (const GenerationRows* part : {rows_[i].before, rows_[i].last}) {
      if (part == nullptr) continue;
      const auto& [sequence, first] = part->input.ranges[0];
      for (int32_t token = first; token < sequence->valid(); ++token) {
        const int32_t place = sequence->positions[token];
        decoded.rows.push_back({.token = sequence->token_ids[place],
                                .position = config.position_offset > 0 ? token : place,
                                .keys = token + 1,
                                .predicts = part == rows_[i].last,
                                .pages = part->input.cache->Memory()});
        decoded.generations.push_back(i);
      }
    }
  }
}

absl::Status GenerationStep::StepDecoded() {
  const Model& model = wave_->model();
  RowsOfDecoder& decoded = *decoded_;
  const int64_t vocabulary = model.config().vocab_size;
  const auto predict = [](std::span<const DecodedRow> rows) {
    return std::count_if(rows.begin(), rows.end(), [](const DecodedRow& row) { return row.predicts; });
  };
  if (decoded.logits.data() == nullptr && predicts()) {
    ASSIGN_OR_RETURN(decoded.logits, model.backend().Allocate(predict(decoded.rows) * vocabulary));
  }
  const std::span<const DecodedRow> rest = std::span(decoded.rows).subspan(decoded.next);
  const std::span<const DecodedRow> rows = rest.first(std::min<size_t>(rest.size(), kMostDecodedRows));
  const Matrix logits(decoded.logits.data() + decoded.predicted * vocabulary, predict(rows), vocabulary);
  RETURN_IF_ERROR(model.backend().Decode(*model.weights().decoder, rows, logits));
  decoded.next += rows.size();
  decoded.predicted += logits.rows;
  return absl::OkStatus();
}

// Logits of generations that have left are nobody's.
absl::Status GenerationStep::FinishDecoded(TokenChooser& chooser) const {
  const int64_t vocabulary = wave_->model().config().vocab_size;
  int64_t first = 0, row = 0;  // rows first..row - 1 of the logits have not been added yet
  const auto add = [&] {
    const Matrix logits(decoded_->logits.data() + first * vocabulary, row - first, vocabulary);
    return row == first ? absl::OkStatus() : wave_->model().backend().AddLogits(chooser, logits);
  };
  for (size_t r = 0; r < decoded_->rows.size(); ++r) {
    if (!decoded_->rows[r].predicts) continue;
    const bool left = rows_[decoded_->generations[r]].last == nullptr;
    if (left) RETURN_IF_ERROR(add());
    ++row;
    if (left) first = row;
  }
  return add();
}

// Of all keys of a row, or those of its windows.
void GenerationStep::CountEdges() {
  const ModelConfig& config = wave_->model().config();
  for (const Rows& of : rows_) {
    if (of.last == nullptr) continue;
    SampleResult& result = of.last->results[0];
    const int64_t keys = of.last->input.ranges[0].sequence->valid();
    for (int32_t l = 0; l < config.num_hidden_layers; ++l) {
      const int64_t near = std::min<int64_t>(keys, int64_t{1} + ReachOfDecoder(config, l));
      result.edges += static_cast<uint64_t>(near * config.num_attention_heads);
    }
  }
}

bool GenerationStep::predicts() const {
  return std::any_of(rows_.begin(), rows_.end(), [](const Rows& of) { return of.last != nullptr; });
}

int64_t GenerationStep::rows() const {
  if (decoded_.has_value()) return std::min<int64_t>(std::ssize(decoded_->rows), kMostDecodedRows);
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
  if (decoded_.has_value()) return StepDecoded();
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
  if (decoded_.has_value()) {  // its pages go
    for (size_t r = decoded_->rows.size(); r-- > decoded_->next;) {
      if (decoded_->generations[r] != i) continue;
      decoded_->rows.erase(decoded_->rows.begin() + static_cast<int64_t>(r));
      decoded_->generations.erase(decoded_->generations.begin() + static_cast<int64_t>(r));
    }
    return;
  }
  if (!removed_.ok()) return;
  try {
    removed_ = wave_->Record();
    if (removed_.ok()) removed_ = wave_->RemoveComplete();
  } catch (const std::bad_alloc&) {
    removed_ = absl::ResourceExhaustedError("out of memory as a generation left a step");
  }
}

absl::Status GenerationStep::Finish(
    absl::FunctionRef<void(size_t, const ChosenToken&, const TokenAlternatives&)> visit) {
  RETURN_IF_ERROR(removed_);
  if (!predicts()) return decoded_.has_value() ? absl::OkStatus() : wave_->Finish();
  if (!decoded_.has_value() && wave_->samples().empty()) RETURN_IF_ERROR(StartSamples());
  std::vector<TokenChoice> choices;
  choices.reserve(rows_.size());
  size_t samples = 0;
  for (const Rows& of : rows_) {
    if (of.last == nullptr) continue;
    choices.push_back(of.choice);
    choices.back().samples = static_cast<uint32_t>(of.last->results.size());
    samples += of.last->results.size();
  }
  std::vector<int64_t> places(samples);  // all rows that are left
  std::iota(places.begin(), places.end(), 0);
  Backend& backend = wave_->model().backend();
  ASSIGN_OR_RETURN(const auto chooser, backend.MakeTokenChooser(choices, wave_->model().config().vocab_size));
  if (decoded_.has_value()) {
    RETURN_IF_ERROR(FinishDecoded(*chooser));
  } else {
    RETURN_IF_ERROR(VisitLogits(*wave_, places, phase_,
                                [&](size_t, Matrix logits) { return backend.AddLogits(*chooser, logits); }));
  }
  ASSIGN_OR_RETURN(const std::vector<ChosenToken> chosen, backend.ChosenTokens(*chooser));
  for (size_t i = 0, next = 0; i < rows_.size(); ++i) {
    if (rows_[i].last == nullptr) continue;
    visit(i, chosen[next], chooser->alternatives()[next]);
    ++next;
  }
  if (!decoded_.has_value()) return wave_->Finish();
  CountEdges();
  return absl::OkStatus();
}

}  // namespace edgewise
