"""A graph in two tiers: placement of blocks, their bytes, and lack of memory."""

import errno
import re
import sys

import numpy as np
import pytest
import torch

from helpers.effort import cases
from helpers.mappings import mapped_kib
from helpers.strategies import skewed_events
from tgflow import EventBatch, TemporalGraph, _core
from tgflow.base.units import parse_bytes
from tgflow.graph.counts import Count
from tgflow.graph.sampling import recent_neighbors, uniform_neighbors
from tgflow.plan.count_lookup import CountHistory

EVENTS = skewed_events(60_000, 3_000)


def graph_in_batches(events, batch=1000, **how):
    graph = TemporalGraph(**how)
    for start in range(0, len(events), batch):
        graph.append(events[start : start + batch])
    return graph


def assert_same_answers(one, other):
    generator = torch.Generator().manual_seed(1)
    nodes = torch.randint(0, 3_100, (4000,), generator=generator)
    t = torch.randint(0, 61_000, (4000,), generator=generator)
    for ask in (recent_neighbors, lambda *query: uniform_neighbors(*query, key=7)):
        mine, yours = ask(one, nodes, t, 10), ask(other, nodes, t, 10)
        for name in ("nodes", "t", "eid", "count"):
            assert torch.equal(getattr(mine, name), getattr(yours, name))


@pytest.mark.parametrize("table", ["host", "disk"])
@pytest.mark.parametrize("budget", cases([4096, "100KB", "1 MiB"], ["100KB"]))
def test_device_budget_is_respected_and_changes_no_result(budget, table, tmp_path):
    plain = graph_in_batches(EVENTS)
    graph = graph_in_batches(EVENTS, device_budget=budget, table=table, directory=tmp_path)
    assert_same_answers(graph, plain)
    stats = graph.stats()
    device, host = stats.tiers
    assert (device.name, host.name) == ("device", "host")
    assert device.bytes <= parse_bytes(budget)
    assert host.num_blocks > 0
    assert stats.num_entries == plain.stats().num_entries
    assert device.hit_rate + host.hit_rate == pytest.approx(1)
    assert plain.stats().tiers[0].hit_rate == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_graph_on_disk_holds_events_in_files_and_gives_them_back(tmp_path):
    graph = graph_in_batches(EVENTS, table="disk", directory=tmp_path)
    plain, counts = (
        graph_in_batches(EVENTS),
        [Count("pair").num, Count("src", half_life=500.0).decayed],
    )
    answers = []
    for of in (graph, plain):
        history, asked = CountHistory(of, counts), EVENTS[-200:]
        asked_dst, limit = asked.dst[:, None].roll(1, 0), torch.arange(len(EVENTS))[-200:]
        answers.append(history.answer(asked, None, asked_dst, limit=limit, stop=len(EVENTS)))
    assert torch.equal(*answers)
    assert_same_answers(graph, plain)
    assert mapped_kib(tmp_path, "Size") * 1024 > graph.stats().bytes // 2
    assert not [*tmp_path.iterdir()]
    before = mapped_kib(tmp_path, "Size")
    graph.forget(55_000)
    assert mapped_kib(tmp_path, "Size") < before // 2
    del graph, history, of
    assert mapped_kib(tmp_path, "Size") == 0


def test_append_to_a_full_disk_changes_nothing(tmp_path):
    graph = graph_in_batches(EVENTS[:5000], table="disk", directory=tmp_path)
    plain = graph_in_batches(EVENTS[:5000])
    try:
        for after in range(3):
            _core.inject_fault(_core.FileOp.write, after, 1, -errno.ENOSPC)
            with pytest.raises(OSError, match=rf"in {tmp_path} for table='disk'.*No space") as full:
                graph.append(EVENTS[5000:])
            assert full.value.errno == errno.ENOSPC
            assert graph.num_events == len(graph.log) == 5000
            assert_same_answers(graph, plain)
    finally:
        _core.inject_fault(_core.FileOp.write, 0, 0, 0)
    for each in (graph, plain):
        each.append(EVENTS[5000:])
    assert_same_answers(graph, plain)


def test_placement_of_a_graph_is_checked(tmp_path):
    with pytest.raises(ValueError, match="table must be 'host' or 'disk', got 'uva'"):
        TemporalGraph(table="uva")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="table='disk' requires a graph in host memory, got"):
        TemporalGraph(device="cuda", table="disk")
    with pytest.raises(FileNotFoundError, match=r"cannot make a file in .*gone for table='disk'"):
        TemporalGraph(table="disk", directory=tmp_path / "gone").append(EVENTS[:9])


@pytest.mark.parametrize(
    "size", ["x", "8 GBB", "-1", -1, "1.5.2GB", "5iB", "5i", 2**63, str(2**63), "8388608TiB"]
)
def test_invalid_sizes_are_named(size):
    with pytest.raises(ValueError, match="size"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [2e9, None, b"8GB", [1]])
def test_sizes_of_other_types_are_named(size):
    with pytest.raises(TypeError, match=re.escape(f"got {size!r}")):
        parse_bytes(size)


def test_sizes_with_units_are_parsed():
    written = (7, "7", "8GB", "1.5 kb", "2MiB", "1K", "3 ki", np.int64(9), str(2**63 - 1))
    sizes = [parse_bytes(size) for size in written]
    assert sizes == [7, 7, 8 * 10**9, 1500, 2 * 2**20, 1000, 3072, 9, 2**63 - 1]
    assert type(parse_bytes(np.int64(9))) is int


def test_node_of_degree_200_000():
    """Ginex overran a buffer at 32 k neighbors."""
    size = 200_000
    leaf = torch.arange(1, size + 1)
    graph = TemporalGraph.from_events(
        EventBatch(torch.zeros_like(leaf), leaf, leaf - 1), "directed"
    )
    t = torch.tensor([1, 5, 123_457, size, 2 * size])
    hub, end = torch.zeros_like(t), t.clamp(max=size)[:, None]
    expected = (end - 1 - torch.arange(8)).clamp(min=-1)
    assert torch.equal(recent_neighbors(graph, hub, t, 8).eid, expected)
    drawn = uniform_neighbors(graph, hub, t, 8, key=3)
    assert drawn.count.tolist() == [1, 5, 8, 8, 8]
    assert (drawn.eid[2:, :-1] > drawn.eid[2:, 1:]).all()
    assert (drawn.eid < end).all()
