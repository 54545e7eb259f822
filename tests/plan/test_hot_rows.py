"""Hot rows: which ones are computed before their super-batch, and that plans stay pure."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.made_plans import plan_of
from helpers.made_streams import made_events
from helpers.reused import asked_of, batches_of, reusing
from tgflow.graph import TemporalGraph
from tgflow.plan.reuse import AskedRows, recurring_rows
from tgflow.sampling.expand import Frontier, expand
from tgflow.sampling.rows import sample_neighbors

HOW = {"strategy": "recent", "with_memory": False, "counts": ()}
STALENESS, SIZE = 8, 4


def recent_plan(events=None, **changes):
    graph = TemporalGraph.from_events(made_events(300) if events is None else events)
    return plan_of(graph, **HOW | changes)


@settings(max_examples=tries(200), deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(-(2**60), -(2**60) + 3)), unique=True),
        min_size=1,
        max_size=4,
    )
)
def test_recurring_rows_are_those_of_a_reference(batches):
    def columns(number, rows):
        nodes, t = torch.tensor(rows, dtype=torch.int64).view(-1, 2).unbind(1)
        return AskedRows(nodes, t, torch.full_like(t, number))

    found = recurring_rows([columns(number, rows) for number, rows in enumerate(batches)])
    count = Counter(row for rows in batches for row in rows)
    first = {}
    for number, rows in enumerate(batches):
        for row in rows:
            first.setdefault(row, number)
    expected = sorted((row for row in first if count[row] > 1), key=lambda row: -count[row])
    assert list(zip(*(x.tolist() for x in found[:2]), strict=True)) == expected
    assert found.position.tolist() == [first[row] for row in expected]


def rows_of(block, at):
    """What a row is made of: the events of its neighbors, and how long ago they were."""
    return block.eid[at].tolist(), block.dt[at].tolist()


def made_of(plan, hot):
    """What hot rows are made of."""
    found = sample_neighbors(plan.graph, plan.sampler, hot.nodes, hot.t, hot.k, as_of=hot.position)
    targets = Frontier(hot.nodes, hot.t)
    block, _ = expand(targets, found, plan.graph.seconds_per_tick, None, by_time=False)
    return block


class Ring:
    """What the slots hold, by a dict; checks what batches take, and what is handed over."""

    def __init__(self, plan):
        self.plan = plan
        self.slots = {}
        self.hot = None
        self.num_taken = Counter()

    def check(self, batch):
        number, whole = batch.index, self.plan.batch(batch.epoch, batch.index)
        lower, record = batch.blocks[1], batch.blocks[1].reused.record
        if self.hot is not None and number == self.hot.due:
            self._put(self.hot)
        if record.hot is not None:
            assert number % SIZE == 0
            assert (record.hot.number, record.hot.due) == (number, number + SIZE)
            self.hot = record.hot
        asked = asked_of(self.plan, number, batch.epoch)
        taken = lower.reused.slot.tolist()
        for slot in taken:
            made, query, content = self.slots[slot]
            assert 0 < number - made <= STALENESS
            assert content == rows_of(whole.blocks[1], asked.index(query))
            self.num_taken[query, made] += 1
        for i, slot in enumerate(lower.reused.stored.tolist()):
            query = (int(record.nodes[i]), int(record.t[i]))
            self.slots[slot] = (number, query, rows_of(lower, i))

    def _put(self, hot):
        block = made_of(self.plan, hot)
        queries = zip(hot.nodes.tolist(), hot.t.tolist(), strict=True)
        for i, (slot, query) in enumerate(zip(hot.slots.tolist(), queries, strict=True)):
            self.slots[slot] = (hot.number, query, rows_of(block, i))


@settings(max_examples=tries(40, 3), deadline=None)
@given(
    visibility=st.sampled_from(["event", "batch"]),
    noise=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
    capacity=st.sampled_from([20, 100_000]),
)
def test_rows_that_are_taken_are_what_they_are_computed_as(visibility, noise, seed, capacity):
    events = made_events(160, noise=noise, seed=seed)
    plan = recent_plan(events, visibility=visibility, batch_size=12)
    ring = Ring(plan)
    for batch in batches_of(reusing(plan, STALENESS, 0.2, capacity, super_batch=SIZE)):
        ring.check(batch)
    assert ring.num_taken.total() > 0
