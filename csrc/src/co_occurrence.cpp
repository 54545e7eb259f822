#include "tgflow/co_occurrence.hpp"

#include <algorithm>
#include <vector>

#include "tgflow/detail/mix.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kGrainTokens = 1 << 13;  // for which it pays to wake another thread
constexpr int32_t kNone = -1;

/// The distinct nodes of one pair with their counts, in a hash table with linear probing, at most half full.
class Counter {
 public:
  explicit Counter(int64_t num_tokens) : node_(num_tokens), count_(2 * num_tokens) {
    uint64_t size = 1;
    while (size < 2 * static_cast<uint64_t>(num_tokens)) size *= 2;
    number_.resize(size);
    last_ = size - 1;
  }

  void clear() {
    std::fill(number_.begin(), number_.end(), kNone);
    size_ = 0;
  }

  /// Counts a node in the sequence of a side; returns its number.
  int32_t add(int64_t node, int side) {
    uint64_t slot = mix64(static_cast<uint64_t>(node)) & last_;
    while (number_[slot] != kNone && node_[number_[slot]] != node) slot = (slot + 1) & last_;
    if (number_[slot] == kNone) {
      number_[slot] = size_;
      node_[size_] = node;
      count_[2 * size_] = count_[2 * size_ + 1] = 0;
      ++size_;
    }
    const int32_t number = number_[slot];
    ++count_[2 * number + side];
    return number;
  }

  const int32_t* counts(int32_t number) const { return &count_[2 * number]; }

 private:
  std::vector<int32_t> number_;  ///< Of the node in a slot.
  std::vector<int64_t> node_;
  std::vector<int32_t> count_;  ///< In the source's sequence and in the destination's.
  int32_t size_ = 0;
  uint64_t last_ = 0;
};

/// Counts the tokens of a sequence and writes the number of each, `kNone` for one that is not there.
void add_tokens(const Sequences& s, int64_t row, int side, Counter& counter, int32_t* number) {
  number[0] = counter.add(s.self[row], side);
  for (int64_t j = 0; j < s.k; ++j) {
    const int64_t token = row * s.k + j;
    number[1 + j] = s.mask[token] ? counter.add(s.other[token], side) : kNone;
  }
}

}  // namespace

void co_occurrence(const Sequences& sequences, const int64_t* src_row, const int64_t* dst_row,
                   int64_t num_pairs, int32_t* out) {
  const int64_t length = 1 + sequences.k;
  parallel_for(num_pairs, std::max<int64_t>(kGrainTokens / (2 * length), 1), [&](int64_t begin, int64_t end) {
    Counter counter(2 * length);
    std::vector<int32_t> number(2 * length);
    for (int64_t p = begin; p < end; ++p) {
      counter.clear();
      add_tokens(sequences, src_row[p], 0, counter, number.data());
      add_tokens(sequences, dst_row[p], 1, counter, number.data() + length);
      int32_t* counts = out + p * 4 * length;
      for (int64_t i = 0; i < 2 * length; ++i) {
        const bool there = number[i] != kNone;
        counts[2 * i] = there ? counter.counts(number[i])[0] : 0;
        counts[2 * i + 1] = there ? counter.counts(number[i])[1] : 0;
      }
    }
  });
}

}  // namespace tgflow
