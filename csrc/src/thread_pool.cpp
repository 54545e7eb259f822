#include "tgflow/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace tgflow {
namespace {

/// One parallel_for in flight: ranges are claimed by counter, so a slow thread never delays the rest.
struct Job {
  const std::function<void(int64_t, int64_t)>* body;
  int64_t size;
  int64_t chunk;
  std::atomic<int64_t> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;

  void work() {
    for (int64_t begin = next.fetch_add(chunk); begin < size; begin = next.fetch_add(chunk)) {
      try {
        (*body)(begin, begin + chunk < size ? begin + chunk : size);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }
};

/// Spins for `done()`, for as long as parking and waking a thread would cost.
template <typename Done>
void spin_until(const Done& done) {
  constexpr int kSpins = 1000;  // about 20 us
  for (int i = 0; i < kSpins && !done(); ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

class ThreadPool {
 public:
  /// Grows to `num_helpers` threads, or to as many as the system starts, and returns their number.
  int grow(int num_helpers) {
    threads_.reserve(static_cast<size_t>(num_helpers));
    try {
      while (static_cast<int>(threads_.size()) < num_helpers) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // the others do the work
    }
    return static_cast<int>(threads_.size());
  }

  /// Runs `job` together with up to `helpers` of the pool's threads.
  void run(Job& job, int helpers) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      seats_ = helpers;
      ++ticket_;
    }
    for (int i = 0; i < helpers; ++i) wake_.notify_one();
    job.work();
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // helpers that wake from here on have no work
    lock.unlock();
    spin_until([this] { return busy_ == 0; });
    lock.lock();
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void serve() {
    uint64_t seen = 0;
    for (;;) {
      spin_until([&] { return ticket_ != seen; });  // calls come in bursts
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return job_ != nullptr && seats_ > 0 && ticket_ != seen; });
      seen = ticket_;
      Job* job = job_;
      --seats_;
      ++busy_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Job* job_ = nullptr;
  std::atomic<uint64_t> ticket_{0};
  int seats_ = 0;  // helpers that may still join the job
  std::atomic<int> busy_{0};
};

int default_num_threads() {
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 ? 1 : static_cast<int>(cores);
}

std::mutex pool_mutex;  // held for as long as one caller uses the pool
std::atomic<int> wanted_threads{default_num_threads()};

/// The pool. Never destroyed: its threads may outlive static destruction, as in a forked or exiting
/// interpreter.
ThreadPool& the_pool() {
  static ThreadPool* const pool = new ThreadPool;
  return *pool;
}

}  // namespace

void set_num_threads(int num_threads) {
  if (num_threads < 1) {
    throw std::invalid_argument("num_threads must be at least 1, got " + std::to_string(num_threads));
  }
  wanted_threads = num_threads;
}

int num_threads() { return wanted_threads; }

void parallel_for(int64_t size, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (size <= 0) return;
  const int threads = wanted_threads;
  std::unique_lock<std::mutex> lock(pool_mutex, std::defer_lock);
  if (threads == 1 || size <= grain || !lock.try_lock()) {
    body(0, size);
    return;
  }
  // Waking a thread costs as much as `grain` items; once awake, small ranges balance the load.
  const int64_t chunk = std::max((size + 4 * threads - 1) / (4 * threads), (grain + 7) / 8);
  const int started = std::min(the_pool().grow(threads - 1), threads - 1);
  const int64_t helpers = std::min<int64_t>(started, (size + grain - 1) / grain - 1);
  Job job{&body, size, chunk};
  the_pool().run(job, static_cast<int>(helpers));
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace tgflow
