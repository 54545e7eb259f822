// Any sampler, for one query, and writing of rows. No `std::` here.
#pragma once

#include "tgflow/detail/store_view.hpp"
#include "tgflow/random.hpp"

namespace tgflow {

TGFLOW_HD inline void write_slot(const NeighborRows& out, int64_t slot, const Entry& entry, eid_t base_eid) {
  out.node[slot] = entry.nbr;
  out.t[slot] = entry.t;
  out.eid[slot] = base_eid + entry.eid_offset;
}

/// Writes the `size` entries before `end`, newest first, to slots from `slot` on.
TGFLOW_HD inline void write_slots(const NeighborRows& out, int64_t slot, const Entry* end, int64_t size,
                                  eid_t base_eid) {
  node_t* node = out.node + slot;  // the compiler cannot prove that the stores do not change `out`
  tick_t* t = out.t + slot;
  eid_t* eid = out.eid + slot;
  for (int64_t j = 0; j < size; ++j) {
    const Entry& entry = end[-1 - j];
    node[j] = entry.nbr;
    t[j] = entry.t;
    eid[j] = base_eid + entry.eid_offset;
  }
}

/// Marks the slots [`slot`, `end`) as empty.
TGFLOW_HD inline void pad_slots(const NeighborRows& out, int64_t slot, int64_t end) {
  for (; slot < end; ++slot) {
    out.node[slot] = kNoNode;
    out.t[slot] = 0;
    out.eid[slot] = kNoEvent;
  }
}

/// Writes row `i`: the newest `size` entries of `dir` in `seen`, newest first, padded.
TGFLOW_HD inline void newest_row(const StoreView& store, const Directory* dir, Visible seen, int64_t size,
                                 int64_t i, const NeighborRows& out) {
  out.count[i] = static_cast<int32_t>(size);
  int64_t slot = i * out.k;
  const int64_t filled = slot + size;
  int64_t end = seen.count;
  for (int64_t b = seen.block; slot < filled; --b) {
    const Block& block = dir->blocks()[b];
    const int64_t here = end - block.start;
    const int64_t taken = here < filled - slot ? here : filled - slot;
    store.count_reads(block, taken);
    write_slots(out, slot, store.entries(block) + here, taken, block.base_eid);
    slot += taken;
    end = block.start;
  }
  pad_slots(out, filled, (i + 1) * out.k);
}

/// Writes row `i`: the newest `out.k` visible entries.
TGFLOW_HD inline void recent_row(const StoreView& store, const Directory* dir, Visible seen, int64_t i,
                                 const NeighborRows& out) {
  newest_row(store, dir, seen, seen.size() < out.k ? seen.size() : out.k, i, out);
}

/// Finds the `size` entries whose numbers, largest first, are in row `i` of `out.eid`: stores their blocks
/// in `out.node` and their places there in `out.eid`. Block `last` is not before the first entry's.
TGFLOW_HD inline void locate_numbered(const StoreView& store, const Directory* dir, int64_t last,
                                      int64_t size, int64_t i, const NeighborRows& out) {
  if (size == 0) return;  // `dir` may be null
  const Block* blocks = dir->blocks();
  int64_t* block = out.node + i * out.k;
  int64_t* place = out.eid + i * out.k;
  for (int64_t j = 0; j < size; ++j) block[j] = 0;
  for (int64_t rest = last + 1; rest > 1; rest -= rest >> 1) {  // all searches in step, without waiting
    const int64_t half = rest >> 1;
    for (int64_t j = 0; j < size; ++j)
      block[j] += -static_cast<int64_t>(blocks[block[j] + half].start <= place[j]) & half;
  }
  for (int64_t j = 0; j < size; ++j) {
    place[j] -= blocks[block[j]].start;
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
    __builtin_prefetch(store.entries(blocks[block[j]]) + place[j]);
#endif
  }
}

/// Writes row `i` from what `locate_numbered` found.
TGFLOW_HD inline void read_numbered(const StoreView& store, const Directory* dir, int64_t size, int64_t i,
                                    const NeighborRows& out) {
  const int64_t filled = i * out.k + size;
  for (int64_t slot = i * out.k; slot < filled; ++slot) {
    const Block& block = dir->blocks()[out.node[slot]];
    store.count_reads(block, 1);
    write_slot(out, slot, store.entries(block)[out.eid[slot]], block.base_eid);
  }
  pad_slots(out, filled, (i + 1) * out.k);
  out.count[i] = static_cast<int32_t>(size);
}

/// Draw `d` is a function of (key, item, d) alone: stateless, so independent of threads.
class Draws {
 public:
  TGFLOW_HD Draws(uint64_t key, int64_t item) : key_(key), item_(static_cast<uint64_t>(item)) {}

