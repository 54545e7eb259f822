"""Made plans and batches, their variants, and the reference they are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from tgflow import Batch, EventBatch, Plan, TemporalGraph
from tgflow.base.choices import CountOf
from tgflow.graph.batch import Block, HostEvents, ReuseRecord
from tgflow.graph.counts import Count, number
from tgflow.graph.tables import FeatureTable
from tgflow.plan import ExperienceReplay, NegativeSampler
from tgflow.plan.padding import cut, paddings, shape_of


@dataclass(frozen=True)
class PlanSpec:
    """The part of a plan that decides neighborhoods, for an undirected graph and `recent`."""

    batch_size: int
    fanouts: Sequence[int]
    visibility: str
    with_memory: bool
    start: int = 0
    seconds_per_tick: float = 1.0
    with_nodes: bool = True


class Distinct:
    """Values in order of first appearance."""

    def __init__(self):
        self.rows = {}

    def add(self, value):
        """Return the row of `value`."""
        return self.rows.setdefault(value, len(self.rows))


def recent(events, node, t, k, before):
    """Return the latest `k` of `(neighbor, t, eid)` with `t_nbr < t` and `eid < before`."""
    found = []
    for eid, (src, dst, when) in enumerate(_rows(events)):
        if when < t and eid < before and node in (src, dst):
            found.append((dst if node == src else src, when, eid))
    return found[::-1][:k]


def batch_starts(spec, eids):
    """Return the log position at which the batch of each event started."""
    size = spec.batch_size
    return [max(0, spec.start + (eid - spec.start) // size * size) for eid in eids]


def expected_rows(events, batch, spec):
    """Return the expected contents of `batch` for its events and negatives, as nested lists."""
    frontier = Distinct()
    starts = batch_starts(spec, batch.eid.tolist())
    if not spec.with_nodes:
        none = ("src_row", "dst_row", "negative_dst_row", "negative_src_row", "blocks", "nodes")
        return {**{name: [] for name in none}, "position": starts}
    if spec.visibility == "event" and not spec.with_memory:
        starts = [batch.index * spec.batch_size + spec.start] * len(batch)
    times = batch.t.tolist() if spec.fanouts else [0] * len(batch)

    def rows_of(nodes):
        return [
            [frontier.add((node, t, start)) for node in row]
            for row, t, start in zip(nodes, times, starts, strict=True)
        ]

    expected = {
        "src_row": [row for (row,) in rows_of(batch.src.unsqueeze(1).tolist())],
        "dst_row": [row for (row,) in rows_of(batch.dst.unsqueeze(1).tolist())],
        "negative_dst_row": rows_of(batch.negative_dst.tolist()),
        "negative_src_row": rows_of(batch.negative_src.tolist()),
        "blocks": [],
    }
    queries = list(frontier.rows)
    edges = Distinct() if events.x is not None else None
    if edges is not None:
        edges.add(-1)
    num_new = batch.num_new if batch.slice is None else batch.slice.num_new
    end = batch.index * spec.batch_size + spec.start + num_new
    for hop, k in enumerate(spec.fanouts):
        lowest = hop + 1 == len(spec.fanouts)
        block, queries = _expected_block(
            events, queries, k=k, end=end, edges=edges, spec=spec, lowest=lowest
        )
        expected["blocks"].append(block)
    expected["nodes"] = [query[0] for query in queries]
    begin = batch.index * spec.batch_size + spec.start
    expected["position"] = [query[2] if spec.with_memory else begin for query in queries]
    return expected


def _expected_block(events, queries, *, k, end, edges, spec, lowest):
    below = Distinct()

    def row_of(node, t, start):
        return below.add((node, 0 if lowest else t, start if spec.with_memory or not lowest else 0))

    block = {"target": [row_of(*query) for query in queries]}
    for name in ("neighbor", "mask", "dt", "eid", "edge_row"):
        block[name] = []
    if edges is None:  # and no features to find rows in
        block["edge_row"] = None
    for node, t, start in queries:
        found = recent(events, node, t, k, start if spec.visibility == "batch" else end)
        missing = k - len(found)
        block["neighbor"].append([row_of(n, when, start) for n, when, _ in found] + [0] * missing)
        block["mask"].append([True] * len(found) + [False] * missing)
        dt = [_float32((t - when) * spec.seconds_per_tick) for _, when, _ in found]
        block["dt"].append(dt + [0.0] * missing)
        block["eid"].append([eid for _, _, eid in found] + [-1] * missing)
        if edges is not None:
            rows = [edges.add(eid) for _, _, eid in found]
            block["edge_row"].append(rows + [0] * missing)
    return block, list(below.rows)


def assert_batch_rows(batch, expected):
    """Fail unless `batch` equals `expected_rows`."""
    for name, value in expected.items():
        if name == "blocks":
            assert len(batch.blocks) == len(value)
            for block, fields in zip(batch.blocks, value, strict=True):
                for field, rows in fields.items():
                    column = getattr(block, field)
                    assert (column if column is None else column.tolist()) == rows, field
        else:
            assert getattr(batch, name).tolist() == value, name


def assert_same_batch(a, b):
    """Fail unless every field of `a` and `b` is equal, bit for bit."""
    for name in Batch.__dataclass_fields__:
        if name not in ("blocks", "host", "slice", "lent"):
            _assert_same(name, getattr(a, name), getattr(b, name))
    assert_same_events(a.host, b.host)
    assert (a.slice is None) == (b.slice is None)
    if a.slice is not None and b.slice is not None:
        for name in ("number", "num_slices", "num_new", "num_fallbacks"):
            _assert_same(f"slice.{name}", getattr(a.slice, name), getattr(b.slice, name))
        assert_same_events(a.slice.host, b.slice.host)
    assert len(a.blocks) == len(b.blocks)
    for block_a, block_b in zip(a.blocks, b.blocks, strict=True):
        for name in Block.__dataclass_fields__:
            if name != "reused":
                _assert_same(name, getattr(block_a, name), getattr(block_b, name))
        assert_same_reuse(block_a.reused, block_b.reused)


def assert_same_reuse(a, b):
    """Fail unless the same rows are taken from the same places, and stored in the same."""
    assert (a is None) == (b is None)
    if a is None or b is None:
        return
    for name in ("slot", "stored", "weight"):
        _assert_same(name, getattr(a, name), getattr(b, name))
    for name in ReuseRecord.__dataclass_fields__:
        _assert_same(f"record.{name}", getattr(a.record, name), getattr(b.record, name))


def assert_same_events(a, b):
    """Fail unless every field of `a` and `b` is equal."""
    for name in HostEvents.__dataclass_fields__:
        _assert_same(f"host.{name}", getattr(a, name), getattr(b, name))


def _assert_same(name, a, b):
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert same, f"{name} differs: {a} and {b}"


def _float32(value):
    return torch.tensor(value, dtype=torch.float32).item()


def _rows(events):
    return list(zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True))


def plan_of(graph, **changes):
    """Batches of ten events with two uniform hops; `changes` replace arguments."""
    arguments = {
        "seed": 7,
        "batch_size": 10,
        "fanouts": (3, 2),
        "strategy": "uniform",
        "visibility": "event",
        "negatives": NegativeSampler(random=1),
        "with_memory": True,
        "counts": (Count("pair").age, Count("dst", half_life=30.0).decayed),
    }
    return Plan(graph, **(arguments | changes))


UNIX_NANOSECONDS = 1_600_000_000_000_000_000


def tied_events(size, num_nodes=30, x_dim=3, seed=0):
    """Events with ties, self-loops and repeated pairs."""
    g = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(num_nodes, (2, size), generator=g).unbind(0)
    t = UNIX_NANOSECONDS + torch.randint(3, (size,), generator=g).cumsum(0)
    x = torch.randn(size, x_dim, generator=g) if x_dim else None
    return EventBatch(src.contiguous(), dst.contiguous(), t, x)


def recent_plan(graph, **changes):
    """Batches of ten events with one hop of recent neighbors."""
    return plan_of(graph, **{"fanouts": (3,), "strategy": "recent", "counts": ()} | changes)


VARIANTS = [
    {},
    {"visibility": "batch", "replay": ExperienceReplay(0.7, 60, 20.0)},
    {"fanouts": (3, 2), "strategy": "uniform", "with_memory": False},
    {
        "fanouts": (2, 2),
        "strategy": "uniform",
        "replay": ExperienceReplay(1.3, 40, 10.0),
        "negatives": NegativeSampler(historical=2),
        "visibility": "batch",
    },
    {"start": 13, "negatives": NegativeSampler(inductive=3, since=20)},
    {"negatives": NegativeSampler(random=4, every=3)},
    {"negatives": NegativeSampler(historical=2, every=4), "visibility": "batch"},
    {"negatives": NegativeSampler(3, 2, 2), "replay": ExperienceReplay(0.7, 60, 20.0)},
    {"negatives": NegativeSampler(2, 3), "visibility": "batch", "fanouts": (), "with_nodes": False},
]
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@st.composite
def plans(draw):
    size = draw(st.integers(1, 40))
    node = st.integers(0, 6)
    src, dst = (draw(st.lists(node, min_size=size, max_size=size)) for _ in "ab")
    dst[0] = (src[0] + 1) % 7  # one node alone has no negative
    steps = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    first = draw(st.sampled_from([0, -5, UNIX_NANOSECONDS]))
    t = first + torch.tensor(steps, dtype=torch.int64).cumsum(0)
    x = torch.arange(2.0 * size).reshape(size, 2) + 1 if draw(st.booleans()) else None
    kind = draw(st.sampled_from(["random", "historical"]))
    changes = {
        "batch_size": draw(st.integers(1, 12)),
        "fanouts": draw(st.sampled_from([(), (2,), (3, 2), (1, 2, 2)])),
        "visibility": draw(st.sampled_from(["event", "batch"])),
        "with_memory": draw(st.booleans()),
        "negatives": NegativeSampler(**{kind: draw(st.integers(1, 2))}),
        "replay": draw(
            st.sampled_from([None, ExperienceReplay(0.6, 20, 5.0), ExperienceReplay(2.0, 4)])
        ),
        "start": draw(st.integers(0, size - 1)),
    }
    changes["with_nodes"] = bool(changes["fanouts"]) or draw(st.booleans())
    return EventBatch(torch.tensor(src), torch.tensor(dst), t, x), changes


def spec_of(plan):
    draws = plan.draws
    return PlanSpec(
        draws.batch_size, draws.fanouts, draws.visibility, draws.with_memory, draws.start,
        draws.graph.seconds_per_tick, draws.with_nodes,
    )  # fmt: skip


def made_batch(events, index, batch_size, fanouts, *, node_x=None):
    """Return batch `index` of a stream, with recent neighbors as of the batch's start."""
    table = None if node_x is None else FeatureTable.from_tensor(node_x)
    graph = TemporalGraph.from_events(events, node_x=table)
    plan = Plan(
        graph,
        seed=0,
        batch_size=batch_size,
        fanouts=fanouts,
        strategy="recent",
        visibility="batch",
        negatives=NegativeSampler(random=1),
        with_memory=True,
    )
    return plan.batch(0, index)


