// Files of rows: reads return what was appended, under any concurrent failure.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tgflow/row_file.hpp"
#include "tgflow/row_reader.hpp"

namespace tgflow {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kRow = 43;
constexpr int64_t kBudget = 1 << 20;
const char* const kWays[] = {"io_uring", "pread", "page cache"};

/// A unique path, whose file is deleted at the end.
struct Path {
  std::string text = "test_row_file.XXXXXX";
  Path() {
    const int descriptor = mkstemp(text.data());
    close(descriptor);
  }
  ~Path() { unlink(text.c_str()); }
  operator const std::string&() const { return text; }
};

Bytes rows_from(int64_t first, int64_t n, int64_t row_bytes = kRow) {
  Bytes rows(static_cast<size_t>(n * row_bytes));
  for (int64_t i = 0; i < n * row_bytes; ++i) {
    rows[static_cast<size_t>(i)] = static_cast<std::byte>((first * row_bytes + i) * 31 >> 3);
  }
  return rows;
}

void append(RowFile& file, int64_t n) { file.append(rows_from(file.size(), n, file.row_bytes()).data(), n); }

/// Reads `id` and compares; returns what went wrong.
std::string read(RowReader& reader, const RowFile& file, const std::vector<int64_t>& id) {
  const auto n = static_cast<int64_t>(id.size());
  Bytes out(id.size() * static_cast<size_t>(file.row_bytes()), std::byte{7});
  const std::string wrong = message_of([&] { reader.start(id.data(), n, file.size(), out.data())->wait(); });
  for (int64_t i = 0; i < n && wrong.empty(); ++i) {
    const auto bytes = static_cast<size_t>(file.row_bytes());
    const int64_t row = id[static_cast<size_t>(i)];
    const Bytes expected = row < 0 ? Bytes(bytes) : rows_from(row, 1, file.row_bytes());
    CHECK(std::memcmp(out.data() + i * file.row_bytes(), expected.data(), bytes) == 0);
  }
  return wrong;
}

std::vector<int64_t> scattered(int64_t n, int64_t size) {
  std::vector<int64_t> id;
  for (int64_t i = 0; i < n; ++i) id.push_back(i % 10 == 0 ? -1 : i * i * 7919 % size);
  return id;
}

void cut(const std::string& path, int64_t bytes) { CHECK(::truncate(path.c_str(), bytes) == 0); }

std::string bytes_of(const std::string& path) {
  File file(path, O_RDONLY);
  std::string bytes(static_cast<size_t>(file.size()), '\0');
  CHECK(file.read(bytes.data(), file.size(), 0) == file.size());
  return bytes;
}

TEST(a_settled_file_depends_on_its_rows_alone) {
  const Path left, right;
  for (int syncs = 0; syncs < 4; ++syncs) {
    RowFile once(left, kRow, "rows");
    append(once, 5);
    once.settle();
  }
  {
    RowFile often(right, kRow, "rows");
    for (int i = 0; i < 27; ++i) {
      append(often, 1);
      often.sync();
    }
    often.truncate(20);
    often.settle();
  }
  CHECK(bytes_of(left) == bytes_of(right));
  RowFile again(right, kRow, "rows");
  CHECK(again.size() == 20);
  append(again, 1);
  again.sync();
  CHECK(again.synced() == 21);
}

TEST(reads_that_fail_or_fall_short) {
  const Path path;
  RowFile file(path, 688, "test");
  append(file, 2000);
  for (const char* way : kWays) {
    RowReader reader(file, kBudget, way);
    const auto id = scattered(500, 2000);
    inject_fault(FileOp::kRead, 3, 1, -EIO);
    CHECK(read(reader, file, id).find("cannot read rows ") == 0);
    CHECK(read(reader, file, id) == "");
    inject_fault(FileOp::kRead, 0, 20, 513);  // continues after a short read
    CHECK(read(reader, file, {1, 700, 1999}) == "");
    inject_fault(FileOp::kRead, 0, 5, -EAGAIN);
    CHECK(read(reader, file, {1, 700, 1999}) == "");
    inject_fault(FileOp::kRead, 0, 1, 0);
    CHECK(read(reader, file, {1999}).find("cannot be read: the file ends before them") != std::string::npos);
    inject_fault(FileOp::kRead, 0, 0, 0);
  }
  cut(path, file.offset(1000));
  RowReader reader(file, kBudget, "auto");
  CHECK(read(reader, file, {999}) == "");
  CHECK(read(reader, file, {999, 1500}).find("the file ends before them") != std::string::npos);
}

TEST(requests_overlap_and_outlive_the_reader) {
  const Path path;
  RowFile file(path, kRow, "test");
  append(file, 5000);
  std::vector<std::unique_ptr<RowReader::Request>> requests;
  std::vector<Bytes> outs;
  const auto id = scattered(300, 5000);
  {
    RowReader reader(file, 64 << 10, "auto");
    for (int i = 0; i < 20; ++i) {
      outs.emplace_back(id.size() * kRow);
      requests.push_back(reader.start(id.data(), static_cast<int64_t>(id.size()), 5000, outs.back().data()));
    }
  }
  for (auto& request : requests) {
    CHECK(request->is_done());
    request->wait();
  }
  for (const Bytes& out : outs) CHECK(out == outs[0]);
}

TEST(one_syncs_while_another_appends_and_takes_back) {
  const Path path;
  RowFile file(path, kRow, "test");
  std::atomic<bool> done{false};
  std::thread syncing([&] {
    while (!done) file.sync();
  });
  for (int i = 0; i < 200; ++i) {
    append(file, 5);
    if (i % 3 == 0) file.truncate(file.size() - 2);
  }
  done = true;
  syncing.join();
  file.sync();
  CHECK(file.synced() == file.size());
  CHECK(file.size() == 200 * 5 - 67 * 2);
}

TEST(many_threads_read_while_one_appends) {
  const Path path;
  RowFile file(path, kRow, "test");
  append(file, 100);
  RowReader reader(file, 64 << 10, "auto");
  std::atomic<bool> stop{false}, wrong{false};
  std::vector<std::thread> threads;
  for (int64_t seed = 1; seed <= 2; ++seed) {
    threads.emplace_back([&, seed] {
      for (int64_t round = 0; !stop; ++round) {
        const int64_t size = file.size();
        std::vector<int64_t> id;
        for (int64_t i = 0; i < 20; ++i) id.push_back((round * 31 + i * i * seed) % size);
        id.push_back(size - 1);
        try {
          if (!read(reader, file, id).empty()) wrong = true;
        } catch (const std::exception&) {
          wrong = true;
        }
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    append(file, 37);
    if (i % 10 == 0) file.sync();
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(!wrong);
}

}  // namespace
}  // namespace tgflow