  /// Draw `d`: uniform in [0, range), exactly, 1 <= range <= 2^32 (Lemire 2019). Cheapest with `d` ascending.
  TGFLOW_HD uint32_t below(uint32_t d, uint64_t range) {
    uint64_t product = word(d, 0) * range;
    if (static_cast<uint32_t>(product) < range) {
      const uint32_t threshold = static_cast<uint32_t>((1ull << 32) % range);
      for (uint32_t attempt = 1; static_cast<uint32_t>(product) < threshold; ++attempt) {
        product = word(d, attempt) * range;
      }
    }
    return static_cast<uint32_t>(product >> 32);
  }

 private:
  TGFLOW_HD uint64_t word(uint32_t d, uint32_t attempt) {
    const uint64_t block = static_cast<uint64_t>(attempt) << 32 | d / 4;
    if (block != cached_) words_ = philox(key_, item_, block);
    cached_ = block;
    return words_.word[d % 4];
  }

  uint64_t key_;
  uint64_t item_;
  Random4 words_{};
  uint64_t cached_ = ~0ull;
};

constexpr int64_t kFewDraws = 16;

/// Draws `k` numbers by Floyd's algorithm and writes them, largest first; false if two of them are
/// equal. Without branches on drawn values, which would be mispredicted; fixed bounds allow
/// vectorization.
TGFLOW_HD inline bool draw_few(Draws& draws, int32_t size, int32_t k, int64_t* out) {
  int32_t drawn[kFewDraws];
  for (int32_t i = 0; i < kFewDraws; ++i) drawn[i] = -1;
  for (int32_t i = 0; i < k; ++i) {
    const uint64_t range = static_cast<uint64_t>(size - k + i) + 1;
    drawn[i] = static_cast<int32_t>(draws.below(static_cast<uint32_t>(i), range));
  }
  int32_t num_equal = 0;
  for (int32_t i = 0; i < k; ++i) {
    const int32_t number = drawn[i];
    int32_t num_larger = 0;
    for (int32_t j = 0; j < kFewDraws; ++j) {
      num_larger += drawn[j] > number;
      num_equal += drawn[j] == number;
    }
    out[num_larger] = number;
  }
  return num_equal == k;
}

/// Draws `k` distinct numbers below `size` (`k < size`) into `out`, largest first; each subset is equally
/// likely. Floyd's algorithm (Bentley & Floyd, CACM 1987): the newest number, size - 1, is as likely as any.
TGFLOW_HD inline void draw_distinct(Draws& draws, int64_t size, int64_t k, int64_t* out) {
  if (k <= kFewDraws && size <= 0x7fffffff && size > 4 * k &&  // equal numbers are rare
      draw_few(draws, static_cast<int32_t>(size), static_cast<int32_t>(k), out)) {
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    const int64_t top = size - k + i;  // larger than all earlier draws
    const int64_t number = draws.below(static_cast<uint32_t>(i), static_cast<uint64_t>(top) + 1);
    int64_t place = i;
    while (place > 0 && out[place - 1] < number) --place;
    const bool taken = place > 0 && out[place - 1] == number;
    if (taken) place = 0;
    for (int64_t j = i; j > place; --j) out[j] = out[j - 1];
    out[place] = taken ? top : number;
  }
}

/// Chooses `out.k` of the entries numbered [first, end), more than `out.k`: stores their numbers, largest
/// first, in row `i` of `out.eid` for `locate_numbered`.
TGFLOW_HD inline void uniform_draw(int64_t first, int64_t end, Draws draws, int64_t i,
                                   const NeighborRows& out) {
  int64_t* numbers = out.eid + i * out.k;
  draw_distinct(draws, end - first, out.k, numbers);
  if (first == 0) return;
  for (int64_t j = 0; j < out.k; ++j) numbers[j] += first;
}

/// Calls `each(entry, base_eid)` for the entries numbered [first, seen.count) that count, newest first, until
/// it returns false.
template <typename Each>
TGFLOW_HD inline void for_each_kept(const StoreView& store, const Directory* dir, int64_t first, Visible seen,
                                    const Sampler& sampler, const Each& each) {
  int64_t end = seen.count;
  for (int64_t b = seen.block; end > first; --b) {
    const Block& block = dir->blocks()[b];
    const Entry* entries = store.entries(block);
    const int64_t begin = first > block.start ? first : block.start;
    for (int64_t j = end - block.start; j-- > begin - block.start;) {
      if (!sampler.keeps(store, entries[j], block.base_eid)) continue;
      store.count_reads(block, 1);
      if (!each(entries[j], block.base_eid)) return;
    }
    end = begin;
  }
}

/// Writes row `i`: the newest `out.k` that count.
TGFLOW_HD inline void filtered_recent_row(const StoreView& store, const Directory* dir, Visible seen,
                                          const Sampler& sampler, int64_t i, const NeighborRows& out) {
  int64_t slot = i * out.k;
  const int64_t end = slot + out.k;
  for_each_kept(store, dir, seen.first, seen, sampler, [&](const Entry& entry, eid_t base_eid) {
    write_slot(out, slot++, entry, base_eid);
    return slot < end;
  });
  out.count[i] = static_cast<int32_t>(slot - i * out.k);
  pad_slots(out, slot, end);
}

/// Writes row `i`: `out.k` of those numbered [first, seen.count) that count, uniformly, in two passes.
TGFLOW_HD inline void filtered_uniform_row(const StoreView& store, const Directory* dir, int64_t first,
                                           Visible seen, const Sampler& sampler, Draws draws, int64_t i,
                                           const NeighborRows& out) {
  int64_t left = 0;
  for_each_kept(store, dir, first, seen, sampler, [&](const Entry&, eid_t) {
    ++left;
    return true;
  });
  const bool all = left <= out.k;
  int64_t slot = i * out.k;
  const int64_t end = slot + (all ? left : out.k);
  out.count[i] = static_cast<int32_t>(end - slot);
  if (!all) uniform_draw(0, left, draws, i, out);
  if (slot < end) {
    for_each_kept(store, dir, first, seen, sampler, [&](const Entry& entry, eid_t base_eid) {
      --left;
      if (all || out.eid[slot] == left) write_slot(out, slot++, entry, base_eid);
      return slot < end;
    });
  }
  pad_slots(out, end, (i + 1) * out.k);
}

constexpr int32_t kFractionDigits = 32;

/// 2^-(2^-digit) in 64-bit fixed point, 1 <= digit <= kFractionDigits.
TGFLOW_HD inline uint64_t root_of_half(int32_t digit) {
  static constexpr uint64_t kRoots[kFractionDigits] = {
      0xb504f333f9de6484, 0xd744fccad69d6af4, 0xeac0c6e7dd24392e, 0xf5257d152486cc2c, 0xfa83b2db722a033a,
      0xfd3e0c0cf486c174, 0xfe9e115c7b8f884b, 0xff4ecb59511ec8a5, 0xffa756521c8daed1, 0xffd3a751c0f7e10b,
      0xffe9d2b2f7db2755, 0xfff4e91bff1b8c3d, 0xfffa747ea0040664, 0xfffd3a3b7814eb53, 0xfffe9d1cc60ddab1,
      0xffff4e8e25879bfa, 0xffffa7470363f451, 0xffffd3a37dda0313, 0xffffe9d1bdf703ae, 0xfffff4e8debe025e,
      0xfffffa746f4fa150, 0xfffffd3a37a3f8b0, 0xfffffe9d1bd1065a, 0xffffff4e8de845ad, 0xffffffa746f41376,
      0xffffffd3a37a05e3, 0xffffffe9d1bd01fb, 0xfffffff4e8de80c0, 0xfffffffa746f4050, 0xfffffffd3a37a024,
      0xfffffffe9d1bd011, 0xffffffff4e8de808};
  return kRoots[digit - 1];
}

/// Whether `bits`, 64 random ones, are below 2^-(num / den), 1 <= den < 2^63, as a fraction of 2^64. The
/// binary digits of the exponent are computed one by one until the outcome is certain, usually after
/// two. Total error below 2^-58.
TGFLOW_HD inline bool half_power_coin(uint64_t bits, uint64_t num, uint64_t den) {
  if (num >= den) {
    const uint64_t whole = num / den;
    if (whole > 63 || bits >> (64 - whole) != 0) return false;
    bits <<= whole;
    num -= whole * den;
  }
  uint64_t power =
      ~0ull;  // of the digits so far: the result is at most this, more than the digit's root of it
  for (int32_t digit = 1; num != 0 && digit <= kFractionDigits; ++digit) {
    const uint64_t lower = multiply_high(power, root_of_half(digit));
    num += num;
    if (num >= den) {
      num -= den;
      power = lower;
      if (bits >= power) return false;
    } else if (bits < lower) {
      return true;
    }
  }
  return bits < power;
}

/// Successive draws without replacement; an entry's weight halves with each half-life of age.
///
/// The remaining entries are kept in buckets by age, in half-lives before the newest remaining one. A draw
/// proposes an entry as if all of bucket `j` weighed 2^-j, and accepts it with the probability that
/// corrects for this, at least a half. Buckets end where all older entries weigh less than the newest does:
/// the last one is open, so their number is logarithmic in the history, for any age of it.
class DecayedDraw {
 public:
  /// `chosen` has room for the drawn numbers. Entries that `sampler` does not keep are never drawn.
  TGFLOW_HD DecayedDraw(const StoreView& store, const Directory* dir, Visible seen, const Sampler& sampler,
                        int64_t* chosen)
      : store_(store), dir_(dir), seen_(seen), sampler_(sampler), chosen_(chosen), newest_(seen.count - 1) {}

