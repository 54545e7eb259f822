"""The samplers' kernels, run by the emulator, against the plain-Python reference."""

import ctypes
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.effort import cases
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice
from helpers.hubs import SAMPLERS
from helpers.made_store import History, MadeStore
from helpers.sampler_kernels import assert_equal, prepared, sample
from helpers.strategies import TYPES, event_lists, every_query, samplers
from tgflow.cuda import sampling
from tgflow.graph.query import type_bits
from tgflow.sampling import Sampler
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
        expected = reference.sample_neighbors(slow, Sampler.recent(), nodes, t, k, as_of=before)
        assert_equal(sample(kernels, store, nodes, t, k, before, shape=shape), expected)
        expected = reference.sample_neighbors(
            slow, Sampler.uniform(), nodes, t, k, key=77, as_of=before
        )
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
    expected = reference.sample_neighbors(slow, Sampler.recent(), nodes, t, 4, as_of=60)
    assert_equal(sample(kernels, store, nodes, t, 4), expected)
    assert_equal(sample(kernels, store, nodes, t, 4, before=80), expected)


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
        where = ctypes.c_uint64(store.snapshot.data_ptr()), ctypes.c_uint64(0)
        kernels.launch("sample_any", 3, 64, *where, queries, spec, rows)
    else:
        sampling.sample(EmulatedDevice(kernels), store.snapshot.data_ptr(), spec, queries, rows)
    expected = reference.sample_neighbors(slow, sampler, nodes, t, k, key=key, types=types)
    assert_equal(out, expected)


@pytest.mark.parametrize("types", [None, (0, 1)])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.strategy)
def test_params_in_device_memory_count_instead_of_arguments(kernels, sampler, types):
    """Replays of one captured call have other cut-offs, keys and numbers of queries."""
    slow = long_graph(3, 400)
    store = MadeStore(slow.history, slow.size, labels=torch.arange(400) % 3, max_block=30)
    nodes, t, _ = random_queries(slow, 90, seed=1)
    bits = None if types is None else type_bits(types, torch.device("cpu"))
    spec = sampling.sampler_args(sampler.strategy, 1, sampler.span or 1, bits)
    params = torch.zeros(3, dtype=torch.int64)
    address = sampling.params_address(params, params.device)
    gpu = EmulatedDevice(kernels)
    for before, key, size in ((400, 5, 90), (200, 2**63 + 9, 41), (37, 6, 0)):
        params.copy_(torch.tensor([before, key - 2**64 if key >= 2**63 else key, size]))
        queries, rows, out = prepared(nodes, t, 4, before=77)
        sampling.sample(gpu, store.snapshot.data_ptr(), spec, queries, rows, address)
        queries, rows, expected = prepared(nodes, t, 4, before=before)
        spec_then = sampling.sampler_args(sampler.strategy, key, sampler.span or 1, bits)
        nodes_then = torch.where(torch.arange(90) < size, nodes, -1)
        queries.node = nodes_then.data_ptr()
        sampling.sample(gpu, store.snapshot.data_ptr(), spec_then, queries, rows)
        assert_equal(out, expected)


def test_params_are_checked_before_their_address_is_taken():
    cpu = torch.device("cpu")
    for wrong in (torch.zeros(2).long(), torch.zeros(3), torch.zeros(6).long()[::2]):
        with pytest.raises(ValueError, match=r"params must be contiguous int64 \[3\] on cpu, got"):
            sampling.params_address(wrong, cpu)
    with pytest.raises(ValueError, match="on meta"):
        sampling.params_address(torch.zeros(3, dtype=torch.int64, device="meta"), cpu)
