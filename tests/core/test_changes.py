"""A graph that is appended to, corrected, made to forget and moved about, against a naive model."""

import torch
from devices import needs_cuda, on_cpu, opened
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from strategies import samplers

from tgflow.changes import as_tensors, from_tensors, make_again
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.sampling import Sampler, sample_neighbors
from tgflow.testing import reference
from tgflow.testing.changes import ChangingReference

MAX_NODE = 5
nodes = st.integers(0, MAX_NODE)
rows = st.lists(st.tuples(nodes, nodes, st.integers(0, 2)), min_size=1, max_size=30)


class ChangingGraph(RuleBasedStateMachine):
    """On each device one graph in one tier and one in two, and the model."""

    devices = ("cpu", "emulated")

    @initialize(direction=st.sampled_from(["undirected", "directed"]), t=st.integers(-5, 5))
    def start(self, direction, t):
        self.graphs = [
            TemporalGraph(direction, device=opened(device), device_budget=budget)
            for device in self.devices
            for budget in (None, 4096)
        ]
        self.model = ChangingReference(direction)
        self.clock = t

    def everywhere(self, change):
        """Make a change in all graphs, which must give the same answer, and return it."""
        answers = {change(graph) for graph in self.graphs}
        assert len(answers) == 1
        return answers.pop()

    def append_rows(self, rows, t, **how):
        src, dst, steps = torch.tensor(rows).unbind(1)
        label = (src + dst) % 3
        t = t + steps.cumsum(0)
        events = EventBatch(src.contiguous(), dst.contiguous(), t, label=label)
        first = self.everywhere(lambda graph: graph.append(events, **how))
        assert first == self.model.size
        self.model.append(events)
        self.clock = max(self.clock, int(events.t[-1]))

    @rule(rows=rows, repeat=st.sampled_from([1, 1, 8]))
    def append(self, rows, repeat):
        self.append_rows(rows * repeat, self.clock)

    @rule(rows=rows, back=st.integers(0, 12))
    def insert_late(self, rows, back):
        self.append_rows(rows, self.clock - back, insert_late=True)

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
        pairs = {(src, dst)} if self.model.direction == "directed" else {(src, dst), (dst, src)}
        expected = self.model.remove(lambda node, entry: (node, entry.nbr) in pairs)
        assert self.everywhere(lambda graph: graph.delete_pair(src, dst)) == expected

    @rule(node=nodes)
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

    @rule(kilobytes=st.integers(0, 4))
    def move_to_the_lower_tier(self, kilobytes):
        for graph in self.graphs[1::2]:
            graph._native.move_down(kilobytes * 1024)

    @rule(
        seed=st.integers(0, 2**16),
        k=st.sampled_from([1, 3, 20]),
        sampler=samplers(),
        types=st.none() | st.sets(st.integers(0, 2)),
    )
    def sample(self, seed, k, sampler, types):
        generator = torch.Generator().manual_seed(seed)

        def some(low, high):
            return torch.randint(low, high, (40,), generator=generator)

        asked = some(-1, MAX_NODE + 2), some(self.clock - 40, self.clock + 2)
        before = some(0, self.model.size + 2)
        expected = reference.sample_neighbors(
            self.model, sampler, *asked, k, key=seed, before=before, types=types
        )
        for graph in self.graphs:
            *there, limits = (column.to(graph.device) for column in (*asked, before))
            got = on_cpu(
                sample_neighbors(graph, sampler, *there, k, key=seed, before=limits, types=types)
            )
            for name in ("nodes", "t", "eid", "count"):
                assert torch.equal(getattr(got, name), getattr(expected, name)), name

    def teardown(self):
        """The log and the changes make the same graph again, by way of a checkpoint too."""
        if not hasattr(self, "graphs"):
            return
        graph = self.graphs[0]
        again = TemporalGraph(graph.direction)
        changes = from_tensors(*as_tensors(graph.changes))
        make_again(again, graph.log.read(0, len(graph.log)), changes)
        self.graphs = [again]
        self.counts_agree()
        self.sample(seed=1, k=20, sampler=Sampler("uniform"), types=None)

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "graphs"):
            return
        assert {graph.stats().num_entries for graph in self.graphs} == {self.model.num_entries}
        assert {graph.num_events for graph in self.graphs} == {self.model.size}


TestChangingGraph = ChangingGraph.TestCase
TestChangingGraph.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class ChangingCudaGraph(ChangingGraph):
    """On a real GPU."""

    devices = ("cpu", "cuda")


class TestChangingCudaGraph(ChangingCudaGraph.TestCase):
    pytestmark = needs_cuda
    settings = TestChangingGraph.settings
