"""Order of rows, partitions that fall silent, and events that wait, with a clock of polls."""

import itertools
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.effort import cases
from helpers.ingestion import (
    ListSource,
    MemoryDeadLetters,
    MemoryLog,
    Row,
    Ticking,
    World,
    events_of,
    judge_rows,
    made_partitions,
)
from tgflow.checkpoint.durable.log import LogPosition
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import LateEvent
from tgflow.streams.ingest import tail
from tgflow.streams.ingest.admission import BoundedWindow, RecentIds, classify
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL, OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState, PartitionState, Seen
from tgflow.streams.ingest.ordering import ReorderBuffer, merged, partitions, ranks, sequence
from tgflow.streams.ingest.tail import LogTail
from tgflow.streams.rows.row_batch import EventColumns, RowBatch

TIMEOUTS = OrderConfig(idle_timeout=5.0, order_timeout=1.0)


def rows_at(*times):
    return [Row(i, 99, t) for i, t in enumerate(times)]


class Live(Ticking):
    """A topic: `arrived` rows of each partition are there; `at` acts at a second."""

    def __init__(self, partitions, arrived=None, at=None, **options):
        arrived = {p: len(rows) for p, rows in partitions.items()} | (arrived or {})
        super().__init__(partitions, silent=arrived, poll_sizes=(50,), **options)
        self.at = at or {}

    def poll(self, wanted, timeout):
        self.at.get(self.seconds, lambda: None)()
        return super().poll(wanted, timeout)

    def arrive(self, partition, number):
        return lambda: self.silent.update({partition: number})


def released(source, config=TIMEOUTS, seconds=60, **options):
    """Return the events of a source with the second at which each was released."""
    ingest = Ingest(
        source,
        config,
        log=MemoryLog(),
        clock=source.clock,
        stop=lambda: source.seconds >= seconds,
        **options,
    )
    found = [(t, source.seconds) for events in ingest for t in events.t.tolist()]
    return found, ingest


def test_all_events_are_released_although_partitions_stay_empty():
    source = Live({0: rows_at(*range(100)), 1: [], 2: [], 3: []})
    found, ingest = released(source)
    assert [t for t, _ in found] == [*range(100)]
    assert found[-1][1] <= 4
    assert ingest.report()["num_buffered"] == 0


def test_busy_partition_waits_for_a_silent_one_until_it_is_idle():
    rows = rows_at(*range(0, 1000, 10))
    source = Live({0: rows, 1: rows_at(5)}, {0: 1})
    source.at = {second: source.arrive(0, second) for second in range(1, 50)}
    found, _ = released(source)
    seconds = dict(found)
    assert seconds[0] == seconds[5] == 2  # both were silent for the order timeout
    assert seconds[10] == seconds[20] == seconds[30] == 6, "partition 1 delays them for 5 seconds"
    assert all(seconds[t] == t / 10 + 3 for t in range(30, 480, 10))


def test_clock_of_silence_stands_still_in_an_outage():
    source = Live({0: rows_at(*range(0, 1000, 10)), 1: rows_at(5)}, {0: 1})
    source.at = {second: source.arrive(0, second) for second in range(1, 50)}
    source.at[3] = lambda: vars(source).update(is_out=True)
    source.at[40] = lambda: vars(source).update(is_out=False)
    found, _ = released(source)
    assert [t for t, second in found if 3 < second < 43] == []
    assert {10, 20, 380} <= {t for t, _ in found}


def test_clock_of_silence_stands_still_while_events_are_learned():
    source = Live({0: rows_at(*range(0, 1000, 10)), 1: rows_at(5)}, {0: 1})
    source.at = {second: source.arrive(0, second) for second in range(1, 50)}
    ingest = Ingest(source, TIMEOUTS, log=MemoryLog(), clock=source.clock)
    events = iter(ingest)
    assert next(events).t.tolist() == [0, 5]
    polls = len(source.polled)
    source.seconds += 1000  # a long step
    source.at = {}
    source.arrive(0, 20)()
    assert min(next(events).t.tolist()) == 10
    assert len(source.polled) - polls == 2, "not before order_timeout"


