// A stream's node ids <-> dense node ids, in order of first appearance.
#pragma once

#include <array>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tgflow/detail/mix.hpp"
#include "tgflow/hash_table.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// Integer ids: any int64.
struct IntKeys {
  using Key = int64_t;
  using Column = const int64_t*;

  static uint64_t tag(Key key) { return mix64(static_cast<uint64_t>(key)); }
  /// Whether `node` has `key`, given that their tags are equal; different integers have different tags.
  bool equal(node_t, Key) const { return true; }
  void push(Key key) { values.push_back(key); }
  int64_t size() const { return static_cast<int64_t>(values.size()); }

  std::vector<int64_t> values;
};

/// A column of strings: string `i` is `bytes[offsets[i], offsets[i + 1])`.
struct StringColumn {
  const int64_t* offsets;
  const char* bytes;

  std::string_view operator[](int64_t i) const {
    return {bytes + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
  }
};

/// String ids, stored one after another.
struct StringKeys {
  using Key = std::string_view;
  using Column = StringColumn;

  static uint64_t tag(Key key);
  bool equal(node_t node, Key key) const { return column()[node] == key; }
  void push(Key key);
  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  StringColumn column() const { return {offsets.data(), bytes.data()}; }

  std::vector<char> bytes;
  std::vector<int64_t> offsets{0};
};

/// End of an edge.
enum class Side : uint8_t { kSrc = 0, kDst = 1 };

/// Maps ids to nodes 0, 1, 2, ... and back. In a bipartite map sources and destinations have separate
/// id spaces over the one range of nodes. Any number of threads may read while one encodes.
template <typename Keys>
class IdMap {
 public:
  using Column = typename Keys::Column;

  explicit IdMap(bool bipartite) : bipartite_(bipartite) {}

  /// Writes the nodes of `size` edges; new ids get the next nodes, in the order src[0], dst[0], src[1], ...
  /// Throws std::length_error when there are more ids than nodes.
  void encode(Column src, Column dst, int64_t size, node_t* src_out, node_t* dst_out);

  /// Writes the node of each id at `side`, or kNoNode.
  void find(Column ids, int64_t size, Side side, node_t* out) const;

  /// Calls `visit(keys)` under the reader's lock, after checking that every node is in the map.
  /// Throws std::out_of_range with the first that is not.
  template <typename Visit>
  void read(const node_t* nodes, int64_t size, Visit&& visit) const {
    const std::shared_lock lock(mutex_);
    check_nodes(nodes, size);
    visit(keys_);
  }

  /// Inserts `size` ids, from the same `keys` and `sides` (null unless bipartite), into an empty map.
  /// Throws std::invalid_argument if the map is not empty, or an id is a duplicate.
  void restore(Column keys, const uint8_t* sides, int64_t size);

  /// Copies the side of each node, if bipartite.
  void copy_sides(int64_t size, uint8_t* out) const;

  int64_t size() const;
  bool bipartite() const { return bipartite_; }

 private:
  using NodeIndex = HashIndex<uint64_t>;

  node_t insert(typename Keys::Key key, uint64_t tag, Side side);
  NodeIndex& table(Side side) { return tables_[bipartite_ ? static_cast<size_t>(side) : 0]; }
  const NodeIndex& table(Side side) const { return tables_[bipartite_ ? static_cast<size_t>(side) : 0]; }
  void check_nodes(const node_t* nodes, int64_t size) const;

  const bool bipartite_;
  mutable std::shared_mutex mutex_;
  Keys keys_;                   ///< By node.
  std::vector<uint8_t> sides_;  ///< By node; empty unless bipartite.
  std::array<NodeIndex, 2> tables_;
};

extern template class IdMap<IntKeys>;
extern template class IdMap<StringKeys>;

/// Writes the id of each node; throws std::out_of_range if the map lacks one.
void decode(const IdMap<IntKeys>& map, const node_t* nodes, int64_t size, int64_t* out);

/// The same for strings: first the `size + 1` offsets of the ids, then their `offsets[size]` bytes;
/// throws std::invalid_argument if these are not `num_bytes`.
void decode_offsets(const IdMap<StringKeys>& map, const node_t* nodes, int64_t size, int64_t* out);
void decode_bytes(const IdMap<StringKeys>& map, const node_t* nodes, int64_t size, char* out,
                  int64_t num_bytes);

}  // namespace tgflow
