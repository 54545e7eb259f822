#include "tgflow/belady.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tgflow {
namespace {

constexpr int64_t kLimit = int64_t{1} << 30;
constexpr int32_t kUnknown = -1;
constexpr int32_t kBits = 64;
constexpr int64_t kAhead = 12;  // look-ups whose memory is asked for before they are made

int64_t tagged(int32_t number) { return -2 - static_cast<int64_t>(number); }
int32_t untagged(int64_t id) { return static_cast<int32_t>(-2 - id); }

void check(const Accesses& window) {
  if (window.num_batches >= kLimit || window.size() >= kLimit) {
    throw std::invalid_argument("a window must have fewer than 2^30 accesses and batches, got " +
                                std::to_string(window.size()) + " and " + std::to_string(window.num_batches));
  }
}

}  // namespace

Belady::Belady(int64_t num_slots) : num_slots_(num_slots) {
  if (num_slots < 0 || num_slots >= kLimit) {
    throw std::invalid_argument("a cache must have 0 to 2^30 - 1 slots, got " + std::to_string(num_slots));
  }
  slots_.resize(static_cast<std::size_t>(num_slots) + 1);
  reset(nullptr);
}

void Belady::reset(const int64_t* id) {
  const auto end = static_cast<int32_t>(num_slots_);
  slots_[num_slots_] = {-1, end, end};
  num_unknown_ = 0;
  for (const bool held : {false, true}) {  // free slots come first, as if used long ago
    for (int32_t s = 0; s < end; ++s) {
      const int64_t own = id == nullptr || id[s] < 0 ? -1 : id[s];
      if ((own >= 0) != held) continue;
      slots_[s].id = own;
      append_unknown(s);
    }
  }
}

void Belady::contents(int64_t* id) const {
  for (int64_t s = 0; s < num_slots_; ++s) id[s] = slots_[s].id;
}

void Belady::plan(const Accesses& window, const PlannedMoves& moves) {
  check(window);
  read(window, moves);
  place_cached(window.num_batches);
  for (int32_t b = 0; b < window.num_batches; ++b) {
    use_hits(window, b, moves);  // all of them before any miss, or the plan is not optimal
    for (const Miss& miss : missed_) admit(miss, window.offset[b], moves.admit);
  }
  restore_ids();
}

/// Numbers the ids, and finds each access's next use on a way back through the window. Until their time
/// comes, `moves.hit` holds the numbers and `moves.admit` the next uses.
void Belady::read(const Accesses& window, const PlannedMoves& moves) {
  const int64_t size = window.size();
  numbers_.clear();
  for (int64_t i = 0; i < size; ++i) {
    if (i + kAhead < size) numbers_.prefetch(window.id[i + kAhead]);
    if (window.id[i] < 0) {
      throw std::invalid_argument("ids must be at least 0, got " + std::to_string(window.id[i]));
    }
    moves.hit[i] = numbers_.add(window.id[i]);
  }
  rows_.assign(static_cast<std::size_t>(numbers_.size()), Row{kUnknown, -1, -1});
  int64_t most = 0;
  for (auto b = static_cast<int32_t>(window.num_batches) - 1; b >= 0; --b) {
    most = std::max(most, window.offset[b + 1] - window.offset[b]);
    for (int64_t i = window.offset[b]; i < window.offset[b + 1]; ++i) {
      int32_t& first = rows_[moves.hit[i]].first;
      if (first == b) {
        throw std::invalid_argument("batch " + std::to_string(b) + " of the window has id " +
                                    std::to_string(window.id[i]) + " twice");
      }
      moves.admit[i] = first;
      first = b;
    }
  }
  missed_.reserve(static_cast<std::size_t>(most));
}

