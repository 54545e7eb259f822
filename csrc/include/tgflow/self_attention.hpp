// Attention of every token of a short sequence to all of its tokens, in one pass a head.
#pragma once

#include <cstdint>

namespace tgflow {

/// `num` sequences of `length` tokens.
struct SelfAttention {
  int64_t num, length, heads, width;
  const float* tokens;  ///< [num, length, 3, heads, width]: queries, keys and values.
  const float* keep;    ///< Factors of the weights, [num, heads, length, length], or null for ones.
};

/// `out`, [num, length, heads, width], becomes the values under weights softmax(q k / sqrt(width)) times
/// `keep`; `weight`, [num, heads, length, length], the weights before `keep`; null if nobody needs them.
void self_attend(const SelfAttention& a, float* weight, float* out);

/// The gradient of the tokens, of their shape, from that of `out`.
void self_attend_backward(const SelfAttention& a, const float* weight, const float* grad_out,
                          float* grad_tokens);

}  // namespace tgflow
