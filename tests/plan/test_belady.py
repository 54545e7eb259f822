"""The planner: as good as the optimum found by dynamic programming, and true to its own word."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tgflow.cache.policy import POLICIES
from tgflow.plan.belady import BeladyPlanner
from tgflow.testing.belady_reference import execute, most_hits
from tgflow.testing.cache_reference import ReferenceCache

Batches = list[list[int]]


def tensors(batches: Batches) -> list[Tensor]:
    return [torch.tensor(batch, dtype=torch.int64) for batch in batches]


def hits_of(planner: BeladyPlanner, batches: Batches, contents: list[int]) -> int:
    """Plan a window, execute it on `contents`, and check that both end with the same."""
    hits = execute(planner.plan(tensors(batches)), contents)
    assert planner.contents().tolist() == contents
    return hits


def made_trace(g: random.Random) -> tuple[Batches, list[int]]:
    """A few batches of few ids, and what the cache holds."""
    num_ids = g.randint(1, 7)
    sizes = [g.randint(0, min(4, num_ids)) for _ in range(g.randint(1, 7))]
    num_slots = g.randint(0, 4)
    held = g.sample(range(num_ids), min(num_slots, g.randint(0, num_ids)))
    contents = held + [-1] * (num_slots - len(held))
    g.shuffle(contents)
    return [g.sample(range(num_ids), size) for size in sizes], contents


@pytest.mark.parametrize("seed", range(10))
def test_the_planner_equals_the_optimum_of_dynamic_programming(seed: int) -> None:
    g = random.Random(seed)
    for _ in range(250):
        batches, contents = made_trace(g)
        cached = [row for row in contents if row >= 0]
        planner = BeladyPlanner(len(contents), torch.tensor(contents, dtype=torch.int64))
        expected = most_hits(batches, len(contents), cached)
        assert hits_of(planner, batches, contents) == expected


@pytest.mark.parametrize("seed", range(10))
def test_no_other_policy_ever_has_more_hits(seed: int) -> None:
    g = random.Random(seed)
    for _ in range(250):
        batches, contents = made_trace(g)
        num_slots = len(contents)
        for policy in POLICIES:
            reference = ReferenceCache(num_slots, policy)
            reference.preload(contents)
            held = reference.contents()
            planner = BeladyPlanner(num_slots, torch.tensor(held, dtype=torch.int64))
            for batch in batches:
                reference.gather(batch)
            assert reference.counters.hits <= hits_of(planner, batches, held)


@st.composite
def traces(draw: st.DrawFn) -> tuple[Batches, int]:
    ids = st.integers(0, draw(st.integers(1, 60)))
    batch = st.lists(ids, unique=True, max_size=20)
    batches = draw(st.lists(batch, min_size=1, max_size=90))
    return batches, draw(st.integers(0, 25))


@given(traces(), st.data())
def test_contents_carry_over_from_window_to_window(
    made: tuple[Batches, int], data: st.DataObject
) -> None:
    """Less knowledge is never better, and what one planner leaves another can go on from."""
    batches, num_slots = made
    cut = data.draw(st.integers(0, len(batches)))
    whole = hits_of(BeladyPlanner(num_slots), batches, [-1] * num_slots)
    planner, contents = BeladyPlanner(num_slots), [-1] * num_slots
    first = hits_of(planner, batches[:cut], contents)
    heir = BeladyPlanner(num_slots, planner.contents())
    assert torch.equal(heir.contents(), planner.contents())
    second = hits_of(planner, batches[cut:], contents)
    assert first + second <= whole
    assert second == hits_of(heir, batches[cut:], heir.contents().tolist())


@given(traces(), st.integers(0, 5))
def test_two_windows_are_one_where_the_second_needs_nothing_of_the_first(
    made: tuple[Batches, int], num_empty: int
) -> None:
    """With an empty second window move for move; with one of other ids alone, hit for hit."""
    batches, num_slots = made
    apart = BeladyPlanner(num_slots)
    scripts = apart.plan(tensors(batches)) + apart.plan(tensors([[]] * num_empty))
    together = BeladyPlanner(num_slots).plan(tensors(batches + [[]] * num_empty))
    for one, other in zip(scripts, together, strict=True):
        assert torch.equal(one.hit, other.hit)
        assert torch.equal(one.admit, other.admit)
    others = [[1000 + row for row in batch] for batch in batches]
    whole = hits_of(BeladyPlanner(num_slots), batches + others, [-1] * num_slots)
    planner, contents = BeladyPlanner(num_slots), [-1] * num_slots
    assert hits_of(planner, batches, contents) + hits_of(planner, others, contents) == whole


@given(traces())
def test_two_windows_are_one_where_the_cache_holds_everything(made: tuple[Batches, int]) -> None:
    batches, _ = made
    num_slots = len({row for batch in batches for row in batch})
    whole = hits_of(BeladyPlanner(num_slots), batches, [-1] * num_slots)
    planner, contents = BeladyPlanner(num_slots), [-1] * num_slots
    assert sum(hits_of(planner, [batch], contents) for batch in batches) == whole


@given(traces())
@settings(max_examples=30)
def test_without_a_future_the_row_used_last_stays(made: tuple[Batches, int]) -> None:
    """Windows of one batch: recency, where hits count as used before the batch's misses."""
    batches, num_slots = made
    planner, contents = BeladyPlanner(num_slots), [-1] * num_slots
    order: list[int] = []  # the ids in the cache, longest unused first
    for batch in batches:
        hits = [row for row in batch if row in order]
        misses = [row for row in batch if row not in order]
        order = [row for row in order if row not in hits]
        misses = misses[: num_slots - len(hits)]
        order = (order + hits + misses)[-num_slots:] if num_slots else []
        assert hits_of(planner, [batch], contents) == len(hits)
        assert sorted(order) == sorted(row for row in contents if row >= 0)


def test_a_plan_by_hand() -> None:
    """One slot: 0 goes as soon as 1 is needed sooner, though the batch hit it; 2 is bypassed."""
    scripts = BeladyPlanner(1).plan(tensors([[0], [0, 1], [1, 2], [1]]))
    assert [script.hit.tolist() for script in scripts] == [[-1], [0, -1], [0, -1], [0]]
    assert [script.admit.tolist() for script in scripts] == [[0], [-1, 0], [-1, -1], [-1]]


def test_nothing_is_planned_for_nothing() -> None:
    planner = BeladyPlanner(3)
    assert planner.plan([]) == []
    (script,) = planner.plan(tensors([[]]))
    assert len(script) == 0
    assert planner.contents().tolist() == [-1, -1, -1]
    (script,) = BeladyPlanner(0).plan(tensors([[5]]))
    assert (script.hit.tolist(), script.admit.tolist()) == ([-1], [-1])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([[1], [4, 2, 4]], "batch 1 of the window has id 4 twice"),
        ([[1], [-1]], "ids must be at least 0, got -1"),
    ],
)
def test_ids_that_cannot_be_planned_are_refused(batches: Batches, message: str) -> None:
    planner = BeladyPlanner(2)
    planner.plan(tensors([[7], [8]]))
    with pytest.raises(ValueError, match=message):
        planner.plan(tensors(batches))
    assert planner.contents().tolist() == [7, 8]


def test_a_planner_refuses_contents_of_another_cache() -> None:
    with pytest.raises(ValueError, match=r"contents must be int64 \[2\], got torch.int64 \[3\]"):
        BeladyPlanner(2, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"0 to 2\^30 - 1 slots, got -1"):
        BeladyPlanner(-1)
