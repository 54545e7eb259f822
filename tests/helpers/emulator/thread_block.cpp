#include "thread_block.hpp"

#include <link.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

namespace emulator {
namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kStack = 128 << 10;
constexpr size_t kTogether = 3;  ///< Blocks in progress, if they interleave.

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

/// A thread block in progress. Several are, if blocks interleave.
struct Block {
  Index index;
  std::vector<Lane> lanes;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<char> shared;  ///< Its shared memory, while another one runs.
  bool begun = false;
};

std::vector<std::unique_ptr<Block>> blocks;
Block* now;
unsigned num_threads;
bool interleaves, wants_another;
std::mt19937_64 draws;
const std::function<void()>* kernel_now;
jmp_buf scheduler;
std::string failure;
std::vector<int64_t> noted, handed_out;

[[noreturn]] void back_to_scheduler() { _longjmp(scheduler, 1); }

void pause(State state) {
  now->lanes[here.thread.x].state = state;
  if (_setjmp(now->fibers[here.thread.x]->place) == 0) back_to_scheduler();
}

/// The memory of all `__shared__` variables, which are thread-local ones of this library.
struct SharedMemory {
  char* begin = nullptr;
  size_t size = 0;
};

int find_shared(dl_phdr_info* library, size_t, void* out) {
  const auto own = reinterpret_cast<uintptr_t>(&find_shared);
  const ElfW(Phdr)* locals = nullptr;
  bool is_own = false;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr) & part = library->dlpi_phdr[i];
    if (part.p_type == PT_TLS) locals = &part;
    const uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    is_own |= part.p_type == PT_LOAD && begin <= own && own < begin + part.p_memsz;
  }
  if (!is_own) return 0;
  if (locals != nullptr && library->dlpi_tls_data != nullptr) {
    *static_cast<SharedMemory*>(out) = {static_cast<char*>(library->dlpi_tls_data), locals->p_memsz};
  }
  return 1;
}

SharedMemory shared_memory() {
  static thread_local volatile char here_are_locals = 0;  // only then do they have an address
  here_are_locals = 1;
  SharedMemory found;
  dl_iterate_phdr(find_shared, &found);
  return found;
}

/// Continues a block, with its shared memory; that of a new one is filled with anything.
void switch_to(Block& block, const SharedMemory& shared) {
  if (&block == now) return;
  if (interleaves && now != nullptr) now->shared.assign(shared.begin, shared.begin + shared.size);
  now = &block;
  here.block = block.index;
  if (!interleaves) return;
  if (block.begun) {
    std::memcpy(shared.begin, block.shared.data(), shared.size);
  } else {
    std::memset(shared.begin, 0xcd, shared.size);
  }
  block.begun = true;
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
  Fiber& fiber = *now->fibers[index];
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
    if (now->lanes[i].state == State::kAtWarp) return false;
    waiting += now->lanes[i].state == State::kAtBlock;
  }
  for (unsigned i = 0; i < num_threads; ++i) {
    if (now->lanes[i].state == State::kAtBlock) now->lanes[i].state = State::kReady;
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

/// Runs a block until its end, or until it wants another one to run; returns whether it ended.
bool run_block(Order& order) {
  auto& lanes = now->lanes;
  wants_another = false;
  for (bool moved = true; moved && failure.empty();) {
    moved = false;
    for (const unsigned i : order.next()) {
      if (lanes[i].state != State::kReady || !failure.empty()) continue;
      run_fiber(i);
      if (wants_another) return false;
      moved = true;
    }
    if (!moved) moved = open_barrier();
  }
  for (unsigned i = 0; i < num_threads && failure.empty(); ++i) {
    if (lanes[i].state == State::kDone) continue;
    failure = "thread " + std::to_string(i) + " of thread block " + std::to_string(here.block.x) +
              " waits for threads that never come";
  }
  return true;
}

/// Prepares the `slot`th of the blocks in progress for another block.
Block& open_block(size_t slot, unsigned index) {
  if (blocks.size() <= slot) blocks.push_back(std::make_unique<Block>());
  Block& block = *blocks[slot];
  block.index = {index, 0, 0};
  block.begun = false;
  while (block.fibers.size() < num_threads) block.fibers.push_back(std::make_unique<Fiber>());
  block.lanes.resize(std::max<size_t>(block.lanes.size(), (num_threads + kWarp - 1) / kWarp * kWarp));
  for (unsigned i = 0; i < num_threads; ++i) block.lanes[i].state = State::kReady;
  return block;
}

}  // namespace

Now here;

uint64_t meet(unsigned mask, const Offer& offer) {
  const unsigned lane = here.thread.x % kWarp, first = here.thread.x - lane;
  if (!(mask >> lane & 1)) fail("is not in the mask of its own collective");
  Lane *const warp = &now->lanes[first], &mine = warp[lane];
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

void at_atomic() {
  if (!interleaves || draws() % 2 == 0) return;
  wants_another = true;
  pause(State::kReady);
}

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
  here = {{}, {}, {block, 1, 1}, {grid, 1, 1}};
  num_threads = block;
  kernel_now = &kernel;
  failure.clear();
  noted.clear();
  const SharedMemory shared = shared_memory();
  interleaves = order >= kInterleaved && shared.begin != nullptr;
  draws.seed(order);
  now = nullptr;
  Order of_blocks(grid, order), threads(block, order);
  const std::vector<unsigned> turns = of_blocks.next();
  std::vector<size_t> open;
  for (size_t next = 0; (next < turns.size() || !open.empty()) && failure.empty();) {
    if (next < turns.size() && open.size() < (interleaves ? kTogether : 1)) {
      size_t slot = 0;
      while (std::find(open.begin(), open.end(), slot) != open.end()) ++slot;
      open_block(slot, turns[next++]);
      open.push_back(slot);
      if (interleaves && open.size() < kTogether && next < turns.size()) continue;
    }
    const size_t turn = interleaves ? draws() % open.size() : 0;
    switch_to(*blocks[open[turn]], shared);
    if (run_block(threads)) {
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(turn));
      now = nullptr;
    }
  }
  if (!failure.empty()) blocks.clear();  // some fibers are in the midst of the kernel
  return failure;
}

}  // namespace emulator
