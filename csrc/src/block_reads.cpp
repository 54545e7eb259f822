#include "tgflow/block_reads.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "tgflow/file_ops.hpp"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#define TGFLOW_URING 1
#endif
#ifndef O_DIRECT
#define O_DIRECT 0
#endif

namespace tgflow {
namespace {

constexpr int kMostThreads = 32;
constexpr int64_t kAlignments[] = {512, 4096};
constexpr int64_t kProbed = 4096;

/// Threads that take reads from a queue.
class PreadPool final : public BlockReads {
 public:
  PreadPool(const std::string& path, int flags, int depth) : file_(path, flags) {
    for (int i = 0; i < std::min(depth, kMostThreads); ++i) threads_.emplace_back([this] { serve(); });
  }

  ~PreadPool() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

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
/// A mapped part of the ring; null if it could not be mapped.
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

/// The rings are shared with the kernel: heads and tails are written with release, and read with acquire.
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
  /// Hands over what was started, and waits until a read has ended.
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

/// Reads by io_uring, with no library between us and the system calls. Null where the system has none.
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

/// Whether this way brings the first bytes of the file, which are `expected`.
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

}  // namespace tgflow
