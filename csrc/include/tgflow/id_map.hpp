// A stream's node ids <-> dense node ids, in order of first appearance.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "tgflow/detail/mix.hpp"
#include "tgflow/hash_table.hpp"
#include "tgflow/memory.hpp"
#include "tgflow/types.hpp"

namespace tgflow {

/// Columns of a map. A node's side is 1 for a destination of a bipartite map.
enum class IdColumn : uint8_t {
  kKeys,   ///< Integer ids by node.
  kEnds,   ///< The byte after each string id.
  kBytes,  ///< All string ids, one after another.
  kSides,
};

/// Integer ids: any int64.
struct IntKeys {
  using Key = int64_t;
  using Column = const int64_t*;

  static uint64_t hash(Key key) { return mix64(static_cast<uint64_t>(key)); }
  Key operator[](node_t node) const { return values[node]; }
  void prefetch(node_t node) const { __builtin_prefetch(&values[node]); }
  void push(Key key) {
    values.grow(size + 1);
    values[size++] = key;
  }
  template <typename Visit>
  void visit(IdColumn column, const Visit& call) {
    if (column == IdColumn::kKeys) call(values, size);
  }

  ReservedArray<int64_t> values{kMaxNode + 1};
  int64_t size = 0;
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

  static uint64_t hash(Key key);
  Key operator[](node_t node) const {
    const int64_t start = node == 0 ? 0 : ends[node - 1];
    return {bytes.data() + start, static_cast<size_t>(ends[node] - start)};
  }
  void prefetch(node_t node) const { __builtin_prefetch(&ends[node]); }
  void push(Key key);
  int64_t num_bytes() const { return size == 0 ? 0 : ends[size - 1]; }
  template <typename Visit>
  void visit(IdColumn column, const Visit& call) {
    if (column == IdColumn::kEnds) call(ends, size);
    if (column == IdColumn::kBytes) call(bytes, num_bytes());
  }

  static constexpr int64_t kMostBytes = int64_t{1} << 40;  // address space

  ReservedArray<char> bytes{kMostBytes};
  ReservedArray<int64_t> ends{kMaxNode + 1};
  int64_t size = 0;
};

/// End of an edge.
enum class Side : uint8_t { kSrc = 0, kDst = 1 };

/// Maps ids to nodes 0, 1, 2, ... and back. In a bipartite map sources and destinations have separate
/// id spaces over the one range of nodes. Any number of threads may read while one encodes.
///
/// The columns may be held in files; memory has 8 to 12 bytes a node, of an index.
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

  /// Inserts the next `size` ids, from the same `keys` and `sides` (null unless bipartite). Throws
  /// std::invalid_argument if one is a duplicate; those before it are then in the map.
  void restore(Column keys, const uint8_t* sides, int64_t size);

  /// Number of items of a column so far.
  int64_t num_items(IdColumn column) const;
  /// Copies items [begin, end) of a column. Throws std::out_of_range.
  void copy(IdColumn column, int64_t begin, int64_t end, void* out) const;
  /// Holds items [begin, end) of a column in a file instead of memory; see `ReservedMemory::map_file`.
  /// Throws std::out_of_range.
  bool map_file(IdColumn column, int64_t begin, int64_t end, int fd, int64_t offset);

  /// Holds the index in a file of a folder from now on, once it is large; it ends with the process, and is
  /// made again from the ids. Throws FileError without room for it, as `encode` then does; a later call goes
  /// on.
  void hold_index_in(const std::string& folder);

  int64_t size() const;
  bool bipartite() const { return bipartite_; }

 private:
  using Key = typename Keys::Key;

  uint64_t hash(Key key, Side side) const {
    const uint64_t hash = Keys::hash(key);
    return bipartite_ && side == Side::kDst ? mix64(hash + 1) : hash;
  }
  Side side_of(node_t node) const { return bipartite_ ? static_cast<Side>(sides_[node]) : Side::kSrc; }
  /// The node of a key, or kNoNode.
  node_t find_one(Key key, uint64_t hash, Side side) const {
    return index_.find(hash,
                       [&](int32_t v) { return keys_[v] == key && (!bipartite_ || side_of(v) == side); });
  }
  void prefetch_likely(uint64_t hash) const {
    const int32_t node = index_.find(hash, [](int32_t) { return true; });
    if (node >= 0) keys_.prefetch(node);
  }
  node_t insert(Key key, uint64_t hash, Side side);
  void check_nodes(const node_t* nodes, int64_t size) const;
  void check_items(IdColumn column, int64_t begin, int64_t end) const;
  template <typename Visit>
  void visit(IdColumn column, const Visit& call) const;

  const bool bipartite_;
  mutable std::shared_mutex mutex_;
  mutable Keys keys_;                                   ///< By node.
  mutable ReservedArray<uint8_t> sides_{kMaxNode + 1};  ///< By node; empty unless bipartite.
  DenseIndex index_;
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

/// Returns whether a value of delimited text may be a number in another spelling than its own: `007`,
/// `-00`, `0x7`, or with spaces around. Rarely wrong, and only if there is none.
bool may_have_other_spellings(std::string_view text, char separator);

}  // namespace tgflow
