#include "client/cli/plot_source.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace edgewise::cli {
namespace {

constexpr char kCls[] = "[CLS]";

std::vector<std::string> Split(const v1::Sequence& sequence, const std::string& tokenizer) {
  std::vector<std::string> tokens;
  if (sequence.has_token_ids()) {
    for (int32_t id : sequence.token_ids().values()) tokens.push_back(absl::StrCat(id));
  } else if (tokenizer == "word") {
    tokens = absl::StrSplit(sequence.text(), absl::ByAnyChar(" \t\n\v\f\r"), absl::SkipEmpty());
  } else if (tokenizer == "byte") {
    for (char c : sequence.text()) tokens.push_back(VisibleToken(std::string(1, c)));
  } else if (tokenizer == "char") {
    for (char c : sequence.text()) {
      if ((static_cast<unsigned char>(c) & 0xc0) == 0x80 && !tokens.empty()) {
        tokens.back() += c;
      } else {
        tokens.emplace_back(1, c);
      }
    }
    for (std::string& token : tokens) token = VisibleToken(token);
  }
  return tokens;
}

double PairsOfHead(double positions, bool causal) {
  return causal ? positions * (positions + 1) / 2 : positions * positions;
}

}  // namespace

std::string VisibleToken(const std::string& token) {
  if (token.size() != 1) return token;
  const unsigned char c = static_cast<unsigned char>(token[0]);
  if (c == ' ') return "\u2423";
  if (c == '\n') return "\u21b5";
  if (c > 0x20 && c < 0x7f) return token;
  return absl::StrFormat("%02x", c);
}

std::vector<std::string> TokenNames(const v1::Sequence& sequence, const v1::ModelInfo& model, int positions,
                                    int truncated) {
  std::vector<std::string> tokens = Split(sequence, model.tokenizer());
  const int size = static_cast<int>(tokens.size());
  if (truncated > 0 && truncated < size) {
    auto first = sequence.truncate() == v1::HEAD ? tokens.begin() : tokens.end() - truncated;
    tokens.erase(first, first + truncated);
  }
  if (model.causal() && static_cast<int>(tokens.size()) > positions) {  // the last window ends with the text
    tokens.erase(tokens.begin(), tokens.end() - positions);
  }
  if (static_cast<int>(tokens.size()) + 1 == positions && !tokens.empty()) tokens.insert(tokens.begin(), kCls);
  if (static_cast<int>(tokens.size()) == positions) return tokens;
  tokens.clear();
  for (int position = 0; position < positions; ++position) tokens.push_back(absl::StrCat("position ", position));
  return tokens;
}

absl::StatusOr<std::vector<SequenceView>> ViewSequences(const PlotSource& source) {
  if (source.response.predictions_size() != 1) return absl::InvalidArgumentError("a plot shows one input");
  const v1::Prediction& prediction = source.response.predictions(0);
  const v1::EdgeReport& report = prediction.edges();
  // A cross-encoder joins both into one.
  const int sequences = source.input.has_second() && source.model.tokenizer() != "hugging-face" ? 2 : 1;
  const int told = static_cast<int>(source.model.layers());
  const int layers = told > 0 ? told : report.layers_size() / sequences;
  const int groups = layers > 0 ? report.layers_size() / layers : 0;  // sequences of a pair, or windows of a text
  const bool shaped = groups >= sequences && groups * layers == report.layers_size() &&
                      (source.graph == nullptr || source.graph->layers_size() == report.layers_size());
  if (!shaped) return absl::InvalidArgumentError("the answer does not have the key degrees of every layer");
  std::vector<SequenceView> views;
  double without_pads = 0.0;  // all pairs, if no token is a pad
  for (int group = 0; group < groups; ++group) {
    SequenceView view{.layers = layers, .heads = report.layers(0).heads_size(), .causal = source.model.causal()};
    const v1::EdgeReport::LayerEdges& first = report.layers(group * layers);
    view.positions = first.heads_size() > 0 ? first.heads(0).key_degrees_size() : 0;
    if (view.positions == 0) return absl::InvalidArgumentError("the answer has no key degrees to plot");
    for (int l = group * layers; l < (group + 1) * layers; ++l) {
      for (const v1::EdgeReport::HeadEdges& head : report.layers(l).heads()) {
        if (head.key_degrees_size() == view.positions) view.edges.push_back(&head);
      }
      if (source.graph == nullptr) continue;
      for (const v1::Graph::Head& head : source.graph->layers(l).heads()) {
        if (head.row_offsets_size() == view.positions + 1) view.graph.push_back(&head);
      }
    }
    const size_t expected = static_cast<size_t>(layers) * view.heads;
    if (view.edges.size() != expected || (source.graph != nullptr && view.graph.size() != expected)) {
      return absl::InvalidArgumentError("the layers of the answer differ in heads or positions");
    }
    without_pads += static_cast<double>(expected) * PairsOfHead(view.positions, view.causal);
    views.push_back(std::move(view));
  }
  views.erase(views.begin(), views.end() - sequences);
  for (SequenceView& view : views) {
    const bool second = &view != &views.front();
    const v1::Sequence& sequence = second ? source.input.second() : source.input.sequence();
    if (sequences == 2) view.title = second ? "Second sequence" : "First sequence";
    if (groups > sequences) view.title = absl::StrCat("Window ", groups, " of ", groups, ", the end of the text");
    // The answer counts the pairs of all groups together: where pads leave some out, nothing says in which.
    if (groups == 1) view.pairs = static_cast<double>(report.pairs()) / static_cast<double>(view.edges.size());
    if (groups > 1 && without_pads == static_cast<double>(report.pairs())) {
      view.pairs = PairsOfHead(view.positions, view.causal);
    }
    view.words = sequence.has_token_ids() || source.model.tokenizer() == "word";
    view.names = TokenNames(sequence, source.model, view.positions,
                            sequences == 2 ? 0 : static_cast<int>(prediction.truncated_tokens()));
    view.has_cls = view.names[0] == kCls;
  }
  return views;
}

}  // namespace edgewise::cli
