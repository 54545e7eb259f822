"""Lists of random and hard negatives: eligibility, cut-offs, and an unbiased softmax."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from helpers.effort import tries
from helpers.plans import recent_plan, tied_events
from helpers.strategies import event_lists
from tgflow import Batch, EventBatch, Plan, TemporalGraph
from tgflow.base.keys import derive_key
from tgflow.plan import ExperienceReplay, NegativeSampler
from tgflow.plan.negatives import PairHistory


def cut_off(events: EventBatch, plan: Plan, eid: int) -> int:
    """Return how many events a query for an event sees."""
    size, start = plan.batch_size, plan.draws.start
    limit = eid if plan.draws.sees_all_before else start + (eid - start) // size * size
    earlier = int((events.t < events.t[eid]).sum())
    return min(max(limit, 0), earlier)


def latest(nodes: list[int], most: int) -> list[int]:
    """Return the last distinct nodes of the last 8 `most` ones, the last one first."""
    return list(dict.fromkeys(reversed(nodes[-8 * most :] if most else [])))[:most]


def check_row(events: EventBatch, plan: Plan, batch: Batch, row: int) -> None:
    """Fail unless a list has the expected hard negatives, and eligible random ones."""
    lists: Any = plan.draws.negatives
    src, dst = int(batch.src[row]), int(batch.dst[row])
    cut = cut_off(events, plan, int(batch.eid[row]))
    past = [*zip(events.src[:cut].tolist(), events.dst[:cut].tolist(), strict=True)]
    wanted = latest([d for s, d in past if s == src], lists.source)
    wanted += [-1] * (lists.source - len(wanted)) + latest([d for _, d in past], lists.recent)
    hard = [None if d in (-1, dst) or d in wanted[:place] else d for place, d in enumerate(wanted)]
    hard += [None] * (lists.source + lists.recent - len(hard))
    eligible = {d for _, d in past} - {dst, *hard}
    assert batch.log_q is not None
    logs, found = batch.log_q[row].tolist(), batch.negative_dst[row].tolist()
    assert batch.negative_src[row].tolist() == [src] * lists.num
    there = [d if log > -math.inf else None for d, log in zip(found, logs, strict=True)]
    assert [d for d, log in zip(found, logs, strict=True) if log == -math.inf] == [
        dst
    ] * there.count(None)
    assert there[lists.random :] == hard
    assert all(log == 0 for log, d in zip(logs[lists.random :], hard, strict=True) if d is not None)
    num = min(lists.random, len(eligible))
    drawn, rest = there[:num], there[num : lists.random]
    assert len({*drawn}) == num
    assert {*drawn} <= eligible
    assert rest == [None] * len(rest)
    for log in logs[:num]:
        assert log == pytest.approx(math.log(len(eligible) / num), abs=1e-6)  # float32


@settings(max_examples=tries(60), deadline=None)
@given(
    events=event_lists(max_events=30, max_node=5),
    numbers=st.tuples(*[st.integers(0, 3)] * 3).filter(any),
    visibility=st.sampled_from(["event", "batch"]),
    replay=st.sampled_from([None, ExperienceReplay(1.0, 20, 5.0)]),
    data=st.data(),
)
def test_lists_match_a_scan_of_the_visible_past(events, numbers, visibility, replay, data):
    if not len(events):
        return
    changes = {"batch_size": data.draw(st.integers(1, 9)), "fanouts": (), "replay": replay}
    changes["start"] = data.draw(st.integers(0, len(events) - 1))
    graph = TemporalGraph.from_events(events)
    plan = recent_plan(
        graph, negatives=NegativeSampler(*numbers, distinct=True), visibility=visibility, **changes
    )
    for index in range(len(plan)):
        batch = plan.batch(1, index)
        for row in range(len(batch)):
            check_row(events, plan, batch, row)
        mask = batch.negative_mask
        is_there = batch.log_q > -torch.inf
        assert is_there.all() if mask is None else torch.equal(mask, is_there)


DST = torch.arange(24)
PAST = PairHistory(TemporalGraph.from_events(EventBatch(DST % 3, DST, DST)).log)


def drawn(lists: NegativeSampler, key: int) -> tuple[list[int], torch.Tensor]:
    """Return the list of an event 0 -> 3 after 24 destinations, and its log-Q."""
    ends = torch.tensor([0]), torch.tensor([3])
    found = lists.draw(PAST, derive_key(key), *ends, start=torch.tensor([24]), stop=24)
    assert found.log_q is not None
    return found.dst[0].tolist(), found.log_q[0]


def test_random_negatives_are_uniform_over_the_rest():
    counts = Counter(d for key in range(800) for d in drawn(NegativeSampler(4, 2, 2), key)[0][:4])
    assert counts.keys() == {*range(24)} - {3, 21, 18, 23, 22}
    # neighbors in a list exclude each other, which only lowers the statistic
    assert chisquare([*counts.values()]).pvalue > 1e-4
    first = Counter(drawn(NegativeSampler(4, distinct=True), key)[0][0] for key in range(1_500))
    assert first.keys() == {*range(24)} - {3}
    assert chisquare([*first.values()]).pvalue > 1e-4


def test_pool_and_cut_extend_the_random_negatives_only():
    lists = NegativeSampler(30, 2, 1, cut=24)
    graph = TemporalGraph.from_events(tied_events(100))
    plan = recent_plan(graph, negatives=NegativeSampler(50, 2, 2, cut=100), batch_size=20)
    batch = plan.batch(0, 0)
    known = {*graph.log.read(0, 100).dst.tolist()}
    for row in range(20):
        is_there = batch.log_q[row] > -torch.inf
        found = batch.negative_dst[row][is_there].tolist()
        assert {*found} == known - {int(batch.dst[row])}  # all of them: 50 are more than there are
        assert len(found) == len({*found})
        assert float(batch.log_q[row][is_there].abs().max()) == 0
    pool = PairHistory.of_pool(torch.tensor([90, 91, 90]))
    found, log_q = drawn(NegativeSampler(3, 1, pool=pool), 0)
    assert ({*found[:2]}, found[2:]) == ({90, 91}, [3, 21])
    assert log_q.tolist() == [0, 0, -math.inf, 0]
    assert drawn(lists, 0)[1].shape == (33,)
