#include "tgflow/event_lists.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace tgflow {
namespace {

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
bool EventLists::add_list(uint64_t key, int64_t part, eid_t eid, int32_t* number) {
  int64_t& num_keys = num_keys_[static_cast<size_t>(part)];
  if (num_keys >= max_keys_) {
    *number = find(key);
    return *number < 0;
  }
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
  ++num_keys;
  return true;
}

EventLists::Block* EventLists::new_block(const Block* before) {
  const int32_t number = before == nullptr ? 0 : before->number + 1;
  const auto words = static_cast<size_t>(Growth::of_lists().capacity[number] * width());
  return new (arena_.allocate(sizeof(Block) + words * sizeof(int64_t))) Block{before, number, 0};
}

int64_t EventLists::append(uint64_t key, int64_t part, eid_t eid) {
  int32_t number;
  if (add_list(key, part, eid, &number)) return number < 0 ? -1 : 0;
  List& list = this->list(number);
  if (list.is_one()) {
    Block* first = new_block(nullptr);
    write(first->entry(first->num++, width()), nullptr, list.one());
    list.events = reinterpret_cast<uint64_t>(first);
  }
  Block* const tail = list.tail();
  const int64_t* before = tail->entry(tail->num - 1, width());
  const int64_t num = tail->base() + tail->num;
  Block* const last = tail->num == tail->capacity() ? new_block(tail) : tail;
  write(last->entry(last->num, width()), before, eid);  // may read this list, as it was
  ++last->num;
  list.events = reinterpret_cast<uint64_t>(last);
  return num;
}

/// Age of an earlier event with the same source, or of any unless by a source's events, at the time of `eid`.
double EventLists::age_at(Clock clock, eid_t earlier, eid_t eid) const {
  if (clock == Clock::kSeconds) return seconds(log_.clocks()[earlier], log_.clocks()[eid]);
  if (clock == Clock::kEvents) return static_cast<double>(eid - earlier);
  const int32_t number = sources_->find(static_cast<uint64_t>(log_.src()[eid]));
  return static_cast<double>(sources_->prefix(number, eid).num - sources_->prefix(number, earlier).num);
}

/// Weight of an event in a sum, as of the log's clock after it.
double EventLists::weight(size_t decay, eid_t eid) const {
  const Decay& how = decays_[decay];
  const tick_t t = log_.t()[eid], clock = log_.clocks()[eid];
  return how.clock != Clock::kSeconds || t == clock ? 1.0 : std::exp2(-seconds(t, clock) / how.half_life);
}

void EventLists::write(int64_t* entry, const int64_t* before, eid_t eid) {
  entry[0] = eid;
  double ages[] = {-1, -1, -1};  // by clock, found once: sums by one clock differ in the half-life alone
  for (size_t d = 0; d < decays_.size(); ++d) {
    const Decay& how = decays_[d];
    double sum = weight(d, eid);
    if (before != nullptr) {
      double& age = ages[static_cast<size_t>(how.clock)];
      if (age < 0) age = age_at(how.clock, before[0], eid);
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

double EventLists::decayed(const Prefix& prefix, size_t decay, const Moment& moment) const {
  const Decay& how = decays_[decay];
  const double sum = prefix.entry == nullptr ? weight(decay, prefix.last) : sum_at(prefix.entry, decay);
  const double age = how.clock == Clock::kSeconds  ? seconds(log_.clocks()[prefix.last], moment.t)
                     : how.clock == Clock::kEvents ? static_cast<double>(moment.cut - prefix.last)
                                                   : static_cast<double>(moment.source_age);
  return sum * std::exp2(-age / how.half_life);
}

}  // namespace tgflow
