"""What optimal replacement is, found by trying everything; and a cache that does as it is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from tgflow.cache.schedule import Schedule


def most_hits(
    batches: Sequence[Sequence[int]], num_slots: int, contents: Iterable[int] = ()
) -> int:
    """Return the most hits that any replacement reaches, by dynamic programming over contents.

    A batch finds what of its rows is cached; then any of the rows cached before or just read may
    be cached. It takes time in proportion to the subsets of all ids.
    """
    reached = {frozenset(contents): 0}
    for batch in batches:
        asked = frozenset(batch)
        after: dict[frozenset[int], int] = {}
        for cached, hits in reached.items():
            now = hits + len(cached & asked)
            at_hand = sorted(cached | asked)
            for kept in map(frozenset, combinations(at_hand, min(num_slots, len(at_hand)))):
                after[kept] = max(now, after.get(kept, 0))
        reached = after
    return max(reached.values())


def apply(schedules: Iterable[Schedule], contents: list[int]) -> int:
    """Make the moves of `schedules` on `contents`, the id per slot; return the hits.

    Raises:
        AssertionError: If a schedule calls a hit what is not there, or a miss what is.
    """
    total = 0
    for schedule in schedules:
        ids, hit, admit = (part.tolist() for part in (schedule.ids, schedule.hit, schedule.admit))
        for row, slot in zip(ids, hit, strict=True):
            assert contents[slot] == row if slot >= 0 else row not in contents
        moves = [(row, slot) for row, slot in zip(ids, admit, strict=True) if slot >= 0]
        assert len({slot for _, slot in moves}) == len(moves)
        assert not {row for row, _ in moves} & set(contents)
        for row, slot in moves:
            contents[slot] = row
        total += sum(slot >= 0 for slot in hit)
    return total
