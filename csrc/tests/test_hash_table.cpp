#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "check.hpp"
#include "tgflow/hash_table.hpp"

namespace tgflow {
namespace {

/// Inserts, erases and finds keys at random, as numbers under `tag_of(key)`, beside a std::unordered_map.
template <typename Tag, typename TagOf>
void check_index(uint64_t num_keys, int num_steps, const TagOf& tag_of) {
  HashIndex<Tag> index;
  std::unordered_map<uint64_t, int32_t> expected;
  std::vector<uint64_t> keys;  // by number
  std::mt19937_64 random(num_keys);
  for (int step = 0; step < num_steps; ++step) {
    const uint64_t key = random() % num_keys;
    const auto is_key = [&](int32_t number) { return keys[static_cast<std::size_t>(number)] == key; };
    const auto known = expected.find(key);
    const int32_t found = index.find(tag_of(key), is_key);
    CHECK(found == (known == expected.end() ? HashIndex<Tag>::kNone : known->second));
    if (random() % 5 < 2) {
      if (known == expected.end()) continue;
      index.erase(tag_of(key), found);
      expected.erase(known);
    } else {
      const auto next = static_cast<int32_t>(keys.size());
      const int32_t number = index.find_or_insert(tag_of(key), next, is_key);
      CHECK(number == expected.emplace(key, next).first->second);
      if (number == next) keys.push_back(key);
    }
  }
  CHECK(!expected.empty());
  index.clear();
  for (const auto& [key, number] : expected) {
    CHECK(index.find(tag_of(key), [](int32_t) { return true; }) == HashIndex<Tag>::kNone);
  }
}

TEST(a_hash_index_is_a_map_however_much_comes_and_goes) {
  check_index<uint64_t>(3000, 60000, [](uint64_t key) { return mix64(key); });
  check_index<uint32_t>(500, 60000, [](uint64_t key) { return id_tag(static_cast<int64_t>(key)); });
}

TEST(a_hash_index_finds_keys_that_share_homes_and_tags) {
  check_index<uint32_t>(100, 20000, [](uint64_t key) { return static_cast<uint32_t>(key % 3); });
  check_index<uint32_t>(100, 20000, [](uint64_t key) { return static_cast<uint32_t>(key << 16); });
  check_index<uint64_t>(100, 20000, [](uint64_t key) { return ~key % 20; });  // around the end
}

TEST(a_row_index_numbers_keys_by_first_appearance) {
  RowIndex index;
  for (const uint64_t num_keys : {0, 5, 4000, 40}) {  // it is used again, larger and smaller
    index.reset(4);
    std::unordered_map<uint64_t, int32_t> expected;
    std::vector<uint64_t> keys;
    const auto key_of = [&](int32_t row) { return keys[static_cast<std::size_t>(row)]; };
    std::mt19937_64 random(1);
    for (uint64_t step = 0; step < 3 * num_keys; ++step) {
      const uint64_t key = random() % num_keys;
      const auto next = static_cast<int32_t>(keys.size());
      index.reserve_one(next, [&](int32_t row) { return mix64(key_of(row)); });
      const int32_t row =
          index.find_or_insert(mix64(key), next, [&](int32_t other) { return key_of(other) == key; });
      CHECK(row == expected.emplace(key, next).first->second);
      if (row == next) keys.push_back(key);
    }
  }
}

TEST(a_dense_index_numbers_keys_and_is_a_half_to_three_quarters_full) {
  DenseIndex index;
  std::unordered_map<uint64_t, int32_t> expected;
  std::vector<uint64_t> keys;
  const auto key_of = [&](int32_t row) { return keys[static_cast<std::size_t>(row)]; };
  std::mt19937_64 random(1);
  for (int step = 0; step < 60'000; ++step) {
    const uint64_t key = random() % 20'000;
    const auto is_it = [&](int32_t other) { return key_of(other) == key; };
    const auto next = static_cast<int32_t>(keys.size());
    const auto known = expected.find(key);
    CHECK(index.find(mix64(key), is_it) == (known == expected.end() ? -1 : known->second));
    index.reserve_one(next, [&](int32_t row) { return mix64(key_of(row)); });
    const int32_t row = index.find_or_insert(mix64(key), next, is_it);
    CHECK(row == expected.emplace(key, next).first->second);
    if (row == next) keys.push_back(key);
    const auto places = index.bytes() / 4, num = static_cast<int64_t>(keys.size());
    CHECK(4 * num <= 3 * places && (places == 16 || 2 * (num + 1) > places));
  }
}

TEST(a_dense_index_tells_rows_of_alike_hashes_apart) {
  DenseIndex index;  // of 16 places, of which all start at the last one
  for (int32_t row = 0; row < 12; ++row) {
    index.find_or_insert(~uint64_t{0}, row, [](int32_t) { return false; });
  }
  for (int32_t row = 0; row < 12; ++row) {
    CHECK(index.find(~uint64_t{0}, [&](int32_t other) { return other == row; }) == row);
  }
  CHECK(index.find(~uint64_t{0}, [](int32_t) { return false; }) == -1);
  CHECK(index.find(15, [](int32_t) { return true; }) == -1);  // other bits than those of the place
}

TEST(a_key_set_is_a_set) {
  KeySet keys;
  std::set<uint64_t> expected;
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t key = random() % 7000;
    CHECK(keys.contains(key) == (expected.count(key) == 1));
    CHECK(keys.insert(key) == expected.insert(key).second);
  }
}

}  // namespace
}  // namespace tgflow
