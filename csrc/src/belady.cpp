#include "tgflow/belady.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tgflow {
namespace {

constexpr int64_t kLimit = int64_t{1} << 30;
constexpr int32_t kUnknown = -1;
constexpr int32_t kBits = 64;
constexpr int64_t kAhead = 16;  // look-ups whose memory is asked for before they are made

int32_t word_of(int32_t batch) { return batch / kBits; }
uint64_t bit_of(int32_t batch) { return uint64_t{1} << (batch % kBits); }

int64_t checked(int64_t num_slots) {
  if (num_slots >= 0 && num_slots < kLimit) return num_slots;
  throw std::invalid_argument("a cache must have 0 to 2^30 - 1 slots, got " + std::to_string(num_slots));
}

}  // namespace

Belady::Belady(int64_t num_slots, const int64_t* id)
    : num_slots_(checked(num_slots)),
      slots_(num_slots + 1, {-1, -1, -1}),
      accesses_(1024),
      waiting_(2 * kBits, -1),
      filled_(2, 0) {
  const auto end = static_cast<int32_t>(num_slots);
  slots_[end] = {-1, end, end};
  for (const bool held : {false, true}) {  // free slots come first, as if used long ago
    for (int32_t s = 0; s < end; ++s) {
      if ((id != nullptr && id[s] >= 0) != held) continue;
      if (held) hold(s, id[s]);
      append_unknown(s);
    }
  }
}

void Belady::hold(int32_t slot, int64_t id) {
  const int32_t number = rows_.add(id);
  if (rows_[number].slot >= 0) {
    throw std::invalid_argument("a cache must hold a row once, got id " + std::to_string(id) + " twice");
  }
  rows_[number].slot = slot;
  slots_[slot].number = number;
}

void Belady::contents(int64_t* id) const {
  for (int64_t s = 0; s < num_slots_; ++s) id[s] = slots_[s].number < 0 ? -1 : rows_[slots_[s].number].id;
}

int64_t Belady::bytes() const { return slots_.bytes() + rows_.bytes() + accesses_.bytes(); }

void Belady::observe(const int64_t* id, int64_t n) {
  if (num_accesses() + n >= kLimit || observed_ == INT32_MAX) {
    throw std::invalid_argument("fewer than 2^30 accesses can wait to be planned, got " +
                                std::to_string(num_accesses() + n));
  }
  make_room_for_a_batch();
  make_room_for_accesses(n);
  const int64_t first_access = num_seen_;
  try {
    number_ids(id, n);
    sizes_.push_back(n);
  } catch (...) {
    unnumber(first_access);
    throw;
  }
  link_uses(first_access);
  ++observed_;
}

void Belady::number_ids(const int64_t* id, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + 2 * kAhead < n) rows_.prefetch_index(id[i + 2 * kAhead]);
    if (i + kAhead < n) rows_.prefetch_row(id[i + kAhead]);
    if (id[i] < 0) throw std::invalid_argument("ids must be at least 0, got " + std::to_string(id[i]));
    const int32_t number = rows_.add(id[i]);
    if (rows_[number].mark == observed_) {
      throw std::invalid_argument("a batch has id " + std::to_string(id[i]) + " twice");
    }
    rows_[number].mark = observed_;
    prefetch_slot(number);
    access(num_seen_++) = {number, kUnknown};
  }
}

/// Takes back what `number_ids` did.
void Belady::unnumber(int64_t first_access) {
  while (num_seen_ > first_access) {
    const int32_t number = access(--num_seen_).number;
    rows_[number].mark = -1;
    if (rows_[number].slot < 0 && rows_[number].last < 0) rows_.erase(number);
  }
}

/// Makes the new batch the next use of its ids where they were used last, or of the slots that hold them.
void Belady::link_uses(int64_t first_access) {
  for (int64_t i = first_access; i < num_seen_; ++i) {
    if (i + 2 * kAhead < num_seen_) rows_.prefetch(access(i + 2 * kAhead).number);
    if (i + kAhead < num_seen_) prefetch_use(i + kAhead);
    Row& row = rows_[access(i).number];
    if (row.last >= 0) {
      access(row.last).next_use = observed_;
    } else if (row.slot >= 0) {
      take_unknown(row.slot);
      wait(row.slot, observed_);
    }
    row.last = i;
  }
}

/// Asks for what `link_uses` will change at an access.
void Belady::prefetch_use(int64_t i) const {
  const Row& row = rows_[access(i).number];
  if (row.last >= 0) {
    __builtin_prefetch(&access(row.last), 1);
  } else if (row.slot >= 0) {
    __builtin_prefetch(&slots_[slots_[row.slot].earlier], 1);
    __builtin_prefetch(&slots_[slots_[row.slot].later], 1);
  }
}

void Belady::make_room_for_accesses(int64_t n) {
  int64_t size = accesses_.size();
  while (size < num_accesses() + n) size *= 2;
  if (size == accesses_.size()) return;
  HugeArray<Access> ring(size);
  for (int64_t i = num_gone_; i < num_seen_; ++i) ring[i & (size - 1)] = access(i);
  accesses_ = std::move(ring);
}

/// Doubles the rings once they are full; a word of bits is never shared by two ends.
void Belady::make_room_for_a_batch() {
  if (num_batches() + kBits < static_cast<int64_t>(waiting_.size())) return;
  std::vector<int32_t> waiting(2 * waiting_.size(), -1);
  for (int32_t b = planned_; b < observed_; ++b) {
    waiting[static_cast<std::size_t>(b) & (waiting.size() - 1)] = this->waiting(b);
  }
  waiting_.swap(waiting);
  filled_.assign(waiting_.size() / kBits, 0);
  for (int32_t b = planned_; b < observed_; ++b) {
    if (this->waiting(b) >= 0) set_filled(b);
  }
}

