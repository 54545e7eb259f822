// The `recent` sampler, one query at a time, and how rows are written. No `std::` here.
#pragma once

#include "tgflow/detail/visible.hpp"

#if defined(__SSE2__) && !defined(__CUDACC__)
#include <emmintrin.h>
#endif

namespace tgflow {

TGFLOW_HD inline void write_slot(const NeighborRows& out, int64_t slot, const Entry& entry, eid_t base_eid) {
  out.node[slot] = entry.nbr;
  out.t[slot] = entry.t;
  out.eid[slot] = base_eid + entry.eid_offset;
}

/// Writes the `size` entries before `end`, newest first, to slots from `slot` on.
TGFLOW_HD inline void write_slots(const NeighborRows& out, int64_t slot, const Entry* end, int64_t size,
                                  eid_t base_eid) {
  const int64_t stop = slot + size;
#if defined(__SSE2__) && !defined(__CUDACC__)
  node_t* node = out.node;  // the compiler cannot know that the stores leave `out` alone
  tick_t* t = out.t;
  eid_t* eid = out.eid;
  const __m128i low_half = _mm_set1_epi64x(0xffffffff);
  const __m128i base = _mm_set1_epi64x(base_eid);
  for (; slot + 1 < stop; slot += 2, end -= 2) {  // two entries to two slots of each column
    const __m128i newer = _mm_loadu_si128(reinterpret_cast<const __m128i*>(end - 1));
    const __m128i older = _mm_loadu_si128(reinterpret_cast<const __m128i*>(end - 2));
    const __m128i ids = _mm_unpackhi_epi64(newer, older);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(t + slot), _mm_unpacklo_epi64(newer, older));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(node + slot), _mm_and_si128(ids, low_half));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(eid + slot), _mm_add_epi64(_mm_srli_epi64(ids, 32), base));
  }
#endif
  for (; slot < stop; ++slot) write_slot(out, slot, *--end, base_eid);
}

/// Marks the slots [`slot`, `end`) as holding nobody.
TGFLOW_HD inline void pad_slots(const NeighborRows& out, int64_t slot, int64_t end) {
  for (; slot < end; ++slot) {
    out.node[slot] = kNoNode;
    out.t[slot] = 0;
    out.eid[slot] = kNoEvent;
  }
}

/// Writes row `i`: the newest `size` of the first `seen.count` entries of `dir`, newest first, padded.
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

/// Writes row `i`: the newest `out.k` of what is seen.
TGFLOW_HD inline void recent_row(const StoreView& store, const Directory* dir, Visible seen, int64_t i,
                                 const NeighborRows& out) {
  newest_row(store, dir, seen, seen.count < out.k ? seen.count : out.k, i, out);
}

}  // namespace tgflow