  /// Draws `k` entries, or all if there are fewer: their numbers, largest first. Returns how many.
  TGFLOW_HD int64_t run(int64_t item, int64_t k) {
    for (uint64_t attempt = 0; num_chosen_ < k; ++attempt) {
      if (weight_ == 0 && !find_newest()) break;
      const Random4 r = philox(sampler_.key, static_cast<uint64_t>(item), attempt);
      const uint64_t point = bits(r.word[1], r.word[0]);
      const uint64_t low = point * weight_;  // Lemire's method: rejects points that would bias the draw
      if (low < weight_ && low < (0 - weight_) % weight_) continue;
      propose(multiply_high(point, weight_), bits(r.word[3], r.word[2]));
    }
    return num_chosen_;
  }

 private:
  static constexpr int32_t kLastBucket = 30;

  TGFLOW_HD static uint64_t bits(uint32_t high, uint32_t low) {
    return static_cast<uint64_t>(high) << 32 | low;
  }

  TGFLOW_HD const Block& block_with(int64_t number) const {
    const Block* blocks = dir_->blocks();
    return blocks[blocks[seen_.block].start <= number ? seen_.block : block_of(blocks, seen_.block, number)];
  }

  TGFLOW_HD bool keeps(int64_t number) const {
    if (sampler_.relations == nullptr) return true;
    const Block& block = block_with(number);
    return sampler_.keeps(store_, store_.entries(block)[number - block.start], block.base_eid);
  }

