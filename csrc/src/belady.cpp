#include "tgflow/belady.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace tgflow {
namespace {

constexpr int64_t kLimit = int64_t{1} << 30;
constexpr int32_t kUnknown = -1;
constexpr int64_t kAhead = 16;  // look-ups that are prefetched

int64_t checked(int64_t num_slots) {
  if (num_slots >= 0 && num_slots < kLimit) return num_slots;
  throw std::invalid_argument("a cache must have 0 to 2^30 - 1 slots, got " + std::to_string(num_slots));
}

}  // namespace

Belady::Belady(int64_t num_slots, const int64_t* id)
    : num_slots_(checked(num_slots)), slots_(num_slots + 1, {-1, -1, -1}) {
  const auto end = static_cast<int32_t>(num_slots);
  slots_[end] = {-1, end, end};
  for (const bool held : {false, true}) {  // free slots first, as if used long ago
    for (int32_t s = 0; s < end; ++s) {
      if ((id != nullptr && id[s] >= 0) != held) continue;
      if (held) {
        slots_[s].number = add_row(id[s]);
        Row& row = rows_[slots_[s].number];
        if (row.slot >= 0) {
          throw std::invalid_argument("a cache must hold a row once, got id " + std::to_string(id[s]) +
                                      " twice");
        }
        row.slot = s;
      }
      wait(s, kUnknown);
    }
  }
}

void Belady::contents(int64_t* id) const {
  for (int64_t s = 0; s < num_slots_; ++s) id[s] = slots_[s].number < 0 ? -1 : rows_[slots_[s].number].id;
}

int64_t Belady::bytes() const {
  return slots_.bytes() + num_rows_ * static_cast<int64_t>(sizeof(Row)) + index_.bytes() +
         static_cast<int64_t>(free_.size() * sizeof(int32_t) + accesses_.size() * sizeof(Access));
}

/// The number of `id`, which gets a row if it has none.
int32_t Belady::add_row(int64_t id) {
  if (num_rows_ == rows_.size()) {
    HugeArray<Row> rows(2 * rows_.size());
    std::memcpy(rows.data(), rows_.data(), static_cast<std::size_t>(rows_.bytes()));
    rows_ = std::move(rows);
  }
  const bool reuses = !free_.empty();
  const int32_t next = reuses ? free_.back() : num_rows_;
  const int32_t number =
      index_.find_or_insert(id_tag(id), next, [&](int32_t n) { return rows_[n].id == id; });
  if (number != next) return number;
  if (reuses) {
    free_.pop_back();
  } else {
    ++num_rows_;
  }
  rows_[number] = Row{id};
  return number;
}

void Belady::erase_row(int32_t number) {
  index_.erase(id_tag(rows_[number].id), number);
  free_.push_back(number);
}

void Belady::erase_if_unused(int32_t number) {
  if (rows_[number].slot < 0 && rows_[number].last < 0) erase_row(number);
}

void Belady::observe(const int64_t* id, int64_t n) {
  if (num_accesses() + n >= kLimit || observed_ == INT32_MAX) {
    throw std::invalid_argument("fewer than 2^30 accesses can wait to be planned, got " +
                                std::to_string(num_accesses() + n));
  }
  const int64_t first = num_gone_ + num_accesses();
  try {
    number_ids(id, n);
    sizes_.push_back(n);
    waiting_.push_back(-1);
  } catch (...) {
    if (sizes_.size() > waiting_.size()) sizes_.pop_back();
    for (; num_gone_ + num_accesses() > first; accesses_.pop_back()) {
      rows_[accesses_.back().number].mark = -1;
      erase_if_unused(accesses_.back().number);
    }
    throw;
  }
  for (int64_t i = first; i < first + n; ++i) {  // the batch is the next use of these ids
    Row& row = rows_[access(i).number];
    if (row.last >= 0) {
      access(row.last).next_use = observed_;
    } else if (row.slot >= 0) {
      take_unknown(row.slot);
      wait(row.slot, observed_);
    }
    row.last = i;
  }
  ++observed_;
}

