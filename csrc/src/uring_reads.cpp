#include "uring_reads.hpp"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tgflow/faults.hpp"
#include "tgflow/file_ops.hpp"

namespace tgflow {
namespace {

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

}  // namespace

std::unique_ptr<BlockReads> open_uring(const std::string& path, int flags, int depth) {
  io_uring_params params;
  std::memset(&params, 0, sizeof params);
  const long ring = syscall(__NR_io_uring_setup, depth, &params);
  if (ring < 0) return nullptr;
  fcntl(static_cast<int>(ring), F_SETFD, FD_CLOEXEC);
  auto reads = std::make_unique<UringReads>(path, flags, static_cast<int>(ring), params);
  return reads->is_there() ? std::move(reads) : nullptr;
}

}  // namespace tgflow

#else

namespace tgflow {

std::unique_ptr<BlockReads> open_uring(const std::string&, int, int) { return nullptr; }

}  // namespace tgflow

#endif
