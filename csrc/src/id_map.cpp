#include "tgflow/id_map.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace tgflow {
namespace {

/// Ids whose entries and keys are prefetched ahead of the look-ups.
constexpr int64_t kAhead = 32;

}  // namespace

uint64_t StringKeys::hash(Key key) {
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
  const int64_t start = num_bytes(), end = start + static_cast<int64_t>(key.size());
  bytes.grow(end);
  ends.grow(size + 1);
  std::copy(key.begin(), key.end(), bytes.data() + start);
  ends[size++] = end;
}

template <typename Keys>
node_t IdMap<Keys>::insert(Key key, uint64_t hash, Side side) {
  const node_t known = find_one(key, hash, side);
  if (known != kNoNode) return known;
  const node_t node = keys_.size;
  if (node > kMaxNode) throw std::length_error("the map is full: it holds 2^31 - 1 ids");
  index_.reserve_one(static_cast<int32_t>(node),
                     [&](int32_t other) { return this->hash(keys_[other], side_of(other)); });
  if (bipartite_) {
    sides_.grow(node + 1);
    sides_[node] = static_cast<uint8_t>(side);
  }
  keys_.push(key);
  index_.find_or_insert(hash, static_cast<int32_t>(node), [](int32_t) { return false; });
  return node;
}

