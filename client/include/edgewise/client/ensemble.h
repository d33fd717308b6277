// Merging the parts of a self-ensemble.
//
// A large ensemble can be computed in parts, by several calls or several servers: give every part the same request, the
// same seed, `ensemble.first_sample` (where the part starts) and `outputs.each_sample`. MergeEnsembleParts() then gives
// the `predictions` of the whole, byte for byte. The arithmetic, which the server follows too (docs of v1.Prediction):
//
//   k samples, p_sc the float that sample s gives label c. All sums in double, in sample order, labels in order.
//   sum_c = (p_0c + p_1c) + p_2c + ...    mean_c = sum_c / k    probabilities[c] = float(mean_c)
//   stddev[c] = float(sqrt(sum over s of (p_sc - mean_c)^2 / (k - 1))), 0 for k = 1
//   H(q) = - sum over c of q_c * log(q_c), where q_c > 0; +0, never -0, where that sum is 0
//   multi_label: H(q) = - sum over c of (q_c * log(q_c) + (1 - q_c) * log1p(-q_c)), where 0 < q_c < 1
//   predictive_entropy = H(mean)    mutual_information = max(0, H(mean) - (sum over s of H(p_s)) / k)
//   label_id = the first c with the largest mean_c; `top` by falling probabilities[c], ties by rising c
//   logits and values as probabilities; tokens likewise, each on its own, pads empty
//   embedding: the values of the samples as probabilities; then, where it is normalized, its rounded numbers m_c become
//   float(m_c / sqrt(m_0^2 + m_1^2 + ...)), in double
//   log_likelihood = sum over the scored tokens t, in order, of log(((q_0t + q_1t) + q_2t + ...) / k), q_st the double
//   of sample s; perplexity = exp(-log_likelihood / tokens), 1 for no tokens
//   edges = (sum of the samples' edges, as integers) / k    density = edges / pairs
//   heads' edges and isolated queries likewise; key degrees are summed
//   expected edges: the mean of the samples', each a multiple of 2^-20 (exact, because the server rounds each sample's
//   so; the merged value of any other server would be within 2^-21 of the true mean)
#ifndef EDGEWISE_CLIENT_ENSEMBLE_H_
#define EDGEWISE_CLIENT_ENSEMBLE_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise {

// Parts in sample order: part i + 1 must have been asked to start where part i ended. Answers do not carry their first
// sample, so that is the caller's word. InvalidArgument, naming what differs, unless all parts agree in model, version,
// seed, device, build, number of inputs and what depends only on the input (pairs, budget, shapes), and each carries
// all its samples. Graphs (one sample only) cannot be merged and are refused.
//
// `label_names` (ModelInfo.labels) names labels that are nowhere a part's own best or in its `top`; a label that has no
// known name goes by its number. Timing: the longest wait and total, the sum of the compute times, the largest batch.
// request_id: the first part's. settings: the first part's, with the samples of all. Stateless: any thread.
absl::StatusOr<v1::PredictResponse> MergeEnsembleParts(std::span<const v1::PredictResponse> parts,
                                                       std::span<const std::string> label_names = {});

}  // namespace edgewise

#endif  // EDGEWISE_CLIENT_ENSEMBLE_H_
