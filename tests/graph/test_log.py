"""The event log: order, validation, zero-copy reads."""

import errno
import os
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.options import restored_threads
from helpers.strategies import event_lists, graph_events
from tgflow import EventBatch, TemporalGraph, _core
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, list_checkpoints
from tgflow.graph import EventLog
from tgflow.graph.events import COLUMNS
from tgflow.graph.host import HostGraph
from tgflow.graph.sampling import recent_neighbors
from tgflow.run.machine import anonymous_bytes
from tgflow.train import trainer_state as state
from tgflow.train.trainer_state import graph_of, save_graph

OPTIONAL = {"relation": lambda t: t % 65_536, "label": lambda t: t * 3, "weight": torch.Tensor.abs}


@given(events=event_lists(), cut=st.integers(0, 40), names=st.sets(st.sampled_from([*OPTIONAL])))
def test_log_returns_appended_events(events, cut, names):
    columns = {name: OPTIONAL[name](events.t).to(COLUMNS[name].dtype) for name in names}
    events = EventBatch(events.src, events.dst, events.t, **columns)
    graph = TemporalGraph()
    log = graph.log
    assert graph.append(events[:cut]) == 0
    assert graph.append(events[cut:]) == min(cut, len(events))
    assert len(log) == len(events)
    for read in (log.read(0, len(log)), log.gather(torch.arange(len(events)))):
        for name in ("src", "dst", "t"):
            assert torch.equal(getattr(read, name), getattr(events, name))
        for name in OPTIONAL:
            if name in names and len(events):
                assert torch.equal(getattr(read, name), columns[name])
                eid = torch.arange(len(events) - 1, -1, -1)
                assert torch.equal(log.column(name, eid), columns[name].flip(0))
            elif len(events):
                assert getattr(read, name) is log.column(name, slice(None)) is None
    for t in {0, *events.t.tolist()}:
        assert log.position(t) == int((events.t < t).sum())
    assert log.t_last == (int(events.t[-1]) if len(events) else None)
    ends = events.src.tolist() + events.dst.tolist()
    assert log.num_nodes == max(ends, default=-1) + 1


def test_positions_may_need_more_than_32_bits():
    src, dst = torch.randint(3, (2, 60)).unbind()
    first, nodes = 2**32 - 30, torch.arange(3)
    graphs = TemporalGraph(), TemporalGraph(first=first)
    for graph in graphs:
        for part in torch.arange(60).split(20):
            graph.append(EventBatch(src, dst, torch.arange(60) // 3)[part])
    for end in (10, 40, 60):
        low, high = (
            recent_neighbors(graph, nodes, torch.full((3,), 15), 25, start + end, since=start)
            for graph, start in zip(graphs, (0, first), strict=True)
        )
        assert torch.equal(low.nodes, high.nodes)
        assert torch.equal(torch.where(low.mask, low.eid + first, -1), high.eid)


def test_read_result_outlives_its_graph_and_later_appends():
    graph = TemporalGraph.from_events(graph_events((0, 1, 5)))
    read = graph.log.read(0, 1)
    for t in range(6, 3000):
        graph.append(graph_events((7, 8, t)))
    del graph
    assert (read.src.tolist(), read.dst.tolist(), read.t.tolist()) == ([0], [1], [5])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 1, 57), (2, 3, 60), (4, 5, 58)], "event 2 has t=58 but event 1 before it is at t=60"),
        ([(0, 1, 40)], "event 0 has t=40 but the log is at t=57; sort the batch or use a reorder"),
        ([(0, 2**31 - 1, 57)], "event 0 has dst=2147483647; node ids must be in .0, 2147483646."),
    ],
)
def test_rejected_batch_is_explained_and_changes_nothing(rows, message):
    graph = TemporalGraph.from_events(graph_events((0, 1, 57)))
    with pytest.raises(ValueError, match=message):
        graph.append(graph_events(*rows))
    log = graph.log
    assert (len(log), log.num_nodes, log.t_last) == (1, 2, 57)


