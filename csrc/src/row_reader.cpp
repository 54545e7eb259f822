#include "tgflow/row_reader.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tgflow/memory.hpp"
#include "tgflow/thread.hpp"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#define TGFLOW_URING 1
#endif
#ifndef O_DIRECT
#define O_DIRECT 0
#endif

namespace tgflow {
namespace {

constexpr int64_t kMost = 128 << 10;  // most bytes of a read, unless a row is longer
constexpr int64_t kGap = 8 << 10;     // largest gap in bytes that is read instead of starting another read
constexpr int64_t kMostDepth = 128;
constexpr int64_t kPage = 4096;
constexpr int kMostRetries = 16;

int64_t round_up(int64_t bytes, int64_t step) { return (bytes + step - 1) / step * step; }

constexpr int kMostThreads = 32;
constexpr int64_t kAlignments[] = {512, 4096};
constexpr int64_t kProbed = 4096;

/// Threads that serve reads from a queue.
class PreadPool final : public BlockReads {
 public:
  PreadPool(const std::string& path, int flags, int depth) : file_(path, flags) {
    try {
      while (static_cast<int>(threads_.size()) < std::min(depth, kMostThreads)) {
        threads_.push_back(start_thread("to read " + path, [this] { serve(); }));
      }
    } catch (...) {
      end();
      throw;
    }
  }

  ~PreadPool() override { end(); }

  void start(const BlockRead& read) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      asked_.push_back(read);
    }
    wake_.notify_one();
  }

  BlockDone wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return !done_.empty(); });
    const BlockDone done = done_.front();
    done_.pop_front();
    return done;
  }

 private:
  void end() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || !asked_.empty(); });
      if (stop_) return;
      const BlockRead read = asked_.front();
      asked_.pop_front();
      lock.unlock();
      const int64_t result = file_.read(read.into, read.bytes, read.offset);
      lock.lock();
      done_.push_back({read.tag, result});
      ended_.notify_one();
    }
  }

  File file_;
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<BlockRead> asked_;
  std::deque<BlockDone> done_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

#ifdef TGFLOW_URING
/// A mapped part of the ring; null if mapping failed.
class Mapping {
 public:
  Mapping(int ring, size_t bytes, off_t what)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what)) {}
  ~Mapping() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool is_there() const { return data_ != MAP_FAILED; }
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + offset);
  }

 private:
  size_t bytes_;
  void* data_;
};

/// The rings are shared with the kernel: heads and tails are stored with release and loaded with acquire.
class UringReads final : public BlockReads {
 public:
  UringReads(const std::string& path, int flags, int ring, const io_uring_params& params)
      : file_(path, flags),
        ring_(ring),
        sq_(ring, params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING),
        cq_(ring, params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING),
        sqes_(ring, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES),
        params_(params) {}
  ~UringReads() override { close(ring_); }

  bool is_there() const { return sq_.is_there() && cq_.is_there() && sqes_.is_there(); }

