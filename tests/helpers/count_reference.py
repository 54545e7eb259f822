"""Counts of past events the slow, obvious way: by a scan of the events, without any lists."""

from __future__ import annotations

from collections.abc import Iterator

from tgflow.counts import Count
from tgflow.events import NO_NODE, EventBatch

Answer = tuple[int, int, float]
"""How many events, the age of the last one or -1, and the decayed sum: 0.0 without a half-life."""


def count_events(
    events: EventBatch,
    count: Count,
    src: int,
    dst: int,
    t: int,
    limit: int,
    *,
    seconds_per_tick: float = 1.0,
    window_depth: int = 1,
) -> Answer:
    """Return the answer to `count` about a pair.

    Args:
        events: The log.
        count: What to count.
        src: Source of the pair.
        dst: Destination.
        t: Its time.
        limit: What counts is before this position of the log.
        seconds_per_tick: The log's unit.
        window_depth: How many of the last destinations windows have.
    """
    rows = list(zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True))
    clock, cut = -(2**63), 0
    while cut < limit and (clock := max(clock, rows[cut][2])) < t:
        cut += 1
    past = rows[:cut]
    eids = list(_counted(past, count, src, dst, window_depth))
    if not eids:
        return 0, -1, 0.0
    decayed = 0.0
    if count.half_life is not None:
        for eid in eids:
            age = cut - eid if count.clock == "events" else (t - past[eid][2]) * seconds_per_tick
            decayed += 2.0 ** (-age / count.half_life)
    return len(eids), t - past[eids[-1]][2], decayed


def _counted(
    past: list[tuple[int, int, int]], count: Count, src: int, dst: int, window_depth: int
) -> Iterator[int]:
    """Yield the position of each event that counts, as often as it does."""
    before: dict[int, list[int]] = {}
    for u, v, _ in past:
        before.setdefault(u, []).append(v)
    last = before.get(src, [])
    p = last[-count.depth] if len(last) >= count.depth else NO_NODE
    before, seen = {}, set()
    for eid, (u, v, _) in enumerate(past):
        theirs = before.setdefault(u, [])
        followed = theirs[-1] if theirs else None
        is_new = followed is not None and (followed, v) not in seen
        seen.add((followed, v))
        times = {
            "pair": (u, v) == (src, dst),
            "reverse": (u, v) == (dst, src),
            "src": u == src,
            "dst": v == dst,
            "src_as_dst": v == src,
            "dst_as_src": u == dst,
            "transition": p != NO_NODE and (followed, v) == (p, dst),
            "transition_row": p != NO_NODE and followed == p,
            "window": theirs[-window_depth:].count(p) * (v == dst),
            "window_row": theirs[-window_depth:].count(p),
            "continuation": is_new and v == dst,
            "continuation_all": is_new,
            "all": True,
        }
        theirs.append(v)
        yield from [eid] * int(times[count.of])