void Belady::number_ids(const int64_t* id, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) index_.prefetch(id_tag(id[i + kAhead]));
    if (id[i] < 0) throw std::invalid_argument("ids must be at least 0, got " + std::to_string(id[i]));
    const int32_t number = add_row(id[i]);
    if (rows_[number].mark == observed_) {
      throw std::invalid_argument("a batch has id " + std::to_string(id[i]) + " twice");
    }
    accesses_.push_back({number, kUnknown});
    rows_[number].mark = observed_;
  }
}

/// Hits are used first, all of them before any miss is admitted: otherwise the plan is not optimal.
void Belady::plan_next(const PlannedMoves& moves) {
  const int64_t n = next_size();
  num_aged_ = num_unknown_;
  waiting(planned_) = -1;  // all slots that waited for this batch are its hits
  for (int64_t i = 0; i < n; ++i) {
    const Access asked = access(num_gone_ + i);
    Row& row = rows_[asked.number];
    if (asked.next_use == kUnknown) row.last = -1;
    moves.id[i] = row.id;
    moves.hit[i] = row.slot;
    moves.admit[i] = -1;
    if (row.slot >= 0) wait(row.slot, asked.next_use);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (moves.hit[i] < 0) admit(static_cast<int32_t>(i), access(num_gone_ + i), moves.admit);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (moves.hit[i] >= 0) continue;
    const int32_t number = access(num_gone_ + i).number;
    if (rows_[number].mark <= -2) rows_[number].mark = -1;
    erase_if_unused(number);
  }
  accesses_.erase(accesses_.begin(), accesses_.begin() + n);
  sizes_.pop_front();
  waiting_.pop_front();
  num_gone_ += n;
  ++planned_;
}

/// Admits a missed row, unless every other row is used again before it.
void Belady::admit(int32_t access, const Access& miss, int32_t* moves) {
  const int32_t slot = victim(miss.next_use);
  if (slot < 0) return;
  evict(slot, moves);
  moves[access] = slot;
  Row& row = rows_[miss.number];
  row.slot = slot;
  row.mark = -2 - access;
  slots_[slot].number = miss.number;
  wait(slot, miss.next_use);
}

/// Removes and returns the slot with the farthest next use; -1 if none is farther than `next_use`.
int32_t Belady::victim(int32_t next_use) {
  if (num_aged_ > 0 || (next_use != kUnknown && num_unknown_ > 0)) {
    const int32_t slot = slots_[num_slots_].later;
    take_unknown(slot);
    if (num_aged_ > 0) --num_aged_;
    return slot;
  }
  if (next_use == kUnknown) return -1;
  while (farthest_ > planned_ && waiting(farthest_) < 0) --farthest_;
  if (farthest_ <= next_use) return -1;
  const int32_t slot = waiting(farthest_);
  waiting(farthest_) = slots_[slot].later;
  return slot;
}

/// Empties a slot. If this same batch has filled it, cancels that admission.
void Belady::evict(int32_t slot, int32_t* moves) {
  const int32_t number = slots_[slot].number;
  if (number < 0) return;
  Row& row = rows_[number];
  row.slot = -1;
  if (row.mark <= -2) {
    moves[-2 - row.mark] = -1;
  } else if (row.last < 0) {
    erase_row(number);
  }
}

/// Puts an unlisted slot into the list of its next use, or at the end of the ring of unknown ones.
void Belady::wait(int32_t slot, int32_t next_use) {
  if (next_use != kUnknown) {
    slots_[slot].later = waiting(next_use);
    waiting(next_use) = slot;
    farthest_ = std::max(farthest_, next_use);
    return;
  }
  Slot& end = slots_[num_slots_];
  slots_[slot].earlier = end.earlier;
  slots_[slot].later = static_cast<int32_t>(num_slots_);
  slots_[end.earlier].later = slot;
  end.earlier = slot;
  ++num_unknown_;
}

void Belady::take_unknown(int32_t slot) {
  const Slot& taken = slots_[slot];
  slots_[taken.earlier].later = taken.later;
  slots_[taken.later].earlier = taken.earlier;
  --num_unknown_;
}

}  // namespace tgflow