  TGFLOW_HD tick_t time_of(int64_t number) const {
    const Block& block = block_with(number);
    return store_.entries(block)[number - block.start].t;
  }

  /// In ticks before the newest remaining entry; any two times are less than 2^64 apart.
  TGFLOW_HD uint64_t age_at(tick_t t) const {
    return static_cast<uint64_t>(newest_t_) - static_cast<uint64_t>(t);
  }

  /// Advances to the newest remaining entry, and sorts the rest by age; false if there is none.
  TGFLOW_HD bool find_newest() {
    for (; newest_ >= seen_.first; --newest_) {
      if (num_newer_ < num_chosen_ && chosen_[num_newer_] == newest_) {
        ++num_newer_;
      } else if (keeps(newest_)) {
        newest_t_ = time_of(newest_);
        fill_buckets();
        return true;
      }
    }
    return false;
  }

  TGFLOW_HD void fill_buckets() {
    int64_t rest = newest_ + 1 - seen_.first - (num_chosen_ - num_newer_);
    int64_t end = newest_ + 1;
    int64_t older = num_newer_;  // the first of the chosen ones that is in no bucket yet
    for (last_ = 0; last_ < kLastBucket && rest >> last_ != 0; ++last_) {
      const int64_t start = first_younger(last_ + 1, end);
      left_[last_] = end - start;
      for (; older < num_chosen_ && chosen_[older] >= start; ++older) --left_[last_];
      rest -= left_[last_];
      end = start;
    }
    left_[last_] = rest;
    weight_ = 0;
    for (int32_t j = 0; j <= last_; ++j) weight_ += bucket_weight(j);
  }

