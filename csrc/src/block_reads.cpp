#include "tgflow/block_reads.hpp"

#include <fcntl.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "tgflow/file_ops.hpp"
#include "uring_reads.hpp"

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