def test_partition_that_has_more_is_no_longer_idle():
    source = Live({0: rows_at(1, 20, 30), 1: rows_at(2, 15)}, {0: 1, 1: 1})

    def arrive():
        source.silent |= {0: 3, 1: 2}
        source._random.sample = lambda ready, number: [0]  # partition 1 has lag

    def serve():
        source._random.sample = lambda ready, number: ready

    source.at = {20: arrive, 22: serve}
    found, ingest = released(source)
    assert [t for t, _ in found] == [1, 2, 15, 20, 30]
    assert ingest.report()["counts"]["late"] == 0


def test_nothing_is_forced_while_a_partition_catches_up():
    source = Live({0: rows_at(10, 20), 1: rows_at(*range(30))}, {1: 30})
    source._random.sample = lambda ready, number: [0] if 0 in ready else []
    source.at[10] = lambda: setattr(source._random, "sample", lambda ready, number: ready)
    found, ingest = released(source)
    assert min(second for _, second in found) >= 10
    assert [t for t, _ in found] == sorted([10, 20, *range(30)])
    assert ingest.report()["counts"]["late"] == 0


@pytest.mark.parametrize("late", ["dead_letter", "drop", "error"])
def test_events_before_a_forced_watermark_are_late_and_equal_times_stand_behind(late):
    rows = [Row(i, 99, t) for i, t in enumerate([50, 80, 70, 80, 81])]
    config = OrderConfig(allowed_lateness=30, late=late, order_timeout=1.0)
    log, letters = MemoryLog(), MemoryDeadLetters()
    source = Live({0: rows, 1: rows_at(80)}, {0: 2})
    source.at = {10: source.arrive(0, 5)}
    stop = lambda: source.seconds >= 30  # noqa: E731
    ingest = Ingest(source, config, log=log, letters=letters, clock=source.clock, stop=stop)
    if late == "error":
        with pytest.raises(LateEvent, match="t is 70, 10 ticks before the watermark 80"):
            list(ingest)
        return
    events = events_of(ingest, ingest.ids)
    assert [(src, t) for src, _, t, _, _ in events] == [(0, 50), (1, 80), (0, 80), (3, 80), (4, 81)]
    assert letters.places() == ([(0, 2)] if late == "dead_letter" else [])
    replay = Ingest(Live({0: rows, 1: []}), config, log=log, stop=lambda: True)
    assert events_of(replay, replay.ids) == events


def test_timeouts_require_a_log():
    for name in ("idle_timeout", "order_timeout"):
        with pytest.raises(ValueError, match="require the log"):
            Ingest(ListSource({0: []}), OrderConfig(**{name: "1s"}))


class Broker:
    """Partitions that grow while they are read; outlives the processes that read them."""

    def __init__(self, rng):
        self.rng, self.seconds, self.is_out = rng, 0.0, False
        self.rows = made_partitions(rng, num_partitions=rng.randint(1, 4), spread=3)
        self.there = dict.fromkeys(self.rows, 0)

    def pass_time(self):
        rng = self.rng
        self.seconds += rng.choice([0.1, 0.5, 3.0])
        self.is_out = rng.random() < (0.8 if self.is_out else 0.1)
        for p in rng.sample([*self.rows], rng.randint(0, len(self.rows))):
            more = rng.choice([0, 0, 1, 5]) if self.seconds < 80 else 100
            self.there[p] = min(len(self.rows[p]), self.there[p] + more)

    def source(self):
        broker = self

        class Source(ListSource):
            def poll(self, wanted, timeout) -> list[RowBatch]:
                broker.pass_time()
                self.is_out = broker.is_out
                return super().poll(wanted, timeout)

        sizes = self.rng.choice([(1, 2), (1, 7), (50,)])
        source = Source(self.rows, seed=self.rng.random(), poll_sizes=sizes)
        source.silent = self.there
        return source

    def is_read(self, ingest):
        total = sum(map(len, self.rows.values()))
        return ingest.report()["counts"]["read"] == total and not ingest.num_buffered