  void start(const BlockRead& read) override {
    const unsigned tail = *sq_.at<unsigned>(params_.sq_off.tail);
    const unsigned index = tail & *sq_.at<unsigned>(params_.sq_off.ring_mask);
    io_uring_sqe& entry = sqes_.at<io_uring_sqe>(0)[index];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_READ;
    entry.fd = file_.descriptor();
    entry.off = static_cast<uint64_t>(read.offset);
    entry.addr = reinterpret_cast<uint64_t>(read.into);
    entry.len = static_cast<uint32_t>(read.bytes);
    entry.user_data = static_cast<uint64_t>(read.tag);
    sq_.at<unsigned>(params_.sq_off.array)[index] = index;
    __atomic_store_n(sq_.at<unsigned>(params_.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    ++unsubmitted_;
  }

  BlockDone wait() override {
    for (;;) {
      const unsigned head = *cq_.at<unsigned>(params_.cq_off.head);
      if (head != __atomic_load_n(cq_.at<unsigned>(params_.cq_off.tail), __ATOMIC_ACQUIRE)) {
        const unsigned index = head & *cq_.at<unsigned>(params_.cq_off.ring_mask);
        const io_uring_cqe entry = cq_.at<io_uring_cqe>(params_.cq_off.cqes)[index];
        __atomic_store_n(cq_.at<unsigned>(params_.cq_off.head), head + 1, __ATOMIC_RELEASE);
        return {static_cast<int64_t>(entry.user_data), allowed(FileOp::kRead, entry.res)};
      }
      enter();
    }
  }

 private:
  /// Submits the started reads, and waits until a read has completed.
  void enter() {
    const long done =
        syscall(__NR_io_uring_enter, ring_, unsubmitted_, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (done >= 0) {
      unsubmitted_ -= static_cast<unsigned>(done);
    } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
      throw FileError(errno, "cannot read " + file_.path() + " by io_uring");
    }
  }

  File file_;
  int ring_;
  Mapping sq_, cq_, sqes_;
  io_uring_params params_;
  unsigned unsubmitted_ = 0;
};

/// Reads by io_uring, with direct system calls. Null if not supported.
std::unique_ptr<BlockReads> open_uring(const std::string& path, int flags, int depth) {
  io_uring_params params;
  std::memset(&params, 0, sizeof params);
  const long ring = syscall(__NR_io_uring_setup, depth, &params);
  if (ring < 0) return nullptr;
  fcntl(static_cast<int>(ring), F_SETFD, FD_CLOEXEC);
  auto reads = std::make_unique<UringReads>(path, flags, static_cast<int>(ring), params);
  return reads->is_there() ? std::move(reads) : nullptr;
}
#else
std::unique_ptr<BlockReads> open_uring(const std::string&, int, int) { return nullptr; }
#endif

/// Whether this method returns the first bytes of the file, which are `expected`.
bool works(const std::string& path, const ReadWay& way, const std::byte* expected) {
  try {
    const auto reads = open_reads(path, way, 1);
    if (reads == nullptr) return false;
    const int64_t bytes = std::max(way.alignment, kAlignments[0]);
    const std::unique_ptr<void, decltype(&std::free)> into(std::aligned_alloc(kProbed, kProbed), &std::free);
    reads->start({0, bytes, static_cast<std::byte*>(into.get()), 0});
    return reads->wait().result == bytes &&
           std::memcmp(into.get(), expected, static_cast<size_t>(bytes)) == 0;
  } catch (const FileError&) {
    return false;
  }
}

}  // namespace

std::string ReadWay::name() const {
  return std::string(uring ? "io_uring" : "pread") + (direct ? " with O_DIRECT" : " through the page cache");
}

ReadWay probe_reads(const std::string& path, const std::string& wish) {
  if (wish != "auto" && wish != "io_uring" && wish != "pread" && wish != "page cache") {
    throw std::invalid_argument("reads must be auto, io_uring, pread or page cache, got " + wish);
  }
  std::vector<std::byte> expected(static_cast<size_t>(kProbed));
  const File file(path, O_RDONLY);
  const int64_t got = file.read(expected.data(), kProbed, 0);
  if (got < 0) throw FileError(static_cast<int>(-got), "cannot read " + path);
  const bool may_uring = wish == "auto" || wish == "io_uring";
  for (const bool uring : {true, false}) {
    if ((uring && !may_uring) || wish == "page cache" || O_DIRECT == 0) continue;
    for (const int64_t alignment : kAlignments) {
      const ReadWay way{uring, true, alignment};
      if (works(path, way, expected.data())) return way;
    }
  }
  return {};
}

std::unique_ptr<BlockReads> open_reads(const std::string& path, const ReadWay& way, int depth) {
  const int flags = O_RDONLY | (way.direct ? O_DIRECT : 0);
  if (way.uring) return open_uring(path, flags, depth);
  return std::make_unique<PreadPool>(path, flags, depth);
}

struct RowReader::Request::State {
  std::byte* out;
  std::vector<WantedRow> wanted;
  std::vector<RowSpan> spans;
  size_t started = 0;  // spans
  size_t ended = 0;

  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  std::string error;  // the first one
  int code = 0;       // 0 with an error: damaged

