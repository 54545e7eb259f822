"""The samplers' kernels, run by the emulator, against the plain-Python reference."""

import ctypes
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.effort import cases
from helpers.emulator import Emulator
from helpers.made_store import History, MadeStore
from helpers.sampler_kernels import assert_equal, prepared, sample
from helpers.strategies import TYPES, event_lists, every_query, samplers
from tgflow.cuda import sampling, structs
from tgflow.cuda.structs import NeighborRows, QueryArgs
from tgflow.graph.query import type_bits
from tgflow.testing import reference


@pytest.fixture(scope="module")
def kernels() -> Emulator:
    return Emulator()


def long_graph(seed: int, size: int, num_nodes: int = 12) -> reference.ReferenceGraph:
    """One hub that is in every event, and some others; many equal times."""
    chosen = random.Random(seed)
    graph = reference.ReferenceGraph.__new__(reference.ReferenceGraph)
    graph.size, graph.history = size, {}
    t = -5
    for eid in range(size):
        t += chosen.random() < 0.4
        src, dst = 0, chosen.randint(1, num_nodes)
        graph.history.setdefault(src, []).append((t, eid, dst))
        graph.history.setdefault(dst, []).append((t, eid, src))
    return graph


def random_queries(graph, num_queries: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    last = graph.history[0][-1][0]
    nodes = torch.randint(-1, 15, (num_queries,), generator=generator)
    nodes[::2] = 0  # the hub
    t = torch.randint(-7, last + 3, (num_queries,), generator=generator)
    before = torch.randint(-1, graph.size + 5, (num_queries,), generator=generator)
    return nodes, t, before


@given(
    events=event_lists(),
    k=st.integers(1, 5),
    key=st.none() | st.integers(0, 2**64 - 1),
    seed=st.integers(0, 9),
)
def test_kernels_match_the_reference(kernels, events, k, key, seed):
    slow = reference.ReferenceGraph(events)
    store = MadeStore(slow.history, slow.size, max_block=3, seed=seed)
    nodes, t = every_query(events)
    kernels.order = seed
    expected = (
        reference.recent_neighbors(slow, nodes, t, k)
        if key is None
        else reference.uniform_neighbors(slow, nodes, t, k, key=key)
    )
    assert_equal(sample(kernels, store, nodes, t, k, key=key), expected)


@pytest.mark.parametrize("order", cases([0, 1, 5], [5]))
@pytest.mark.parametrize("size", cases([1, 9, 700, 5000], [9, 700]))
@pytest.mark.parametrize("k", cases([1, 7, 8, 10, 16, 17, 40, 200], [1, 8, 17, 40]))
def test_any_k_and_any_number_of_queries(kernels, k, size, order):
    """Fewer and more slots than lanes; queries that fill no tile, one warp, or several rounds."""
    slow = long_graph(size, size)
    store = MadeStore(slow.history, slow.size, max_block=300, seed=order)
    kernels.order = order
    for num_queries, shape in ((1, (1, 256)), (13, (2, 32)), (100, (3, 64))):
        nodes, t, before = random_queries(slow, num_queries, seed=k)
        expected = reference.recent_neighbors(slow, nodes, t, k, before)
        assert_equal(sample(kernels, store, nodes, t, k, before, shape=shape), expected)
        expected = reference.uniform_neighbors(slow, nodes, t, k, key=77, as_of=before)
        assert_equal(sample(kernels, store, nodes, t, k, before, key=77, shape=shape), expected)


@pytest.mark.parametrize("max_block", [1, 2, 8, 9, 81, 82, 3000])
def test_searches_of_any_width_find_every_cut(kernels, max_block):
    """All cuts of a history of one entry a tick, through directories and blocks of every size."""
    size = 1000
    history: History = [(eid, eid, 1) for eid in range(size)]
    store = MadeStore({0: history}, size, max_block=max_block, seed=max_block)
    t = torch.arange(-1, size + 1)
    got = sample(kernels, store, torch.zeros_like(t), t, 1)
    assert got.eid[:, 0].tolist() == [-1, -1, *range(size)]
    everything = torch.full_like(t, size)
    got = sample(kernels, store, torch.zeros_like(t), everything, 1, before=t)
    assert got.eid[:, 0].tolist() == [-1, -1, *range(size)]


def test_draws_that_collide_give_way_as_floyd_says(kernels):
    """With k of k + 1 entries nearly every draw meets an earlier one."""
    for k in (7, 16, 40):
        slow = long_graph(k, k + 1)
        store = MadeStore(slow.history, slow.size)
        nodes, t = torch.zeros(300, dtype=torch.int64), torch.full((300,), 10**6)
        expected = reference.uniform_neighbors(slow, nodes, t, k, key=3)
        assert_equal(sample(kernels, store, nodes, t, k, key=3), expected)


@pytest.mark.parametrize("key", [None, 5])
def test_cut_offs_read_the_version_of_their_time(kernels, key):
    old: History = [(t, t, 1) for t in range(30)]
    new = [entry for entry in old if entry[1] % 3]
    store = MadeStore({0: new, 1: []}, 40, {0: (35, old)}, max_block=4)
    nodes, t = torch.zeros(2, dtype=torch.int64), torch.full((2,), 100)
    got = sample(kernels, store, nodes, t, 50, before=torch.tensor([34, 35]), key=key)
    assert got.eid[0].tolist() == [*range(29, -1, -1), *[-1] * 20]
    assert got.eid[1, :20].tolist() == [eid for eid in range(29, -1, -1) if eid % 3]
    assert got.count.tolist() == [30, 20]


def test_without_a_cut_off_the_published_position_counts(kernels):
    slow = long_graph(0, 100)
    store = MadeStore(slow.history, 60)
    nodes, t = torch.zeros(5, dtype=torch.int64), torch.full((5,), 10**6)
    expected = reference.recent_neighbors(slow, nodes, t, 4, 60)
    assert_equal(sample(kernels, store, nodes, t, 4), expected)
    assert_equal(sample(kernels, store, nodes, t, 4, before=80), expected)


def test_an_empty_graph_has_no_neighbors(kernels):
    store = MadeStore({}, 0)
    nodes, t = torch.tensor([-1, 0, 2**40]), torch.zeros(3, dtype=torch.int64)
    for key in (None, 1):
        got = sample(kernels, store, nodes, t, 2, key=key)
        assert got.nodes.tolist() == [[-1, -1]] * 3
        assert got.count.tolist() == [0, 0, 0]


@given(
    events=event_lists(labels=True),
    sampler=samplers(),
    types=st.none() | st.sets(st.sampled_from(TYPES)),
    k=st.integers(1, 5),
    key=st.integers(0, 2**64 - 1),
    in_one_thread=st.booleans(),
    order=st.integers(0, 5),
)
def test_every_sampler_matches_the_reference(
    kernels, events, sampler, types, k, key, in_one_thread, order
):
    """By the kernel that is chosen for it, and by the one that can do all."""
    slow = reference.ReferenceGraph(events)
    store = MadeStore(slow.history, len(events), labels=events.label, max_block=4, seed=order)
    nodes, t = every_query(events)
    bits = None if types is None else type_bits(tuple(types), torch.device("cpu"))
    spec = sampling.sampler_args(sampler.strategy, key, sampler.span or 1, bits)
    queries, rows, out = prepared(nodes, t, k)
    kernels.order = order
    if in_one_thread:
        snapshot = ctypes.c_uint64(store.snapshot.data_ptr())
        kernels.launch("sample_any", 3, 64, snapshot, queries, spec, rows)
    else:
        sampling.sample(kernels, store.snapshot.data_ptr(), spec, queries, rows)
    expected = reference.sample_neighbors(slow, sampler, nodes, t, k, key=key, types=types)
    assert_equal(out, expected)


def test_no_queries_launch_nothing(kernels):
    kernels.launches.clear()
    sampling.sample(kernels, 0, structs.SamplerArgs(), QueryArgs(), NeighborRows())
    assert kernels.launches == []
