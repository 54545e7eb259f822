// Rows of one width in an append-only file: synced rows survive anything but a broken disk.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace tgflow {

/// Thrown if the system rejects a file operation; `code` is its errno.
class FileError : public std::runtime_error {
 public:
  FileError(int error, const std::string& what_for);
  int code() const { return code_; }

 private:
  int code_;
};

/// Thrown if a file does not hold what was written to it.
class DamagedFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An open file, closed by the destructor.
class File {
 public:
  File(const std::string& path, int flags);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;
  /// Returns the bytes read, fewer than requested only at the file's end; or an errno below 0.
  int64_t read(void* into, int64_t bytes, int64_t offset) const;
  /// Writes all, or throws FileError after writing some.
  void write(const void* from, int64_t bytes, int64_t offset);
  /// Waits until the data is on the disk.
  void sync();
  void truncate(int64_t bytes);
  /// Locks the file against other openers; false if it is locked.
  bool lock();
  /// Lets the system drop cached pages that are on the disk.
  void drop_cache() const;

 private:
  std::string path_;
  int descriptor_;
};

// Fault injection for tests: only in builds with TGFLOW_FAULTS, not in wheels.
enum class FileOp { kRead, kWrite, kSync };

#ifdef TGFLOW_FAULTS
/// Lets the next `after` operations of a kind pass, and then ends `times` of them with `result`: an errno
/// below 0, or at most that many bytes.
void inject_fault(FileOp op, int64_t after, int64_t times, int64_t result);

/// Result allowed for an operation on `bytes` bytes: at most that many, or an errno below 0.
int64_t allowed(FileOp op, int64_t bytes);
#else
inline int64_t allowed(FileOp, int64_t bytes) { return bytes; }
#endif

/// A header page, followed by rows in the order of their ids, each with the CRC-32C of its id and bytes:
/// a torn, misplaced or corrupt row raises an error on read, and never gives a wrong result.
///
/// Two slots of the header alternately store the number of synced rows. Rows after those may be incomplete
/// after a crash: on opening, the file is cut after the last whole row. One thread appends and truncates;
/// others may read rows below `size` and sync concurrently.
class RowFile {
 public:
  static constexpr int64_t kHeaderBytes = 4096;
  static constexpr int64_t kCrcBytes = 4;

  /// Opens the file, or creates a missing one. `kind` describes the rows, in at most 31 bytes.
  /// Throws DamagedFile if it is another file, or holds fewer rows than were synced; FileError.
  RowFile(const std::string& path, int64_t row_bytes, const std::string& kind);

  const std::string& path() const { return file_.path(); }
  int64_t row_bytes() const { return row_bytes_; }
  /// Bytes from one row to the next.
  int64_t stride() const { return row_bytes_ + kCrcBytes; }
  int64_t offset(int64_t id) const { return kHeaderBytes + id * stride(); }
  int64_t size() const { return size_; }
  int64_t synced() const { return synced_; }  // not while another thread syncs

  /// Adds `n` rows, all or none: they survive the end of the process. Throws FileError.
  void append(const std::byte* rows, int64_t n);
  /// Returns once all rows so far survive a power failure. Throws FileError: the file then rejects
  /// appends.
  void sync();
  /// Syncs, and leaves a file whose bytes depend only on its rows, not on the number of syncs. Throws as
  /// `sync`.
  void settle();
  /// Removes the rows from `size` on.
  void truncate(int64_t size);
  /// Frees the disk space of the rows before `first`, which must not be read again; their ids stay in use. A
  /// file with fewer rows continues with row `first`. A file system without holes keeps the space.
  void forget(int64_t first);

  /// Whether the `stride()` bytes at `row` are a valid row `id`.
  bool is_whole(const std::byte* row, int64_t id) const;

 private:
  void create(const std::string& kind);
  void check_header(const std::string& kind);
  void recover();
  void commit(int64_t rows);  // while committing_ is held
  void write_slot(uint64_t commit, int64_t rows);
  void check_usable() const;

  File file_;
  int64_t row_bytes_;
  std::atomic<int64_t> size_{0};
  int64_t synced_ = 0;
  int64_t freed_ = kHeaderBytes;  // bytes up to which there is a hole
  uint64_t commits_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex committing_;
  std::vector<std::byte> buffer_;
};

}  // namespace tgflow
