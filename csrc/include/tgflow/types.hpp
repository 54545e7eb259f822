// Types shared by all parts of the core. Compiles under g++, nvcc and NVRTC: no `std::` here.
#pragma once

#ifdef __CUDACC_RTC__
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif

#ifdef __CUDACC__
#define TGFLOW_HD __host__ __device__
#else
#define TGFLOW_HD
#endif

namespace tgflow {

using node_t = int64_t;  ///< A dense node id, 0 <= v < 2^31 - 1; stored in 32 bits inside blocks.
using tick_t = int64_t;  ///< A time in the stream's unit.
using eid_t = int64_t;   ///< A position in the event log.

constexpr node_t kNoNode = -1;                     ///< Fills an empty neighbor slot.
constexpr eid_t kNoEvent = -1;                     ///< Fills the event id of such a slot.
constexpr eid_t kEveryEvent = 0x7fffffffffffffff;  ///< A cut-off that hides nothing.
constexpr tick_t kEarliest = -0x7fffffffffffffff - 1;

/// The first event that counts, in the order of (time, position): earlier ones are outside the horizon.
struct Since {
  tick_t t = kEarliest;
  eid_t eid = 0;

  /// Whether no event is outside.
  TGFLOW_HD bool is_all() const { return eid == 0; }
};
constexpr node_t kMaxNode = 0x7ffffffe;     ///< The largest dense node id.
constexpr int64_t kNumRelations = 1 << 16;  ///< Relations are in [0, kNumRelations).

/// A difference of times in seconds: the same bits in every unit that can hold it. Whole seconds are divided
/// off first, as a product with 1e-9 or a quotient of more than 2^53 ticks would be rounded by the unit. A
/// second is a whole number of ticks, or a tick of seconds.
template <typename Ticks>
TGFLOW_HD inline double seconds_of(Ticks ticks, double seconds_per_tick) {
  if (seconds_per_tick >= 1) return static_cast<double>(ticks) * seconds_per_tick;
  const auto per_second = static_cast<Ticks>(1 / seconds_per_tick + 0.5);
  return static_cast<double>(ticks / per_second) +
         static_cast<double>(ticks % per_second) / static_cast<double>(per_second);
}

/// later - earlier in seconds; the difference of any two ticks fits 64 bits without a sign.
TGFLOW_HD inline double seconds_between(tick_t earlier, tick_t later, double seconds_per_tick) {
  return seconds_of(static_cast<uint64_t>(later) - static_cast<uint64_t>(earlier), seconds_per_tick);
}

}  // namespace tgflow