template <typename Keys>
void IdMap<Keys>::encode(Column src, Column dst, int64_t size, node_t* src_out, node_t* dst_out) {
  const std::unique_lock lock(mutex_);
  uint64_t src_hash[kAhead], dst_hash[kAhead];
  for (int64_t begin = 0; begin < size; begin += kAhead) {
    const int64_t count = std::min(kAhead, size - begin);
    for (int64_t i = 0; i < count; ++i) {
      index_.prefetch(src_hash[i] = hash(src[begin + i], Side::kSrc));
      index_.prefetch(dst_hash[i] = hash(dst[begin + i], Side::kDst));
    }
    for (int64_t i = 0; i < count; ++i) {
      prefetch_likely(src_hash[i]);
      prefetch_likely(dst_hash[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      src_out[begin + i] = insert(src[begin + i], src_hash[i], Side::kSrc);
      dst_out[begin + i] = insert(dst[begin + i], dst_hash[i], Side::kDst);
    }
  }
}

template <typename Keys>
void IdMap<Keys>::find(Column ids, int64_t size, Side side, node_t* out) const {
  const std::shared_lock lock(mutex_);
  uint64_t hashes[kAhead];
  for (int64_t begin = 0; begin < size; begin += kAhead) {
    const int64_t count = std::min(kAhead, size - begin);
    for (int64_t i = 0; i < count; ++i) index_.prefetch(hashes[i] = hash(ids[begin + i], side));
    for (int64_t i = 0; i < count; ++i) prefetch_likely(hashes[i]);
    for (int64_t i = 0; i < count; ++i) out[begin + i] = find_one(ids[begin + i], hashes[i], side);
  }
}

template <typename Keys>
void IdMap<Keys>::restore(Column keys, const uint8_t* sides, int64_t size) {
  const std::unique_lock lock(mutex_);
  const node_t first = keys_.size;
  for (int64_t i = 0; i < size; ++i) {
    const Side side = bipartite_ && sides[i] != 0 ? Side::kDst : Side::kSrc;
    if (insert(keys[i], hash(keys[i], side), side) != first + i) {
      throw std::invalid_argument("id " + std::to_string(first + i) + " of the state comes twice");
    }
  }
}

/// Calls `call(items, size)` for a column of the map.
template <typename Keys>
template <typename Visit>
void IdMap<Keys>::visit(IdColumn column, const Visit& call) const {
  if (column == IdColumn::kSides && bipartite_) return call(sides_, keys_.size);
  keys_.visit(column, call);
}

template <typename Keys>
int64_t IdMap<Keys>::num_items(IdColumn column) const {
  const std::shared_lock lock(mutex_);
  int64_t num = 0;
  visit(column, [&](const auto&, int64_t size) { num = size; });
  return num;
}

template <typename Keys>
void IdMap<Keys>::copy(IdColumn column, int64_t begin, int64_t end, void* out) const {
  const std::shared_lock lock(mutex_);
  check_items(column, begin, end);
  visit(column, [&](const auto& items, int64_t) {
    std::memcpy(out, items.data() + begin, static_cast<size_t>(end - begin) * sizeof(items[0]));
  });
}

template <typename Keys>
bool IdMap<Keys>::map_file(IdColumn column, int64_t begin, int64_t end, int fd, int64_t offset) {
  const std::shared_lock lock(mutex_);
  check_items(column, begin, end);
  bool is_mapped = false;
  visit(column, [&](auto& items, int64_t) { is_mapped = items.map_file(begin, end, fd, offset); });
  return is_mapped;
}

template <typename Keys>
void IdMap<Keys>::check_items(IdColumn column, int64_t begin, int64_t end) const {
  int64_t num = 0;
  visit(column, [&](const auto&, int64_t size) { num = size; });
  if (begin >= 0 && begin <= end && end <= num) return;
  throw std::out_of_range("the map has " + std::to_string(num) + " items of this column, got [" +
                          std::to_string(begin) + ", " + std::to_string(end) + ")");
}

template <typename Keys>
void IdMap<Keys>::hold_index_in(const std::string& folder) {
  const std::unique_lock lock(mutex_);
  index_.hold_in(std::make_shared<DiskMemory>(folder, "the index of node ids", "free some"));
}

template <typename Keys>
int64_t IdMap<Keys>::size() const {
  const std::shared_lock lock(mutex_);
  return keys_.size;
}

template <typename Keys>
void IdMap<Keys>::check_nodes(const node_t* nodes, int64_t size) const {
  for (int64_t i = 0; i < size; ++i) {
    if (nodes[i] >= 0 && nodes[i] < keys_.size) continue;
    throw std::out_of_range("node " + std::to_string(nodes[i]) + " at row " + std::to_string(i) +
                            " has no id; the map holds " + std::to_string(keys_.size));
  }
}

template class IdMap<IntKeys>;
template class IdMap<StringKeys>;

void decode(const IdMap<IntKeys>& map, const node_t* nodes, int64_t size, int64_t* out) {
  map.read(nodes, size, [&](const IntKeys& keys) {
    for (int64_t i = 0; i < size; ++i) out[i] = keys[nodes[i]];
  });
}

void decode_offsets(const IdMap<StringKeys>& map, const node_t* nodes, int64_t size, int64_t* out) {
  map.read(nodes, size, [&](const StringKeys& keys) {
    out[0] = 0;
    for (int64_t i = 0; i < size; ++i) {
      out[i + 1] = out[i] + static_cast<int64_t>(keys[nodes[i]].size());
    }
  });
}

void decode_bytes(const IdMap<StringKeys>& map, const node_t* nodes, int64_t size, char* out,
                  int64_t num_bytes) {
  map.read(nodes, size, [&](const StringKeys& keys) {
    int64_t total = 0;
    for (int64_t i = 0; i < size; ++i) total += static_cast<int64_t>(keys[nodes[i]].size());
    if (total != num_bytes) {
      throw std::invalid_argument("these ids have " + std::to_string(total) + " bytes, not " +
                                  std::to_string(num_bytes));
    }
    for (int64_t i = 0; i < size; ++i) {
      const std::string_view id = keys[nodes[i]];
      out = std::copy(id.begin(), id.end(), out);
    }
  });
}

namespace {

typedef uint8_t Bytes __attribute__((vector_size(16)));

/// The same for the values that begin before `end`; reads 18 more bytes at most.
bool spelled_otherwise(const char* text, int64_t end, uint8_t separator, bool has_blanks_or_x) {
  const auto at = [=](int64_t i) {
    Bytes bytes;
    std::memcpy(&bytes, text + i, sizeof(bytes));
    return bytes;
  };
  const auto is_border = [=](Bytes c) { return (c == separator) | (c == '\n') | (c == '"'); };
  const auto is_digit = [](Bytes c) { return c - '0' < 10; };
  const uint8_t space = separator == ' ' ? '\t' : ' ', tab = separator == '\t' ? ' ' : '\t';
  auto found = Bytes{} != Bytes{};
  for (int64_t i = 0; i < end; i += sizeof(Bytes)) {
    const Bytes a = at(i), b = at(i + 1), c = at(i + 2);
    const auto begins = is_border(a);
    found |= begins & (((b == '0') & is_digit(c)) | ((b == '-') & (c == '0') & is_digit(at(i + 3))));
    if (has_blanks_or_x) {
      found |= (a == '0') & ((b == 'x') | (b == 'X'));
      found |= ((b == space) | (b == tab)) & (begins | is_border(c) | (c == '\r'));
    }
  }
  uint64_t halves[2];
  std::memcpy(halves, &found, sizeof(found));
  return (halves[0] | halves[1]) != 0;
}

}  // namespace

bool may_have_other_spellings(std::string_view text, char separator) {
  bool is_rare = false;
  for (const char c : {' ', '\t', 'x', 'X'}) is_rare |= c != separator && text.find(c) != text.npos;
  const size_t num_last = std::min<size_t>(text.size(), 34), num_first = text.size() - num_last;
  const auto head = "\n" + std::string(text.substr(0, num_last)) + std::string(32, '\n');
  const auto tail = std::string(text.substr(num_first)) + std::string(32, '\n');
  return spelled_otherwise(head.data(), 1, separator, is_rare) ||
         spelled_otherwise(tail.data(), num_last, separator, is_rare) ||
         spelled_otherwise(text.data(), num_first, separator, is_rare);
}

}  // namespace tgflow
