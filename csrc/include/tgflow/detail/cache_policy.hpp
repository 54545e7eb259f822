// Which rows a cache admits, and which make room for them: in the CPU's memory and in a GPU's.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

/// As tgflow/cache/policy.py has them, in that order. kGiven: a schedule says which rows are admitted, and
/// where.
enum class CachePolicy : int64_t { kLru, kLfu, kFifo, kStatic, kGiven };

/// What a policy asks of a cache.
struct CacheTraits {
  bool by_use;       ///< Slots are ordered by when they were asked for, and not by when they came.
  bool counts_uses;  ///< By how often comes before that.
  bool is_given;     ///< What is asked for and missing is not admitted by itself.
};

TGFLOW_HD constexpr CacheTraits traits_of(CachePolicy policy) {
  switch (policy) {
    case CachePolicy::kLru:
      return {true, false, false};
    case CachePolicy::kLfu:
      return {true, true, false};
    case CachePolicy::kFifo:
      return {false, false, false};
    case CachePolicy::kStatic:
    case CachePolicy::kGiven:
      return {false, false, true};
  }
  return {};
}

}  // namespace tgflow
