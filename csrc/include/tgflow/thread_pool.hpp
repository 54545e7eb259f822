// One pool of CPU threads for the whole core. Work is split by index range, so results never depend on it.
#pragma once

#include <cstdint>
#include <functional>

namespace tgflow {

/// Sets how many threads a call may use, the caller's own included; at least 1.
void set_num_threads(int num_threads);
int num_threads();

/// Calls `body(begin, end)` over disjoint ranges that cover [0, size); returns when all are done.
/// Wakes one thread more per `grain` items: the caller is alone when `size <= grain`, when the pool serves
/// another caller, or when it is to stay so.
/// An exception thrown by `body` is rethrown here after every range has ended.
void parallel_for(int64_t size, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace tgflow
