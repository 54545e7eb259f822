// Rows of one width in a file that only grows: what was synced survives anything but a broken disk.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tgflow/file_ops.hpp"

namespace tgflow {

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
