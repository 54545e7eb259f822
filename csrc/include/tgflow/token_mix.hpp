// The half of a mixer layer that maps along the tokens of a row, channel by channel, in one pass a row.
#pragma once

#include <cstdint>

namespace tgflow {

/// x + T(norm(x)) of rows x, [num, tokens, dim]: the norm is over the tokens of a channel, and T is a linear
/// map to `hidden`, GELU, dropout, a linear map back, dropout.
struct TokenMix {
  int64_t num, tokens, hidden, dim;
  const float* x;
  const float *norm_weight, *norm_bias;  ///< [tokens]
  const float* hidden_weight;            ///< [hidden, tokens]
  const float* hidden_bias;              ///< [hidden]
  const float* out_weight;               ///< [tokens, hidden]
  const float* out_bias;                 ///< [tokens]
  const float* hidden_keep;              ///< Factors, [num, dim, hidden], or null for ones.
  const float* out_keep;                 ///< [num, dim, tokens], likewise.

  /// Numbers in all parameters, which gradients have in the order of the fields.
  int64_t num_parameters() const { return 3 * tokens + hidden + 2 * tokens * hidden; }
};

void token_mix(const TokenMix& mix, float* out);

/// The gradients of `x`, of its shape, and of all parameters, [num_parameters], from that of the result.
void token_mix_backward(const TokenMix& mix, const float* grad_out, float* grad_x, float* grad_parameters);

}  // namespace tgflow
