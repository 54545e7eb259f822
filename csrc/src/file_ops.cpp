#include "tgflow/file_ops.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace tgflow {
namespace {

/// Waits until the data of a file is on the disk; what the system calls that differs.
int sync_data(int descriptor) {
#ifdef __APPLE__
  return fcntl(descriptor, F_FULLFSYNC) == -1 ? fsync(descriptor) : 0;  // fsync leaves it in the disk's cache
#else
  return fdatasync(descriptor);
#endif
}

#ifdef TGFLOW_FAULTS
struct Fault {
  int64_t after = 0, times = 0, result = 0;
};

std::atomic<bool> armed{false};
std::mutex fault_mutex;
std::array<Fault, 3> faults;
#endif

}  // namespace

#ifdef TGFLOW_FAULTS
void inject_fault(FileOp op, int64_t after, int64_t times, int64_t result) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  faults[static_cast<std::size_t>(op)] = {after, times, result};
  armed = std::any_of(faults.begin(), faults.end(), [](const Fault& fault) { return fault.times > 0; });
}

int64_t allowed(FileOp op, int64_t bytes) {
  if (!armed) return bytes;
  const std::lock_guard<std::mutex> lock(fault_mutex);
  Fault& fault = faults[static_cast<std::size_t>(op)];
  if (fault.times == 0 || fault.after-- > 0) return bytes;
  fault.after = 0;
  --fault.times;
  return std::min(fault.result, bytes);
}
#endif

FileError::FileError(int error, const std::string& what_for)
    : std::runtime_error(what_for + ": " + std::strerror(error)), code_(error) {}

File::File(const std::string& path, int flags) : path_(path) {
  descriptor_ = open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw FileError(errno, "cannot open " + path);
}

File::~File() { close(descriptor_); }

int64_t File::size() const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) throw FileError(errno, "cannot look at " + path_);
  return status.st_size;
}

int64_t File::read(void* into, int64_t bytes, int64_t offset) const {
  const int64_t limit = allowed(FileOp::kRead, bytes);
  if (limit < 0) return limit;
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t now = pread(descriptor_, static_cast<char*>(into) + done, static_cast<size_t>(bytes - done),
                              static_cast<off_t>(offset + done));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return -errno;
    if (now == 0) break;
    done += now;
    if (now % 512 != 0) break;  // the end of the file; going on there, O_DIRECT would refuse
  }
  return std::min(done, limit);
}

void File::write(const void* from, int64_t bytes, int64_t offset) {
  int64_t done = 0;
  while (done < bytes) {
    const int64_t limit = allowed(FileOp::kWrite, bytes - done);
    ssize_t now = -1;
    if (limit >= 0) {
      now = pwrite(descriptor_, static_cast<const char*>(from) + done, static_cast<size_t>(limit),
                   static_cast<off_t>(offset + done));
    } else {
      errno = static_cast<int>(-limit);
    }
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) throw FileError(errno, "cannot write to " + path_);
    done += now;
  }
}

void File::sync() {
  const int64_t fault = allowed(FileOp::kSync, 0);
  if (fault < 0) throw FileError(static_cast<int>(-fault), "cannot sync " + path_);
  if (sync_data(descriptor_) != 0) throw FileError(errno, "cannot sync " + path_);
}

void File::truncate(int64_t bytes) {
  if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) throw FileError(errno, "cannot cut " + path_);
}

bool File::lock() { return flock(descriptor_, LOCK_EX | LOCK_NB) == 0; }

void File::drop_cache() const {
#ifdef POSIX_FADV_DONTNEED
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);  // a hint: failing is fine
#endif
}

}  // namespace tgflow
