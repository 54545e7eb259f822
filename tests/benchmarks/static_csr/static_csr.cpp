#include "static_csr.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "../../../csrc/src/query_group.hpp"
#include "tgflow/radix_sort.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kMostEvents = 0x7fffffff;  // whose entries, two each, have 32-bit places
constexpr int64_t kAhead = 16;               // events between the steps of a scatter

node_t largest_node(const Events& events) {
  node_t largest = -1;
  for (int64_t i = 0; i < events.size; ++i) largest = std::max({largest, events.src[i], events.dst[i]});
  return largest;
}

}  // namespace

StaticCsr::StaticCsr(Direction direction)
    : direction_(direction), offsets_(kMaxNode + 3), entries_(2 * kMostEvents) {}

void StaticCsr::build(const Events& events) {
  if (events.size > kMostEvents) throw std::length_error("a static CSR holds at most 2^31 - 1 events");
  num_nodes_ = largest_node(events) + 1;
  num_events_ = events.size;
  offsets_.grow(num_nodes_ + 2);
  uint32_t* place = offsets_.data() + 1;  // place[v]: first v's entries, then where its next one goes
  std::memset(offsets_.data(), 0, static_cast<size_t>(num_nodes_ + 2) * sizeof(uint32_t));
  for (int64_t i = 0; i < events.size; ++i) {
    ++place[events.src[i]];
    if (twice(events.src[i], events.dst[i])) ++place[events.dst[i]];
  }
  uint32_t sum = 0;
  for (int64_t v = 0; v <= num_nodes_; ++v) {
    const uint32_t size = place[v];
    place[v] = sum;
    sum += size;
  }
  entries_.grow(sum);
  Entry* entries = entries_.data();
  for (int64_t i = 0; i < events.size; ++i) {
    if (i + 2 * kAhead < events.size) {
      __builtin_prefetch(place + events.src[i + 2 * kAhead], 1);
      __builtin_prefetch(place + events.dst[i + 2 * kAhead], 1);
      __builtin_prefetch(entries + place[events.src[i + kAhead]], 1);
      __builtin_prefetch(entries + place[events.dst[i + kAhead]], 1);
    }
    const node_t src = events.src[i], dst = events.dst[i];
    entries[place[src]++] = {events.t[i], static_cast<uint32_t>(dst), static_cast<uint32_t>(i)};
    if (twice(src, dst)) {
      entries[place[dst]++] = {events.t[i], static_cast<uint32_t>(src), static_cast<uint32_t>(i)};
    }
  }
}

void StaticCsr::insert(const Events& events) {
  if (num_events_ + events.size > kMostEvents) {
    throw std::length_error("a static CSR holds at most 2^31 - 1 events");
  }
  struct Pair {
    uint32_t node;
    uint32_t nbr;
    uint32_t row;
  };
  std::vector<Pair> pairs;
  pairs.reserve(static_cast<size_t>(events.size) * 2);
  for (int64_t i = 0; i < events.size; ++i) {
    const auto src = static_cast<uint32_t>(events.src[i]), dst = static_cast<uint32_t>(events.dst[i]);
    pairs.push_back({src, dst, static_cast<uint32_t>(i)});
    if (twice(src, dst)) pairs.push_back({dst, src, static_cast<uint32_t>(i)});
  }
  std::vector<Pair> sorting;
  radix_sort(pairs, sorting, [](const Pair& pair) { return pair.node; });
  const int64_t old_total = num_entries();
  const int64_t old_nodes = num_nodes_;
  num_nodes_ = std::max(num_nodes_, largest_node(events) + 1);
  offsets_.grow(num_nodes_ + 2);
  entries_.grow(old_total + static_cast<int64_t>(pairs.size()));
  for (int64_t v = old_nodes + 1; v <= num_nodes_; ++v) offsets_[v] = static_cast<uint32_t>(old_total);
  Entry* entries = entries_.data();
  int64_t moved = old_total;  // entries from here on are in place
  int64_t node = num_nodes_;  // offsets of later nodes too
  for (size_t left = pairs.size(); left > 0; --left) {
    const Pair& pair = pairs[left - 1];
    if (node > pair.node) {
      for (; node > pair.node; --node) offsets_[node] += static_cast<uint32_t>(left);
      const int64_t end = offsets_[pair.node + 1] - static_cast<int64_t>(left);  // of its old entries
      std::memmove(entries + end + left, entries + end, static_cast<size_t>(moved - end) * sizeof(Entry));
      moved = end;
    }
    entries[moved + static_cast<int64_t>(left) - 1] = {events.t[pair.row], pair.nbr,
                                                       static_cast<uint32_t>(num_events_ + pair.row)};
  }
  num_events_ += events.size;
}

