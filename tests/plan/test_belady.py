"""The planner matches the optimum of dynamic programming and its own schedule."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tgflow.graph.cache.contents import CacheSchedule
from tgflow.plan.loader import BeladyPlanner


def most_hits(
    batches: Sequence[Sequence[int]], num_slots: int, contents: Iterable[int] = ()
) -> int:
    """Return the maximum hits of any replacement, by dynamic programming over contents."""
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


def apply(schedules: Iterable[CacheSchedule], contents: list[int]) -> int:
    """Apply `schedules` to `contents`, the id per slot; return the hits."""
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


Batches = list[list[int]]


def tensors(batches: Batches) -> list[Tensor]:
    return [torch.tensor(batch, dtype=torch.int64) for batch in batches]


def plan_all(
    planner: BeladyPlanner, batches: Iterable[Tensor], lookahead: int | None = None
) -> Iterator[CacheSchedule]:
    """Yield a schedule for each of `batches`, with a lookahead; None: all."""
    for ids in batches:
        planner.observe(ids)
        if len(planner) == lookahead:
            yield planner.plan()
    while len(planner) > 0:
        yield planner.plan()


def hits_of(
    planner: BeladyPlanner, batches: Batches, contents: list[int], lookahead: int | None = None
) -> int:
    """Plan batches, apply them on `contents`, and check that both end with the same."""
    schedules = list(plan_all(planner, tensors(batches), lookahead))
    assert [schedule.ids.tolist() for schedule in schedules] == batches
    hits = apply(schedules, contents)
    assert planner.contents().tolist() == contents
    assert (len(planner), planner.num_accesses) == (0, 0)
    return hits


def made_trace(g: random.Random) -> tuple[Batches, list[int]]:
    """A few batches of few ids, and the cache contents."""
    num_ids = g.randint(1, 7)
    sizes = [g.randint(0, min(4, num_ids)) for _ in range(g.randint(1, 7))]
    num_slots = g.randint(0, 4)
    held = g.sample(range(num_ids), min(num_slots, g.randint(0, num_ids)))
    contents = held + [-1] * (num_slots - len(held))
    g.shuffle(contents)
    return [g.sample(range(num_ids), size) for size in sizes], contents


@pytest.mark.parametrize("seed", range(10))
def test_planner_matches_the_dynamic_programming_optimum(seed: int) -> None:
    g = random.Random(seed)
    for _ in range(250):
        batches, contents = made_trace(g)
        cached = [row for row in contents if row >= 0]
        planner = BeladyPlanner(len(contents), torch.tensor(contents, dtype=torch.int64))
        expected = most_hits(batches, len(contents), cached)
        assert hits_of(planner, batches, contents) == expected


@st.composite
def traces(draw: st.DrawFn) -> tuple[Batches, int]:
    ids = st.integers(0, draw(st.integers(1, 60)))
    batch = st.lists(ids, unique=True, max_size=20)
    batches = draw(st.lists(batch, min_size=1, max_size=90))
    return batches, draw(st.integers(0, 25))


@given(traces(), st.integers(1, 30))
def test_planner_keeps_the_rows_needed_next_within_the_lookahead(
    made: tuple[Batches, int], lookahead: int
) -> None:
    batches, num_slots = made
    whole = hits_of(BeladyPlanner(num_slots), batches, [-1] * num_slots)
    contents, hits = [-1] * num_slots, 0
    planner = BeladyPlanner(num_slots)
    for i, schedule in enumerate(plan_all(planner, tensors(batches), lookahead)):
        known = batches[i + 1 : i + lookahead]
        at_hand = {row for row in contents if row >= 0} | set(batches[i])
        hits += apply([schedule], contents)
        kept = {row for row in contents if row >= 0}
        assert next_uses(kept, known) == next_uses(at_hand, known)[:num_slots]
    assert planner.contents().tolist() == contents
    assert hits <= whole


def next_uses(rows: set[int], known: Batches) -> list[int]:
    """Return the next batches that use rows, ascending; `len(known)` if unknown."""
    found = ((i for i, batch in enumerate(known) if row in batch) for row in rows)
    return sorted(next(each, len(known)) for each in found)


@pytest.mark.parametrize(
    ("batch", "message"),
    [([4, 2, 7, 4], "a batch has id 4 twice"), ([4, 8, -1], "ids must be at least 0, got -1")],
)
def test_invalid_ids_are_refused_by_the_planner(batch: list[int], message: str) -> None:
    planner, other = BeladyPlanner(2), BeladyPlanner(2)
    for each in (planner, other):
        list(plan_all(each, tensors([[7], [8]])))
        each.observe(torch.tensor([8, 1]))
    with pytest.raises(ValueError, match=message):
        planner.observe(torch.tensor(batch))
    assert planner.contents().tolist() == [7, 8]
    assert planner.num_accesses == 2
    after = tensors([[4, 2], [7, 4], [1]])
    for one, another in zip(plan_all(planner, after), plan_all(other, after), strict=True):
        assert torch.equal(one.hit, another.hit)
        assert torch.equal(one.admit, another.admit)
