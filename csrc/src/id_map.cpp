#include "tgflow/id_map.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace tgflow {
namespace {

/// Ids whose tags and slots are prefetched ahead of the look-ups.
constexpr int64_t kAhead = 32;

}  // namespace

uint64_t StringKeys::tag(Key key) {
  uint64_t h = mix64(key.size() + 1);
  const char* p = key.data();
  size_t left = key.size();
  for (; left >= 8; p += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = mix64(h ^ word) + 0x9e3779b97f4a7c15ULL;
  }
  uint64_t tail = 0;
  if (left != 0) std::memcpy(&tail, p, left);
  return mix64(h ^ tail);
}

void StringKeys::push(Key key) {
  bytes.insert(bytes.end(), key.begin(), key.end());
  offsets.push_back(static_cast<int64_t>(bytes.size()));
}

template <typename Keys>
node_t IdMap<Keys>::insert(typename Keys::Key key, uint64_t tag, Side side) {
  const int32_t known = table(side).find(tag, [&](int32_t v) { return keys_.equal(v, key); });
  if (known != NodeIndex::kNone) return known;
  const node_t node = keys_.size();
  if (node > kMaxNode) throw std::length_error("the map is full: it holds 2^31 - 1 ids");
  keys_.push(key);
  if (bipartite_) sides_.push_back(static_cast<uint8_t>(side));
  table(side).insert(tag, static_cast<int32_t>(node));
  return node;
}

template <typename Keys>
void IdMap<Keys>::encode(Column src, Column dst, int64_t size, node_t* src_out, node_t* dst_out) {
  const std::unique_lock lock(mutex_);
  uint64_t src_tag[kAhead], dst_tag[kAhead];
  for (int64_t begin = 0; begin < size; begin += kAhead) {
    const int64_t count = std::min(kAhead, size - begin);
    for (int64_t i = 0; i < count; ++i) {
      table(Side::kSrc).prefetch(src_tag[i] = Keys::tag(src[begin + i]));
      table(Side::kDst).prefetch(dst_tag[i] = Keys::tag(dst[begin + i]));
    }
    for (int64_t i = 0; i < count; ++i) {
      src_out[begin + i] = insert(src[begin + i], src_tag[i], Side::kSrc);
      dst_out[begin + i] = insert(dst[begin + i], dst_tag[i], Side::kDst);
    }
  }
}

template <typename Keys>
void IdMap<Keys>::find(Column ids, int64_t size, Side side, node_t* out) const {
  const std::shared_lock lock(mutex_);
  const NodeIndex& nodes = table(side);
  uint64_t tag[kAhead];
  for (int64_t begin = 0; begin < size; begin += kAhead) {
    const int64_t count = std::min(kAhead, size - begin);
    for (int64_t i = 0; i < count; ++i) nodes.prefetch(tag[i] = Keys::tag(ids[begin + i]));
    for (int64_t i = 0; i < count; ++i) {
      out[begin + i] = nodes.find(tag[i], [&](int32_t v) { return keys_.equal(v, ids[begin + i]); });
    }
  }
}

template <typename Keys>
void IdMap<Keys>::restore(Column keys, const uint8_t* sides, int64_t size) {
  const std::unique_lock lock(mutex_);
  if (keys_.size() != 0) throw std::invalid_argument("only an empty map can be restored");
  for (int64_t v = 0; v < size; ++v) {
    const Side side = bipartite_ && sides[v] != 0 ? Side::kDst : Side::kSrc;
    if (insert(keys[v], Keys::tag(keys[v]), side) != v) {
      throw std::invalid_argument("id " + std::to_string(v) + " of the state comes twice");
    }
  }
}

template <typename Keys>
void IdMap<Keys>::copy_sides(int64_t size, uint8_t* out) const {
  const std::shared_lock lock(mutex_);
  if (size < 0 || size > keys_.size())
    throw std::out_of_range("the map has no " + std::to_string(size) + " ids");
  if (bipartite_) std::copy_n(sides_.begin(), size, out);
}

template <typename Keys>
int64_t IdMap<Keys>::size() const {
  const std::shared_lock lock(mutex_);
  return keys_.size();
}

template <typename Keys>
void IdMap<Keys>::check_nodes(const node_t* nodes, int64_t size) const {
  for (int64_t i = 0; i < size; ++i) {
    if (nodes[i] >= 0 && nodes[i] < keys_.size()) continue;
    throw std::out_of_range("node " + std::to_string(nodes[i]) + " at row " + std::to_string(i) +
                            " has no id; the map holds " + std::to_string(keys_.size()));
  }
}

template class IdMap<IntKeys>;
template class IdMap<StringKeys>;

void decode(const IdMap<IntKeys>& map, const node_t* nodes, int64_t size, int64_t* out) {
  map.read(nodes, size, [&](const IntKeys& keys) {
    for (int64_t i = 0; i < size; ++i) out[i] = keys.values[static_cast<size_t>(nodes[i])];
  });
}

void decode_offsets(const IdMap<StringKeys>& map, const node_t* nodes, int64_t size, int64_t* out) {
  map.read(nodes, size, [&](const StringKeys& keys) {
    out[0] = 0;
    for (int64_t i = 0; i < size; ++i) {
      out[i + 1] = out[i] + static_cast<int64_t>(keys.column()[nodes[i]].size());
    }
  });
}

void decode_bytes(const IdMap<StringKeys>& map, const node_t* nodes, int64_t size, char* out,
                  int64_t num_bytes) {
  map.read(nodes, size, [&](const StringKeys& keys) {
    int64_t total = 0;
    for (int64_t i = 0; i < size; ++i) total += static_cast<int64_t>(keys.column()[nodes[i]].size());
    if (total != num_bytes) {
      throw std::invalid_argument("these ids have " + std::to_string(total) + " bytes, not " +
                                  std::to_string(num_bytes));
    }
    for (int64_t i = 0; i < size; ++i) {
      const std::string_view id = keys.column()[nodes[i]];
      out = std::copy(id.begin(), id.end(), out);
    }
  });
}

}  // namespace tgflow
