#include "tgflow/event_lists.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace tgflow {
namespace {

/// later - earlier, which 64 bits with a sign need not hold.
double elapsed(int64_t earlier, int64_t later) {
  return static_cast<double>(static_cast<uint64_t>(later) - static_cast<uint64_t>(earlier));
}

double sum_at(const int64_t* entry, size_t decay) {
  double sum;
  std::memcpy(&sum, entry + 1 + decay, sizeof sum);
  return sum;
}

}  // namespace

EventLists::List& EventLists::list_of(uint64_t key) {
  if (num_lists_ == std::numeric_limits<int32_t>::max()) {
    throw std::length_error("counts of past events have 2^31 - 1 keys, and no room for more");
  }
  if (num_lists_ % kChunk == 0 && static_cast<size_t>(num_lists_ / kChunk) == chunks_.size()) {
    chunks_.emplace_back(new List[kChunk]);
  }
  index_.reserve_one(num_lists_, [&](int32_t number) { return mix64(list(number).key); });
  const int32_t number =
      index_.find_or_insert(mix64(key), num_lists_, [&](int32_t other) { return list(other).key == key; });
  if (number == num_lists_) {
    list(number) = {key, 0, {kNoEvent}};
    ++num_lists_;
  }
  return list(number);
}

EventLists::Block* EventLists::new_block(const Block* before, int64_t base) {
  const auto words = static_cast<size_t>(capacity(base) * width());
  return new (arena_.allocate(sizeof(Block) + words * sizeof(int64_t))) Block{before, base};
}

int64_t EventLists::append(uint64_t key, eid_t eid) {
  List& list = list_of(key);
  if (list.num == 0) {
    list.only = eid;
    return list.num++;
  }
  if (list.num == 1) {
    Block* first = new_block(nullptr, 0);
    write(first->entry(0, width()), nullptr, list.only);
    list.tail = first;
  }
  Block* tail = list.tail;
  const int64_t filled = list.num - tail->base;
  const int64_t* before = tail->entry(filled - 1, width());
  if (filled < capacity(tail->base)) {
    write(tail->entry(filled, width()), before, eid);
  } else {
    list.tail = new_block(tail, list.num);
    write(list.tail->entry(0, width()), before, eid);
  }
  return list.num++;
}

/// What an event adds to a sum, as of the log's clock after it.
double EventLists::weight(size_t decay, eid_t eid) const {
  const Decay& how = decays_[decay];
  return how.by_events ? 1.0 : std::exp2(-elapsed(log_.t()[eid], log_.clocks()[eid]) / how.half_life);
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
  if (found.num < 2) return found.num == 1 && found.only < cut ? Prefix{1, found.only, nullptr} : Prefix{};
  const int64_t stride = width();
  const Block* block = found.tail;
  int64_t end = found.num - block->base;
  while (block->entry(0, stride)[0] >= cut) {
    if (block->before == nullptr) return {};
    end = block->base - block->before->base;
    block = block->before;
  }
  const auto at = [&](int64_t i) { return block->entry(i, stride)[0]; };
  int64_t step = 1;  // the one looked for is the last below the cut-off, at 0 or behind
  while (step < end && at(end - step) >= cut) step *= 2;
  int64_t low = std::max<int64_t>(end - step, 0), high = step == 1 ? end : end - step / 2;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (at(middle) < cut ? low : high) = middle;
  }
  return {block->base + low + 1, at(low), block->entry(low, stride)};
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
  const Block* block = list(number).tail;
  for (int i = 0; i < num; ++i) {
    const int64_t rank = known.num - 1 - i;
    while (block->base > rank) block = block->before;
    out[i] = block->entry(rank - block->base, width())[0];
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