  void fail(const std::string& what, int errno_or_0) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!error.empty()) return;
    error = what;
    code = errno_or_0;
  }
  void finish() {
    const std::lock_guard<std::mutex> lock(mutex);
    is_done = true;
    done.notify_all();
  }
};

/// A buffer and the read that it is used for.
struct RowReader::Flight {
  std::shared_ptr<Request::State> request;
  RowSpan span;
  std::byte* buffer;
  int64_t read = 0;  // bytes read, from the span's start
  int retries = 0;
};

RowReader::Request::~Request() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->done.wait(lock, [this] { return state_->is_done; });
}

void RowReader::Request::wait() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->done.wait(lock, [this] { return state_->is_done; });
  if (state_->error.empty()) return;
  if (state_->code == 0) throw DamagedFile(state_->error);
  throw FileError(state_->code, state_->error);
}

bool RowReader::Request::is_done() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->is_done;
}

std::vector<RowSpan> cut_spans(const RowFile& file, const std::vector<WantedRow>& wanted, int64_t alignment,
                               int64_t most) {
  std::vector<RowSpan> spans;
  for (int64_t i = 0; i < static_cast<int64_t>(wanted.size()); ++i) {
    const int64_t begin = file.offset(wanted[static_cast<size_t>(i)].id);
    const int64_t from = begin / alignment * alignment, to = round_up(begin + file.stride(), alignment);
    if (!spans.empty()) {
      RowSpan& last = spans.back();
      if (from <= last.offset + last.bytes + kGap && to - last.offset <= most) {
        last.bytes = std::max(last.bytes, to - last.offset);
        last.last = i + 1;
        continue;
      }
    }
    spans.push_back({from, to - from, i, i + 1});
  }
  return spans;
}

RowReader::RowReader(const RowFile& file, int64_t budget, const std::string& wish)
    : file_(file), way_(probe_reads(file.path(), wish)), process_(getpid()), buffers_(nullptr, &std::free) {
  const int64_t longest = round_up(file.stride() + way_.alignment, kPage);
  most_ = std::max(longest, std::min(kMost, budget / kMostDepth / kPage * kPage));
  depth_ = std::clamp<int64_t>(budget / most_, 2, kMostDepth);
  buffers_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(depth_ * most_))));
  if (buffers_ == nullptr) throw OutOfMemory("buffers to read " + file.path(), depth_ * most_);
  reads_ = open_reads(file.path(), way_, static_cast<int>(depth_));
  if (reads_ == nullptr) throw FileError(ENOSYS, "cannot read " + file.path() + " by io_uring");
  flights_.resize(static_cast<size_t>(depth_));
  for (int64_t tag = 0; tag < depth_; ++tag) {
    flights_[static_cast<size_t>(tag)].buffer = buffers_.get() + tag * most_;
    idle_.push_back(tag);
  }
  thread_ = start_thread("to read " + file.path(), [this] { serve(); });
}

RowReader::~RowReader() {
  if (getpid() != process_) {  // threads belong to the other process
    thread_.detach();
    static_cast<void>(reads_.release());
    // Destroying a condition waits for those that waited on it as the process forked.
    static_cast<void>(wake_.release());
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_->notify_one();
  thread_.join();
}

std::unique_ptr<RowReader::Request> RowReader::start(const int64_t* id, int64_t n, int64_t size,
                                                     std::byte* out) {
  if (getpid() != process_) {
    throw FileError(ECHILD,
                    file_.path() + " was opened before the process forked; open tables on disk after it");
  }
  auto state = std::make_shared<Request::State>();
  state->out = out;
  for (int64_t i = 0; i < n; ++i) {
    if (id[i] >= size) {
      throw std::out_of_range("id " + std::to_string(id[i]) + " is not in a table of " +
                              std::to_string(size) + " rows");
    }
    if (id[i] < 0) {
      std::memset(out + i * file_.row_bytes(), 0, static_cast<size_t>(file_.row_bytes()));
    } else {
      state->wanted.push_back({id[i], i});
    }
  }
  std::sort(state->wanted.begin(), state->wanted.end(),
            [](const WantedRow& a, const WantedRow& b) { return a.id < b.id; });
  state->spans = cut_spans(file_, state->wanted, way_.alignment, most_);
  state->is_done = state->spans.empty();
  if (!state->is_done) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.empty()) throw FileError(EIO, broken_);
    waiting_.push_back(state);
  }
  wake_->notify_one();
  return std::unique_ptr<Request>(new Request(std::move(state)));
}

