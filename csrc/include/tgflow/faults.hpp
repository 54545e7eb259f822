// Faults of file operations that tests ask for. Only a build with TGFLOW_FAULTS has them; a wheel has not.
#pragma once

#include <cstdint>

namespace tgflow {

enum class FileOp { kRead, kWrite, kSync };

#ifdef TGFLOW_FAULTS
/// Lets the next `after` operations of a kind pass, and then `times` of them end with `result`: an errno
/// below 0, or at most that many bytes.
void inject_fault(FileOp op, int64_t after, int64_t times, int64_t result);

/// What an operation on `bytes` bytes may do: at most that many, or fail with an errno below 0.
int64_t allowed(FileOp op, int64_t bytes);
#else
inline int64_t allowed(FileOp, int64_t bytes) { return bytes; }
#endif

}  // namespace tgflow