/// Moves the slots whose ids the window uses to where they wait for the first use.
void Belady::place_cached(int64_t num_batches) {
  waiting_.assign(static_cast<std::size_t>(num_batches), -1);
  filled_.assign(static_cast<std::size_t>(num_batches + kBits - 1) / kBits, 0);
  top_ = 0;
  for (int32_t s = 0; s < num_slots_; ++s) {
    if (s + kAhead < num_slots_) numbers_.prefetch(slots_[s + kAhead].id);
    const int32_t number = slots_[s].id < 0 ? -1 : numbers_.find(slots_[s].id);
    if (number < 0) continue;
    slots_[s].id = tagged(number);
    rows_[number].slot = s;
    take_unknown(s);
    wait(s, rows_[number].first);
  }
}

/// Writes where the batch's rows are, moves those slots on to their next uses, and collects the misses.
void Belady::use_hits(const Accesses& window, int32_t batch, const PlannedMoves& moves) {
  num_aged_ = num_unknown_;
  waiting_[batch] = -1;  // all that waited for this batch are its hits
  filled_[batch / kBits] &= ~(uint64_t{1} << (batch % kBits));
  missed_.clear();
  for (auto i = static_cast<int32_t>(window.offset[batch]); i < window.offset[batch + 1]; ++i) {
    const Miss maybe{i, moves.hit[i], moves.admit[i]};
    const int32_t slot = rows_[maybe.number].slot;
    moves.hit[i] = slot;
    moves.admit[i] = -1;
    if (slot < 0) {
      missed_.push_back(maybe);
    } else {
      wait(slot, maybe.next_use);
    }
  }
}

/// Gives a missed row a slot, unless every other row is used again before it.
void Belady::admit(const Miss& miss, int64_t batch_begin, int32_t* moves) {
  const int32_t slot = victim(miss.next_use);
  if (slot < 0) return;
  evict(slot, batch_begin, moves);
  moves[miss.access] = slot;
  Row& row = rows_[miss.number];
  row.slot = slot;
  row.admitted = miss.access;
  slots_[slot].id = tagged(miss.number);
  wait(slot, miss.next_use);
}

/// Takes the slot whose next use is farthest out of its list; -1 if none is farther than `next_use`.
int32_t Belady::victim(int32_t next_use) {
  if (num_aged_ > 0 || (next_use != kUnknown && num_unknown_ > 0)) {
    const int32_t slot = slots_[num_slots_].later;
    take_unknown(slot);
    if (num_aged_ > 0) --num_aged_;
    return slot;
  }
  if (next_use == kUnknown) return -1;
  const int32_t batch = farthest();
  if (batch <= next_use) return -1;
  const int32_t slot = waiting_[batch];
  waiting_[batch] = slots_[slot].later;
  if (waiting_[batch] < 0) filled_[batch / kBits] &= ~(uint64_t{1} << (batch % kBits));
  return slot;
}

/// Empties a slot. If this same batch has filled it, that was to no avail, and is taken back.
void Belady::evict(int32_t slot, int64_t batch_begin, int32_t* moves) {
  if (slots_[slot].id > tagged(0)) return;
  Row& row = rows_[untagged(slots_[slot].id)];
  row.slot = -1;
  if (row.admitted >= batch_begin) moves[row.admitted] = -1;
}

void Belady::restore_ids() {
  for (int32_t number = 0; number < numbers_.size(); ++number) {
    if (rows_[number].slot >= 0) slots_[rows_[number].slot].id = numbers_.ids()[number];
  }
}

/// Puts a slot that is in no list into that of its next use.
void Belady::wait(int32_t slot, int32_t next_use) {
  if (next_use == kUnknown) {
    append_unknown(slot);
    return;
  }
  slots_[slot].later = waiting_[next_use];
  waiting_[next_use] = slot;
  const int32_t word = next_use / kBits;
  filled_[word] |= uint64_t{1} << (next_use % kBits);
  if (word > top_) top_ = word;
}

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
  while (top_ > 0 && filled_[top_] == 0) --top_;
  if (filled_[top_] == 0) return -1;
  return top_ * kBits + kBits - 1 - __builtin_clzll(filled_[top_]);
}

}  // namespace tgflow