  /// The first of the entries below `end` that is younger than `num` half-lives; `end` if none is.
  TGFLOW_HD int64_t first_younger(int64_t num, int64_t end) const {
    const uint64_t half_life = static_cast<uint64_t>(sampler_.span);
    if (half_life > age_at(dir_->blocks()[0].first_t) / static_cast<uint64_t>(num)) return seen_.first;
    const uint64_t age = static_cast<uint64_t>(num) * half_life;
    if (end == seen_.first || age_at(time_of(end - 1)) >= age) return end;
    const int64_t older =
        find_prefix(store_, dir_, newest_t_ - static_cast<tick_t>(age - 1), kEveryEvent).count;
    return older > seen_.first ? older : seen_.first;
  }

  TGFLOW_HD uint64_t bucket_weight(int32_t j) const { return static_cast<uint64_t>(left_[j]) << (last_ - j); }

  /// Proposes the entry at `point`, below `weight_`; `coin` determines whether it is accepted.
  TGFLOW_HD void propose(uint64_t point, uint64_t coin) {
    int32_t j = 0;
    int64_t number = newest_;
    for (; point >= bucket_weight(j); ++j) {
      point -= bucket_weight(j);
      number -= left_[j];
    }
    number -= static_cast<int64_t>(point >> (last_ - j));
    int64_t slot = num_newer_;
    for (; slot < num_chosen_ && chosen_[slot] >= number; ++slot) --number;
    const uint64_t half_life = static_cast<uint64_t>(sampler_.span);
    const uint64_t older = age_at(time_of(number)) - static_cast<uint64_t>(j) * half_life;
    if (!half_power_coin(coin, older, half_life) || !keeps(number)) return;
    for (int64_t s = num_chosen_++; s > slot; --s) chosen_[s] = chosen_[s - 1];
    chosen_[slot] = number;
    --left_[j];
    weight_ = number == newest_ ? 0 : weight_ - (uint64_t{1} << (last_ - j));
  }

