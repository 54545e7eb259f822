#include "tgflow/event_log.hpp"

#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "tgflow/thread_pool.hpp"

namespace tgflow {

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

std::string event(int64_t row) { return "event " + std::to_string(row); }

void check_ids(const char* name, const node_t* ids, int64_t size) {
  uint64_t all = 0;
  for (int64_t i = 0; i < size; ++i) all |= static_cast<uint64_t>(ids[i]);
  if (all < static_cast<uint64_t>(kMaxNode)) return;  // no id has a bit outside of kMaxNode
  for (int64_t i = 0; i < size; ++i) {
    if (ids[i] >= 0 && ids[i] <= kMaxNode) continue;
    fail(event(i) + " has " + name + "=" + std::to_string(ids[i]) + "; node ids must be in [0, " +
         std::to_string(kMaxNode) + "], use NodeIds to map others");
  }
}

void check_relations(const int64_t* relation, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    if (static_cast<uint64_t>(relation[i]) < static_cast<uint64_t>(kNumRelations)) continue;
    fail(event(i) + " has relation=" + std::to_string(relation[i]) + "; relations must be in [0, " +
         std::to_string(kNumRelations - 1) + "]");
  }
}

void append_column(ReservedArray<int64_t>& column, int64_t at, const int64_t* values, int64_t size) {
  column.grow(at + size);
  std::memcpy(column.data() + at, values, static_cast<size_t>(size) * sizeof(int64_t));
}

/// What decides whether events are valid, apart from the log.
struct Summary {
  uint64_t ids = 0, relations = 0;  ///< Bits that one of them has.
  bool is_sorted = true;
  Largest largest;

  bool is_valid() const {
    return is_sorted && ids <= static_cast<uint64_t>(kMaxNode) && relations < kNumRelations;
  }
  void add(const Events& events, int64_t begin, int64_t end) {
    bool falls = begin > 0 && events.t[begin] < events.t[begin - 1];
    for (int64_t i = begin; i < end; ++i) {
      ids |= static_cast<uint64_t>(events.src[i]) | static_cast<uint64_t>(events.dst[i]);
      largest.src = std::max(largest.src, events.src[i]);
      largest.dst = std::max(largest.dst, events.dst[i]);
    }
    for (int64_t i = begin + 1; i < end; ++i) falls |= events.t[i] < events.t[i - 1];
    for (int64_t i = begin; events.relation != nullptr && i < end; ++i) {
      relations |= static_cast<uint64_t>(events.relation[i]);
    }
    is_sorted = is_sorted && !falls;
  }
  void add(const Summary& other) {
    ids |= other.ids;
    relations |= other.relations;
    is_sorted = is_sorted && other.is_sorted;
    largest = {std::max(largest.src, other.largest.src), std::max(largest.dst, other.largest.dst)};
  }
};

constexpr int64_t kGrain = 1 << 15;  // events that pay for waking a thread
constexpr int64_t kPiece = 1 << 10;  // events whose columns stay in the nearest cache

}  // namespace

EventLog::EventLog(eid_t first, std::shared_ptr<DiskMemory> disk)
    : disk_(std::move(disk)),
      src_(kMaxEvents, disk_),
      dst_(kMaxEvents, disk_),
      t_(kMaxEvents, disk_),
      clocks_(t_.data()),
      first_(first),
      first_seen_(first),
      size_(first) {}

void EventLog::forget(eid_t first, eid_t first_seen) {
  first_seen_.store(std::max(first_seen, first_seen_.load()), std::memory_order_release);
  if (first <= first_) return;
  first_.store(first, std::memory_order_release);
  for (ReservedArray<int64_t>* column : {&src_, &dst_, &t_, clock_.get(), relation_.get()})
    if (column != nullptr) column->drop(first);
}

tick_t EventLog::clock() const {
  const int64_t at = size();
  return at == first() ? INT64_MIN : clocks_.load(std::memory_order_acquire)[at - 1];
}

void EventLog::check(const Events& events, bool may_be_late) const {
  check_ids("src", events.src, events.size);
  check_ids("dst", events.dst, events.size);
  if (events.relation != nullptr) check_relations(events.relation, events.size);
  const int64_t at = size();
  for (int64_t i = 0; i < events.size; ++i) {
    if (i > 0 ? events.t[i] >= events.t[i - 1] : may_be_late || events.t[0] >= clock()) continue;
    const std::string where = i == 0 ? "the log is" : event(i - 1) + " before it is";
    fail(event(i) + " has t=" + std::to_string(events.t[i]) + " but " + where +
         " at t=" + std::to_string(i == 0 ? clock() : events.t[i - 1]) +
         "; sort the batch or use a reorder buffer" + (i == 0 ? ", or insert it late" : ""));
  }
  if (at > first() && events.size > 0 && has_relation() != (events.relation != nullptr)) {
    fail(has_relation()
             ? "the log has relations but the batch has none; give every batch a relation column"
             : "the batch has relations but the log has none; give relations from the first batch on");
  }
}

bool EventLog::follows(const Events& events, bool may_be_late) const {
  if (events.size == 0) return true;
  const bool has_columns = size() == first() || has_relation() == (events.relation != nullptr);
  return has_columns && (may_be_late || events.t[0] >= clock());
}