namespace {

/// Queries [begin, begin + size) of a call, each step done for all before the next.
class CsrGroup {
 public:
  int64_t begin = 0;
  int64_t size = 0;
  const Entry* first[kGroup];  // a query sees `count[i]` entries from here
  int64_t count[kGroup];

  void find(const StaticCsr& csr, const Queries& queries, int64_t k) {
    const node_t* node = queries.node + begin;
    const uint32_t* offsets = csr.offsets();
    const auto known = [&](int64_t i) { return node[i] >= 0 && node[i] < csr.num_nodes(); };
    for (int64_t i = 0; i < size; ++i) {
      if (known(i)) prefetch(offsets + node[i]);
    }
    const int64_t row = std::min(k, kPrefetched);
    for (int64_t i = 0; i < size; ++i) {
      first[i] = csr.entries();
      count[i] = 0;
      if (!known(i)) continue;
      first[i] += offsets[node[i]];
      count[i] = offsets[node[i] + 1] - static_cast<int64_t>(offsets[node[i]]);
      prefetch(first[i] + count[i] - 1);
    }
    look_at_newest(queries, row);
    run_searches(searches_, num_open_, [&](int32_t j, const Entry& entry) {
      return sees(entry.t, entry.eid_offset, t_[j], limit_[j]);
    });
    for (int64_t j = 0; j < num_open_; ++j) {
      prefetch_entries(searches_[j].low, row);
      count[open_[j]] = searches_[j].low - first[open_[j]] + 1;
    }
  }

 private:
  void look_at_newest(const Queries& queries, int64_t row) {
    num_open_ = 0;
    for (int64_t i = 0; i < size; ++i) {
      const tick_t t = queries.t[begin + i];
      const eid_t before = queries.limit(begin + i);
      const auto seen = [&](const Entry& entry) { return sees(entry.t, entry.eid_offset, t, before); };
      if (count[i] == 0) continue;
      if (seen(first[i][count[i] - 1])) {
        prefetch_entries(first[i] + count[i] - 1, row);
        continue;
      }
      open_[num_open_] = i;
      t_[num_open_] = t;
      limit_[num_open_] = before;
      searches_[num_open_] = {first[i], count[i]};
      const bool any = seen(first[i][0]);
      if (!any) count[i] = 0;
      num_open_ += any;
    }
  }

  // Queries that do not see the newest entry but do see some.
  int64_t num_open_ = 0;
  int64_t open_[kGroup];
  tick_t t_[kGroup];
  int64_t limit_[kGroup];
  Search<Entry> searches_[kGroup];
};

template <typename Each>
void for_each_group(const StaticCsr& csr, Queries queries, int64_t k, const Each& each) {
  queries.before_all = std::min(queries.before_all, csr.num_events());
  parallel_for(queries.size, kGrain, [&](int64_t begin, int64_t end) {
    CsrGroup group;
    for (group.begin = begin; group.begin < end; group.begin += kGroup) {
      group.size = std::min(kGroup, end - group.begin);
      group.find(csr, queries, k);
      each(group);
    }
  });
}

void recent_row(const CsrGroup& group, int64_t i, const NeighborRows& out) {
  const int64_t row = group.begin + i;
  const int64_t count = std::min(group.count[i], out.k);
  out.count[row] = static_cast<int32_t>(count);
  write_slots(out, row * out.k, group.first[i] + group.count[i], count, 0);
  pad_slots(out, row * out.k + count, (row + 1) * out.k);
}

}  // namespace

void recent_neighbors(const StaticCsr& csr, const Queries& queries, const NeighborRows& out) {
  for_each_group(csr, queries, out.k, [&](const CsrGroup& group) {
    for (int64_t i = 0; i < group.size; ++i) recent_row(group, i, out);
  });
}

void uniform_neighbors(const StaticCsr& csr, const Queries& queries, uint64_t key, const NeighborRows& out) {
  for_each_group(csr, queries, out.k, [&](const CsrGroup& group) {
    for (int64_t i = 0; i < group.size; ++i) {
      if (group.count[i] <= out.k) continue;
      eid_t* number = out.eid + (group.begin + i) * out.k;
      Draws draws(key, group.begin + i);
      draw_distinct(draws, group.count[i], out.k, number);
      for (int64_t j = 0; j < out.k; ++j) prefetch(group.first[i] + number[j]);
    }
    for (int64_t i = 0; i < group.size; ++i) {
      if (group.count[i] <= out.k) {
        recent_row(group, i, out);
        continue;
      }
      const int64_t row = group.begin + i;
      for (int64_t slot = row * out.k; slot < (row + 1) * out.k; ++slot) {
        write_slot(out, slot, group.first[i][out.eid[slot]], 0);
      }
      out.count[row] = static_cast<int32_t>(out.k);
    }
  });
}

}  // namespace tgflow
