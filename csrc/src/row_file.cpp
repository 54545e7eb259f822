#include "tgflow/row_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tgflow {
namespace {

/// Waits until a file's data is on the disk, by the system's own call.
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

constexpr char kMagic[8] = {'T', 'G', 'F', 'R', 'O', 'W', 'S', '1'};
constexpr int64_t kSlot[2] = {1024, 2048};  // in sectors of their own: a torn write damages only one slot
constexpr int64_t kAtOnce = 1 << 20;

/// Little-endian, as all supported machines.
struct Header {
  char magic[8];
  int64_t row_bytes;
  char kind[32];
  uint32_t crc;
  uint32_t unused;
};

struct Slot {
  uint64_t commit;  // counts commits: the higher one is valid
  int64_t rows;
  uint32_t crc;
  uint32_t unused;
};

constexpr uint32_t kPolynomial = 0x82f63b78;  // reversed

uint32_t by_table(uint32_t crc, const unsigned char* at, size_t bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t b = 0; b < 256; ++b) {
      made[b] = b;
      for (int bit = 0; bit < 8; ++bit) made[b] = made[b] >> 1 ^ (made[b] & 1 ? kPolynomial : 0);
    }
    return made;
  }();
  for (; bytes > 0; --bytes, ++at) crc = crc >> 8 ^ table[(crc ^ *at) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const unsigned char* at,
                                                          size_t bytes) {
  uint64_t wide = crc;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++at) crc = __builtin_ia32_crc32qi(crc, *at);
  return crc;
}
#endif

/// CRC-32C (Castagnoli), the checksum of iSCSI and ext4; continues `crc`, 0 at first.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(~crc, at, bytes);
#endif
  return ~by_table(~crc, at, bytes);
}

template <typename T>
uint32_t crc_of(const T& record) {
  return crc32c(0, &record, offsetof(T, crc));
}

uint32_t row_crc(int64_t id, const std::byte* row, int64_t row_bytes) {
  return crc32c(crc32c(0, &id, sizeof id), row, static_cast<size_t>(row_bytes));
}

template <typename T>
T read_record(const File& file, int64_t offset) {
  T record{};
  const int64_t got = file.read(&record, sizeof record, offset);
  if (got < 0) throw FileError(static_cast<int>(-got), "cannot read the header of " + file.path());
  return record;
}

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
    if (now % 512 != 0) break;  // the end of the file, which O_DIRECT cannot continue from
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
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);  // a hint: failure is ignored
#endif
}

RowFile::RowFile(const std::string& path, int64_t row_bytes, const std::string& kind)
    : file_(path, O_RDWR | O_CREAT), row_bytes_(row_bytes) {
  if (!file_.lock()) throw FileError(EBUSY, path + " is open elsewhere");
  if (file_.size() == 0) {
    create(kind);
  } else {
    check_header(kind);
    recover();
  }
}

void RowFile::create(const std::string& kind) {
  std::vector<std::byte> page(static_cast<size_t>(kHeaderBytes));
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.row_bytes = row_bytes_;
  kind.copy(header.kind, sizeof header.kind - 1);
  header.crc = crc_of(header);
  std::memcpy(page.data(), &header, sizeof header);
  Slot slot{};
  slot.crc = crc_of(slot);
  for (const int64_t at : kSlot) std::memcpy(page.data() + at, &slot, sizeof slot);
  try {
    file_.write(page.data(), kHeaderBytes, 0);
    file_.sync();
  } catch (const FileError&) {
    file_.truncate(0);  // restores the empty file
    throw;
  }
}

void RowFile::check_header(const std::string& kind) {
  const auto header = read_record<Header>(file_, 0);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    throw DamagedFile(path() + " is no table of tgflow's, or its beginning is lost");
  }
  if (header.crc != crc_of(header)) throw DamagedFile("the header of " + path() + " is damaged");
  if (header.row_bytes != row_bytes_ || kind != header.kind) {
    throw std::invalid_argument(path() + " holds rows of " + header.kind + ", not of " + kind);
  }
}

