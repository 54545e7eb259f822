#include "thread_block.hpp"

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

namespace emulator {
namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kStack = 128 << 10;

enum class State { kReady, kAtWarp, kAtBlock, kDone };

/// What others look at while they meet: the lanes of a block lie side by side.
struct Lane {
  State state;
  unsigned mask;
  Offer offer;
  uint64_t result;
};

/// Kept from kernel to kernel: to start one takes system calls, to go on with one a few loads.
struct Fiber {
  bool started = false;
  ucontext_t start;
  jmp_buf place;
  std::unique_ptr<char[]> stack{new char[kStack]};
};

std::vector<Lane> lanes;
std::vector<std::unique_ptr<Fiber>> fibers;
unsigned num_threads;
const std::function<void()>* kernel_now;
jmp_buf scheduler;
std::string failure;
std::vector<int64_t> noted, handed_out;

[[noreturn]] void back_to_scheduler() { _longjmp(scheduler, 1); }

void pause(State state) {
  lanes[here.thread.x].state = state;
  if (_setjmp(fibers[here.thread.x]->place) == 0) back_to_scheduler();
}

[[noreturn]] void fail(const std::string& what) {
  failure = "thread " + std::to_string(here.thread.x) + " of thread block " + std::to_string(here.block.x) +
            ": " + what;
  back_to_scheduler();
}

void enter() {
  for (;;) {
    (*kernel_now)();
    pause(State::kDone);
  }
}

/// The lane that `lane` reads from, or itself where that is outside its segment.
unsigned source_of(unsigned lane, const Offer& offer) {
  const unsigned width = static_cast<unsigned>(offer.width), argument = static_cast<unsigned>(offer.argument);
  const unsigned first = lane & ~(width - 1), last = first + width - 1;
  switch (offer.what) {
    case Collective::kShuffle:
      return first | (argument & (width - 1));
    case Collective::kShuffleUp:
      return lane < first + argument ? lane : lane - argument;
    case Collective::kShuffleDown:
      return lane + argument > last ? lane : lane + argument;
    case Collective::kShuffleXor:
      return (lane ^ argument) > last ? lane : lane ^ argument;
    default:
      return lane;
  }
}

/// Gives every lane of a complete meeting its result and lets it go on.
void resolve(Lane* warp, unsigned mask) {
  uint64_t ballot = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (mask >> lane & 1) ballot |= warp[lane].offer.value << lane;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!(mask >> lane & 1)) continue;
    const Offer& offer = warp[lane].offer;
    const unsigned source = source_of(lane, offer);
    if (!(mask >> source & 1)) fail("reads lane " + std::to_string(source) + ", which is not in the mask");
    warp[lane].result = offer.what == Collective::kBallot ? ballot & mask : warp[source].offer.value;
    warp[lane].state = State::kReady;
  }
}

void run_fiber(unsigned index) {
  here.thread.x = index;
  Fiber& fiber = *fibers[index];
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStack;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

/// Opens the barrier of the block if all that still run wait there; false if none does.
bool open_barrier() {
  unsigned waiting = 0;
  for (unsigned i = 0; i < num_threads; ++i) {
    if (lanes[i].state == State::kAtWarp) return false;
    waiting += lanes[i].state == State::kAtBlock;
  }
  for (unsigned i = 0; i < num_threads; ++i) {
    if (lanes[i].state == State::kAtBlock) lanes[i].state = State::kReady;
  }
  return waiting != 0;
}

class Order {
 public:
  Order(unsigned size, uint64_t order) : order_(order), random_(order), turns_(size) {
    std::iota(turns_.begin(), turns_.end(), 0u);
    if (order == 1) std::reverse(turns_.begin(), turns_.end());
  }
  const std::vector<unsigned>& next() {
    if (order_ > 1) std::shuffle(turns_.begin(), turns_.end(), random_);
    return turns_;
  }

 private:
  uint64_t order_;
  std::mt19937_64 random_;
  std::vector<unsigned> turns_;
};

void run_block(Order& order) {
  for (unsigned i = 0; i < num_threads; ++i) lanes[i].state = State::kReady;
  for (bool moved = true; moved && failure.empty();) {
    moved = false;
    for (const unsigned i : order.next()) {
      if (lanes[i].state != State::kReady || !failure.empty()) continue;
      run_fiber(i);
      moved = true;
    }
    if (!moved) moved = open_barrier();
  }
  for (unsigned i = 0; i < num_threads && failure.empty(); ++i) {
    if (lanes[i].state == State::kDone) continue;
    failure = "thread " + std::to_string(i) + " of thread block " + std::to_string(here.block.x) +
              " waits for threads that never come";
  }
}

}  // namespace

Now here;

uint64_t meet(unsigned mask, const Offer& offer) {
  const unsigned lane = here.thread.x % kWarp, first = here.thread.x - lane;
  if (!(mask >> lane & 1)) fail("is not in the mask of its own collective");
  Lane *const warp = &lanes[first], &mine = warp[lane];
  mine = {State::kAtWarp, mask, offer, 0};
  for (unsigned other = 0; other < kWarp; ++other) {
    if (!(mask >> other & 1)) continue;
    if (first + other >= num_threads) fail("names lane " + std::to_string(other) + ", which does not exist");
    if (warp[other].state == State::kAtWarp) continue;
    if (warp[other].state == State::kDone)
      fail("waits for lane " + std::to_string(other) + ", which has returned");
    pause(State::kAtWarp);
    return mine.result;
  }
  for (unsigned other = 0; other < kWarp; ++other) {
    if (mask >> other & 1 && (warp[other].mask != mask || warp[other].offer.what != offer.what)) {
      fail("meets lane " + std::to_string(other) + " at another operation or mask");
    }
  }
  resolve(warp, mask);
  return mine.result;
}

void meet_block() { pause(State::kAtBlock); }

void note_read(const void* at, uint64_t bytes) {
  noted.insert(noted.end(),
               {here.block.x, here.thread.x, reinterpret_cast<int64_t>(at), static_cast<int64_t>(bytes)});
}

int64_t reads(const int64_t** out) {
  handed_out.clear();
  handed_out.swap(noted);
  *out = handed_out.data();
  return static_cast<int64_t>(handed_out.size()) / 4;
}

std::string run(unsigned grid, unsigned block, uint64_t order, const std::function<void()>& kernel) {
  static std::mutex one_launch;
  const std::lock_guard<std::mutex> lock(one_launch);
  while (fibers.size() < block) fibers.push_back(std::make_unique<Fiber>());
  lanes.resize(std::max<size_t>(lanes.size(), (block + kWarp - 1) / kWarp * kWarp));
  here = {{}, {}, {block, 1, 1}, {grid, 1, 1}};
  num_threads = block;
  kernel_now = &kernel;
  failure.clear();
  noted.clear();
  Order blocks(grid, order), threads(block, order);
  for (const unsigned index : std::vector<unsigned>(blocks.next())) {
    here.block.x = index;
    run_block(threads);
    if (!failure.empty()) break;
  }
  if (!failure.empty()) fibers.clear();  // some are in the midst of the kernel
  return failure;
}

}  // namespace emulator