void RowReader::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    start_reads();
    if (idle_.size() == flights_.size()) {
      if (stop_) return;
      wake_->wait(lock, [this] { return stop_ || !waiting_.empty(); });
      continue;
    }
    lock.unlock();
    try {
      end_read(reads_->wait());
      lock.lock();
    } catch (const FileError& error) {
      lock.lock();
      fail_all(error);
      return;
    }
  }
}

/// Fails every request, as reads cannot be waited for any more; under the mutex.
void RowReader::fail_all(const FileError& error) {
  broken_ = error.what();
  for (Flight& flight : flights_) {
    if (flight.request != nullptr) waiting_.push_back(flight.request);
  }
  for (const auto& request : waiting_) {
    request->fail(broken_, error.code());
    request->finish();
  }
  waiting_.clear();
}

/// Assigns idle buffers to the first requests; under the mutex.
void RowReader::start_reads() {
  while (!idle_.empty() && !waiting_.empty()) {
    const std::shared_ptr<Request::State> request = waiting_.front();
    const int64_t tag = idle_.back();
    idle_.pop_back();
    Flight& flight = flights_[static_cast<size_t>(tag)];
    flight.request = request;
    flight.span = request->spans[request->started++];
    flight.read = 0;
    flight.retries = 0;
    if (request->started == request->spans.size()) waiting_.pop_front();
    read_more(tag);
  }
}

void RowReader::read_more(int64_t tag) {
  const Flight& flight = flights_[static_cast<size_t>(tag)];
  reads_->start(
      {flight.span.offset + flight.read, flight.span.bytes - flight.read, flight.buffer + flight.read, tag});
}

void RowReader::end_read(const BlockDone& done) {
  Flight& flight = flights_[static_cast<size_t>(done.tag)];
  const RowSpan& span = flight.span;
  const auto& last = flight.request->wanted[static_cast<size_t>(span.last - 1)];
  const int64_t needed = file_.offset(last.id) + file_.stride() - span.offset;
  const bool again = done.result == -EINTR || done.result == -EAGAIN;
  if (done.result > 0) {
    const int64_t read = flight.read + done.result;
    flight.read = read >= needed ? read : read / way_.alignment * way_.alignment;
  }
  if (flight.read < needed && (again || done.result > 0) && ++flight.retries < kMostRetries) {
    read_more(done.tag);
    return;
  }
  const std::string rows = "rows " +
                           std::to_string(flight.request->wanted[static_cast<size_t>(span.first)].id) +
                           " to " + std::to_string(last.id) + " of " + file_.path();
  if (done.result < 0) {
    flight.request->fail("cannot read " + rows, static_cast<int>(-done.result));
  } else if (flight.read < needed) {
    flight.request->fail(rows + " cannot be read: the file ends before them", 0);
  } else {
    copy_rows(flight);
  }
  Request::State& request = *flight.request;
  if (++request.ended == request.spans.size()) request.finish();
  flight.request.reset();
  idle_.push_back(done.tag);
}

void RowReader::copy_rows(Flight& flight) {
  const auto bytes = static_cast<size_t>(file_.row_bytes());
  const std::byte* row = nullptr;
  int64_t held = -1;
  for (int64_t i = flight.span.first; i < flight.span.last; ++i) {
    const WantedRow& wanted = flight.request->wanted[static_cast<size_t>(i)];
    if (wanted.id != held) {
      row = flight.buffer + (file_.offset(wanted.id) - flight.span.offset);
      held = wanted.id;
      if (!file_.is_whole(row, held)) {
        flight.request->fail(
            "row " + std::to_string(held) + " of " + file_.path() + " is damaged: its checksum differs", 0);
        return;
      }
    }
    std::memcpy(flight.request->out + wanted.row * file_.row_bytes(), row, bytes);
  }
}

}  // namespace tgflow
