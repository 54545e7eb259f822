"""Sampler kernels beyond `tests/graph/test_mutations.py`: any k, and replays."""

import pytest
import torch

from helpers.effort import IS_QUICK, cases
from helpers.emulator.device import EmulatedDevice
from helpers.kernels import assert_equal, prepared
from helpers.strategies import SAMPLERS, hub_events
from tgflow.cuda import sampling
from tgflow.graph import TemporalGraph
from tgflow.graph.query import relation_bits
from tgflow.graph.sampling import sample_neighbors
from tgflow.testing import reference

EVENTS = hub_events(3_000, 40, seed=3)


def grown(gpu):
    graph = TemporalGraph(device=gpu)
    for rows in torch.arange(len(EVENTS)).tensor_split(40):
        graph.append(EVENTS[rows])
    return graph


def random_queries(num_queries, seed):
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randint(-1, 42, (num_queries,), generator=generator)
    nodes[::2] = 0  # the largest hub
    t = torch.randint(-2, int(EVENTS.t[-1]) + 3, (num_queries,), generator=generator)
    before = torch.randint(0, len(EVENTS) + 5, (num_queries,), generator=generator)
    return nodes, t, before


@pytest.mark.parametrize("order", cases([0, 1, 5], [5]))
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.strategy)
def test_sampling_with_any_k_and_any_number_of_queries(sampler, order):
    """Fewer and more slots than lanes; queries that fill no tile, one warp, or several rounds."""
    gpu, slow = EmulatedDevice(), reference.ReferenceGraph(EVENTS)
    gpu.kernels.order = order
    graph = grown(gpu)
    for k in (1, 8, 17, 200) if IS_QUICK else (1, 7, 8, 16, 17, 40, 200):
        for num_queries in (1, 13, 100):
            nodes, t, before = random_queries(num_queries, seed=k)
            options = {"key": 77, "as_of": before}
            expected = reference.sample_neighbors(slow, sampler, nodes, t, k, **options)
            assert_equal(sample_neighbors(graph, sampler, nodes, t, k, **options), expected)


@pytest.mark.parametrize("relations", [None, (0, 1)])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.strategy)
def test_params_in_device_memory_override_arguments(sampler, relations):
    """Replays of one captured call have other cut-offs, keys, numbers of queries and horizons."""
    gpu = EmulatedDevice()
    snapshot = (graph := grown(gpu)).backend._store.snapshot
    nodes, t, _ = random_queries(90, seed=1)
    bits = None if relations is None else relation_bits(relations, torch.device("cpu"))
    spec = sampling.sampler_args(sampler.strategy, 1, sampler.span or 1, bits)
    params = torch.zeros(5, dtype=torch.int64)
    address = sampling.params_address(params, params.device)
    for before, key, size, since in ((3_000, 5, 90, 0), (200, 2**63 + 9, 41, 30), (37, 6, 0, 9)):
        signed = key - 2**64 if key >= 2**63 else key
        horizon = graph.log.native.since(since)
        params.copy_(torch.tensor([before, signed, size, *horizon]))
        queries, rows, out = prepared(nodes, t, 4, before=77)
        sampling.sample(gpu, snapshot, spec, queries, rows, address)
        asked = torch.where(torch.arange(90) < size, nodes, -1)
        options = {"key": key, "as_of": before, "since": since, "relations": relations}
        assert_equal(out, sample_neighbors(graph, sampler, asked, t, 4, **options))


def test_params_are_checked_before_their_address_is_taken():
    cpu = torch.device("cpu")
    for wrong in (torch.zeros(2).long(), torch.zeros(5), torch.zeros(10).long()[::2]):
        with pytest.raises(ValueError, match=r"params must be contiguous int64 \[5\] on cpu, got"):
            sampling.params_address(wrong, cpu)
    with pytest.raises(ValueError, match="on meta"):
        sampling.params_address(torch.zeros(3, dtype=torch.int64, device="meta"), cpu)
