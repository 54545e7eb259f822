#include <thread>
#include <vector>

#include "check.hpp"
#include "tgflow/row_memo.hpp"

namespace tgflow {
namespace {

constexpr int64_t kDim = 3;

/// Queries (v, 2 v) at no position, and rows that say which one they are of.
struct Made {
  explicit Made(int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      node.push_back(v), t.push_back(2 * v), position.push_back(-1);
      for (int64_t c = 0; c < kDim; ++c) rows.push_back(static_cast<float>(10 * v + c));
    }
  }
  MemoKeys keys(int64_t layer) const {
    return {layer, static_cast<int64_t>(node.size()), node.data(), t.data(), position.data()};
  }
  std::vector<int64_t> node, t, position;
  std::vector<float> rows;
};

struct Found {
  Found(RowMemo& memo, int64_t stamp, int64_t layer, const Made& made)
      : rows(made.rows.size()), missing(made.node.size()) {
    missing.resize(static_cast<size_t>(memo.find(stamp, made.keys(layer), rows.data(), missing.data())));
  }
  std::vector<float> rows;
  std::vector<int64_t> missing;
};

int64_t bytes_for(int64_t num_rows) { return 128 + num_rows * (kDim * 4 + 40 + 32); }

TEST(row_memo_finds_what_was_added_by_all_of_its_key) {
  RowMemo memo(kDim, bytes_for(100));
  const Made made(0, 40);
  memo.add(1, made.keys(1), made.rows.data());
  const Found found(memo, 1, 1, Made(20, 60));
  CHECK(found.missing.size() == 20 && found.missing.front() == 20);
  CHECK(std::vector<float>(found.rows.begin(), found.rows.begin() + 60) ==
        std::vector<float>(made.rows.begin() + 60, made.rows.end()));
  CHECK(Found(memo, 1, 0, made).missing.size() == 40);
  Made other = made;
  other.position[7] = 0, other.t[8] += 1;
  CHECK((Found(memo, 1, 1, other).missing == std::vector<int64_t>{7, 8}));
}

TEST(row_memo_keeps_its_budget_and_what_is_asked_for) {
  for (const int64_t num : {1, 7, 100}) {
    RowMemo memo(kDim, bytes_for(num));
    CHECK(memo.bytes() <= bytes_for(num));
    const Made first(0, 1);
    memo.add(1, first.keys(0), first.rows.data());
    for (int64_t v = 1; v < 50 * num; v += 3) {
      const Made made(v, v + 3);
      memo.add(1, made.keys(0), made.rows.data());
      if (num > 7) CHECK(Found(memo, 1, 0, first).missing.empty());
      const Found found(memo, 1, 0, Made(v + 2, v + 3));
      CHECK(found.missing.empty() && found.rows[0] == static_cast<float>(10 * (v + 2)));
    }
    CHECK(memo.size() == num && memo.bytes() <= bytes_for(num));
  }
  CHECK(message_of([] { RowMemo(kDim, 100); }).find("has no room for a row") != std::string::npos);
}

TEST(row_memo_forgets_what_has_an_earlier_stamp) {
  RowMemo memo(kDim, bytes_for(10));
  const Made made(0, 5);
  memo.add(3, made.keys(0), made.rows.data());
  CHECK(Found(memo, 2, 0, made).missing.size() == 5);  // of a world before: not for it
  CHECK(Found(memo, 3, 0, made).missing.empty());
  CHECK(Found(memo, 4, 0, made).missing.size() == 5);
  memo.add(3, made.keys(0), made.rows.data());  // computed before, added after
  CHECK(memo.size() == 0);
}

TEST(row_memo_is_shared_by_threads) {
  RowMemo memo(kDim, bytes_for(64));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t round = 0; round < 200; ++round) {
        const Made made(round % 50, round % 50 + 20);
        memo.add(round / 100, made.keys(0), made.rows.data());
        const Found found(memo, round / 100, 0, made);
        size_t next = 0;
        for (size_t i = 0; i < made.node.size(); ++i) {
          const bool is_missing =
              next < found.missing.size() && found.missing[next] == static_cast<int64_t>(i);
          next += is_missing ? 1 : 0;
          if (!is_missing && found.rows[i * kDim] != made.rows[i * kDim]) ++wrong[thread];
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK((wrong == std::vector<int>(4, 0)));
}

}  // namespace
}  // namespace tgflow
