"""A graph under appends, late events, deletions and compaction, against a naive model."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.devices import needs_cuda, on_cpu, opened
from helpers.effort import tries
from helpers.strategies import graph_events, samplers, skewed_events
from tgflow.graph import TemporalGraph, rebuild
from tgflow.graph.events import EventBatch, empty_events
from tgflow.graph.mutations import from_tensors, to_tensors
from tgflow.graph.sampling import Sampler, sample_neighbors
from tgflow.testing import reference
from tgflow.testing.reference import ReferenceGraph


@dataclass
class Entry:
    """A neighbor, and the cutoffs that see it: `seen_from <= before < gone_from`."""

    t: int
    eid: int
    nbr: int
    seen_from: int
    gone_from: int | None = None

    def is_seen(self, t, before):
        """Whether a query at `t` with cutoff `before` sees it."""
        gone = self.gone_from is not None and before >= self.gone_from
        return self.t < t and before >= self.seen_from and not gone


class ChangingReference(ReferenceGraph):
    """Reference of `TemporalGraph`; every entry has its own history."""

    def __init__(self, direction):
        super().__init__(empty_events(), direction)
        self.direction = direction
        self.events = []
        self.relations = []
        self.t_last = None
        self.entries = {}
        self.blind_below = {}
        """Cutoff per node below which history was discarded."""
        self.late_until = {}

    def append(self, events):
        """Add events, late or not, as one batch."""
        rows = list(zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True))
        end = self.size + len(rows)
        late = bool(rows) and self.t_last is not None and rows[0][2] < self.t_last
        for eid, (src, dst, t) in enumerate(rows, start=self.size):
            ends = [(src, dst)]
            if self.direction != "directed" and src != dst:
                ends.append((dst, src))
            for node, nbr in ends:
                entry = Entry(t, eid, nbr, seen_from=end if late else eid + 1)
                self.entries.setdefault(node, []).append(entry)
                if late:
                    self.late_until[node] = end
        self.events += rows
        self.relations += [0] * len(rows) if events.relation is None else events.relation.tolist()
        self.size = end
        if rows:
            self.t_last = max(rows[-1][2], rows[-1][2] if self.t_last is None else self.t_last)

    def seen(self, node, t, before):
        """As `ReferenceGraph.seen`."""
        before = min(before, self.size)
        if before < self.blind_below.get(node, 0):
            return []
        entries = self.entries.get(node, [])
        return sorted((e.t, e.eid, e.nbr) for e in entries if e.is_seen(t, before))

    def remove(self, is_gone):
        """Remove entries for which `is_gone(node, entry)` is true; return their number."""
        gone = [
            entry
            for node, entries in self.entries.items()
            for entry in entries
            if entry.gone_from is None and is_gone(node, entry)
        ]
        for entry in gone:
            entry.gone_from = self.size
        return len(gone)

    def keep_latest(self, max_count):
        """Remove each node's oldest entries until it has `max_count`."""
        kept = {}
        for node, entries in self.entries.items():
            now = sorted((e.t, e.eid) for e in entries if e.gone_from is None)
            kept[node] = {eid for _, eid in now[max(0, len(now) - max_count) :]}
        return self.remove(lambda node, entry: entry.eid not in kept[node])

    def compact(self):
        """Discard removed entries, and history before late merges."""
        for node, entries in self.entries.items():
            entries[:] = [entry for entry in entries if entry.gone_from is None]
            if not entries:
                self.blind_below.pop(node, None)
                self.late_until.pop(node, None)
            elif node in self.late_until:
                self.blind_below[node] = self.late_until[node]

    @property
    def num_entries(self):
        """Current entries."""
        return sum(e.gone_from is None for entries in self.entries.values() for e in entries)


MAX_NODE = 5
nodes = st.integers(0, MAX_NODE)
rows = st.lists(st.tuples(nodes, nodes, st.integers(0, 2)), min_size=1, max_size=30)


