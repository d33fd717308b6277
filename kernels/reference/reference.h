// Readable float64 versions of every operation, which tests compare fast kernels with. Slow, single-threaded, host
// memory, no limits checked.
#ifndef EDGEWISE_KERNELS_REFERENCE_REFERENCE_H_
#define EDGEWISE_KERNELS_REFERENCE_REFERENCE_H_

#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace edgewise::reference {

void Linear(ConstMatrix x, std::span<const float> weight, std::span<const float> bias, Activation activation,
            bool accumulate, Matrix y);
void LayerNorm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix y);
void RmsNorm(ConstMatrix x, const float* weight, float epsilon, int64_t group, Matrix y);
void Rotate(Matrix x, ConstMatrix table, std::span<const int32_t> positions);
// From the rows of gate_up(x): wide [rows, 2 n], y [rows, n].
void Gate(ConstMatrix wide, Activation activation, Matrix y);

// S [k, k] of one head, float64: softmax over all entries of C C^T, C [k, d].
std::vector<double> BlockMatrix(std::span<const float> clusters, int num_clusters, int head_dim);

// Edge rates q_i S k_j^T of one head without exploration, [n, n] float64, by the definition
// (docs/model-format.md). q, k [n, head_dim]: the columns of the head.
std::vector<double> EdgeRates(const MembershipParameters& parameters, int head, ConstMatrix q, ConstMatrix k);

// Every edge of one head of one problem under its pattern, uncapped, ascending in (query, key).
struct Edge {
  int32_t query, key;  // packed
  bool forced;
  double age;        // 0 where forced
  int multiplicity;  // at tau = 1
  uint64_t uniform;  // of the pair; 0 for patterns that draw nothing
  float rate;
  // A head that is drawn by events has no uniform number, but with law poisson_multi the events' ages, ascending.
  bool by_events = false;
  std::vector<double> event_ages = {};
};
std::vector<Edge> DrawEdges(const AttentionInputs& inputs, const AttentionProblem& problem, int head);

// The pair is an edge of every draw.
bool IsForced(const AttentionProblem& problem, const DrawnRows& drawn, int32_t query, int32_t key);
// Whether a head of a problem of DrawnRows is drawn by events, and its edges where it is, or if it were.
bool UsesEvents(const AttentionInputs& inputs, const AttentionProblem& problem, int head);
std::vector<Edge> DrawByEvents(const AttentionInputs& inputs, const AttentionProblem& problem, int head);

// As Backend::Attend. `round` is done to the weights that values are multiplied by, where that of the largest score is
// 1; they are divided by the sum of the weights before. Null: nothing is done to them.
void Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems, std::span<EdgeCap> caps,
            Matrix out, double (*round)(double) = nullptr);

}  // namespace edgewise::reference

#endif  // EDGEWISE_KERNELS_REFERENCE_REFERENCE_H_
