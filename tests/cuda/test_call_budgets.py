"""What a call costs: launches, operations of torch, and waits. They only fall."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from helpers.devices import needs_apart
from helpers.emulator import tensors
from helpers.emulator.device import EmulatedDevice
from helpers.hubs import SAMPLERS, hub_events
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.sampling import Sampler, sample_neighbors

pytestmark = needs_apart


class Budget(NamedTuple):
    launches: int
    operations: int
    """Of torch, on tensors of the device."""
    waits: int


Call = Callable[[], object]
GROWN = 4_500
SMALL, LARGE = 200, 2_500
EVENTS = hub_events(GROWN + LARGE, 1_000, seed=1)


def append(size: int) -> Callable[[TemporalGraph], Call]:
    def prepared(graph: TemporalGraph) -> Call:
        return lambda: graph.append(EVENTS[GROWN : GROWN + size])

    return prepared


def sample(sampler: Sampler) -> Callable[[TemporalGraph], Call]:
    def prepared(graph: TemporalGraph) -> Call:
        found = Neighbors.empty(100, 10, graph.device)
        nodes = torch.arange(100, device=graph.device)
        return lambda: sample_neighbors(graph, sampler, nodes, nodes, 10, out=found)

    return prepared


CALLS: dict[str, tuple[Callable[[TemporalGraph], Call], Budget]] = {
    "append few events": (append(SMALL), Budget(2, 12, 0)),
    "append many events": (append(LARGE), Budget(8, 40, 0)),
    "delete": (lambda graph: lambda: graph.delete(torch.arange(0, 1_000, 7)), Budget(4, 35, 2)),
    "retain": (lambda graph: lambda: graph.retain(max_count=50), Budget(4, 12, 1)),
    "compact": (lambda graph: graph.compact, Budget(6, 56, 3)),
    **{f"sample {sampler.strategy}": (sample(sampler), Budget(1, 0, 0)) for sampler in SAMPLERS},
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_stays_within_its_budget(call):
    gpu = EmulatedDevice.apart()
    graph = TemporalGraph(device=gpu)
    for start in range(0, GROWN, 500):
        graph.append(EVENTS[start : start + 500])
    store = graph.backend._store
    store._begin()
    store._free.merge()  # which some appends do; the next one has nothing to sort in
    prepare, budget = CALLS[call]
    ask = prepare(graph)
    gpu.kernels.launches.clear()
    gpu.synchronized = 0
    with tensors.watching() as watch:
        ask()
    waits = len(watch.waits) + gpu.synchronized
    got = Budget(len(gpu.kernels.launches), sum(watch.operations.values()), waits)
    within = all(x <= most for x, most in zip(got, budget, strict=True))
    assert within, (got, budget, dict(watch.operations), watch.waits)
