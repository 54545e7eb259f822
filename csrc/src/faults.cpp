#include "tgflow/faults.hpp"

#ifdef TGFLOW_FAULTS
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace tgflow {
namespace {

struct Fault {
  int64_t after = 0, times = 0, result = 0;
};

std::atomic<bool> armed{false};
std::mutex fault_mutex;
std::array<Fault, 3> faults;

}  // namespace

void inject_fault(FileOp op, int64_t after, int64_t times, int64_t result) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  faults[static_cast<std::size_t>(op)] = {after, times, result};
  armed = std::any_of(faults.begin(), faults.end(), [](const Fault& fault) { return fault.times > 0; });
}

int64_t allowed(FileOp op, int64_t bytes) {
  if (!armed) return bytes;
  const std::lock_guard<std::mutex> lock(fault_mutex);
  Fault& fault = faults[static_cast<std::size_t>(op)];
  if (fault.times == 0 || fault.after-- > 0) return bytes;
  fault.after = 0;
  --fault.times;
  return std::min(fault.result, bytes);
}

}  // namespace tgflow
#endif