@pytest.mark.parametrize("seed", cases(range(300), range(12)))
def test_what_has_left_once_is_repeated_after_kills_and_losses_of_power(monkeypatch, seed):
    rng = random.Random(seed)
    broker, seen, forced = Broker(rng), [], 0
    config = OrderConfig(
        allowed_lateness=rng.choice([None, 2, 10]),
        idle_timeout=rng.choice([2.0, 20.0]),
        order_timeout=rng.choice([1.0, 4.0]),
        buffer_events=rng.choice([20, 10**6]),
    )
    world = World(config, MemoryLog())
    for crashes in range(1000):
        rate = 0.1 if crashes < 30 else 0.0
        ingest = None
        stop = lambda: ingest is not None and broker.is_read(ingest)  # noqa: B023, E731
        events = world.start(broker.source(), clock=lambda: broker.seconds, stop=stop)
        ingest = world.ingest
        for batch in events:
            world.learn(batch)
            num = len(world.learned)
            assert world.learned[: len(seen)] == seen[:num]
            seen = max(seen, [*world.learned], key=len)
            if rng.random() < 0.1:
                first = 0 if world.checkpoint is None else world.checkpoint[0]
                world.save(rng.randint(first, num))
            if rng.random() < rate:
                world.crash(power_fails=rng.random() < 0.5)
                break
        else:
            break
    forced += sum('"kind": "forced"' in footer for _, footer in world.log.frames)
    counts = world.ingest.report()["counts"]
    times = [event[2] for event in world.learned]
    assert times == sorted(times)
    assert counts["accepted"] == len(world.learned)
    source = ListSource(broker.rows, silent=dict.fromkeys(broker.rows, 0))
    replay = Ingest(source, config, log=world.log, stop=lambda: True)
    assert events_of(replay, replay.ids) == world.learned
    monkeypatch.setattr(tail, "read_written", lambda directory, start: world.log.read(start))
    follower = LogTail(Path(), IngestState(log=LogPosition(0, 0)), NodeIds(), 0)
    follower.limit = len(world.learned)
    assert not follower.limit or events_of(follower, follower.ids) == world.learned
    assert forced or not world.learned


SMALL = st.integers(-10, 40)
HUGE = st.sampled_from([BEFORE_ALL, BEFORE_ALL + 1, -1, 0, 7, AFTER_ALL - 7, AFTER_ALL - 1])
CONFIGS = st.builds(
    OrderConfig,
    allowed_lateness=st.sampled_from([None, 1, 5, 2.0**62, 1e300]),
    max_time_jump=st.sampled_from(["none", 0.5, 3, 2.0**62, 1e300]),
)


def cut(items, at):
    """Cut a list at the given places."""
    edges = [0, *sorted({place % (len(items) + 1) for place in at}), len(items)]
    return [items[a:b] for a, b in itertools.pairwise(edges) if b > a]


@given(
    t=st.one_of(st.lists(SMALL, max_size=40), st.lists(st.one_of(SMALL, HUGE), max_size=40)),
    config=CONFIGS,
    at=st.lists(st.integers(0, 40), max_size=5),
    share=st.sampled_from([None, 1, 3]),
)
def test_classification_does_not_depend_on_batch_boundaries(t, config, at, share):
    expected = judge_rows([Row(0, 0, tick) for tick in t], config, share)
    front, done, late, bad, forced = PartitionState(), 0, [], {}, 0
    window = None if share is None else BoundedWindow([], share, 10**9)
    for piece in cut(t, at):
        front, rejected, more = classify(
            np.array(piece),
            front,
            config.limits("s"),
            window=window,
            sizes=np.ones(len(piece), int),
        )
        late += [done + row for row, (code, _) in rejected.items() if code == "late"]
        bad |= {done + row: code for row, (code, _) in rejected.items() if code != "late"}
        forced, done = forced + more, done + len(piece)
    assert (late, bad, forced) == (expected.late, expected.bad, expected.forced)