def pad(batch, shape):
    """Return `batch` padded to `shape`; existing rows are unchanged."""
    found = paddings(batch, shape)

    def longer(column):
        if id(column) not in found:
            return column
        rows, fill = found[id(column)]
        rest = column.new_full((rows - len(column), *column.shape[1:]), fill)
        return torch.cat([column, rest])

    return batch.map(longer)


def assert_same_but_for_padding(padded, exact):
    """Fail unless `padded` is `exact` followed by padding, as `Batch` describes."""
    there, shape = padded.to("cpu"), shape_of(exact)
    assert_same_batch(cut(there, shape), exact)
    size = shape.nodes
    assert not there.nodes[size:].any()
    assert (there.position[size:] == exact.host.begin).all()
    assert there.node_x is None or not there.node_x[size:].any()
    for block, rows in zip(there.blocks, shape.targets, strict=True):
        assert not block.mask[rows:].any()
        assert (block.eid[rows:] == -1).all()
        for column in (block.target, block.neighbor, block.dt, block.edge_row):
            assert column is None or not column[rows:].any()


def assert_on(device, batch):
    """Fail unless all tensors of a batch are on `device`, and its `host` is on the CPU."""
    parts = (batch, *batch.blocks)
    names = [(part, name) for part in parts for name in type(part).__dataclass_fields__]
    for part, name in names:
        column = getattr(part, name)
        assert not isinstance(column, Tensor) or column.device == device, name
    assert batch.host.eid.is_cpu


KINDS = get_args(CountOf)
OF_SOURCE = ("pair", "src", "src_new", "src_switch", "own_transition")
EVERY_LIST = [
    *(Count(of) for of in KINDS),
    *(Count(of, half_life=3.0) for of in KINDS),
    *(Count(of, half_life=2.0, clock="events") for of in KINDS),
    *(Count(of, half_life=2.0, clock="source") for of in OF_SOURCE),
    *(Count(of, depth=3) for of in ("transition", "transition_row", "window", "window_row")),
    *(Count("covisit", depth=depth) for depth in (2, 3)),
    Count("pair", half_life=0.5),
]


def numbers_of(counts):
    """Return num, age and decayed of each count, 0 without decay."""
    decayed = (number(0) if each.half_life is None else each.decayed for each in counts)
    rows = zip(counts, decayed, strict=True)
    return [part for each, total in rows for part in (each.num, each.age, total)]