void RowFile::recover() {
  bool found = false;
  for (const int64_t at : kSlot) {
    const auto slot = read_record<Slot>(file_, at);
    if (slot.crc != crc_of(slot) || (found && slot.commit < commits_)) continue;
    found = true;
    commits_ = slot.commit;
    synced_ = slot.rows;
  }
  if (!found) throw DamagedFile("both records of how many rows " + path() + " holds are damaged");
  const int64_t whole = std::max<int64_t>(file_.size() - kHeaderBytes, 0) / stride();
  if (whole < synced_) {
    throw DamagedFile(path() + " holds " + std::to_string(whole) + " rows, and " + std::to_string(synced_) +
                      " were synced: its end was cut off; restore it from a copy");
  }
  int64_t size = synced_;
  const int64_t at_once = std::max<int64_t>(kAtOnce / stride(), 1);
  buffer_.resize(static_cast<size_t>(at_once * stride()));
  for (bool intact = true; intact && size < whole;) {
    const int64_t rows = std::min(at_once, whole - size);
    const int64_t got = file_.read(buffer_.data(), rows * stride(), offset(size));
    if (got < 0) throw FileError(static_cast<int>(-got), "cannot read " + path());
    for (int64_t i = 0; i < rows && intact; ++i) {
      intact = (i + 1) * stride() <= got && is_whole(buffer_.data() + i * stride(), size);
      size += intact;
    }
  }
  size_ = size;
  if (file_.size() != offset(size)) file_.truncate(offset(size));
}

bool RowFile::is_whole(const std::byte* row, int64_t id) const {
  uint32_t crc;
  std::memcpy(&crc, row + row_bytes_, sizeof crc);
  return crc == row_crc(id, row, row_bytes_);
}

void RowFile::append(const std::byte* rows, int64_t n) {
  check_usable();
  const int64_t at_once = std::max<int64_t>(kAtOnce / stride(), 1), first = size_;
  buffer_.resize(static_cast<size_t>(std::min(at_once, n) * stride()));
  try {
    for (int64_t begin = 0; begin < n; begin += at_once) {
      const int64_t count = std::min(at_once, n - begin);
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* row = rows + (begin + i) * row_bytes_;
        std::byte* at = buffer_.data() + i * stride();
        const uint32_t crc = row_crc(first + begin + i, row, row_bytes_);
        std::memcpy(at, row, static_cast<size_t>(row_bytes_));
        std::memcpy(at + row_bytes_, &crc, sizeof crc);
      }
      file_.write(buffer_.data(), count * stride(), offset(first + begin));
    }
  } catch (const FileError& error) {
    file_.truncate(offset(first));
    throw FileError(error.code(), "rows " + std::to_string(first) + " to " + std::to_string(first + n - 1) +
                                      " were not added to " + path() + ", which keeps those before");
  }
  size_ = first + n;
}

void RowFile::sync() {
  const std::lock_guard<std::mutex> lock(committing_);
  check_usable();
  if (const int64_t size = size_; size != synced_) commit(size);
}

void RowFile::settle() {
  const std::lock_guard<std::mutex> lock(committing_);
  check_usable();
  const int64_t size = size_;
  if (size != synced_) commit(size);
  const uint64_t latest = commits_ % 2;
  for (const uint64_t slot : {1 - latest, latest}) write_slot(slot, size);  // one of them always holds `size`
  commits_ = 1;
}

void RowFile::commit(int64_t rows) {
  write_slot(commits_ + 1, rows);
  commits_ += 1;
  synced_ = rows;
  file_.drop_cache();
}

void RowFile::write_slot(uint64_t commit, int64_t rows) {
  Slot slot{commit, rows, 0, 0};
  slot.crc = crc_of(slot);
  try {
    file_.sync();
    file_.write(&slot, sizeof slot, kSlot[commit % 2]);
    file_.sync();
  } catch (const FileError& error) {
    // The system may have dropped unwritten data, and would not report it again.
    failed_ = true;
    throw FileError(error.code(), path() + " could not be synced, and is sure to hold only its first " +
                                      std::to_string(synced_) + " rows; open it again to see what it holds");
  }
}

void RowFile::truncate(int64_t size) {
  const std::lock_guard<std::mutex> lock(committing_);
  check_usable();
  if (size >= size_) return;
  size_ = size;
  freed_ = std::min(freed_, offset(size));
  if (size < synced_) commit(size);
  file_.truncate(offset(size));
}

void RowFile::forget(int64_t first) {
  const std::lock_guard<std::mutex> lock(committing_);
  check_usable();
  if (first > size_) {
    file_.truncate(offset(first));
    size_ = first;
    commit(first);
  }
#ifdef FALLOC_FL_PUNCH_HOLE
  const int64_t bytes = offset(first) - freed_;
  const int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (bytes > 0 &&
      fallocate(file_.descriptor(), how, static_cast<off_t>(freed_), static_cast<off_t>(bytes)) == 0) {
    freed_ = offset(first);
  }
#endif
}

void RowFile::check_usable() const {
  if (failed_) throw FileError(EIO, path() + " failed to sync before; open it again");
}

}  // namespace tgflow
