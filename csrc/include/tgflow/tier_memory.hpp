// Where the memory of a tier comes from: host memory here, a GPU's or pinned memory where there is one.
#pragma once

#include <cstdint>
#include <new>
#include <string>

namespace tgflow {

/// No tier had the memory; what asked for it is as it was before.
class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(const std::string& what_for, int64_t bytes)
      : message_("out of memory: " + what_for + " asked for " + std::to_string(bytes) + " bytes") {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

class TierMemory {
 public:
  virtual ~TierMemory() = default;
  /// Aligned to 64 bytes at least; null where there is none left.
  virtual void* allocate(int64_t bytes) noexcept = 0;
  virtual void free(void* chunk, int64_t bytes) noexcept = 0;
};

/// Ordinary memory, in huge pages from 2 MB on.
class HostMemory : public TierMemory {
 public:
  void* allocate(int64_t bytes) noexcept override;
  void free(void* chunk, int64_t bytes) noexcept override;
};

}  // namespace tgflow