class ChangingGraph(RuleBasedStateMachine):
    """Graphs in one and two tiers on each device and in files, and the reference."""

    devices = ("cpu", "apart")

    @initialize(
        direction=st.sampled_from(["undirected", "directed", "bipartite"]), t=st.integers(-5, 5)
    )
    def start(self, direction, t):
        self.graphs = [
            TemporalGraph(direction, device=opened(device), device_budget=budget)
            for device in self.devices
            for budget in (None, 4096)
        ]
        self.graphs.append(TemporalGraph(direction, device_budget=4096, table="disk"))
        self.model = ChangingReference(direction)
        self.clock = t
        self.dst_from = MAX_NODE + 1 if direction == "bipartite" else 0

    def everywhere(self, change):
        """Apply a change to all graphs, assert equal results, and return the result."""
        answers = {change(graph) for graph in self.graphs}
        assert len(answers) == 1
        return answers.pop()

    def append_rows(self, rows, t, **how):
        src, dst, steps = torch.tensor(rows).unbind(1)
        dst = dst + self.dst_from
        relation = (src + dst) % 3
        t = t + steps.cumsum(0)
        events = EventBatch(src.contiguous(), dst.contiguous(), t, relation=relation)
        first = self.everywhere(lambda graph: graph.append(events, **how))
        assert first == self.model.size
        self.model.append(events)
        self.clock = max(self.clock, int(events.t[-1]))

    @rule(rows=rows, repeat=st.sampled_from([1, 1, 8]))
    def append(self, rows, repeat):
        self.append_rows(rows * repeat, self.clock)

    @rule(rows=rows, back=st.integers(0, 12))
    def allow_late(self, rows, back):
        self.append_rows(rows, self.clock - back, allow_late=True)

    @rule(seed=st.integers(0, 2**16), size=st.integers(1, 6))
    def delete(self, seed, size):
        generator = torch.Generator().manual_seed(seed)
        if self.model.size == 0:
            return
        eid = torch.randint(0, self.model.size, (size,), generator=generator)
        gone = set(eid.tolist())
        expected = self.model.remove(lambda node, entry: entry.eid in gone)
        assert self.everywhere(lambda graph: graph.delete(eid)) == expected

    @rule(src=nodes, dst=nodes)
    def delete_pair(self, src, dst):
        dst += self.dst_from
        pairs = {(src, dst)} if self.model.direction == "directed" else {(src, dst), (dst, src)}
        expected = self.model.remove(lambda node, entry: (node, entry.nbr) in pairs)
        assert self.everywhere(lambda graph: graph.delete_pair(src, dst)) == expected

    @rule(node=st.integers(0, 2 * MAX_NODE + 1))
    def delete_node(self, node):
        expected = self.model.remove(lambda v, entry: node in (v, entry.nbr))
        assert self.everywhere(lambda graph: graph.delete_node(node)) == expected

    @rule(max_age=st.integers(0, 30))
    def retain_by_age(self, max_age):
        t_last = self.model.t_last
        expected = 0
        if t_last is not None:
            expected = self.model.remove(lambda node, entry: entry.t < t_last - max_age)
        assert self.everywhere(lambda graph: graph.retain(max_age=max_age)) == expected

    @rule(max_count=st.integers(0, 60))
    def retain_by_count(self, max_count):
        expected = self.model.keep_latest(max_count)
        assert self.everywhere(lambda graph: graph.retain(max_count=max_count)) == expected

    @rule()
    def compact(self):
        self.everywhere(lambda graph: graph.compact())
        self.model.compact()

    @rule(
        seed=st.integers(0, 2**16),
        k=st.sampled_from([1, 3, 20]),
        sampler=samplers(),
        relations=st.none() | st.sets(st.integers(0, 2)),
    )
    def sample(self, seed, k, sampler, relations):
        generator = torch.Generator().manual_seed(seed)

        def some(low, high):
            return torch.randint(low, high, (40,), generator=generator)

        asked = some(-1, MAX_NODE + 2 + self.dst_from), some(self.clock - 40, self.clock + 2)
        before = some(0, self.model.size + 2)
        expected = reference.sample_neighbors(
            self.model, sampler, *asked, k, key=seed, as_of=before, relations=relations
        )
        for graph in self.graphs:
            *there, limits = (column.to(graph.device) for column in (*asked, before))
            got = on_cpu(
                sample_neighbors(
                    graph, sampler, *there, k, key=seed, as_of=limits, relations=relations
                )
            )
            for name in ("nodes", "t", "eid", "count"):
                assert torch.equal(getattr(got, name), getattr(expected, name)), name

    def teardown(self):
        """The log and the mutations rebuild the same graph, also through a checkpoint."""
        if not hasattr(self, "graphs"):
            return
        graph = self.graphs[0]
        again = TemporalGraph(graph.direction)
        changes = from_tensors(*to_tensors(graph.mutations))
        rebuild(again, [graph.log.read(0, len(graph.log))], changes)
        self.graphs = [again]
        self.counts_agree()
        self.sample(seed=1, k=20, sampler=Sampler.uniform(), relations=None)

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "graphs"):
            return
        assert {graph.stats().num_entries for graph in self.graphs} == {self.model.num_entries}
        assert {graph.num_events for graph in self.graphs} == {self.model.size}


