"""Ingestion: any interleaving and crashes, partitions that come, fall silent or end, and faults."""

from __future__ import annotations

import json
import logging
import os
import random
from collections import Counter

import pytest
import torch

from helpers.effort import cases, tries
from helpers.ingestion import (
    ListSource,
    MemoryDeadLetters,
    MemoryLog,
    Row,
    Ticking,
    World,
    as_event,
    events_of,
    in_order,
    judge_rows,
    made_partitions,
)
from tgflow.checkpoint.durable.errors import DiskFull
from tgflow.checkpoint.names import UntrustedCheckpoint
from tgflow.streams.errors import LateEvent, TooManyBadRecords
from tgflow.streams.ingest import ingest as ingest_module
from tgflow.streams.ingest.accounting import Unbalanced
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState

NUM_INTERLEAVINGS = int(os.environ.get("TGFLOW_INTERLEAVINGS", tries(2000, 300)))


def expected_of(partitions, config, share=None):
    """Return the events in order, and the locations of all dead letters."""
    judged = {p: judge_rows(rows, config, share) for p, rows in partitions.items()}
    rows = in_order(partitions, {p: j.accepted for p, j in judged.items()})
    places = {(p, seq) for p, j in judged.items() for seq in (*j.late, *j.bad)}
    return [as_event(row) for row in rows], places


def test_late_event_is_an_error_if_configured():
    source = ListSource({0: [Row(1, 2, 10), Row(1, 2, 9)]})
    with pytest.raises(LateEvent, match=r"partition 0, row 1: t is 9, 1 ticks before .* late="):
        list(Ingest(source, OrderConfig(late="error")))
    assert source.is_closed