Largest EventLog::stage(const Events& events, bool may_be_late, int64_t* rows) {
  Summary all;
  num_staged_ = 0;
  if (!follows(events, may_be_late)) check(events, may_be_late);  // throws
  const int64_t at = size();
  if (at == first() && events.size > 0)
    relation_ = events.relation ? std::make_unique<ReservedArray<int64_t>>(kMaxEvents, disk_) : nullptr;
  ReservedArray<int64_t>* const columns[] = {&src_, &dst_, &t_, relation_.get()};
  const int64_t* const from[] = {events.src, events.dst, events.t, events.relation};
  for (int c = 0; c < 4; ++c)
    if (from[c] != nullptr && events.size > 0) columns[c]->grow(at + events.size);
  std::mutex mutex;
  parallel_for(events.size, kGrain, [&](int64_t begin, int64_t end) {
    Summary some;
    for (int64_t i = begin; i < end; i += kPiece) {
      const int64_t num = std::min(kPiece, end - i);
      some.add(events, i, i + num);
      for (int c = 0; c < 4; ++c) {
        if (from[c] == nullptr) continue;
        const size_t bytes = static_cast<size_t>(num) * sizeof(int64_t);
        std::memcpy(columns[c]->data() + at + i, from[c] + i, bytes);
        if (rows != nullptr) std::memcpy(rows + c * events.size + i, from[c] + i, bytes);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    all.add(some);
  });
  if (!all.is_valid()) check(events, may_be_late);  // throws
  num_staged_ = events.size;
  return largest_staged_ = all.largest;
}

Events EventLog::staged() const {
  const int64_t at = size();
  const int64_t* const relation = relation_ ? relation_->data() + at : nullptr;
  return {src_.data() + at, dst_.data() + at, t_.data() + at, relation, num_staged_};
}

eid_t EventLog::publish() {
  const int64_t at = size();
  if (num_staged_ == 0) return at;
  append_clock(staged());
  const node_t largest = std::max(largest_staged_.src, largest_staged_.dst);
  num_nodes_.store(std::max(num_nodes(), largest + 1), std::memory_order_release);
  size_.store(at + num_staged_, std::memory_order_release);
  num_staged_ = 0;
  return at;
}

/// Times serve as the clock until one decreases.
void EventLog::append_clock(const Events& events) {
  const int64_t at = size();
  if (!clock_ && events.t[0] >= clock()) return;
  if (!clock_) {
    auto clock = std::make_unique<ReservedArray<tick_t>>(kMaxEvents, disk_);
    append_column(*clock, first(), t_.data() + first(), at - first());
    clock_ = std::move(clock);
  }
  clock_->grow(at + events.size);
  tick_t now = clock();
  for (int64_t i = 0; i < events.size; ++i) (*clock_)[at + i] = now = std::max(now, events.t[i]);
  clocks_.store(clock_->data(), std::memory_order_release);
}

int64_t EventLog::position(tick_t t) const {
  const int64_t end = size();
  const tick_t* clocks = clocks_.load(std::memory_order_acquire);
  return std::lower_bound(clocks + first(), clocks + end, t) - clocks;
}

void EventLog::check_eids(const eid_t* eid, int64_t count) const {
  const int64_t begin = first(), end = size();
  for (int64_t i = 0; i < count; ++i) {
    if (eid[i] < begin || eid[i] >= end) {
      throw std::out_of_range("eid " + std::to_string(eid[i]) + " at row " + std::to_string(i) +
                              " is not in the log, which holds events [" + std::to_string(begin) + ", " +
                              std::to_string(end) + ")");
    }
  }
}

void EventLog::gather(const eid_t* eid, int64_t count, node_t* src, node_t* dst, tick_t* t,
                      int64_t* relation) const {
  check_eids(eid, count);
  for (int64_t i = 0; i < count; ++i) {
    src[i] = src_[eid[i]];
    dst[i] = dst_[eid[i]];
    t[i] = t_[eid[i]];
  }
  for (int64_t i = 0; relation != nullptr && i < count; ++i) relation[i] = (*relation_)[eid[i]];
}

bool EventLog::map_file(Column column, int64_t begin, int64_t end, int fd, int64_t offset) {
  if (begin < first() || begin > end || end > size()) {
    throw std::out_of_range("the log holds events [" + std::to_string(first()) + ", " +
                            std::to_string(size()) + "), got [" + std::to_string(begin) + ", " +
                            std::to_string(end) + ")");
  }
  ReservedArray<int64_t>* const values = column == Column::kSrc   ? &src_
                                         : column == Column::kDst ? &dst_
                                         : column == Column::kT   ? &t_
                                                                  : relation_.get();
  return values != nullptr && values->map_file(begin, end, fd, offset);
}

EventRelations::EventRelations(std::shared_ptr<DiskMemory> disk) : relations_(kMaxEvents, std::move(disk)) {}

void EventRelations::reserve(const Events& events, eid_t first_eid) {
  if (events.relation != nullptr) relations_.grow(first_eid + events.size);
}

void EventRelations::commit(const Events& events, eid_t first_eid) noexcept {
  if (events.relation == nullptr || events.size == 0) return;
  for (int64_t i = 0; i < events.size; ++i) {
    relations_[first_eid + i] = static_cast<uint16_t>(events.relation[i]);
  }
  size_.store(first_eid + events.size, std::memory_order_release);
}

void EventRelations::check(int64_t num_events) const {
  if (num_events > 0 && data() == nullptr) {
    throw std::invalid_argument(
        "the graph's events have no relations to sample by; give them a relation column");
  }
}

}  // namespace tgflow
