// Asynchronous reads of a file's rows by id, many at a time.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tgflow/row_file.hpp"

namespace tgflow {

/// A range of a file, and its buffer. With O_DIRECT all three are multiples of the alignment.
struct BlockRead {
  int64_t offset;
  int64_t bytes;
  std::byte* into;
  int64_t tag;
};

/// A completed read: bytes read, or an errno below 0.
struct BlockDone {
  int64_t tag;
  int64_t result;
};

/// Reads in flight on one file. For one thread.
class BlockReads {
 public:
  virtual ~BlockReads() = default;
  /// Starts a read; at most `depth` may be in flight.
  virtual void start(const BlockRead& read) = 0;
  /// Waits for one of them to complete.
  virtual BlockDone wait() = 0;
};

/// I/O method of a file.
struct ReadWay {
  bool uring = false;     ///< By io_uring, else by a pool of threads that call pread.
  bool direct = false;    ///< Bypasses the system's page cache (O_DIRECT).
  int64_t alignment = 1;  ///< Of offsets, sizes and buffers.
  std::string name() const;
};

/// Finds the best method that returns the right bytes, by reading the beginning of the file, which has a
/// header of at least 4096 bytes. `wish`: "auto"; or "io_uring", "pread" or "page cache" for no better method
/// than that. Throws FileError if the file cannot be read at all, std::invalid_argument for another wish.
ReadWay probe_reads(const std::string& path, const std::string& wish);

std::unique_ptr<BlockReads> open_reads(const std::string& path, const ReadWay& way, int depth);

/// A requested row, and its number in the caller's output.
struct WantedRow {
  int64_t id;
  int64_t row;
};

/// Adjacent rows of one read.
struct RowSpan {
  int64_t offset;  ///< In the file.
  int64_t bytes;
  int64_t first;  ///< Its requested rows.
  int64_t last;
};

/// Groups the rows of `wanted`, in the order of their ids, into reads of at most `most` bytes, or of one row.
/// Rows closer than the cost of another read are read together.
std::vector<RowSpan> cut_spans(const RowFile& file, const std::vector<WantedRow>& wanted, int64_t alignment,
                               int64_t most);

/// Reads rows of a file with a thread of its own, which keeps many reads in flight, across requests too.
class RowReader {
 public:
  /// One gather, owned by the caller; it may outlive the reader.
  class Request {
   public:
    ~Request();
    /// Waits for the rows. Throws FileError or DamagedFile if one could not be read; others may be there.
    void wait();
    bool is_done() const;

   private:
    friend class RowReader;
    struct State;
    explicit Request(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };

  /// `budget`: bytes of buffers, at least those of two rows. `wish`: see `probe_reads`.
  RowReader(const RowFile& file, int64_t budget, const std::string& wish);
  /// Waits for all requests.
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  /// Starts to write the rows of `id` [n] to `out` [n, row_bytes]: adjacent rows are read together, and each
  /// row once even for duplicate ids. A negative id gives zeros. Thread-safe. Throws
  /// std::out_of_range if an id is not below `size`, FileError in a process forked since: it has no thread.
  std::unique_ptr<Request> start(const int64_t* id, int64_t n, int64_t size, std::byte* out);

  const RowFile& file() const { return file_; }
  const ReadWay& way() const { return way_; }
  /// Bytes of buffers.
  int64_t buffer_bytes() const { return depth_ * most_; }

 private:
  struct Flight;

  void serve();
  void fail_all(const FileError& error);
  void start_reads();
  void read_more(int64_t tag);
  void end_read(const BlockDone& done);
  void copy_rows(Flight& flight);

  const RowFile& file_;
  ReadWay way_;
  int64_t most_;
  int64_t depth_;
  int process_;
  std::unique_ptr<std::byte, void (*)(void*)> buffers_;
  std::unique_ptr<BlockReads> reads_;

  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<Request::State>> waiting_;  // with reads that are not started
  bool stop_ = false;
  std::string broken_;  // cause of a permanent failure

  std::vector<Flight> flights_;  // the thread's own
  std::vector<int64_t> idle_;
  std::thread thread_;
};

}  // namespace tgflow