@pytest.mark.parametrize("with_log", [True, False])
@pytest.mark.parametrize("seed", cases(range(10), range(2)))
def test_event_sequence_does_not_depend_on_interleaving_or_crashes(record_property, seed, with_log):
    record_property("interleavings", NUM_INTERLEAVINGS // 20)
    for rng in (random.Random(f"{seed} {i}") for i in range(NUM_INTERLEAVINGS // 20)):
        event_ids, num_partitions = rng.choice([0, 0, 10]), rng.randint(1, 4)
        share = rng.choice([None, None, 10])
        room = (share or 10**6) * num_partitions
        bound = rng.choice([{"buffer_events": room}, {"buffer_bytes": 40 * room}])
        partitions = made_partitions(
            rng,
            num_partitions=num_partitions,
            max_rows=rng.choice([5, 20, 60]),
            event_ids=event_ids,
        )
        config = OrderConfig(
            allowed_lateness=rng.choice([None, 1, 5, 100]),
            dedup_window=rng.choice([5, 1000]) if event_ids else 0,
            max_time_jump=rng.choice([None, 3, 30]),
            **bound,
        )
        world = World(config, MemoryLog() if with_log else None)
        sizes = rng.choice([(1, 2), (7,), (1, 50), (500,)])
        learned = world.run(
            lambda: ListSource(partitions, seed=rng.random(), poll_sizes=sizes),  # noqa: B023
            rng,
        )
        events, places = expected_of(partitions, config, share)
        assert learned == events
        assert sorted(world.letters.places()) == sorted(places)
        check_counts(world.ingest.report()["counts"], partitions, config, share)


@pytest.mark.parametrize("with_log", [True, False])
@pytest.mark.parametrize("ids", [range(12), ["a", "bb", "", "ä"]])
@pytest.mark.parametrize("bipartite", [True, False])
def test_all_columns_survive_crashes(ids, bipartite, with_log):
    rng = random.Random(f"{bipartite} {with_log}")
    for _ in range(5):
        partitions = made_partitions(rng, ids=ids, x_dim=2, labels=True, event_ids=10)
        config = OrderConfig(allowed_lateness=5, dedup_window=20, buffer_events=20)
        world = World(config, MemoryLog() if with_log else None)
        learned = world.run(
            lambda: ListSource(partitions, seed=rng.random(), bipartite=bipartite),  # noqa: B023
            rng,
            crashes=0.2,
        )
        events, places = expected_of(partitions, config, share=20 // len(partitions))
        assert learned == events
        assert sorted(world.letters.places()) == sorted(places)


def check_counts(counts, partitions, config, share=None):
    for p, rows in partitions.items():
        judged = judge_rows(rows, config, share)
        found = counts["partitions"].get(str(p))
        if not rows:
            continue
        codes = {code: entry["count"] for code, entry in found["refused"].items()}
        assert found["read"] == len(rows)
        assert found["accepted"] == len(judged.accepted)
        assert found["duplicate"] == len(judged.duplicate)
        assert found["forced"] == judged.forced
        assert codes == Counter([*judged.bad.values(), *["late"] * len(judged.late)])


def rows_at(times, **columns):
    return [Row(1, 2, t, **columns) for t in times]


def times(ingest):
    return [t for events in ingest for t in events.t.tolist()]


def replayed(log, config, partitions):
    """Return the events of the log alone."""
    source = ListSource(partitions, silent=dict.fromkeys(partitions, 0))
    polled = []
    ingest = Ingest(source, config, log=log, stop=lambda: True)
    polled += events_of(ingest, ingest.ids)
    return polled


# Lateness


def test_breaker_trips_after_dead_letters_are_written():
    letters = MemoryDeadLetters()
    source = ListSource({0: rows_at(range(2000), bad="type")}, poll_sizes=(500,))
    with pytest.raises(TooManyBadRecords):
        list(Ingest(source, OrderConfig(), letters=letters, max_bad_ratio=0.05))
    assert len(letters.letters) == 501
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


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 1000), ("ns", 10**9)])
def test_lateness_and_jumps_are_durations_in_any_unit(unit, scale):
    config = OrderConfig(allowed_lateness="2.5s", max_time_jump="2m")
    assert config.limits(unit) == (scale * 5 // 2, 120 * scale)
    seconds = [0, 3, 1, 0, 123, 244, 121]  # 0 comes 3 s after its time, 244 121 s ahead
    source = ListSource({0: rows_at([scale * at for at in seconds])}, poll_sizes=(1,))
    source.unit = unit
    ingest = Ingest(source, config)
    found = [t for batch in ingest for t in batch.t.tolist()]
    assert found == [scale * at for at in (0, 1, 3, 121, 123)]
    refused = ingest.report()["counts"]["partitions"]["0"]["refused"]
    assert {code: each["count"] for code, each in refused.items()} == {"late": 1, "time_jump": 1}


@pytest.mark.parametrize("span", [0, -1, "soon", "5 parsecs"])
def test_lateness_is_more_than_no_time(span):
    with pytest.raises(ValueError, match="allowed_lateness: a span of time is more than 0"):
        OrderConfig(allowed_lateness=span)


def test_events_of_a_joining_partition_before_the_watermark_are_late():
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


@pytest.mark.parametrize("late", ["error", "dead_letter"])
@pytest.mark.parametrize("bound", [{"buffer_events": 10}, {"buffer_bytes": 400}])
def test_equal_times_are_never_late_however_many(late, bound):
    ticks = [7] * 50 + [8] * 50
    ingest = Ingest(
        ListSource({0: rows_at(ticks)}, poll_sizes=(3,)), OrderConfig(late=late, **bound)
    )
    assert times(ingest) == ticks


def test_event_that_is_late_as_the_buffer_was_full_names_its_bounds():
    config = OrderConfig(late="error", allowed_lateness=100, buffer_events=2)
    ingest = Ingest(ListSource({0: rows_at([1, 2, 3, 4, 1])}, poll_sizes=(9,)), config)
    with pytest.raises(LateEvent, match="buffer was full; raise buffer_events and buffer_bytes"):
        times(ingest)


def test_silent_partition_is_waited_for_in_bounded_memory(caplog):
    source = Ticking(
        {0: rows_at(range(5000)), 1: rows_at([0])}, silent={0: 5000, 1: 0}, poll_sizes=(50,)
    )
    config = OrderConfig(buffer_events=400)
    ingest = Ingest(source, config, stop=lambda: source.seconds >= 100, clock=source.clock)
    with caplog.at_level(logging.WARNING):
        assert times(ingest) == []
    assert 200 <= ingest.num_buffered <= 400 + 50
    assert source.polled[-1] == {1}
    assert ingest.waits() == {"1": 100.0}
    ours = [record.message for record in caplog.records if record.name.startswith("tgflow")]
    assert ours == [
        "list: partition 1 has been silent for 10 s and delays the others; "
        "set idle_timeout to continue without it"
    ]


def test_waits_do_not_count_the_time_of_learning():
    source = Ticking({0: rows_at([0, 1, 2, 3])}, poll_sizes=(2,))
    events = iter(ingest := Ingest(source, OrderConfig(), clock=source.clock))
    for _ in range(2):
        next(events)
        source.seconds += 60
        assert all(seconds <= 1 for seconds in ingest.waits().values())


def test_idle_partition_times_out_the_same_way_on_replay():
    partitions = {0: rows_at(range(100)), 1: rows_at([0, 50, 90, 95])}
    config = OrderConfig(idle_timeout=10.0)
    world = World(config, MemoryLog())
    source = Ticking(partitions, silent={1: 1}, poll_sizes=(1,))
    events = world.start(source, clock=source.clock)
    for batch in events:
        world.learn(batch)
        if world.learned[-1][2] == 60:
            source.silent.clear()  # it resumes, and its first rows are late
    assert world.ingest.report()["counts"]["partitions"]["1"]["refused"]["late"]["count"] == 1
    assert [event[2] for event in world.learned] == sorted([*range(100), 0, 90, 95])
    assert replayed(world.log, config, partitions) == world.learned


def test_appended_source_continues_where_it_ended():
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


def test_missing_row_is_detected_on_replay():
    ingest = Ingest(ListSource({0: rows_at(range(10))}), OrderConfig())
    events = iter(ingest)
    next(events)
    ingest.accounting.counts["0"]["read"] += 1
    with pytest.raises(Unbalanced, match="rows were read"):
        list(events)


def test_different_sequence_of_a_log_is_detected():
    log = MemoryLog()
    list(Ingest(ListSource({0: rows_at(range(9))}), OrderConfig(), log=log))
    rows, footer = log.frames[-1]
    log.frames[-1] = rows, json.dumps(json.loads(footer) | {"num_released": 7})
    with pytest.raises(Unbalanced, match="9 events were released"):
        list(Ingest(ListSource({0: rows_at(range(9))}), OrderConfig(), log=log))


def test_full_disk_is_retried_and_then_an_error(monkeypatch):
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


def test_invalid_state_is_refused():
    tensors, meta = IngestState().state_dict(), IngestState().to_json()
    for key in meta:
        with pytest.raises(UntrustedCheckpoint, match="not a state of ingestion"):
            IngestState.from_json({k: v for k, v in meta.items() if k != key}, tensors)
    with pytest.raises(UntrustedCheckpoint, match="not a state of ingestion"):
        IngestState.from_json(meta, {"rows": torch.zeros(9, dtype=torch.uint8)})


@pytest.mark.parametrize("seed", range(4))
def test_event_ids_survive_crashes(seed):
    rng, partitions = random.Random(seed), {0: [], 1: []}
    for i in range(120):  # late rows and repeats; the source of an event is its id
        p = rng.randrange(2)
        name = rng.choice(partitions[p]).event_id if partitions[p] and i % 9 == 0 else 2 * i + p
        partitions[p].append(Row(name, 1_000, i + rng.randint(0, 4), event_id=name))
    world = World(OrderConfig(allowed_lateness=5, dedup_window=50), MemoryLog())
    for limit in (rng.randint(5, 40), rng.randint(41, 70), 1_000):
        source = ListSource(partitions, seed=rng.random(), poll_sizes=(1, 9))
        for batch in world.start(source, keep_event_ids=True):
            start = len(world.learned)
            found = world.ingest.event_ids(start, start + len(batch)).to_pylist()
            assert found == [f"id-{source}" for source in world.ingest.ids.decode(batch.src)]
            world.learn(batch)
            if len(world.learned) >= limit:
                world.save(len(world.learned) - rng.randint(0, 3))
                world.crash(power_fails=False)
                break


def test_log_written_without_event_ids_has_none():
    world = World(OrderConfig(), MemoryLog())
    partitions = {0: [Row(i, 9, i, event_id=i) for i in range(20)]}
    assert sum(map(len, world.start(ListSource(partitions)))) == 20
    assert sum(map(len, world.start(ListSource(partitions), keep_event_ids=True))) == 20
    assert world.ingest.event_ids(0, 20).null_count == 20
