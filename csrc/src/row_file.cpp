#include "tgflow/row_file.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tgflow/crc32c.hpp"

namespace tgflow {
namespace {

constexpr char kMagic[8] = {'T', 'G', 'F', 'R', 'O', 'W', 'S', '1'};
constexpr int64_t kSlot[2] = {1024, 2048};  // in sectors of their own: one torn write spoils one slot
constexpr int64_t kAtOnce = 1 << 20;

/// Little-endian, as all machines are that tgflow is built for.
struct Header {
  char magic[8];
  int64_t row_bytes;
  char kind[32];
  uint32_t crc;
  uint32_t unused;
};

struct Slot {
  uint64_t commit;  // counts them: the higher one holds
  int64_t rows;
  uint32_t crc;
  uint32_t unused;
};

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
    file_.truncate(0);  // as it was found
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
  for (const uint64_t slot : {1 - latest, latest}) write_slot(slot, size);  // one of them always says `size`
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
    // The system may have dropped what it could not write, and would not say so again.
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
  if (size < synced_) commit(size);
  file_.truncate(offset(size));
}

void RowFile::check_usable() const {
  if (failed_) throw FileError(EIO, path() + " failed to sync before; open it again");
}

}  // namespace tgflow
