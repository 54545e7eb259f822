#include <cstdint>
#include <string>
#include <vector>

#include "check.hpp"
#include "tgflow/id_map.hpp"

using tgflow::IdMap;
using tgflow::IntKeys;
using tgflow::kNoNode;
using tgflow::node_t;
using tgflow::Side;
using tgflow::StringColumn;
using tgflow::StringKeys;

namespace {

/// Strings laid out one after another, with nothing behind the last byte that could be read by mistake.
struct Strings {
  explicit Strings(const std::vector<std::string>& values) : offsets{0} {
    for (const std::string& value : values) {
      bytes.insert(bytes.end(), value.begin(), value.end());
      offsets.push_back(static_cast<int64_t>(bytes.size()));
    }
    bytes.shrink_to_fit();
  }
  StringColumn column() const { return {offsets.data(), bytes.data()}; }

  std::vector<int64_t> offsets;
  std::vector<char> bytes;
};

}  // namespace

TEST(id_map_numbers_ids_by_first_appearance) {
  IdMap<IntKeys> map(false);
  const std::vector<int64_t> src{50, -7, 50}, dst{-7, INT64_MIN, INT64_MAX};
  std::vector<node_t> u(3), v(3);
  map.encode(src.data(), dst.data(), 3, u.data(), v.data());
  CHECK((u == std::vector<node_t>{0, 1, 0}));
  CHECK((v == std::vector<node_t>{1, 2, 3}));
  std::vector<int64_t> back(3);
  tgflow::decode(map, v.data(), 3, back.data());
  CHECK(back == dst);
}

TEST(id_map_keeps_the_sides_of_a_bipartite_graph_apart) {
  IdMap<IntKeys> map(true);
  const int64_t id = 7;
  node_t u = kNoNode, v = kNoNode;
  map.encode(&id, &id, 1, &u, &v);
  CHECK(u == 0 && v == 1);
  map.find(&id, 1, Side::kDst, &u);
  CHECK(u == 1);
}

TEST(id_map_finds_every_id_after_growing) {
  constexpr int64_t kSize = 20000;
  std::vector<std::string> names;
  for (int64_t i = 0; i < kSize; ++i)
    names.push_back(std::string(static_cast<size_t>(i % 19), 'x') + std::to_string(i));
  const Strings strings(names);
  IdMap<StringKeys> map(false);
  std::vector<node_t> u(kSize), v(kSize);
  map.encode(strings.column(), strings.column(), kSize, u.data(), v.data());
  CHECK(map.size() == kSize && u == v && u.back() == kSize - 1);
  std::vector<int64_t> offsets(kSize + 1);
  tgflow::decode_offsets(map, u.data(), kSize, offsets.data());
  CHECK(offsets == strings.offsets);
  std::vector<char> bytes(static_cast<size_t>(offsets.back()));
  tgflow::decode_bytes(map, u.data(), kSize, bytes.data(), static_cast<int64_t>(bytes.size()));
  CHECK(bytes == strings.bytes);
}

TEST(id_map_tells_strings_apart_by_every_byte) {
  const Strings strings({"", std::string(1, '\0'), "a", std::string("a\0", 2), "12345678", "123456789"});
  IdMap<StringKeys> map(false);
  std::vector<node_t> u(6), v(6);
  map.encode(strings.column(), strings.column(), 6, u.data(), v.data());
  CHECK((u == std::vector<node_t>{0, 1, 2, 3, 4, 5}));
}

TEST(id_map_names_what_it_lacks) {
  IdMap<IntKeys> map(false);
  const node_t node = 3;
  int64_t out = 0;
  CHECK(message_of([&] { tgflow::decode(map, &node, 1, &out); }) ==
        "node 3 at row 0 has no id; the map holds 0");
  const std::vector<int64_t> twice{5, 5};
  CHECK(message_of([&] { map.restore(twice.data(), nullptr, 2); }) == "id 1 of the state comes twice");
}