TestChangingGraph = ChangingGraph.TestCase
TestChangingGraph.settings = settings(
    max_examples=tries(60, 10), stateful_step_count=40, deadline=None
)


class ChangingCudaGraph(ChangingGraph):
    """On a real GPU."""

    devices = ("cpu", "cuda")


class TestChangingCudaGraph(ChangingCudaGraph.TestCase):
    pytestmark = needs_cuda
    settings = TestChangingGraph.settings


def cycles(graph, events, number, **limits):
    """Append `events` in so many parts, and apply retention after each."""
    for rows in torch.arange(len(events)).tensor_split(number):
        graph.append(events[rows])
        graph.retain(**limits)
        graph.compact()


@pytest.mark.parametrize(
    "limits", [{"max_age": 90}, {"max_count": 7}, {"max_age": 120, "max_count": 9}]
)
def test_repeated_retention_leaves_a_short_mutation_record(limits):
    events = skewed_events(2_000, 40)
    graph = TemporalGraph()
    cycles(graph, events[:1_000], 50, **limits)
    graph.delete(torch.tensor([990, 995]))
    cycles(graph, events[1_000:], 50, **limits)
    kinds = [change.kind for change in graph.mutations]
    assert kinds == ["retain", "compact"] * 2 + ["delete"] + ["retain", "compact"] * 2
    again = TemporalGraph()
    rebuild(again, [graph.log.read(0, len(graph.log))], graph.mutations)
    assert again.stats().num_entries == graph.stats().num_entries
    nodes = torch.arange(40)
    for t, before in ((2_000, 2_000), (2_000, 1_985), (1_990, 1_500), (950, 2_000)):
        asked = nodes, torch.full_like(nodes, t), 100
        mine, yours = (
            sample_neighbors(each, Sampler.recent(), *asked, as_of=before)
            for each in (graph, again)
        )
        assert torch.equal(mine.eid, yours.eid)


def test_last_change_is_the_same_object_until_the_next():
    graph = TemporalGraph.from_events(graph_events((0, 1, 5), (1, 2, 9)))
    assert graph.last_change is None
    graph.append(graph_events((0, 2, 9)))
    assert graph.last_change is None
    graph.append(graph_events((0, 3, 6), (0, 3, 7)), allow_late=True)
    late = graph.last_change
    assert late is not None
    assert (late.kind, late.position, late.stop) == ("append_late", 3, 5)
    graph.append(graph_events((0, 1, 10)))
    assert graph.last_change is late
    for _ in range(4):  # the record of equal cycles is cut short, the last change is another
        before = graph.last_change
        graph.retain(max_count=1)
        graph.compact()
        assert graph.last_change is graph.mutations[-1] is not before
    assert graph.last_change.stop == 6
