"""Counts of past events match a scan at any cutoff, also during appends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.plans import EVERY_LIST, numbers_of, plan_of
from helpers.strategies import event_lists, graph_events, skewed_events
from tgflow import _core
from tgflow.base.choices import CountOf, PairGroup, Visibility
from tgflow.graph import TemporalGraph
from tgflow.graph.counts import LOOP, MAX_RANK, Count, Number, number
from tgflow.graph.events import NO_NODE, EventBatch
from tgflow.nn.groups import numbers_of as numbers_of_groups
from tgflow.plan import ExperienceReplay, NegativeSampler
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.negatives import PairHistory

IN_MS = [
    replace(count, half_life=count.half_life / 1000)
    if count.half_life and count.clock == "seconds"
    else count
    for count in EVERY_LIST
]

Answer = tuple[int, float, float]
"""Number of events, age of the last one in seconds or -1, decayed sum (0.0 without a half-life)."""


def count_events(
    events: EventBatch,
    count: Count,
    src: int,
    dst: int,
    t: int,
    limit: int,
    *,
    per_second: int = 1,
    window_depth: int = 1,
    covisit_depth: int = 3,
    relation: int = 0,
) -> Answer:
    """Return `count` of a pair over events before `limit`, by a scan."""
    relations = torch.zeros_like(events.t) if events.relation is None else events.relation
    columns = events.src, events.dst, events.t, relations
    rows = list(zip(*(column.tolist() for column in columns), strict=True))

    def seconds(ticks: int) -> float:
        return ticks // per_second + ticks % per_second / per_second

    clock, cut = -(2**63), 0
    while cut < limit and (clock := max(clock, rows[cut][2])) < t:
        cut += 1
    past = rows[:cut]
    eids = list(_counted(past, count, src, dst, window_depth, covisit_depth, relation))
    if not eids:
        return 0, -1, 0.0
    decayed = 0.0
    if count.half_life is not None:
        for eid in eids:
            age = {
                "events": cut - eid,
                "source": sum(row[0] == src for row in past[eid:]),
                "seconds": seconds(t - past[eid][2]),
            }[count.clock]
            decayed += 2.0 ** (-age / count.half_life)
    return len(eids), seconds(t - past[eids[-1]][2]), decayed


def _counted(
    past: list[tuple[int, int, int, int]],
    count: Count,
    src: int,
    dst: int,
    window_depth: int,
    covisit_depth: int,
    relation: int,
) -> Iterator[int]:
    """Yield the position of each counted event, repeated by its multiplicity."""
    before: dict[int, list[int]] = {}
    for u, v, _, _ in past:
        before.setdefault(u, []).append(v)
    last = before.get(src, [])
    if count.of == "covisit":
        last = list(reversed(list(dict.fromkeys(reversed(last)))))
    p = last[-count.depth] if len(last) >= count.depth else NO_NODE
    before, seen = {}, set()
    for eid, (u, v, _, r) in enumerate(past):
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
            "src_new": u == src and v not in theirs,
            "dst_new": v == dst and v not in theirs,
            "dst_first": v == dst and not theirs,
            "src_switch": u == src and followed not in (None, v),
            "dst_switch": v == dst and followed not in (None, v),
            "own_transition": u == src and p != NO_NODE and (followed, v) == (p, dst),
            "covisit": p not in (NO_NODE, dst)
            and v in (p, dst)
            and v not in theirs
            and (dst if v == p else p) in list(dict.fromkeys(reversed(theirs)))[:covisit_depth],
            "pair_relation": (u, v, r) == (src, dst, relation),
            "src_relation": (u, r) == (src, relation),
            "dst_relation": (v, r) == (dst, relation),
            "relation": r == relation,
            "all": True,
        }
        theirs.append(v)
        yield from [eid] * int(times[count.of])


def answers(history: CountHistory, pairs: EventBatch, limit: int) -> list[list[Answer]]:
    """Return (num, age, decayed) by count and pair, for `numbers_of` counts."""
    none = torch.empty(len(pairs), 0, dtype=torch.int64)
    limits = torch.full_like(pairs.src, limit)
    found = history.answer(pairs, None, none, limit=limits, stop=limit)
    return found.view(len(pairs), -1, 3).transpose(0, 1).tolist()


def every_pair(num_nodes: int, t: int) -> EventBatch:
    nodes = range(num_nodes)
    return graph_events(*((u, v, t) for u, v in product(nodes, nodes)))


def check(
    events: EventBatch,
    history: CountHistory,
    counts: list[Count],
    t: int,
    limit: int,
    relation: int = 0,
) -> None:
    """Fail unless all counts of all pairs at a time and cutoff match a scan."""
    pairs = every_pair(4, t)
    if events.relation is None:
        relation = 0
    else:
        pairs = replace(pairs, relation=torch.full_like(pairs.t, relation))
    for count, found in zip(counts, answers(history, pairs, limit), strict=True):
        for src, dst, answer in zip(pairs.src.tolist(), pairs.dst.tolist(), found, strict=True):
            expected = count_events(
                events, count, src, dst, t, limit, per_second=1000, window_depth=3,
                relation=relation,
            )  # fmt: skip
            assert tuple(answer[:2]) == expected[:2], (count, src, dst)
            assert answer[2] == pytest.approx(expected[2], rel=1e-12), (count, src, dst)


@settings(max_examples=tries(12), deadline=None)
@given(events=event_lists(max_events=14, max_node=2, relations=True), data=st.data())
def test_counts_at_a_cutoff_match_a_scan(events, data) -> None:
    if data.draw(st.booleans()):
        events = replace(events, relation=events.relation % 3)
    if data.draw(st.integers(0, 3)) == 0:
        events = replace(events, relation=None)
    graph = TemporalGraph.from_events(events, time_unit="ms")
    limit = data.draw(st.integers(0, len(events)))
    times = {int(t) + d for t in events.t for d in (0, 1)} | {0}
    check(
        events,
        CountHistory(graph, numbers_of(IN_MS)),
        IN_MS,
        data.draw(st.sampled_from(sorted(times))),
        limit,
        data.draw(st.sampled_from([0, 1, 2, 63, 65_535])),
    )


def test_slots_that_repeat_their_event_have_its_numbers() -> None:
    events = skewed_events(200, 9)
    history = CountHistory(
        TemporalGraph.from_events(events), numbers_of_groups(get_args(PairGroup))
    )
    others = torch.randint(9, (200, 4), generator=torch.Generator().manual_seed(0))
    others[torch.rand(200, 4, generator=torch.Generator().manual_seed(1)) < 0.6] = -1
    dst = events.dst.unsqueeze(1)
    ask = {"limit": torch.arange(200), "stop": 200}
    found = history.answer(events, None, others.where(others >= 0, dst), **ask)
    for i in range(4):
        alone = history.answer(
            replace(events, dst=others[:, i].where(others[:, i] >= 0, events.dst)),
            None, dst[:, :0], **ask,
        )  # fmt: skip
        assert found[:, 1 + i].equal(alone[:, 0])


def latest(nodes: Sequence[int], most: int, reach: int) -> list[int]:
    """Return the last distinct nodes of a list, the last one first."""
    return list(dict.fromkeys(reversed(nodes[-reach:] if reach else [])))[:most]


@settings(max_examples=tries(30), deadline=None)
@given(events=event_lists(max_events=40, max_node=5), data=st.data())
def test_latest_destinations_at_a_cutoff_match_a_scan(events, data) -> None:
    history = PairHistory(TemporalGraph.from_events(events).log)
    most, recent = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    src = torch.arange(7).repeat(len(events) + 1)
    cut = torch.arange(len(events) + 1).repeat_interleave(7)
    found = history.latest_destinations(src, cut, most, recent)
    rows = zip(src.tolist(), cut.tolist(), *(each.tolist() for each in found), strict=True)
    for u, before, own, others in rows:
        dst = events.dst[:before]
        expected = latest(dst[events.src[:before] == u].tolist(), most, 8 * most)
        assert own == expected + [NO_NODE] * (most - len(expected))
        expected = latest(dst.tolist(), recent, 8 * recent)
        assert others == expected + [NO_NODE] * (recent - len(expected))


@settings(max_examples=tries(12), deadline=None)
@given(
    events=st.one_of(
        event_lists(max_events=14, max_node=2),
        st.builds(skewed_events, st.just(400), st.just(80), seed=st.integers(0, 9)),
    ),
    data=st.data(),
)
def test_ranks_and_events_since_match_a_scan(events, data) -> None:
    graph = TemporalGraph.from_events(events)
    since: tuple[CountOf, ...] = ("pair", "src", "src_new", "src_switch", "own_transition")
    within: tuple[CountOf, ...] = ("pair", "dst", "all", "src_new")
    width = data.draw(st.integers(1, 40))
    asked = [Count("pair").rank, Count("dst").rank, *(Count(of).since for of in since)]
    asked += [Count(of).within(width) for of in within]
    limit = data.draw(st.integers(0, len(events)))
    t = data.draw(st.sampled_from(sorted({int(each) for each in events.t} | {0})))
    cut = int((events.t[:limit] < t).sum())
    pairs = every_pair(6, t)
    none = torch.empty(len(pairs), 0, dtype=torch.int64)
    limits = torch.full_like(pairs.src, limit)
    found = CountHistory(graph, asked).answer(pairs, None, none, limit=limits, stop=limit)
    columns = events.src.tolist(), events.dst.tolist(), events.t.tolist(), [0] * len(events)
    past = list(zip(*columns, strict=True))[:cut]
    rows = zip(pairs.src.tolist(), pairs.dst.tolist(), found[:, 0].tolist(), strict=True)
    for u, v, answer in rows:
        expected = []
        for nodes in ([d for s, d, *_ in past if s == u], [d for _, d, *_ in past]):
            order = latest(nodes, MAX_RANK, 8 * MAX_RANK)
            expected.append(order.index(v) if v in order else MAX_RANK)
        for of in since:
            eids = list(_counted(past, Count(of), u, v, 1, 1, 0))
            expected.append(sum(s == u for s, *_ in past[eids[-1] + 1 :]) if eids else -1)
        for of in within:
            eids = list(_counted(past, Count(of), u, v, 1, 1, 0))
            expected.append(sum(t - past[eid][2] <= width for eid in eids))
        assert answer == expected, (u, v)


def test_events_of_later_keys_than_the_cap_do_not_count() -> None:
    """Each of 64 parts has as many keys as the cap, which count as without one."""
    graph = TemporalGraph.from_events(skewed_events(600, 60))
    asked = [(_core.CountOf.transition, 1, 0.0, _core.Clock.seconds)]
    src, dst = torch.cartesian_prod(torch.arange(60), torch.arange(60)).T.contiguous()
    t = limit = torch.full_like(src, 600)
    none = torch.empty(len(src), 0, dtype=torch.int64)
    found = []
    for cap in (0, 1, 100):
        counts = _core.EventCounts(
            graph.backend.log, asked, [(_core.Op.num, 0, 0, 0, 0.0)], [0], max_keys=cap
        )
        counts.read_upto(600)
        found.append(torch.empty(len(src), 1, 1, dtype=torch.float64))
        counts.answer(src, dst, None, none, t, limit, found[-1])
    nothing, capped, every = (each.flatten() for each in found)
    last = graph.log.read(0, 600)
    after = {int(u): int(v) for u, v in zip(last.src, last.dst, strict=True)}
    keys = {(after[int(u)], int(v)) for u, v in zip(src[capped > 0], dst[capped > 0], strict=True)}
    assert not nothing.any()
    assert 16 < len(keys) <= 64 < int((every > 0).sum())
    assert capped[capped > 0].equal(every[capped > 0])


def test_late_events_count_from_their_position_with_their_own_time() -> None:
    graph = TemporalGraph()
    rows = [(0, 1, 5), (0, 1, 50), (0, 1, 7), (0, 1, 60)]
    for start, stop in ((0, 2), (2, 3), (3, 4)):
        graph.append(graph_events(*rows[start:stop]), allow_late=True)
    history = CountHistory(graph, numbers_of([Count("pair", half_life=10.0)]))
    [[answer]] = answers(history, graph_events((0, 1, 60)), 4)
    assert answer[:2] == [3, 53]  # the log's latest, which is the late one
    assert answer[2] == pytest.approx(sum(2.0 ** -((60 - t) / 10) for t in (5, 50, 7)), rel=1e-12)
    [[late]] = answers(history, graph_events((0, 1, 7)), 2)
    assert late[:2] == [1, 2]  # an event at 7 does not see the one at 50 that the log had then


@pytest.mark.parametrize("visibility", ["event", "batch"])
@pytest.mark.parametrize("kind", ["random", "historical"])
def test_plan_counts_only_visible_events(visibility: Visibility, kind: str) -> None:
    """Includes replayed events, with counts as of their original batch."""
    events = replace(skewed_events(120, 8), t=torch.arange(120) // 4)
    graph = TemporalGraph.from_events(events)
    counts = [Count("pair"), Count("reverse"), Count("dst", half_life=7.0)]
    plan = plan_of(
        graph,
        visibility=visibility,
        counts=numbers_of(counts),
        replay=ExperienceReplay(ratio=0.5),
        negatives=NegativeSampler(**{kind: 2}, since=0),
    )
    batch = plan.batch(0, 9)
    assert len(batch) == 15
    src = torch.cat([batch.src.unsqueeze(1), batch.negative_src], 1).tolist()
    dst = torch.cat([batch.dst.unsqueeze(1), batch.negative_dst], 1).tolist()
    for i, (eid, t) in enumerate(zip(batch.eid.tolist(), batch.t.tolist(), strict=True)):
        limit = eid if visibility == "event" else eid // 10 * 10
        for count, found in zip(counts, batch.counts[i].view(3, 3, 3).unbind(1), strict=True):
            for j in range(3):
                expected = count_events(events, count, src[i][j], dst[i][j], t, limit)
                assert found[j].tolist() == pytest.approx(expected, rel=1e-12)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "minimum": lambda x, y: x if x < y else y,
    "maximum": lambda x, y: x if x > y else y,
    "at_least": np.greater_equal,
    "where": lambda condition, x, y: x if condition != 0 else y,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
}


def value_of(each: Number, known: Mapping[Number, float]) -> float:
    """Return a number of one pair by recursion."""
    if each in known:
        return known[each]
    if each.op == "constant":
        return each.constant
    with np.errstate(all="ignore"):
        return float(OPERATIONS[each.op](*(value_of(part, known) for part in each.args)))


LEAVES = [LOOP, *numbers_of([Count("pair"), Count("dst", half_life=3.0)])]
NUMBERS = st.recursive(
    st.sampled_from(LEAVES) | st.floats(-3, 3).map(lambda x: number(x + 0.0)),  # no -0.0
    lambda inner: st.builds(
        lambda op, *args: Number(op, args[: 3 if op == "where" else 1 + (op in BINARY)]),
        st.sampled_from(sorted(OPERATIONS)),
        inner, inner, inner,
    ),
    max_leaves=12,
)  # fmt: skip
BINARY = {"add", "subtract", "multiply", "divide", "minimum", "maximum", "at_least"}


@settings(max_examples=tries(60), deadline=None)
@given(asked=st.lists(NUMBERS, min_size=1, max_size=4), data=st.data())
def test_numbers_match_their_evaluation_pair_by_pair(asked, data) -> None:
    """On more pairs than a block has, with any number of threads."""
    events = skewed_events(60, 5, seed=data.draw(st.integers(0, 9)))
    graph = TemporalGraph.from_events(events, time_unit="ms")
    pairs = EventBatch.checked(src=events.src, dst=events.dst, t=events.t)
    others = torch.randint(5, (60, 2), generator=torch.Generator().manual_seed(1))
    ask = {"limit": torch.arange(60), "stop": 60}
    found = CountHistory(graph, asked).answer(pairs, None, others, **ask)
    leaves = CountHistory(graph, LEAVES).answer(pairs, None, others, **ask)
    for row, known in zip(found.flatten(0, 1).tolist(), leaves.flatten(0, 1).tolist(), strict=True):
        values = dict(zip(LEAVES, known, strict=True))
        for value, each in zip(row, asked, strict=True):
            assert value == pytest.approx(value_of(each, values), rel=1e-9, abs=1e-300, nan_ok=True)


def test_numbers_have_the_same_bits_with_any_number_of_threads() -> None:
    events = skewed_events(3000, 40, seed=3)
    graph = TemporalGraph.from_events(events)
    pairs = EventBatch.checked(src=events.src, dst=events.dst, t=events.t)
    others = torch.randint(40, (3000, 20), generator=torch.Generator().manual_seed(1))
    history, found = CountHistory(graph, numbers_of_groups(get_args(PairGroup))), []
    before = _core.num_threads()
    for threads in (1, 2, 3):
        _core.set_num_threads(threads)
        found.append(history.answer(pairs, None, others, limit=torch.arange(3000), stop=3000))
    _core.set_num_threads(before)
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])
    alone = [
        history.answer(pairs[i : i + 1], None, others[i : i + 1], limit=torch.tensor([i]), stop=i)
        for i in range(0, 3000, 97)
    ]
    assert torch.cat(alone).equal(found[0][::97])


def test_counts_are_refused_where_events_were_deleted() -> None:
    graph = TemporalGraph.from_events(skewed_events(30, 5))
    plan = plan_of(graph)
    graph.retain(max_count=3)  # drops neighbors, which does not affect counts
    plan.batch(0, 2)
    graph.delete(torch.tensor([3]))
    message = "have been deleted from the graph, and counts of past events count them"
    with pytest.raises(ValueError, match=message):
        plan.batch(0, 2)
    with pytest.raises(ValueError, match=message):
        plan_of(graph)
    plan_of(graph, counts=()).batch(0, 2)
