// The draws of the `decayed` sampler, one query at a time. No `std::` here.
#pragma once

#include "tgflow/detail/half_power.hpp"
#include "tgflow/detail/numbered.hpp"
#include "tgflow/detail/sampler.hpp"

namespace tgflow {

/// Successive draws without replacement, each entry half as likely as one that is a half-life younger.
///
/// What is left is kept in buckets by age, in half-lives before the newest entry left. A draw proposes an
/// entry as if all of bucket `j` weighed 2^-j, and the entry is taken with the probability that makes up for
/// it, at least a half. Buckets end where all that is older weighs less than the newest entry does: the last
/// one is open, so that they are as many as the logarithm of the history, however long ago it began.
class DecayedDraw {
 public:
  /// `chosen` has room for what is drawn. Entries that `sampler` does not keep are never taken.
  TGFLOW_HD DecayedDraw(const StoreView& store, const Directory* dir, Visible seen, const Sampler& sampler,
                        int64_t* chosen)
      : store_(store), dir_(dir), seen_(seen), sampler_(sampler), chosen_(chosen), newest_(seen.count - 1) {}

  /// Draws `k` entries, or all if they are fewer: their numbers, largest first. Returns how many.
  TGFLOW_HD int64_t run(int64_t item, int64_t k) {
    for (uint64_t attempt = 0; num_chosen_ < k; ++attempt) {
      if (weight_ == 0 && !find_newest()) break;
      const Random4 r = philox(sampler_.key, static_cast<uint64_t>(item), attempt);
      const uint64_t point = bits(r.word[1], r.word[0]);
      const uint64_t low = point * weight_;  // Lemire's method: rare points would be off uniform
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
    if (sampler_.types == nullptr) return true;
    const Block& block = block_with(number);
    return sampler_.keeps(store_, store_.entries(block)[number - block.start], block.base_eid);
  }

  TGFLOW_HD tick_t time_of(int64_t number) const {
    const Block& block = block_with(number);
    return store_.entries(block)[number - block.start].t;
  }

  /// In ticks before the newest entry left; any two times are less than 2^64 apart.
  TGFLOW_HD uint64_t age_at(tick_t t) const {
    return static_cast<uint64_t>(newest_t_) - static_cast<uint64_t>(t);
  }

  /// Moves on to the newest entry that is left, and sorts the rest by age; false if there is none.
  TGFLOW_HD bool find_newest() {
    for (; newest_ >= 0; --newest_) {
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
    int64_t rest = newest_ + 1 - (num_chosen_ - num_newer_);
    int64_t end = newest_ + 1;
    int64_t older = num_newer_;  // of the chosen ones, the first that is in no bucket yet
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
    if (half_life > age_at(dir_->blocks()[0].first_t) / static_cast<uint64_t>(num)) return 0;
    const uint64_t age = static_cast<uint64_t>(num) * half_life;
    if (end == 0 || age_at(time_of(end - 1)) >= age) return end;
    return find_visible(store_, dir_, newest_t_ - static_cast<tick_t>(age - 1), kEveryEvent).count;
  }

  TGFLOW_HD uint64_t bucket_weight(int32_t j) const { return static_cast<uint64_t>(left_[j]) << (last_ - j); }

  /// Proposes the entry at `point`, below `weight_`; `coin` decides whether it is taken.
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
  int64_t num_newer_ = 0;  // of them, than the newest entry left
  int64_t newest_;         // its number
  tick_t newest_t_ = 0;
  int32_t last_ = 0;  // bucket
  int64_t left_[kLastBucket + 1];
  uint64_t weight_ = 0;  // of all buckets, the last one's entries 1 each; 0: find the newest entry left
};

/// Draws row `i`'s entries, as `item`: their numbers, largest first, wait in `out.eid`, and how many in
/// `out.count`.
TGFLOW_HD inline void decayed_draw(const StoreView& store, const Directory* dir, Visible seen,
                                   const Sampler& sampler, int64_t item, int64_t i, const NeighborRows& out) {
  DecayedDraw draw(store, dir, seen, sampler, out.eid + i * out.k);
  out.count[i] = static_cast<int32_t>(draw.run(item, out.k));
}

}  // namespace tgflow
