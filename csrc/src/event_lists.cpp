#include "tgflow/event_lists.hpp"

#include "tgflow/double_math.hpp"

namespace tgflow {
namespace {

uint8_t bytes_of(uint32_t value) { return value >> 24 != 0 ? 4 : value >> 16 != 0 ? 3 : 2; }

}  // namespace

const EventLists::Growth& EventLists::Growth::of_lists() {
  static constexpr Growth growth = [] {
    Growth of{};
    int64_t base = 0;
    for (int i = 0; i < kMostBlocks; ++i) {
      of.base[i] = base;
      of.groups[i] = std::clamp<int64_t>(base / (4 * kGroup), 1, int64_t{1} << 20);
      base += i == 0 ? kFirst : of.groups[i] * kGroup;
    }
    return of;
  }();
  return growth;
}

/// Sets the place of the list of a key.
void EventLists::set(uint64_t key, uint32_t place) {
  const int64_t node = node_of(key);
  if (node >= num_heads_) heads_.grow(num_heads_ = node + 1);
  heads_.mark(node);
  if (has_pairs_) {
    set(heads_[node], {second_of(key), place});
  } else {
    heads_[node].table = place;
  }
}

void EventLists::set(Head& head, Slot slot) {
  const uint32_t place = slot.place;
  if (head.table != 0 && bytes_of(slot.second) <= head.key_bytes && bytes_of(place) <= head.place_bytes) {
    const int64_t i = find_slot(head, slot.second);
    auto& num = *pool_.at<uint32_t>(head.table);
    const bool is_new = i >= 0 && read(head, i).place == kNone;
    if (i >= 0 && (!is_new || TableSizes::has_room(capacity(head), num + 1))) {
      num += is_new;
      write(head, i, slot);
      return;
    }
  }
  rebuild(head, slot);
}

/// Replaces the table of a node by one with room for another slot.
void EventLists::rebuild(Head& head, Slot added) {
  const Head old = head;
  const uint32_t num = old.table == 0 ? 0 : *pool_.at<uint32_t>(old.table);
  head.key_bytes = std::max(old.key_bytes, bytes_of(added.second));
  head.place_bytes = std::max(old.place_bytes, bytes_of(added.place));
  while (!TableSizes::has_room(capacity(head), num + 1)) ++head.size_class;
  const int64_t words = kTableSizes.words[head.size_class];
  head.table = pool_.allocate(words);
  std::memset(pool_.at<std::byte>(head.table), 0, static_cast<size_t>(words) * sizeof(uint64_t));
  auto& size = *pool_.at<uint32_t>(head.table);
  const auto insert = [&](Slot slot) {
    write(head, find_slot(head, slot.second), slot);
    ++size;
  };
  insert(added);
  if (old.table == 0) return;
  for (int64_t i = 0; i < capacity(old); ++i) {
    const Slot slot = read(old, i);
    if (slot.place != kNone && slot.second != added.second) insert(slot);
  }
  pool_.free(old.table, kTableSizes.words[old.size_class]);
}

int64_t EventLists::append(uint64_t key, int64_t part, eid_t eid) {
  const auto at = static_cast<uint32_t>(eid - first_);
  uint32_t place = find(key);
  if (place == kNone) {
    int64_t& num_keys = num_keys_[static_cast<size_t>(part)];
    if (num_keys >= max_keys_) return -1;
    set(key, 2 * at + 1);
    ++num_keys;
    return 0;
  }
  const uint32_t larger = with(place, at);
  if (larger != place) set(key, larger);
  const Block& block = *block_at(larger);
  return Growth::of_lists().base[block.number()] + block.num() - 1;
}

/// Adds an event to a list by its place; returns the place from then on.
uint32_t EventLists::with(uint32_t place, uint32_t at) {
  if (place == kNone) return 2 * at + 1;
  if (is_one(place)) {
    const uint32_t piece = pool_.allocate(2);
    Block& block = *pool_.at<Block>(piece);
    block.word = 1 << 8;
    *entry(block, 0) = place / 2;
    place = 2 * piece;
  } else {
    place = grown(place);
  }
  Block& block = *block_at(place);
  const int64_t i = block.num();
  if (block.number() > 0 && i > 0 && i % kGroup == 0) write_sums(block, i / kGroup, {0, 0, &block, i - 1});
  *entry(block, i) = at;
  block.word += 1 << 8;
  return place;
}

void EventLists::sweep(eid_t first, double share) {
  const auto begin = static_cast<uint32_t>(first - first_);
  if (!has_pairs_ && num_known_ < num_heads_) unseen_.grow(num_known_ = num_heads_);
  const auto num = static_cast<int64_t>(share * static_cast<double>(num_heads_)) + 1;
  for (int64_t left = std::min(num, num_heads_); left > 0; --left) {
    if (++next_swept_ >= num_heads_) {
      next_swept_ = 0;
      heads_.free_zeros();
      unseen_.clear(0, num_known_);
    }
    Head& head = heads_[next_swept_];
    if (has_pairs_) {
      trim(head, begin);
    } else {
      head.table = trimmed(head.table, begin);
      if (next_swept_ < num_known_) unseen_[next_swept_] = 0;
    }
  }
}

/// Drops the events before `first` from the lists of a table, and the slots of empty ones.
void EventLists::trim(Head& head, uint32_t first) {
  if (head.table == 0) return;
  slots_.clear();
  bool has_changed = false;
  for (int64_t i = 0; i < capacity(head); ++i) {
    const Slot slot = read(head, i);
    if (slot.place != kNone && !is_one(slot.place)) __builtin_prefetch(block_at(slot.place));
  }
  for (int64_t i = 0; i < capacity(head); ++i) {
    Slot slot = read(head, i);
    if (slot.place == kNone) continue;
    const uint32_t place = trimmed(slot.place, first);
    has_changed |= place != slot.place;
    slot.place = place;
    if (place != kNone) slots_.push_back(slot);
  }
  if (!has_changed) return;
  pool_.free(head.table, kTableSizes.words[head.size_class]);
  head.table = 0;
  const auto has_room = [&](int size_class) {
    return TableSizes::has_room(kTableSizes.slots[size_class][head.width()],
                                static_cast<int64_t>(slots_.size()));
  };
  while (head.size_class > 0 && has_room(head.size_class - 1)) --head.size_class;
  if (slots_.empty()) head = {};
  for (const Slot& slot : slots_) set(head, slot);
}

/// The place of a list without its events before `first`.
uint32_t EventLists::trimmed(uint32_t place, uint32_t first) {
  if (place == kNone) return kNone;
  if (is_one(place)) return place / 2 < first ? kNone : place;
  const Block* block = block_at(place);
  if ((block->number() == 0 ? *entry(*block, 0) : block->first) >= first) return place;
  left_.clear();
  for (bool is_last = false; !is_last;) {
    for (int64_t i = block->num() - 1; i >= 0 && *entry(*block, i) >= first; --i)
      left_.push_back(*entry(*block, i));
    const uint32_t before = block->before;
    is_last = block->number() == 0;
    pool_.free(place / 2, is_last ? block->num() / 2 + 1 : words_of(block->number()));
    block = block_at(place = before);
  }
  place = kNone;
  for (auto at = left_.rbegin(); at != left_.rend(); ++at) place = with(place, *at);
  return place;
}

/// The place of a list with room for another event.
uint32_t EventLists::grown(uint32_t place) {
  const Block& block = *block_at(place);
  const int64_t num = block.num();
  const uint32_t number = block.number();
  if (number == 0 && num < kFirst) {
    if (num % 2 == 0) return place;  // a piece of n words holds 2n - 1 events
    const int64_t words = (num + 1) / 2;
    const uint32_t piece = pool_.allocate(words + 1);
    std::memcpy(pool_.at<std::byte>(piece), &block, static_cast<size_t>(words) * sizeof(uint64_t));
    pool_.free(place / 2, words);
    return 2 * piece;
  }
  if (number > 0 && num < Growth::of_lists().groups[number] * kGroup) return place;
  const uint32_t piece = pool_.allocate(words_of(number + 1));
  Block& next = *pool_.at<Block>(piece);
  next = {number + 1, place, number == 0 ? *entry(block, 0) : block.first, *entry(block, num - 1)};
  write_sums(next, 0, {0, 0, &block, num - 1});
  return 2 * piece;
}

void EventLists::write_sums(const Block& block, int64_t group, const Prefix& before) {
  const Tail tail = this->tail(before);
  double ages[kMostTail], rest[kMostTail];
  for (size_t n = 0; n < decays_.size(); ++n) {
    if (n == 0 || decays_[n].clock != decays_[n - 1].clock) write_ages(tail, decays_[n].clock, ages);
    decay_all(ages, tail.num, decays_[n].half_life, rest);
    const_cast<double*>(sums(block, group))[n] = sum(tail, n, rest);
  }
}

int64_t EventLists::num_unseen(uint64_t key, eid_t since) const {
  if (key >= static_cast<uint64_t>(num_known_)) return num_before(key, since);
  const auto of = static_cast<uint64_t>(since - first_) << 32;
  const uint64_t known = __atomic_load_n(&unseen_[static_cast<int64_t>(key)], __ATOMIC_RELAXED);
  if (known >> 32 == of >> 32) return static_cast<uint32_t>(known);
  const int64_t num = num_before(key, since);
  __atomic_store_n(&unseen_[static_cast<int64_t>(key)], of | static_cast<uint64_t>(num), __ATOMIC_RELAXED);
  return num;
}

int64_t EventLists::number_of(uint64_t key) const {
  const uint32_t place = find(key);
  if (place == kNone) return -1;
  if (is_one(place)) return place / 2;
  const Block& block = *block_at(place);
  return block.number() == 0 ? *entry(block, 0) : block.first;
}

EventLists::Prefix EventLists::prefix(uint32_t place, eid_t cut) const {
  if (is_one(place)) {
    const eid_t only = first_ + place / 2;
    return only < cut ? Prefix{1, only, nullptr, 0} : Prefix{};
  }
  const Block* block = block_at(place);
  // the last group that begins below the cut-off: most are the end
  int64_t group = last_group(*block);
  while (event(*block, group * kGroup) >= cut) {
    int64_t step = 1;
    while (step < group && event(*block, (group - step) * kGroup) >= cut) step *= 2;
    int64_t high = group - step / 2;
    group = std::max<int64_t>(group - step, 0);
    while (high - group > 1) {
      const int64_t middle = group + (high - group) / 2;
      (event(*block, middle * kGroup) < cut ? group : high) = middle;
    }
    if (group > 0 || event(*block, 0) < cut) break;
    if (block->number() == 0) return {};
    block = block_at(block->before);
    group = last_group(*block);
  }
  const int64_t num = std::min(kGroup, block->num() - group * kGroup);
  const uint32_t* const events = entry(*block, group * kGroup);
  int64_t below = 0;  // without branches that cannot be predicted
  for (int64_t i = 0; i < num; ++i) below += first_ + events[i] < cut;
  const int64_t index = group * kGroup + below - 1;
  return {Growth::of_lists().base[block->number()] + index + 1, first_ + events[below - 1], block, index};
}

EventLists::Tail EventLists::tail(const Prefix& prefix) const {
  if (prefix.block == nullptr) return {nullptr, prefix.last, 0, nullptr};
  const Block& block = *prefix.block;
  const bool is_first = block.number() == 0;
  const int64_t num = is_first ? prefix.index : prefix.index % kGroup + 1;
  const uint32_t* const events = entry(block, prefix.index) + 1 - num;
  if (is_first) return {nullptr, first_ + events[-1], num, events};
  const eid_t before = num <= prefix.index ? event(block, prefix.index - num) : first_ + block.last;
  return {sums(block, prefix.index / kGroup), before, num, events};
}

/// Age of an earlier event with the same source, or of any unless by a source's events, at the time of `eid`.
double EventLists::age_at(Clock clock, eid_t earlier, eid_t eid) const {
  if (clock == Clock::kSeconds) return seconds(log_.clocks()[earlier], log_.clocks()[eid]);
  if (clock == Clock::kEvents) return static_cast<double>(eid - earlier);
  return static_cast<double>(ranks_[eid - first_] - ranks_[earlier - first_]);
}

void EventLists::write_ages(const Tail& tail, Clock clock, double* out) const {
  eid_t before = tail.before;
  for (int64_t i = 0; i < tail.num; ++i) {
    const eid_t eid = first_ + tail.events[i];
    out[i] = age_at(clock, before, eid);
    before = eid;
  }
}

double EventLists::sum(const Tail& tail, size_t decay, const double* rest) const {
  const Decay& how = decays_[decay];
  double sum = tail.known != nullptr ? tail.known[decay] : weight(how, tail.before);
  const bool has_late = how.clock == Clock::kSeconds && log_.t() != log_.clocks();
  for (int64_t i = 0; i < tail.num; ++i)
    sum = (has_late ? weight(how, first_ + tail.events[i]) : 1.0) + sum * rest[i];
  return sum;
}

}  // namespace tgflow
