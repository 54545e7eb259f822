from __future__ import annotations

import itertools
import json
import logging
import random

import pytest
import torch

from helpers.effort import cases
from helpers.ingest_world import (
    MemoryDeadLetters,
    MemoryLog,
    Ticking,
    World,
    events_of,
    made_partitions,
)
from helpers.partitioned import ListSource, Row
from tgflow.durable.errors import DiskFull
from tgflow.durable.log import DurableLog
from tgflow.streams.errors import TooManyBadRecords
from tgflow.streams.ingest import ingest as ingest_module
from tgflow.streams.ingest.accounting import Unbalanced
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.state import IngestState


def rows_at(times, **columns):
    return [Row(1, 2, t, **columns) for t in times]


def times(ingest):
    return [t for events in ingest for t in events.t.tolist()]


def replayed(log, config, partitions):
    """Return what the log alone gives."""
    source = ListSource(partitions, silent=dict.fromkeys(partitions, 0))
    polled = []
    ingest = Ingest(source, config, log=log, stop=lambda: True)
    polled += events_of(ingest, ingest.ids)
    return polled


# Lateness


def test_the_breaker_breaks_after_the_letters_are_written():
    letters = MemoryDeadLetters()
    source = ListSource({0: rows_at(range(2000), bad="type")}, poll_sizes=(500,))
    with pytest.raises(TooManyBadRecords):
        list(Ingest(source, OrderConfig(), letters=letters, max_bad_ratio=0.05))
    assert len(letters.letters) >= 1000
    assert source.is_closed


# Partitions that come, fall silent, or end


@pytest.mark.parametrize("with_log", [True, False])
@pytest.mark.parametrize("seed", cases(range(20), range(6)))
def test_partitions_join_while_a_run_reads(seed, with_log):
    rng = random.Random(seed)
    partitions = made_partitions(rng, num_partitions=3, max_rows=80)
    world = World(OrderConfig(allowed_lateness=5), MemoryLog() if with_log else None)
    sources = []

    def make_source():
        joined = bool(sources) and 2 in sources[-1].partitions()
        joins = {} if joined else {2: 2}
        sources.append(ListSource(partitions, seed=rng.random(), joins=joins, poll_sizes=(1, 7)))
        return sources[-1]

    learned = world.run(make_source, rng, crashes=0.1, checkpoints=0.3)
    assert [event[2] for event in learned] == sorted(event[2] for event in learned)
    counts = world.ingest.report()["counts"]
    assert counts["accepted"] == len(learned)
    for p in sources[-1].partitions():
        assert counts["partitions"].get(str(p), {"read": 0})["read"] == len(partitions[p])
    if with_log:
        assert replayed(world.log, world.config, partitions) == learned


def test_events_before_what_was_released_are_late_in_a_partition_that_joins():
    partitions = {0: rows_at([10, 20, 30, 40]), 1: rows_at([5, 29, 30, 35, 1])}
    source = ListSource(partitions, joins={1: 1}, silent={0: 4}, poll_sizes=(1,))
    ingest = Ingest(source, OrderConfig(allowed_lateness=10))
    events = iter(ingest)
    released = next(events).t.tolist() + next(events).t.tolist()
    assert released == [10, 20]
    ingest.state_at(2)
    source.silent.clear()
    assert [t for batch in events for t in batch.t.tolist()] == [30, 30, 35, 40]
    counts = ingest.report()["counts"]["partitions"]["1"]
    assert counts["refused"]["late"]["count"] == 3


def test_a_silent_partition_is_waited_for_in_bounded_memory(caplog):
    source = Ticking(
        {0: rows_at(range(5000)), 1: rows_at([0])}, silent={0: 5000, 1: 0}, poll_sizes=(50,)
    )
    config = OrderConfig(buffer_events=400)
    ingest = Ingest(source, config, stop=lambda: source.seconds >= 100, clock=source.clock)
    with caplog.at_level(logging.WARNING):
        assert times(ingest) == []
    assert 200 <= ingest.num_buffered <= 400 + 50
    assert source.polled[-1] == {1}
    ours = [record.message for record in caplog.records if record.name.startswith("tgflow")]
    assert ours == [
        "list: partition 1 has been silent for 60 s and holds the others back; "
        "set idle_timeout to continue without it"
    ]


def test_with_an_idle_timeout_others_go_on_and_a_replay_does_the_same():
    partitions = {0: rows_at(range(100)), 1: rows_at([0, 50, 90, 95])}
    config = OrderConfig(idle_timeout=10.0)
    world = World(config, MemoryLog())
    source = Ticking(partitions, silent={1: 1}, poll_sizes=(1,))
    events = world.start(source, clock=source.clock)
    for batch in events:
        world.learn(batch)
        if world.learned[-1][2] == 60:
            source.silent.clear()  # it speaks again, and what it says first is late
    assert world.ingest.report()["counts"]["partitions"]["1"]["refused"]["late"]["count"] == 1
    assert [event[2] for event in world.learned] == sorted([*range(100), 0, 90, 95])
    assert replayed(world.log, config, partitions) == world.learned


