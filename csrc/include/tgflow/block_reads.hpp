// Many reads of a file at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tgflow {

/// Bytes of a file, and where they go. With O_DIRECT all three are multiples of the alignment.
struct BlockRead {
  int64_t offset;
  int64_t bytes;
  std::byte* into;
  int64_t tag;
};

/// A read that has ended: bytes read, or an errno below 0.
struct BlockDone {
  int64_t tag;
  int64_t result;
};

/// Reads in flight on one file. One thread calls it.
class BlockReads {
 public:
  virtual ~BlockReads() = default;
  /// Begins a read; at most `depth` may be in flight.
  virtual void start(const BlockRead& read) = 0;
  /// Waits for one of them to end.
  virtual BlockDone wait() = 0;
};

/// How a file is read.
struct ReadWay {
  bool uring = false;     ///< By io_uring, else by a pool of threads that call pread.
  bool direct = false;    ///< Past the system's page cache (O_DIRECT).
  int64_t alignment = 1;  ///< Of offsets, sizes and buffers.
  std::string name() const;
};

/// Finds the best way that brings the right bytes, by reading the beginning of the file, which holds a header
/// of 4096 bytes at least. `wish`: "auto"; or "io_uring", "pread" or "page cache" for no better way than
/// that. Throws FileError if the file cannot be read at all, std::invalid_argument on another wish.
ReadWay probe_reads(const std::string& path, const std::string& wish);

std::unique_ptr<BlockReads> open_reads(const std::string& path, const ReadWay& way, int depth);

}  // namespace tgflow
