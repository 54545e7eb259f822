// Rows of one width in a file that only grows: what was synced survives anything but a broken disk.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

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

/// A header page, and then rows in the order of their ids, each followed by the CRC-32C of its id and bytes:
/// a row that is torn, misplaced or rotten is an error when it is read, never a wrong answer.
///
/// Two slots of the header say in turn how many rows have been synced. What lies behind those when the file
/// is opened was appended and perhaps not written before a crash: it stays up to the last whole row, and the
/// rest is cut off. One thread appends and truncates; others may read rows below `size` and sync meanwhile.
class RowFile {
 public:
  static constexpr int64_t kHeaderBytes = 4096;
  static constexpr int64_t kCrcBytes = 4;

  /// Opens the file, or creates it where there is none. `kind` says what rows are, in at most 31 bytes.
  /// Throws DamagedFile if it holds something else, or fewer rows than were synced; FileError.
  RowFile(const std::string& path, int64_t row_bytes, const std::string& kind);

  const std::string& path() const { return file_.path(); }
  int64_t row_bytes() const { return row_bytes_; }
  /// Bytes from one row to the next.
  int64_t stride() const { return row_bytes_ + kCrcBytes; }
  int64_t offset(int64_t id) const { return kHeaderBytes + id * stride(); }
  int64_t size() const { return size_; }
  int64_t synced() const { return synced_; }  // not while another thread syncs

  /// Adds `n` rows, all or none: a process that is killed loses them no more. Throws FileError.
  void append(const std::byte* rows, int64_t n);
  /// Returns once all rows so far survive a power failure. Throws FileError: the file takes no more rows
  /// then.
  void sync();
  /// Syncs, and leaves a file whose bytes depend on its rows alone, however often it was synced. Throws as
  /// `sync`.
  void settle();
  /// Takes back the rows from `size` on.
  void truncate(int64_t size);

  /// Whether the `stride()` bytes at `row` are row `id`.
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
  uint64_t commits_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex committing_;
  std::vector<std::byte> buffer_;
};

}  // namespace tgflow
