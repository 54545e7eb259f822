#include <random>
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
  check_index<uint64_t>(100, 20000, [](uint64_t key) { return ~key % 20; });  // wraps around the end
}

}  // namespace
}  // namespace tgflow
