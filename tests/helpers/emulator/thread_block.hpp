// Thread blocks on the CPU: their threads are fibers of one real thread. A fiber runs until it must meet
// others (`meet`, `meet_block`), in an order that the test chooses: what only works in one order is a bug.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Now {
  Index thread, block, block_dim, grid_dim;
};

enum class Collective { kShuffle, kShuffleUp, kShuffleDown, kShuffleXor, kBallot, kSync };

/// What a lane brings to a meeting of some lanes of its warp.
struct Offer {
  Collective what;
  uint64_t value;
  int argument;
  int width;
};

/// Where the running thread is.
extern Now here;
/// Waits until all lanes of `mask` came with the same `mask` and operation; returns what this lane gets.
uint64_t meet(unsigned mask, const Offer& offer);
/// Waits until every thread of the block that still runs came here.
void meet_block();
/// Lets other blocks run, sometimes, if blocks interleave.
void at_atomic();

/// Writes down a read of the running thread, for `reads`.
void note_read(const void* at, uint64_t bytes);

/// From this order on thread blocks interleave at atomic operations, if shared memory is thread-local.
constexpr uint64_t kInterleaved = 1000;

/// Runs `kernel` in `grid` thread blocks of `block` threads. Order 0 takes lowest threads first, 1 highest
/// first, any other is the seed of a shuffle. Returns what the kernel did wrong, or an empty string.
std::string run(unsigned grid, unsigned block, uint64_t order, const std::function<void()>& kernel);

/// The reads written down since the last call: thread block, thread, address and bytes of each; how many.
extern "C" int64_t reads(const int64_t** out);

}  // namespace emulator
