// A batch of timed edges from outside of the core: columns owned by the caller.
#pragma once

#include "tgflow/types.hpp"

namespace tgflow {

struct Events {
  const node_t* src;
  const node_t* dst;
  const tick_t* t;
  const int64_t* relation;  ///< In [0, kNumRelations). Null without relations.
  int64_t size;
};

}  // namespace tgflow
