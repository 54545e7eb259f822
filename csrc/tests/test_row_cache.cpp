#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tgflow/random.hpp"
#include "tgflow/row_cache.hpp"

namespace tgflow {
namespace {

constexpr int64_t kRows = 1000;
constexpr int64_t kBytes = 24;

/// Row `i` is three times `i`.
std::vector<int64_t> made_rows() {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 3 * kRows; ++i) rows.push_back(i / 3);
  return rows;
}

const char* bytes_of(const std::vector<int64_t>& rows) { return reinterpret_cast<const char*>(rows.data()); }

/// Ids among which the small ones come often; -1 for one in fifty.
std::vector<int64_t> some_ids(uint64_t seed, int64_t n) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t bits = mix64(seed * 1000003 + static_cast<uint64_t>(i));
    const auto id = static_cast<int64_t>(bits % kRows), other = static_cast<int64_t>(bits >> 32) % kRows;
    ids.push_back(bits % 50 == 0 ? -1 : id * other / kRows);
  }
  return ids;
}

bool are_rows_of(const std::vector<int64_t>& ids, const std::vector<int64_t>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t id = ids[i / 3];
    if (out[i] != (id < 0 ? 0 : id)) return false;
  }
  return true;
}

void gather(RowCache& cache, const char* table, const std::vector<int64_t>& ids, std::vector<int64_t>& out) {
  CacheLookup lookup;
  cache.look_up(ids.data(), static_cast<int64_t>(ids.size()), kRows, lookup);
  cache.copy(lookup, {table, true}, reinterpret_cast<char*>(out.data()));
  cache.finish(lookup, true);
}

TEST(row_cache_gathers_the_rows_of_the_table) {
  const std::vector<int64_t> table = made_rows();
  for (const auto policy : {CachePolicy::kLru, CachePolicy::kLfu, CachePolicy::kFifo, CachePolicy::kStatic}) {
    for (const int64_t capacity : {0, 1, 7, 300, 2000}) {
      RowCache cache(policy, capacity, kBytes);
      for (uint64_t batch = 0; batch < 60; ++batch) {
        const std::vector<int64_t> ids = some_ids(batch, static_cast<int64_t>(batch * 17 % 400));
        std::vector<int64_t> out(3 * ids.size(), -7);
        gather(cache, bytes_of(table), ids, out);
        CHECK(are_rows_of(ids, out));
      }
      const CacheCounts counts = cache.counts();
      CHECK(counts.admitted + counts.bypassed == counts.misses);
      CHECK(counts.admitted - counts.evicted <= capacity);
    }
  }
}

TEST(row_cache_refuses_two_rows_in_one_slot) {
  RowCache cache(CachePolicy::kGiven, 4, kBytes);
  const std::vector<int64_t> ids{1, 2};
  const std::vector<int32_t> hit{-1, -1}, admit{3, 3};
  CacheLookup lookup;
  const CacheSchedule schedule{ids.data(), hit.data(), admit.data(), 2};
  CHECK(message_of([&] { cache.apply(schedule, ids.data(), 2, kRows, lookup); }) ==
        "two rows were planned for slot 3");
  std::vector<int64_t> id(4), key(4);
  cache.snapshot(id.data(), key.data());
  CHECK((id == std::vector<int64_t>{-1, -1, -1, -1}));
}

TEST(row_cache_lets_nobody_find_what_a_script_that_failed_put) {
  RowCache cache(CachePolicy::kGiven, 4, kBytes);
  const std::vector<int64_t> ids{1, 2}, other{9};
  const std::vector<int32_t> hit{-1, -1}, admit{3, 3};
  CacheLookup at_work, failed, later;
  cache.look_up(other.data(), 1, kRows, at_work);
  std::thread fails([&] {
    const CacheSchedule schedule{ids.data(), hit.data(), admit.data(), 2};
    message_of([&] { cache.apply(schedule, ids.data(), 2, kRows, failed); });
  });
  std::vector<int64_t> id(4), key(4);
  while (id[3] != 1) cache.snapshot(id.data(), key.data());  // it waits for the one at work
  std::thread asks([&] {
    cache.look_up(ids.data(), 1, kRows, later);
    cache.finish(later, true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cache.finish(at_work, true);
  fails.join();
  asks.join();
  CHECK((later.miss == std::vector<int64_t>{1}));
}

void gather_often(RowCache& cache, const std::vector<int64_t>& table, uint64_t seed,
                  std::atomic<int>& wrong) {
  CacheLookup lookup;
  for (uint64_t batch = 0; batch < 150; ++batch) {
    const int64_t n = batch % 6 == 0 ? 700 : 90;
    const std::vector<int64_t> ids = some_ids(seed * 1000 + batch, n);
    std::vector<int64_t> out(3 * ids.size());
    cache.look_up(ids.data(), n, kRows, lookup);
    const bool done = batch % 10 != 1;
    if (done) cache.copy(lookup, {bytes_of(table), true}, reinterpret_cast<char*>(out.data()));
    cache.finish(lookup, done);
    wrong += done && !are_rows_of(ids, out);
  }
}

void stress(CachePolicy policy, int64_t capacity) {
  std::vector<int64_t> table = made_rows();
  RowCache cache(policy, capacity, kBytes);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { gather_often(cache, table, i, wrong); });
  std::vector<int64_t> id(static_cast<size_t>(capacity)), key(id);
  CacheLookup lookup;
  for (int64_t round = 0; round < 30; ++round) {
    cache.snapshot(id.data(), key.data());
    cache.begin_change();
    cache.truncate(kRows - round);
    for (size_t i = 0; i < 30; ++i) table[i] = table[i] + 0;  // nobody reads
    cache.write(table.data(), 1, bytes_of(table));
    cache.end_change();
    cache.append(kRows - round, round, bytes_of(table) + (kRows - round) * kBytes);
    cache.restore(id.data(), key.data(), kRows, lookup);
    if (round % 7 != 0) {
      std::vector<int64_t> rows;
      for (const int64_t miss : lookup.miss) rows.insert(rows.end(), 3, miss);
      cache.copy(lookup, {bytes_of(rows), false}, nullptr);
    }
    cache.finish(lookup, round % 7 != 0);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST(stress_gathers_at_once_and_beside_changes) {
  for (const auto policy : {CachePolicy::kLru, CachePolicy::kLfu, CachePolicy::kFifo}) {
    stress(policy, 40);
    stress(policy, 600);
  }
}

}  // namespace
}  // namespace tgflow
