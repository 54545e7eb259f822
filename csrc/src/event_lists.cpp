#include "tgflow/event_lists.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace tgflow {
namespace {

/// later - earlier, which may exceed int64.
double elapsed(int64_t earlier, int64_t later) {
  return static_cast<double>(static_cast<uint64_t>(later) - static_cast<uint64_t>(earlier));
}

double sum_at(const int64_t* entry, size_t decay) {
  double sum;
  std::memcpy(&sum, entry + 1 + decay, sizeof sum);
  return sum;
}

}  // namespace

/// Block sizes: the first blocks hold two events, the next ones half of all before, then a quarter, rounded
/// up to an even number, so that entries of one word fill their allocation.
const EventLists::Growth& EventLists::Growth::of_lists() {
  static constexpr Growth growth = [] {
    Growth of{};
    int64_t base = 0;
    for (int i = 0; i < kMost; ++i) {
      of.base[i] = base;
      of.capacity[i] = base < 4 ? 2 : (base / (base < 16 ? 2 : 4) + 1) / 2 * 2;
      base += of.capacity[i];
    }
    return of;
  }();
  return growth;
}

/// Finds the number of the list of `key`; false if there is one. Otherwise adds a list with one event.
bool EventLists::add_list(uint64_t key, eid_t eid, int32_t* number) {
  if (num_lists_ == std::numeric_limits<int32_t>::max()) {
    throw std::length_error("counts of past events have 2^31 - 1 keys, and no room for more");
  }
  if (num_lists_ % kChunk == 0 && static_cast<size_t>(num_lists_ / kChunk) == chunks_.size()) {
    chunks_.emplace_back(new List[kChunk]);
  }
  index_.reserve_one(num_lists_, [&](int32_t other) { return mix64(list(other).key); });
  *number =
      index_.find_or_insert(mix64(key), num_lists_, [&](int32_t other) { return list(other).key == key; });
  if (*number < num_lists_) return false;
  list(*number) = {key, 2 * static_cast<uint64_t>(eid) + 1};
  ++num_lists_;
  return true;
}

EventLists::Block* EventLists::new_block(const Block* before) {
  const int32_t number = before == nullptr ? 0 : before->number + 1;
  const auto words = static_cast<size_t>(Growth::of_lists().capacity[number] * width());
  return new (arena_.allocate(sizeof(Block) + words * sizeof(int64_t))) Block{before, number, 0};
}

bool EventLists::append(uint64_t key, eid_t eid) {
  int32_t number;
  if (add_list(key, eid, &number)) return true;
  List& list = this->list(number);
  if (list.is_one()) {
    Block* first = new_block(nullptr);
    write(first->entry(first->num++, width()), nullptr, list.one());
    list.events = reinterpret_cast<uint64_t>(first);
  }
  Block* tail = list.tail();
  const int64_t* before = tail->entry(tail->num - 1, width());
  if (tail->num == tail->capacity()) {
    tail = new_block(tail);
    list.events = reinterpret_cast<uint64_t>(tail);
  }
  write(tail->entry(tail->num, width()), before, eid);
  ++tail->num;
  return false;
}

/// Weight of an event in a sum, as of the log's clock after it.
double EventLists::weight(size_t decay, eid_t eid) const {
  const Decay& how = decays_[decay];
  const tick_t t = log_.t()[eid], clock = log_.clocks()[eid];
  return how.by_events || t == clock ? 1.0 : std::exp2(-elapsed(t, clock) / how.half_life);
}

void EventLists::write(int64_t* entry, const int64_t* before, eid_t eid) {
  entry[0] = eid;
  for (size_t d = 0; d < decays_.size(); ++d) {
    const Decay& how = decays_[d];
    double sum = weight(d, eid);
    if (before != nullptr) {
      const double age =
          how.by_events ? elapsed(before[0], eid) : elapsed(log_.clocks()[before[0]], log_.clocks()[eid]);
      sum += sum_at(before, d) * std::exp2(-age / how.half_life);
    }
    std::memcpy(entry + 1 + d, &sum, sizeof sum);
  }
}

EventLists::Prefix EventLists::prefix(int32_t number, eid_t cut) const {
  const List& found = list(number);
  if (found.is_one()) return found.one() < cut ? Prefix{1, found.one(), nullptr} : Prefix{};
  const int64_t stride = width();
  const Block* block = found.tail();
  while (block->entry(0, stride)[0] >= cut) {
    if (block->before == nullptr) return {};
    block = block->before;
  }
  const int64_t end = block->num;
  const auto at = [&](int64_t i) { return block->entry(i, stride)[0]; };
  int64_t step = 1;  // the result is the last below the cut-off, at 0 or later
  while (step < end && at(end - step) >= cut) step *= 2;
  int64_t low = std::max<int64_t>(end - step, 0), high = step == 1 ? end : end - step / 2;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (at(middle) < cut ? low : high) = middle;
  }
  return {block->base() + low + 1, at(low), block->entry(low, stride)};
}

int EventLists::last_events(uint64_t key, eid_t cut, int most, eid_t* out) const {
  const int32_t number = find(key);
  if (number < 0) return 0;
  const Prefix known = prefix(number, cut);
  const int num = static_cast<int>(std::min<int64_t>(most, known.num));
  if (known.entry == nullptr) {
    if (num > 0) out[0] = known.last;
    return num;
  }
  const Block* block = list(number).tail();
  for (int i = 0; i < num; ++i) {
    const int64_t rank = known.num - 1 - i;
    while (block->base() > rank) block = block->before;
    out[i] = block->entry(rank - block->base(), width())[0];
  }
  return num;
}

double EventLists::decayed(const Prefix& prefix, size_t decay, tick_t t, eid_t cut) const {
  const Decay& how = decays_[decay];
  const double sum = prefix.entry == nullptr ? weight(decay, prefix.last) : sum_at(prefix.entry, decay);
  const double age = how.by_events ? elapsed(prefix.last, cut) : elapsed(log_.clocks()[prefix.last], t);
  return sum * std::exp2(-age / how.half_life);
}

}  // namespace tgflow
