#pragma once

#include <algorithm>
#include <mutex>

#include "tgflow/row_cache.hpp"

namespace tgflow {

constexpr uint8_t kMostUses = 255;  ///< As LFU_MOST of tgflow/cache/contents.py.

/// A gather among those at work, and the lock on the index. One that fails on the way, for want of memory,
/// leaves an empty cache.
class RowCache::Started {
 public:
  /// Waits until no change is under way and `may_begin()`; takes `size` positions on the clock.
  template <typename MayBegin>
  Started(RowCache& cache, int64_t size, CacheLookup& out, const MayBegin& may_begin)
      : cache_(cache), lock_(cache.mutex_), begin_(0) {
    cache.changed_.wait(lock_, [&] { return !cache.changing_ && cache.clearing_ == 0 && may_begin(); });
    out.miss.clear();
    out.first.clear();
    out.admit.clear();
    out.puts_after = out.alone = false;
    out.begin = begin_ = cache.clock_;
    cache.at_work_.push_back({begin_, begin_ + std::max<int64_t>(size, 1)});
    cache.clock_ = cache.at_work_.back().end;
    if (cache.order_.num_entries() > 3 * cache.capacity() + 1024) cache.purge();
  }
  ~Started() {
    if (done_) return;
    leave();
    ++cache_.clearing_;  // nobody begins, who would find rows that were never written
    cache_.changed_.wait(lock_, [&] { return cache_.at_work_.empty(); });
    cache_.clear();
    --cache_.clearing_;
    cache_.changed_.notify_all();
  }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  void done() { done_ = true; }
  /// Gives up before anything has changed.
  void give_up() {
    leave();
    done_ = true;
  }

 private:
  void leave() {
    auto& at_work = cache_.at_work_;
    at_work.erase(std::find_if(at_work.begin(), at_work.end(), [&](AtWork w) { return w.begin == begin_; }));
    cache_.changed_.notify_all();
  }

  RowCache& cache_;
  std::unique_lock<std::mutex> lock_;
  int64_t begin_;
  bool done_ = false;
};

}  // namespace tgflow
