#include "tgflow/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tgflow/row_file.hpp"

// The core's own large allocations report their size; a sanitizer replaces these functions itself. Small
// ones do not, as the message takes memory too.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t bytes) {
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory != nullptr) return memory;
  if (bytes < 4096) throw std::bad_alloc();
  throw tgflow::OutOfMemory("the native core", static_cast<int64_t>(bytes));
}
#endif

namespace tgflow {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kStep = size_t{1} << 20;           // committing is a system call
constexpr size_t kHugePagesFrom = size_t{8} << 20;  // below, they would cost more memory than they save time

/// Allocates bytes of a file on the disk; returns an errno, 0 for none.
int allocate_on_disk(int file, size_t begin, size_t bytes) {
  if (const int64_t limit = allowed(FileOp::kWrite, static_cast<int64_t>(bytes)); limit < 0) {
    return static_cast<int>(-limit);
  }
#ifdef __APPLE__
  for (const std::vector<char> zeros(kStep); bytes > 0;) {
    const ssize_t now = pwrite(file, zeros.data(), std::min(bytes, kStep), static_cast<off_t>(begin));
    if (now < 0 && errno != EINTR) return errno;
    begin += static_cast<size_t>(std::max<ssize_t>(now, 0));
    bytes -= static_cast<size_t>(std::max<ssize_t>(now, 0));
  }
  return 0;
#else  // writes to each block where the filesystem cannot allocate
  int error = EINTR;
  while (error == EINTR) {
    error = posix_fallocate(file, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  }
  return error;
#endif
}

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

/// A hint: failure is ignored.
void prefer_huge_pages(void* memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace

void* HostMemory::allocate(int64_t bytes) noexcept {
  const size_t size = static_cast<size_t>(bytes);
  void* chunk = std::aligned_alloc(size % kHugePage == 0 ? kHugePage : kLine, size);
  if (chunk != nullptr && size >= kHugePage) prefer_huge_pages(chunk, size);
  return chunk;
}

void HostMemory::free(void* chunk, int64_t) noexcept { std::free(chunk); }

int DiskMemory::open() const {
#ifdef O_TMPFILE
  const int file = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
#endif
  std::string path = folder_ + "/tgflow-XXXXXX";
  const int named = mkstemp(path.data());
  if (named < 0) throw FileError(errno, "cannot make a file in " + folder_ + " for " + what_for_);
  fcntl(named, F_SETFD, FD_CLOEXEC);
  unlink(path.c_str());
  return named;
}

void* DiskMemory::extend(int file, size_t begin, size_t end, void* address) const {
  const size_t bytes = end - begin;
  int error = allocate_on_disk(file, begin, bytes);
  if (error == 0) {
    const int flags = MAP_SHARED | (address == nullptr ? 0 : MAP_FIXED);
    void* const mapped = mmap(address, bytes, PROT_READ | PROT_WRITE, flags, file, static_cast<off_t>(begin));
    if (mapped != MAP_FAILED) {
      madvise(mapped, bytes, MADV_RANDOM);  // reading ahead would push what is needed out of memory
      return mapped;
    }
    error = errno;
  }
  throw FileError(error, "cannot get " + std::to_string(bytes) + " bytes in " + folder_ + " for " +
                             what_for_ + " (" + remedy_ + ")");
}

void* DiskMemory::allocate(int64_t bytes) {
  const int file = open();
  void* chunk = nullptr;
  try {
    chunk = extend(file, 0, static_cast<size_t>(bytes), nullptr);
  } catch (...) {
    close(file);
    throw;
  }
  close(file);
  return chunk;
}

void DiskMemory::free(void* chunk, int64_t bytes) noexcept { munmap(chunk, static_cast<size_t>(bytes)); }

void ReadAhead::start() noexcept {
  [[maybe_unused]] const size_t num = std::exchange(size_, 0), step = num / kSample + 1;
#ifdef __linux__
  const auto is_held = [](uintptr_t page) {
    unsigned char found = 1;
    return mincore(reinterpret_cast<void*>(page), kPage, &found) != 0 || found % 2 == 1;
  };
  size_t sampled = 0;
  while (sampled < num && is_held(pages_[sampled])) sampled += step;
  if (sampled >= num) return;
  for (size_t i = 0; i < num; ++i) {
    if (!is_held(pages_[i])) madvise(reinterpret_cast<void*>(pages_[i]), kPage, MADV_WILLNEED);
  }
#endif
}

void* allocate_huge(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : kLine;
  bytes = round_up(std::max<size_t>(bytes, 1), align);
  void* memory = std::aligned_alloc(align, bytes);
  if (memory == nullptr) throw OutOfMemory("the native core", static_cast<int64_t>(bytes));
  if (align == kHugePage) prefer_huge_pages(memory, bytes);
  return memory;
}

ReservedMemory::ReservedMemory(size_t bytes, std::shared_ptr<DiskMemory> disk)
    : size_(round_up(bytes, kStep)), disk_(std::move(disk)) {
  for (; size_ >= kStep; size_ = round_up(size_ / 2, kStep)) {
    data_ = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ != MAP_FAILED) return;
    if (size_ == kStep) break;
  }
  throw OutOfMemory("the address space of a table", static_cast<int64_t>(round_up(bytes, kStep)));
}

ReservedMemory::~ReservedMemory() {
  munmap(data_, size_);
  if (file_ >= 0) close(file_);
}

void ReservedMemory::commit(size_t bytes) {
  if (bytes <= committed_) return;
  // memory that is not touched is free, room on the disk is not
  const size_t wanted = disk_ == nullptr ? 2 * committed_ : committed_ + committed_ / 8;
  const size_t target = std::min(size_, round_up(std::max(bytes, wanted), kStep));
  auto* const fresh = static_cast<std::byte*>(data_) + committed_;  // before it there may be files
  if (disk_ != nullptr) {
    if (file_ < 0) file_ = disk_->open();
    disk_->extend(file_, committed_, target, fresh);
    committed_ = target;
    return;
  }
  if (mprotect(fresh, target - committed_, PROT_READ | PROT_WRITE) != 0) {
    throw OutOfMemory("a table in host memory", static_cast<int64_t>(target));
  }
  if (committed_ >= kHugePagesFrom && !has_small_pages_) {
    prefer_huge_pages(fresh, target - committed_);
  } else if (target >= kHugePagesFrom && !has_small_pages_) {
    prefer_huge_pages(data_, target);
  }
  committed_ = target;
}

void ReservedMemory::use_small_pages() {
  has_small_pages_ = true;
#ifdef MADV_NOHUGEPAGE
  madvise(data_, size_, MADV_NOHUGEPAGE);
#endif
}

void ReservedMemory::clear(size_t begin, size_t bytes) {
  if (!has_small_pages_) use_small_pages();
  auto* const held = static_cast<std::byte*>(data_) + begin;
  if (madvise(held, bytes, MADV_DONTNEED) != 0) std::memset(held, 0, bytes);  // larger pages than these
}

void ReservedMemory::drop(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t end = std::min(bytes, committed_) / page * page;
  if (end <= dropped_) return;
  auto* const held = static_cast<std::byte*>(data_) + dropped_;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(held, end - dropped_, PROT_READ, flags, -1, 0) == MAP_FAILED) return;
  give_back(dropped_, end - dropped_);
  dropped_ = end;
}

/// Frees bytes of the own file that are not mapped any more.
void ReservedMemory::give_back([[maybe_unused]] size_t begin, [[maybe_unused]] size_t bytes) noexcept {
#ifdef FALLOC_FL_PUNCH_HOLE  // a hint: failure is ignored
  const int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (file_ >= 0) fallocate(file_, how, static_cast<off_t>(begin), static_cast<off_t>(bytes));
#endif
}

#ifdef MREMAP_FIXED
bool ReservedMemory::map_file(size_t begin, size_t bytes, int fd, int64_t offset) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0 || begin % page != 0 || bytes % page != 0 || static_cast<size_t>(offset) % page != 0) {
    return false;
  }
  void* const file = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, offset);
  if (file == MAP_FAILED) return false;
  void* const held = static_cast<std::byte*>(data_) + begin;
  if (std::memcmp(file, held, bytes) == 0) {
    madvise(file, bytes, MADV_DONTNEED);  // no page is resident before it is read
    if (mremap(file, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, held) != MAP_FAILED) {
      give_back(begin, bytes);
      return true;
    }
  }
  munmap(file, bytes);
  return false;
}
#else  // not Linux: it stays in memory
bool ReservedMemory::map_file(size_t, size_t, int, int64_t) { return false; }
#endif

}  // namespace tgflow
