#include <cstring>
#include <vector>

#include "check.hpp"
#include "tgflow/gather.hpp"

namespace tgflow {
namespace {

std::vector<std::byte> counted(int64_t bytes) {
  std::vector<std::byte> made(static_cast<size_t>(bytes));
  for (size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(i * 7 + 1);
  return made;
}

TEST(gather_refuses_ids_past_the_table) {
  const auto rows = counted(6);
  const std::vector<int64_t> id{1, -1, 2};
  std::vector<std::byte> out(9, std::byte{9});
  gather_rows({rows.data(), 3, 2}, id.data(), 2, out.data());
  CHECK(std::memcmp(out.data(), rows.data() + 3, 3) == 0);
  CHECK(out[3] == std::byte{0} && out[5] == std::byte{0} && out[6] == std::byte{9});
  CHECK(message_of([&] { gather_rows({rows.data(), 3, 2}, id.data(), 3, out.data()); }) ==
        "id 2 is not in a table of 2 rows");
}

TEST(gather_copies_rows_of_any_width) {
  for (int64_t row_bytes = 1; row_bytes < 300; row_bytes += row_bytes < 70 ? 1 : 13) {
    constexpr int64_t kSize = 40, kAsked = 77;
    const auto rows = counted(kSize * row_bytes);
    std::vector<int64_t> id;
    for (int64_t i = 0; i < kAsked; ++i) id.push_back(i * 11 % (kSize + 1) - 1);
    std::vector<std::byte> out(static_cast<size_t>(kAsked * row_bytes));
    gather_rows({rows.data(), row_bytes, kSize}, id.data(), kAsked, out.data());
    const std::vector<std::byte> zeros(static_cast<size_t>(row_bytes));
    for (int64_t i = 0; i < kAsked; ++i) {
      const int64_t row = id[static_cast<size_t>(i)];
      const std::byte* expected = row < 0 ? zeros.data() : rows.data() + row * row_bytes;
      CHECK(std::memcmp(out.data() + i * row_bytes, expected, static_cast<size_t>(row_bytes)) == 0);
    }
  }
}

TEST(scatter_writes_where_gather_reads) {
  for (int64_t row_bytes : {1, 3, 100, 400, 5000}) {
    constexpr int64_t kSize = 1200;
    auto rows = counted(kSize * row_bytes);
    const auto before = rows;
    std::vector<int64_t> id;
    for (int64_t i = 0; i < kSize / 2; ++i) id.push_back(i * 7 % kSize);
    std::vector<std::byte> given(id.size() * static_cast<size_t>(row_bytes)), found(given.size());
    for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<std::byte>(i * 13 + 5);
    const auto n = static_cast<int64_t>(id.size());
    scatter_rows(rows.data(), row_bytes, id.data(), n, given.data());
    gather_rows({rows.data(), row_bytes, kSize}, id.data(), n, found.data());
    CHECK(found == given);
    std::vector<char> written(kSize);
    for (const int64_t i : id) written[static_cast<size_t>(i)] = 1;
    for (int64_t i = 0; i < kSize; ++i) {
      const auto width = static_cast<size_t>(row_bytes);
      if (written[static_cast<size_t>(i)] != 0) continue;
      CHECK(std::memcmp(rows.data() + i * row_bytes, before.data() + i * row_bytes, width) == 0);
    }
  }
}

}  // namespace
}  // namespace tgflow
