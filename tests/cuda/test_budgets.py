"""Budgets of calls: launches, torch operations on the device, host waits. They only fall."""

from unittest.mock import Mock

import pytest
import torch

from helpers.devices import needs_apart
from helpers.emulator.device import Budget, EmulatedDevice, spent
from helpers.emulator.tensors import watching
from helpers.made_tables import some_rows
from helpers.strategies import SAMPLERS, hub_events
from tgflow.cuda.store import DeviceStore
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.cache import cached
from tgflow.graph.sampling import sample_neighbors
from tgflow.graph.tables import FeatureTable

pytestmark = needs_apart


TABLE_BUDGETS = {
    ("gather", "device"): Budget(1, 0),
    ("gather", "uva"): Budget(1, 0),
    ("gather into", "device"): Budget(1, 0),
    ("gather into", "uva"): Budget(1, 0),
    ("scatter", "device"): Budget(1, 0),
    ("scatter", "uva"): Budget(1, 0),
    ("append", "device"): Budget(1, 1),
    ("append of host rows", "device"): Budget(1, 1),
    ("cached gather", "uva"): Budget(4, 1),
}


@pytest.mark.parametrize(("what", "placement"), TABLE_BUDGETS, ids=lambda part: part)
def test_table_calls_stay_within_their_launch_budgets(what, placement):
    gpu = EmulatedDevice.apart()
    table = FeatureTable(6, placement=placement, device=gpu)
    table.append(some_rows(2_000, 6))
    if what.startswith("cached"):
        table = cached(table, rows=60, device=gpu)
    host_rows = some_rows(40, 6)
    ids, rows = torch.arange(40).to(gpu.device), host_rows.to(gpu.device)
    out = torch.empty_like(rows)
    call = {
        "gather": lambda: table.gather(ids),
        "gather into": lambda: table.gather(ids, out),
        "cached gather": lambda: table.gather(ids, out),
        "scatter": lambda: table.scatter_(ids, rows),
        "append": lambda: table.append(rows),
        "append of host rows": lambda: table.append(host_rows),
    }[what]
    call()
    assert spent(gpu, call)[0] == TABLE_BUDGETS[what, placement]


GROWN = 4_500
EVENTS = hub_events(GROWN + 2_500, 1_000, seed=1)


def sampling(sampler):
    def prepared(graph):
        found = Neighbors.empty(100, 10, graph.device)
        nodes = torch.arange(100, device=graph.device)
        return lambda: sample_neighbors(graph, sampler, nodes, nodes, 10, out=found)

    return prepared


GRAPH_BUDGETS = {
    "append 200": (lambda g: lambda: g.append(EVENTS[GROWN : GROWN + 200]), Budget(2, 2)),
    "append 2500": (lambda g: lambda: g.append(EVENTS[GROWN:]), Budget(8, 13)),
    "delete": (lambda g: lambda: g.delete(torch.arange(0, 1_000, 7)), Budget(4, 23, 2)),
    "retain": (lambda g: lambda: g.retain(max_count=50), Budget(4, 7, 1)),
    "compact": (lambda g: g.compact, Budget(6, 42, 3)),
    **{f"sample {s.strategy}": (sampling(s), Budget(1, 0)) for s in SAMPLERS},
}


@pytest.mark.parametrize("call", GRAPH_BUDGETS)
def test_graph_calls_stay_within_their_launch_budgets(call):
    gpu = EmulatedDevice.apart()
    graph = TemporalGraph(device=gpu)
    for start in range(0, GROWN, 500):
        graph.append(EVENTS[start : start + 500])
    store = graph.backend._store
    store._begin()
    store._free.merge()  # as some appends do, so that the next one has nothing to merge
    prepare, budget = GRAPH_BUDGETS[call]
    assert spent(gpu, prepare(graph))[0] == budget


BULK_BYTES = 403, 253
"""Of an event, by torch on the device, and of what kernels write and read once. With 24 from the
host at 55 GB/s, 3 more passes of a radix sort, and 32 at each of 10 other places, a device of
3.3 TB/s has time for a thousand million events a second: what limits is the host, see below."""


def test_bulk_load_reads_the_events_once_and_moves_few_bytes(monkeypatch):
    gpu, size = EmulatedDevice.apart(), 20_000
    graph, events = TemporalGraph(device=gpu), hub_events(size, 2_000, seed=1)
    plans = []
    monkeypatch.setattr(DeviceStore, "commit", _noting(plans, DeviceStore.commit))
    native = graph.backend._host.native
    counted = Mock(wraps=native, log=native.log)
    monkeypatch.setattr(graph.backend._host, "native", counted)
    with watching() as watch:
        graph.append(events)
    assert [name for name, *_ in counted.method_calls] == ["stage", "record"]
    assert watch.num_bytes <= BULK_BYTES[0] * size
    assert plans[0].plan._memory.nbytes <= BULK_BYTES[1] * size


def _noting(plans, commit):
    def noted(store, position):
        plans.append(store._pending)
        return commit(store, position)

    return noted
