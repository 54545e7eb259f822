// Mixing of 64-bit keys. No `std::` here.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

/// The finalizer of splitmix64: a bijection in which every input bit reaches every output bit.
TGFLOW_HD inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace tgflow