void Belady::plan_next(const PlannedMoves& moves) {
  const int64_t n = next_size();
  use_hits(n, moves);  // all of them before any miss, or the plan is not optimal
  for (const Miss& miss : missed_) admit(miss, moves.admit);
  forget_missed();
  sizes_.pop_front();
  num_gone_ += n;
  ++planned_;
}

/// Writes where the batch's rows are, moves those slots on to their next uses, and collects the misses.
void Belady::use_hits(int64_t n, const PlannedMoves& moves) {
  num_aged_ = num_unknown_;
  waiting(planned_) = -1;  // all that waited for this batch are its hits
  set_empty(planned_);
  missed_.clear();
  for (int64_t i = 0; i < n; ++i) {
    if (i + 2 * kAhead < n) rows_.prefetch(access(num_gone_ + i + 2 * kAhead).number);
    if (i + kAhead < n) prefetch_slot(access(num_gone_ + i + kAhead).number);
    const Access asked = access(num_gone_ + i);
    Row& row = rows_[asked.number];
    if (asked.next_use == kUnknown) row.last = -1;
    moves.id[i] = row.id;
    moves.hit[i] = row.slot;
    moves.admit[i] = -1;
    if (row.slot < 0) {
      missed_.push_back({static_cast<int32_t>(i), asked.number, asked.next_use});
    } else {
      wait(row.slot, asked.next_use);
    }
  }
}

/// Gives a missed row a slot, unless every other row is used again before it.
void Belady::admit(const Miss& miss, int32_t* moves) {
  const int32_t slot = victim(miss.next_use);
  if (slot < 0) return;
  evict(slot, moves);
  moves[miss.access] = slot;
  Row& row = rows_[miss.number];
  row.slot = slot;
  row.mark = -2 - miss.access;
  slots_[slot].number = miss.number;
  wait(slot, miss.next_use);
}

void Belady::prefetch_slot(int32_t number) const {
  if (const int32_t slot = rows_[number].slot; slot >= 0) __builtin_prefetch(&slots_[slot], 1);
}

/// Takes the slot whose next use is farthest out of its list; -1 if none is farther than `next_use`.
int32_t Belady::victim(int32_t next_use) {
  if (num_aged_ > 0 || (next_use != kUnknown && num_unknown_ > 0)) {
    const int32_t slot = slots_[num_slots_].later;
    prefetch_next(slot);
    take_unknown(slot);
    if (num_aged_ > 0) --num_aged_;
    return slot;
  }
  if (next_use == kUnknown) return -1;
  const int32_t batch = farthest();
  if (batch <= next_use) return -1;
  const int32_t slot = waiting(batch);
  prefetch_next(slot);
  waiting(batch) = slots_[slot].later;
  if (waiting(batch) < 0) set_empty(batch);
  return slot;
}

/// Asks for what the victim after `slot` will change.
void Belady::prefetch_next(int32_t slot) const {
  const int32_t next = slots_[slot].later;
  if (next >= 0 && slots_[next].number >= 0) rows_.prefetch(slots_[next].number);
}

/// Empties a slot. If this same batch has filled it, that was to no avail, and is taken back.
void Belady::evict(int32_t slot, int32_t* moves) {
  const int32_t number = slots_[slot].number;
  if (number < 0) return;
  Row& row = rows_[number];
  row.slot = -1;
  if (row.mark <= -2) {
    moves[-2 - row.mark] = -1;
  } else if (row.last < 0) {
    rows_.erase(number);
  }
}

/// Lets go of what the present batch has missed, and which is neither cached nor used again.
void Belady::forget_missed() {
  for (const Miss& miss : missed_) {
    Row& row = rows_[miss.number];
    if (row.mark <= -2) row.mark = -1;
    if (row.slot < 0 && row.last < 0) rows_.erase(miss.number);
  }
}

/// Puts a slot that is in no list into that of its next use.
void Belady::wait(int32_t slot, int32_t next_use) {
  if (next_use == kUnknown) {
    append_unknown(slot);
    return;
  }
  slots_[slot].later = waiting(next_use);
  waiting(next_use) = slot;
  set_filled(next_use);
}

void Belady::set_filled(int32_t batch) {
  filled(word_of(batch)) |= bit_of(batch);
  top_ = std::max(top_, word_of(batch));
}

void Belady::set_empty(int32_t batch) { filled(word_of(batch)) &= ~bit_of(batch); }

void Belady::append_unknown(int32_t slot) {
  const auto end = static_cast<int32_t>(num_slots_);
  const int32_t last = slots_[end].earlier;
  slots_[slot].earlier = last;
  slots_[slot].later = end;
  slots_[last].later = slot;
  slots_[end].earlier = slot;
  ++num_unknown_;
}

void Belady::take_unknown(int32_t slot) {
  const Slot& taken = slots_[slot];
  slots_[taken.earlier].later = taken.later;
  slots_[taken.later].earlier = taken.earlier;
  --num_unknown_;
}

/// The last batch that a slot waits for, or -1.
int32_t Belady::farthest() {
  while (top_ > word_of(planned_) && filled(top_) == 0) --top_;
  const uint64_t bits = filled(top_);
  return bits == 0 ? -1 : top_ * kBits + kBits - 1 - __builtin_clzll(bits);
}

}  // namespace tgflow