@given(
    rows=st.lists(st.tuples(SMALL, st.integers(0, 3)), max_size=60),
    at=st.lists(st.integers(0, 60), max_size=8),
    watermarks=st.lists(SMALL, min_size=9, max_size=9),
    columns=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_reorder_buffer_matches_sorting_everything(rows, at, watermarks, columns):
    buffer, waiting, total = ReorderBuffer(), [], 0
    numbered = [(t, p, seq) for seq, (t, p) in enumerate(rows)]
    for piece, watermark in zip(cut(numbered, at), watermarks, strict=False):
        buffer.add(made_rows(piece, *columns))
        waiting = sorted(waiting + piece)
        before, held = len(waiting), buffer.held()
        released = buffer.release(watermark)
        expected = [key for key in waiting if key[0] < watermark]
        assert content(released) == content(made_rows(expected, *columns))
        assert content(whole(held)) == content(made_rows(waiting, *columns))
        waiting = waiting[len(expected) :]
        assert (sum(map(len, held)), len(buffer)) == (before, len(waiting))
        for p in range(4):
            since = joined(buffer.rows_since(p, 5))
            assert sorted(keys(since)) == [key for key in waiting if key[1] == p and key[0] >= 5]
            assert buffer.num_rows[p] == sum(key[1] == p for key in waiting)
        total += len(expected)
    assert content(buffer.release(AFTER_ALL)) == content(made_rows(waiting, *columns))
    assert (len(buffer), buffer.num_bytes.total()) == (0, 0)


def made_rows(rows, has_strings, has_label, has_x):
    t, p, seq = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    src = pa.array([str(s) for s in seq] if has_strings else seq, None if len(rows) else pa.int64())
    dst = src.take(pa.array(np.arange(len(rows))[::-1]))[::-1] if len(rows) else src
    x = np.stack([seq, -seq], 1).astype(np.float32) if has_x else None
    return EventColumns(src, dst, t, seq * 2 if has_label else None, x, rank=ranks(p, seq))


def whole(runs):
    return merged(runs) if runs else None


def joined(pieces):
    return EventColumns.concat(pieces) if pieces else None


def keys(rows):
    if rows is None:
        return []
    columns = rows.t, partitions(rows.rank), sequence(rows.rank)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def content(rows):
    """Return rows as plain values; None if there are none."""
    if rows is None or not len(rows):
        return None
    optional = [None if c is None else c.tolist() for c in (rows.label, rows.x)]
    return keys(rows), rows.src.to_pylist(), rows.dst.to_pylist(), *optional


def test_nearly_empty_buffer_frees_released_rows():
    buffer = ReorderBuffer()
    for i in range(60):  # one row of each poll stays buffered
        n = 50_000
        t = np.full(n, i)
        t[0] = 10**9
        ids = pa.array(np.arange(n))
        buffer.add(
            EventColumns(ids, ids, t, None, None, rank=ranks(0, np.arange(i * n, (i + 1) * n)))
        )
        buffer.release(i + 1)
    assert len(buffer) == 60
    arrays = {id(owner): len(owner) for rows in buffer.held() for owner in [owner_of(rows.t)]}
    assert sum(arrays.values()) <= 4 * 60
    rows = buffer.release(AFTER_ALL)
    assert sequence(rows.rank).tolist() == list(range(0, 60 * 50_000, 50_000))


def owner_of(array):
    return array if array.base is None else array.base


@given(
    ids=st.lists(st.integers(-3, 12), max_size=60),
    at=st.lists(st.integers(0, 60), max_size=8),
    window=st.integers(1, 20),
)
def test_duplicates_are_detected_within_the_window(ids, at, window):
    expected = judge_rows(
        [Row(0, 0, 0, event_id=key) for key in ids], OrderConfig(dedup_window=window)
    ).duplicate
    recent, found = RecentIds(window), []
    for piece in cut(list(enumerate(ids)), at):
        seq, keys = np.array(piece, np.int64).T
        is_duplicate = recent.duplicates(Seen(seq, keys))
        found += seq[is_duplicate].tolist()
        again = RecentIds(window)
        again.remember(recent.window().seen())
        recent = again
    assert found == expected


def test_remembered_ids_are_bounded_by_the_window():
    recent = RecentIds(100)
    windows = []
    for i in range(0, 10_000, 10):
        recent.duplicates(Seen(np.arange(i, i + 10), np.arange(i, i + 10)))
        windows.append(recent.window())
    assert len(recent._seq_of) <= 2 * 100 + 2048
    assert windows[-1].seen().seq.tolist() == list(range(9_900, 10_000))
    assert windows[500].seen().seq.tolist() == list(range(4_910, 5_010))