def test_partitions_that_are_ahead_are_paused_when_the_buffer_is_full():
    partitions = {0: rows_at(range(2000)), 1: rows_at(range(2000)), 2: rows_at(range(2000))}
    source = ListSource(partitions, poll_sizes=(100, 1))
    ingest = Ingest(source, OrderConfig(buffer_events=300))
    most = max(ingest.num_buffered for _ in ingest)
    assert most <= 300 + 3 * 100
    assert ingest.num_released == 6000
    assert any(len(wanted) < 3 for wanted in source.polled[:100])


def test_an_appended_source_goes_on_where_it_ended():
    config, log = OrderConfig(allowed_lateness=5), MemoryLog()
    world = World(config, log)
    rows = rows_at([1, 8, 9])
    for batch in world.start(ListSource({0: rows, 1: []})):
        world.learn(batch)
    world.save(3)
    rows += rows_at([8, 9, 12])
    for batch in world.start(ListSource({0: rows, 1: []})):
        world.learn(batch)
    assert [event[2] for event in world.learned] == [1, 8, 9, 9, 12]
    assert world.ingest.report()["counts"]["late"] == 1


# What could go wrong


def test_a_row_that_vanishes_is_noticed():
    ingest = Ingest(ListSource({0: rows_at(range(10))}), OrderConfig())
    events = iter(ingest)
    next(events)
    ingest.accounting.counts["0"]["read"] += 1
    with pytest.raises(Unbalanced, match="rows were read"):
        list(events)


def test_a_log_that_gives_another_sequence_is_noticed():
    log = MemoryLog()
    list(Ingest(ListSource({0: rows_at(range(9))}), OrderConfig(), log=log))
    rows, footer = log.frames[-1]
    log.frames[-1] = rows, json.dumps(json.loads(footer) | {"num_released": 7})
    with pytest.raises(Unbalanced, match="9 events were released"):
        list(Ingest(ListSource({0: rows_at(range(9))}), OrderConfig(), log=log))


def test_a_full_disk_is_waited_for_and_then_an_error(monkeypatch):
    monkeypatch.setattr(ingest_module, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(ingest_module, "DISK_FULL_SECONDS", 0.01)
    source = Ticking({0: rows_at(range(30))}, poll_sizes=(10,))

    class FullLog(MemoryLog):
        fails = 3

        def append(self, rows, footer):
            if self.fails:
                self.fails -= 1
                raise DiskFull("no room", "log")
            return super().append(rows, footer)

    log = FullLog()
    assert times(Ingest(source, OrderConfig(), log=log, clock=source.clock)) == list(range(30))
    source.start({})
    log = FullLog()
    log.fails = 10**6
    with pytest.raises(DiskFull):
        list(Ingest(source, OrderConfig(), log=log, clock=source.clock))
    assert log.frames == []


def test_a_state_that_is_none_is_refused():
    tensors, meta = IngestState().state_dict(), IngestState().to_json()
    for key in meta:
        with pytest.raises(ValueError, match="no state of ingestion"):
            IngestState.from_json({k: v for k, v in meta.items() if k != key}, tensors)
    with pytest.raises(ValueError, match="no state of ingestion"):
        IngestState.from_json(meta, {"rows": torch.zeros(9, dtype=torch.uint8)})


# With the files of a real run


def test_a_run_is_killed_and_its_files_hold_each_row_once(tmp_path):
    rng = random.Random(1)
    partitions = made_partitions(rng, num_partitions=2, max_rows=200, x_dim=2)
    config = OrderConfig(allowed_lateness=5)
    whole = Ingest(ListSource(partitions), config)
    expected = events_of(whole, whole.ids)
    for seed in range(10):
        with DurableLog(tmp_path / "log", segment_bytes=4096) as log:
            letters = DeadLetterFiles(tmp_path / "letters")
            ingest = Ingest(ListSource(partitions, seed=seed), config, letters=letters, log=log)
            events = iter(ingest)
            found = events_of(itertools.islice(events, 3 * seed), ingest.ids)
            assert found == expected[: len(found)]
            ingest.close()
    with DurableLog(tmp_path / "log") as log:
        letters = DeadLetterFiles(tmp_path / "letters")
        ingest = Ingest(ListSource(partitions), config, letters=letters, log=log)
        assert events_of(ingest, ingest.ids) == expected
    lines = [line for f in (tmp_path / "letters").iterdir() for line in f.read_text().splitlines()]
    counts = ingest.report()["counts"]
    assert len(lines) == len(set(lines)) == counts["late"] + counts["malformed"]
