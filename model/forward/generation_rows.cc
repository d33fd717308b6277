// The layers of a generation: rows that come before the next new token, many at a time, and the row of one token, with
// the keys and values of all rows before it from the caches.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "model/checkpoint/weights.h"
#include "model/forward/generation_state.h"
#include "model/forward/softmax.h"

namespace edgewise {
namespace {

constexpr int64_t kMaxWaveTokens = 16384;  // rows of a wave of samples, as in a pass

}  // namespace

Matrix Generation::State::Cache(int32_t of_layer) const {
  const int64_t width = static_cast<int64_t>(config.num_attention_heads) * config.head_dim;
  return caches[of_layer].AsMatrix(Copies(of_layer) * capacity, 2 * width);
}

// Puts the keys and values of `rows`, those of one copy behind those of another, into the caches from `first_copy` on.
absl::Status Generation::State::Store(const Activations& rows, uint32_t first_copy, uint32_t copies,
                                      int32_t first_token) {
  const Matrix cache = Cache(layer);
  const int64_t count = rows.rows() / copies;
  std::vector<int64_t> places(count);
  for (uint32_t copy = 0; copy < copies; ++copy) {
    for (int64_t r = 0; r < count; ++r) places[r] = copy * count + r;
    const absl::Status status = model.backend().GatherRows(
        rows.keys_and_values(), places, cache.Rows((first_copy + copy) * capacity + first_token, count));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

AttentionMember Generation::State::Member(uint32_t sample, const QueryRange& range) const {
  AttentionMember member;
  member.choice = model.Choose(choices, layer);
  member.choice.sample = sample;
  member.ranges = {range};
  member.cancel = stop ? stop->flag() : nullptr;
  return member;
}

absl::Status Generation::State::Replicate(uint32_t copies) {
  std::vector<int64_t> rows;
  for (uint32_t copy = 0; copy < copies; ++copy) {
    for (int64_t r = 0; r < shared.rows(); ++r) rows.push_back(r);
  }
  const absl::Status status = active.Resize(config, static_cast<int64_t>(rows.size()));
  return status.ok() ? model.backend().GatherRows(shared.hidden(), rows, active.hidden()) : status;
}

absl::Status Generation::State::StartBefore() {
  before = context;
  before.positions.pop_back();
  layer = 0;
  wave_end = 0;
  PackedRows packed;
  packed.Add(before, 0);
  return shared.Embed(config, model.weights(), packed);
}

// One layer of the rows before the last token: of the shared ones, or of a wave of samples.
absl::Status Generation::State::StepBefore() {
  absl::Status status;
  if (layer == 0 && wave_end == 0) status = StartBefore();
  const LayerWeights& weights = model.weights().layer(layer);
  const bool pre = config.norm_position == NormPosition::kPre;
  const bool last = layer + 1 == config.num_hidden_layers;  // only its keys and values are needed
  if (status.ok() && layer <= first_drawn && wave_end == 0) {
    status = shared.ProjectAttention(weights, config, pre, false);
    if (status.ok()) status = Store(shared, 0, 1, 0);
  }
  if (!status.ok()) return status;
  if (last && wave_end == 0) {
    cached = before.valid();
    return absl::OkStatus();
  }
  if (layer < first_drawn) {
    status = AttendBefore(shared, shared, 0, 1);
    if (status.ok()) status = shared.FinishLayer(weights, config, pre);
    ++layer;
    return status;
  }
  if (layer == first_drawn) {
    wave_begin = wave_end;
    const uint32_t fit = static_cast<uint32_t>(std::max<int64_t>(1, kMaxWaveTokens / before.valid()));
    wave_end = std::min(samples, wave_begin + fit);
    status = Replicate(wave_end - wave_begin);
  } else {
    status = active.ProjectAttention(weights, config, pre, false);
    if (status.ok()) status = Store(active, wave_begin, wave_end - wave_begin, 0);
  }
  if (status.ok() && !last) {
    status = AttendBefore(layer == first_drawn ? shared : active, active, wave_begin, wave_end - wave_begin);
    if (status.ok()) status = active.FinishLayer(weights, config, pre);
  }
  if (!status.ok()) return status;
  if (!last) {
    ++layer;
  } else if (wave_end < samples) {
    layer = first_drawn;
    calls.clear();  // waits: what is kept does not grow with the samples
  } else {
    cached = before.valid();
  }
  return absl::OkStatus();
}

absl::Status Generation::State::AttendBefore(const Activations& source, Activations& rows, uint32_t first_sample,
                                             uint32_t members) {
  AttentionCall& call = calls.emplace_back();
  call.members.reserve(members);
  for (uint32_t m = 0; m < members; ++m) {
    AttentionMember& member = call.members.emplace_back(Member(first_sample + m, {&before}));
    member.out_row = static_cast<int64_t>(m) * before.valid();
    member.first_row = source.rows() == rows.rows() ? member.out_row : 0;
  }
  const absl::Status status = rows.ReserveAttended();
  return status.ok() ? call.Attend(model, source.AttentionView(config, model.weights()), rows.attended()) : status;
}

// The budget of the row.
absl::Status Generation::State::StartRow(const RowEdges& edges, RowRun& run) {
  if (edges.budget == 0 || edges.budget >= edges.pairs) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<EdgeLedger>> ledger = model.backend().MakeLedger(edges.budget);
  if (!ledger.ok()) return ledger.status();
  run.ledgers.push_back(*std::move(ledger));
  const QueryRange range{&context, context.valid() - 1};
  run.least_later = LeastEdgesLater(layers, {&range, 1});
  return absl::OkStatus();
}

// From here on every sample has a row, and a budget, of its own.
absl::Status Generation::State::SplitRow(RowRun& run) {
  if (!run.ledgers.empty()) {
    run.shared_ledger = std::move(run.ledgers[0]);
    run.ledgers.clear();
    for (uint32_t s = 0; s < samples; ++s) {
      absl::StatusOr<std::unique_ptr<EdgeLedger>> ledger = model.backend().CopyLedger(*run.shared_ledger);
      if (!ledger.ok()) return ledger.status();
      run.ledgers.push_back(*std::move(ledger));
    }
  }
  return Replicate(samples);
}

// All layers of the last token of the context, whose earlier tokens are cached; its own keys and values become so.
// `mean`: the mean over samples of the next token's distribution.
absl::Status Generation::State::RunRow(RowEdges& edges, std::vector<double>& mean) {
  const int32_t token = context.valid() - 1;
  edges = {};
  edges.pairs = RowPairs(context);
  edges.budget = RowBudget(context);
  RowRun run;
  PackedRows packed;
  packed.Add(context, token);
  absl::Status status = StartRow(edges, run);
  if (status.ok()) status = shared.Embed(config, model.weights(), packed, Phase::kDecode);
  const bool pre = config.norm_position == NormPosition::kPre;
  for (layer = 0; status.ok() && layer < config.num_hidden_layers; ++layer) {
    const LayerWeights& weights = model.weights().layer(layer);
    Activations& source = layer <= first_drawn ? shared : active;
    Activations& rows = layer < first_drawn ? shared : active;
    status = source.ProjectAttention(weights, config, pre, false, Phase::kDecode);
    if (status.ok()) status = Store(source, 0, Copies(layer), token);
    if (status.ok() && layer == first_drawn) status = SplitRow(run);
    if (status.ok()) status = rows.ReserveAttended();
    if (status.ok()) status = AttendRow(source, rows, run);
    if (status.ok()) status = rows.FinishLayer(weights, config, pre, Phase::kDecode);
  }
  if (!status.ok()) return status;
  cached = context.valid();
  layer = 0;
  wave_end = 0;
  status = PredictNext(mean);  // downloads
  if (status.ok()) CountEdges(run, edges);
  calls.clear();
  ClearRows();
  return status;
}

absl::Status Generation::State::PredictNext(std::vector<double>& mean) {
  std::vector<int64_t> places(samples);
  std::iota(places.begin(), places.end(), 0);
  const size_t vocabulary = config.vocab_size;
  mean.assign(vocabulary, 0.0);
  bool finite = true;
  Activations& rows = first_drawn < config.num_hidden_layers ? active : shared;
  const auto add = [&](size_t, const float* logits) {
    finite &= AllFinite(logits, vocabulary);
    const std::vector<double> probabilities = Softmax(logits, vocabulary);
    for (size_t c = 0; c < vocabulary; ++c) mean[c] += probabilities[c];
  };
  const absl::Status status = rows.NextTokenLogits(config, model.weights(), places, Phase::kDecode, add);
  if (!status.ok()) return status;
  if (options.stopping.stop_requested()) return CancelledByCaller();  // else what was downloaded is whole
  for (double& probability : mean) probability /= static_cast<double>(samples);
  return finite ? absl::OkStatus() : NonFiniteOutput();
}

// What the layers used, those that the samples share in every one of them.
void Generation::State::CountEdges(RowRun& run, RowEdges& edges) const {
  for (AttentionCall& call : run.layers) call.Collect();
  for (uint32_t s = 0; s < samples; ++s) {
    uint64_t of_sample = 0;
    for (const AttentionCall& call : run.layers) {
      const AttentionMember& member = call.members[call.members.size() == 1 ? 0 : s];
      for (const HeadReport& head : member.reports[0].heads) of_sample += head.edges;
      edges.capped |= member.capped;
    }
    edges.edges += static_cast<double>(of_sample);
    edges.max_sample_edges = std::max(edges.max_sample_edges, of_sample);
  }
  edges.edges /= static_cast<double>(samples);
}

absl::Status Generation::State::AttendRow(const Activations& source, Activations& rows, RowRun& run) {
  const QueryRange range{&context, context.valid() - 1};
  AttentionCall& call = run.layers.emplace_back();
  const uint32_t members = layer < first_drawn ? 1 : samples;
  call.members.reserve(members);
  for (uint32_t s = 0; s < members; ++s) {
    AttentionMember& member = call.members.emplace_back(Member(s, range));
    member.choice.sources = &sources;
    member.first_row = Copies(layer) == 1 ? 0 : s * capacity;
    // The one query of this sequence is in row `query` of the source, not beside its keys.
    const int64_t query = source.rows() == 1 ? 0 : s;
    member.query_shift = query - member.first_row - range.first_query;
    member.out_row = s;
    if (run.ledgers.empty()) continue;
    member.ledger = run.ledgers[s].get();
    member.share = ShareOf(config.budget_shares, layer, LeastEdges(member.choice, {&range, 1}), run.least_later[layer]);
  }
  AttentionInputs inputs = source.AttentionView(config, model.weights());
  const ConstMatrix cache = Cache(layer);
  inputs.k = cache.Columns(0, cache.columns / 2);
  inputs.v = cache.Columns(cache.columns / 2, cache.columns / 2);
  return call.Attend(model, inputs, rows.attended());
}

}  // namespace edgewise
