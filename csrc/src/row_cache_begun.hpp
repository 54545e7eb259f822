#pragma once

#include <algorithm>
#include <mutex>

#include "tgflow/row_cache.hpp"

namespace tgflow {

/// A gather among those at work, and the lock on the index. One that fails on the way, for want of memory,
/// leaves an empty cache.
class RowCache::Begun {
 public:
  template <typename MayBegin>
  Begun(RowCache& cache, CacheLookup& out, const MayBegin& may_begin) : cache_(cache), lock_(cache.mutex_) {
    cache.changed_.wait(lock_, [&] { return !cache.changing_ && may_begin(); });
    out.source.clear();
    out.miss.clear();
    out.first.clear();
    out.admit.clear();
    out.puts_after = false;
    out.batch = ++cache.batch_;
    cache.at_work_.push_back(out.batch);
    batch_ = out.batch;
    if (cache.order_.num_entries() > 2 * cache.capacity() + 1024) {
      cache.order_.purge([&](int32_t s) { return cache.slot(s).key; });
    }
  }
  ~Begun() {
    if (done_) return;
    leave();
    cache_.changed_.wait(lock_, [&] { return cache_.at_work_.empty(); });
    cache_.clear();
  }
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;

  void done() { done_ = true; }
  /// Gives up before anything has changed.
  void give_up() {
    leave();
    done_ = true;
  }

 private:
  void leave() {
    auto& at_work = cache_.at_work_;
    at_work.erase(std::find(at_work.begin(), at_work.end(), batch_));
    cache_.changed_.notify_all();
  }

  RowCache& cache_;
  std::unique_lock<std::mutex> lock_;
  int64_t batch_ = 0;
  bool done_ = false;
};

}  // namespace tgflow
