// The choice of tokens from rows of logits, on the device (Backend::MakeTokenChooser). Each function enqueues on
// `stream` and returns the launch's error; arrays are in device memory.
//
// A row's result depends neither on where the row lies nor on the number of rows.
#ifndef EDGEWISE_KERNELS_CUDA_OPS_TOKENS_H_
#define EDGEWISE_KERNELS_CUDA_OPS_TOKENS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tensor.h"
#include "kernels/token_choice.h"

namespace edgewise::cuda {

// Neighbouring tokens of a row that a block reads: a part of the row.
inline constexpr int kPartTokens = 2048;
inline constexpr int64_t PartsOfRow(int64_t vocabulary) { return (vocabulary + kPartTokens - 1) / kPartTokens; }

// The result of a part.
struct LogitPart {
  float largest, smallest;
  float sum;      // of exp(logit - largest)
  float moment;   // of exp(logit - largest) * (logit - largest)
  float best;     // the largest logit of a token that may be chosen
  int32_t token;  // the lowest one that has it; -1: none may be
  int32_t finite;
};

// A row that is summed up.
struct LogitRow {
  int64_t row;       // of the logits
  int32_t excluded;  // TokenChoice
};

// Rows of the samples of one choice. Their mean distribution takes the place of the first row: its logarithm.
struct SampleRows {
  int64_t first, rows;
  int32_t begins, ends;  // 1: no rows of the choice came before; none come after
  double samples;        // of the choice
  int64_t choice;        // whose mutual_information holds the sum of the entropies so far
};

// A choice whose rows have all come, as one row.
struct TokenRow {
  int64_t row;  // of the logits
  TokenChoice choice;
};

// parts[i * PartsOfRow(logits.columns) ..]: the parts of rows[i].
cudaError_t SumLogits(cudaStream_t stream, ConstMatrix logits, const LogitRow* rows, int64_t count, LogitPart* parts);

// Mixes the rows of each of `mixes`, by the parts of all rows of `logits`. `sums` [logits.columns]: the probabilities
// of the one that goes on in the next call, or has begun before: not of both in one launch. `chosen`: of all choices.
cudaError_t MixSamples(cudaStream_t stream, Matrix logits, const LogitPart* parts, const SampleRows* mixes,
                       int64_t count, double* sums, ChosenToken* chosen);

// chosen[i]: the token of rows[i], whose parts are parts[i * PartsOfRow(logits.columns) ..]; of several samples, after
// MixSamples.
cudaError_t ChooseFromLogits(cudaStream_t stream, ConstMatrix logits, const TokenRow* rows, int64_t count,
                             const LogitPart* parts, ChosenToken* chosen);

}  // namespace edgewise::cuda

#endif  // EDGEWISE_KERNELS_CUDA_OPS_TOKENS_H_