  const StoreView& store_;
  const Directory* dir_;
  Visible seen_;
  const Sampler& sampler_;
  int64_t* chosen_;
  int64_t num_chosen_ = 0;
  int64_t num_newer_ = 0;  // of them, newer than the newest remaining entry
  int64_t newest_;         // its number
  tick_t newest_t_ = 0;
  int32_t last_ = 0;  // bucket
  int64_t left_[kLastBucket + 1];
  uint64_t weight_ = 0;  // of all buckets, the last one's entries 1 each; 0: find the newest remaining entry
};

/// Draws row `i`'s entries, as `item`: stores their numbers, largest first, in `out.eid`, and their number in
/// `out.count`.
TGFLOW_HD inline void decayed_draw(const StoreView& store, const Directory* dir, Visible seen,
                                   const Sampler& sampler, int64_t item, int64_t i, const NeighborRows& out) {
  DecayedDraw draw(store, dir, seen, sampler, out.eid + i * out.k);
  out.count[i] = static_cast<int32_t>(draw.run(item, out.k));
}

/// Start of the window of a query at time `t`.
TGFLOW_HD inline tick_t window_start(tick_t t, int64_t width) {
  return t < kEarliest + width ? kEarliest : t - width;
}

/// Takes the newest visible entries.
TGFLOW_HD inline void answer_recent(const StoreView& store, const Directory* dir, const Visible& seen,
                                    const Sampler& sampler, int64_t i, const NeighborRows& out) {
  if (sampler.relations != nullptr) return filtered_recent_row(store, dir, seen, sampler, i, out);
  recent_row(store, dir, seen, i, out);
}

/// Draws uniformly from the visible entries from number `first` on.
TGFLOW_HD inline void answer_uniform(const StoreView& store, const Directory* dir, int64_t first,
                                     const Visible& seen, const Sampler& sampler, Draws draws, int64_t i,
                                     const NeighborRows& out) {
  if (sampler.relations != nullptr)
    return filtered_uniform_row(store, dir, first, seen, sampler, draws, i, out);
  if (seen.count - first <= out.k) return newest_row(store, dir, seen, seen.count - first, i, out);
  uniform_draw(first, seen.count, draws, i, out);
  locate_numbered(store, dir, seen.block, out.k, i, out);
  read_numbered(store, dir, out.k, i, out);
}

/// The number of the first visible entry in the query's window.
TGFLOW_HD inline int64_t before_window(const StoreView& store, const Directory* dir, const Visible& seen,
                                       tick_t t, int64_t width) {
  const int64_t first = find_prefix(store, dir, window_start(t, width), kEveryEvent).count;
  return first < seen.first ? seen.first : first < seen.count ? first : seen.count;
}

/// Draws from the visible entries, with decaying weights.
TGFLOW_HD inline void answer_decayed(const StoreView& store, const Directory* dir, const Visible& seen,
                                     const Sampler& sampler, int64_t item, int64_t i,
                                     const NeighborRows& out) {
  if (sampler.relations == nullptr && seen.size() <= out.k) return recent_row(store, dir, seen, i, out);
  decayed_draw(store, dir, seen, sampler, item, i, out);
  locate_numbered(store, dir, seen.block, out.count[i], i, out);
  read_numbered(store, dir, out.count[i], i, out);
}

/// Answers query `i`, to which `seen` of `dir` is visible.
TGFLOW_HD inline void answer_row(const StoreView& store, const Directory* dir, const Visible& seen,
                                 const Queries& queries, const Sampler& sampler, int64_t i,
                                 const NeighborRows& out) {
  int64_t first = seen.first;
  switch (sampler.strategy) {
    case Strategy::kRecent:
      return answer_recent(store, dir, seen, sampler, i, out);
    case Strategy::kDecayed:
      return answer_decayed(store, dir, seen, sampler, queries.row_of(i), i, out);
    case Strategy::kUniform:
      break;
    case Strategy::kWindow:
      first = before_window(store, dir, seen, queries.t[i], sampler.span);
      break;
  }
  answer_uniform(store, dir, first, seen, sampler, Draws(sampler.key, queries.row_of(i)), i, out);
}

/// Answers query `i`.
TGFLOW_HD inline void sample_row(const StoreView& store, const Queries& queries, const Sampler& sampler,
                                 int64_t i, const NeighborRows& out) {
  const Directory* dir = store.directory(queries.node[i], queries.limit(i));
  answer_row(store, dir, find_visible(store, dir, queries, i), queries, sampler, i, out);
}

}  // namespace tgflow
