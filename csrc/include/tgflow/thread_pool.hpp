// One pool of CPU threads for the whole core. Work is split by index range, which never changes results.
#pragma once

#include <cstdint>
#include <functional>

namespace tgflow {

/// Sets how many threads a call may use, the caller's own included; at least 1.
void set_num_threads(int num_threads);
int num_threads();

/// Calls `body(begin, end)` over disjoint ranges that cover [0, size); returns when all are done. Wakes one
/// more thread per `grain` items: the caller works alone if `size <= grain`, if the pool is in use by another
/// caller, or if it is set to one thread. An exception thrown by `body` is rethrown here after every range
/// has ended.
void parallel_for(int64_t size, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace tgflow
