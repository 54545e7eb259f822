// File operations with errors that say what was being done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tgflow {

/// The system refused a file operation; `code` is its errno.
class FileError : public std::runtime_error {
 public:
  FileError(int error, const std::string& what_for);
  int code() const { return code_; }

 private:
  int code_;
};

/// A file does not hold what was written to it.
class DamagedFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An open file; closed in the end.
class File {
 public:
  File(const std::string& path, int flags);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;
  /// Bytes read, fewer than asked for at the file's end alone; or an errno below 0.
  int64_t read(void* into, int64_t bytes, int64_t offset) const;
  /// Writes all, or throws FileError having written some.
  void write(const void* from, int64_t bytes, int64_t offset);
  /// Waits until the data is on the disk.
  void sync();
  void truncate(int64_t bytes);
  /// Keeps other openers that lock from the file; false if one has it.
  bool lock();
  /// Lets the system forget its copies of what is on the disk.
  void drop_cache() const;

 private:
  std::string path_;
  int descriptor_;
};

// Faults that tests ask for: a build with TGFLOW_FAULTS alone has them, a wheel has not.
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