@pytest.mark.parametrize("wrong", [None, "falls", "dst", "relation"])
def test_staged_events_of_several_threads_are_unseen_until_they_are_recorded(wrong):
    """Ranges of threads, and their pieces, join within the batch."""
    size, bad = 100_000, 65_536  # where a thread's range begins
    graph, t = HostGraph("undirected"), torch.arange(size)
    dst = (t * 7919) % 1000
    events = EventBatch(t % 501, 2000 + dst, t // 3, relation=t % 65_536)
    rows = torch.full((4, size), -9)
    with restored_threads():
        _core.set_num_threads(2)
        assert graph.stage(events, rows=rows) == (500, 2999)
        columns = [events.src, events.dst, events.t, events.relation]
        assert torch.equal(rows, torch.stack(columns))
        assert (len(graph.log), graph.log.num_nodes) == (0, 0)
        if wrong is not None:
            columns[("src", "dst", "falls", "relation").index(wrong)][bad] = -1
            with pytest.raises(ValueError, match=f"event {bad} has "):
                graph.stage(events)
    assert graph.record() == 0
    assert len(graph.log) == (size if wrong is None else 0)
    assert graph.record() == len(graph.log)  # nothing is staged any more


PIECE = 4096
"""Events whose narrowest column, of 4 bytes, fills pages of up to 16 KiB."""


def made(start: int, stop: int, *, wide: bool = True) -> EventBatch:
    t = torch.arange(start, stop)
    more = {}
    if wide:
        more = {"relation": t % 7, "label": t * 3, "weight": t.float()}
    return EventBatch(t % 101, 200 + t % 53, t, **more)


def columns(events: EventBatch) -> dict[str, list[int]]:
    names = ("src", "dst", "t", "relation", "label", "weight")
    found = {name: getattr(events, name) for name in names}
    return {name: x.tolist() for name, x in found.items() if x is not None}


def save(graph: TemporalGraph, writer: CheckpointWriter, position: int) -> None:
    checkpoint = Checkpoint({})
    save_graph(checkpoint, graph, position)
    writer.submit(position, checkpoint)
    writer.wait()


@pytest.fixture
def writer(tmp_path, monkeypatch):
    monkeypatch.setattr(EventLog, "piece", PIECE)
    return CheckpointWriter(CheckpointStore(tmp_path, keep=1))


@pytest.mark.parametrize("wide", [False, True])
def test_readers_see_the_same_events_before_and_after_mapping(writer, tmp_path, wide):
    graph, size = TemporalGraph(), 5 * PIECE // 2
    graph.append(made(0, size, wide=wide))
    view = graph.log.read(0, size)
    before = columns(view)
    save(graph, writer, size)
    assert [*graph.log.files] == [0, PIECE]
    assert columns(view) == columns(graph.log.read(0, size)) == before
    graph.append(made(size, 5 * PIECE, wide=wide))
    eid = torch.tensor([0, PIECE - 1, PIECE, size, 5 * PIECE - 1])
    expected = columns(made(0, 5 * PIECE, wide=wide))
    found = columns(graph.log.gather(eid))
    assert found == {name: [x[i] for i in eid.tolist()] for name, x in expected.items()}
    save(graph, writer, 4 * PIECE)  # not all events
    assert [*graph.log.files] == [0, PIECE, 2 * PIECE, 3 * PIECE]
    assert columns(graph.log.read(0, 5 * PIECE)) == expected


def test_newer_files_replace_those_of_removed_checkpoints(writer, tmp_path):
    graph, seen = TemporalGraph(), set()
    for step in range(1, 9):
        graph.append(made((step - 1) * PIECE, step * PIECE))
        if step == 4:  # files that are gone are written again, from those that are mapped
            shutil.rmtree(list_checkpoints(tmp_path)[-1].path)
        save(graph, writer, step * PIECE)
        seen.add(graph.log.files[0])
        newest = list_checkpoints(tmp_path)[-1].path
        names = [newest / f"events-{PIECE}-{i:06d}.safetensors" for i in range(step)]
        inodes = [(file.stat().st_dev, file.stat().st_ino) for file in names]
        assert [*graph.log.files.values()] == inodes
    assert len(seen) == 2
    assert columns(graph.log.read(0, 8 * PIECE)) == columns(made(0, 8 * PIECE))


def test_file_with_other_events_is_not_mapped(tmp_path, writer, caplog):
    graph, other = TemporalGraph(), TemporalGraph()
    graph.append(made(0, PIECE))
    other.append(made(1, PIECE + 1))
    save(other, writer, PIECE)
    state._map_events(graph.log, PIECE, list_checkpoints(tmp_path)[-1].path)
    assert graph.log.files == {}
    assert "events stay in memory" in caplog.text
    assert columns(graph.log.read(0, PIECE)) == columns(made(0, PIECE))


def test_loaded_graph_maps_its_events(writer, tmp_path):
    graph, size = TemporalGraph(), 9 * PIECE // 2
    graph.append(made(0, 3000))
    graph.append(made(1000, size - 2000), allow_late=True)  # late: crosses pieces
    graph.delete(torch.tensor([5]))
    save(graph, writer, size)
    (_, checkpoint) = CheckpointStore(tmp_path).newest()
    again = graph_of(checkpoint)
    assert [*again.log.files] == [0, PIECE, 2 * PIECE, 3 * PIECE]
    assert columns(again.log.read(0, size)) == columns(graph.log.read(0, size))
    assert again.stats().num_entries == graph.stats().num_entries
    again.append(made(size, size + 10))


def test_piece_that_the_disk_has_changed_is_not_written_again(writer, tmp_path, monkeypatch):
    graph = TemporalGraph()
    graph.append(made(0, PIECE))
    save(graph, writer, PIECE)
    (file,) = tmp_path.rglob("events-*-000000.safetensors")
    with file.open("r+b") as opened:  # what the log maps
        opened.seek(-8, os.SEEK_END)
        opened.write(b"\1")
    graph.append(made(PIECE, PIECE + 3))
    save(graph, writer, PIECE + 1)
    monkeypatch.setattr(os, "link", refuse)  # as on a file system without links
    with pytest.warns(RuntimeWarning):
        save(graph, writer, PIECE + 2)
    assert writer.stats.failures == 1
    assert "000000.safetensors has changed on its disk" in writer.stats.last_error


def refuse(*args, **kwargs):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.slow
def test_memory_stays_flat_while_the_log_grows(writer):
    graph, per_step, held = TemporalGraph(), 32 * PIECE, []
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 17):
        start, stop = (step - 1) * per_step, step * per_step
        graph.append(made(start, stop, wide=False))
        graph.retain(max_count=10)
        graph.compact()
        recent = torch.randint(max(0, stop - 50_000), stop, (1000,), generator=generator)
        graph.log.gather(recent)  # as replay does
        save(graph, writer, stop)
        held.append(anonymous_bytes())
    assert len(graph.log.files) == 16 * 32
    columns_bytes = 24 * 12 * per_step  # of the steps from the fourth on: 38 MB
    assert held[-1] - held[3] < columns_bytes / 4
