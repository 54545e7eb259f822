"""Labels that come after their events, against a scan of all events for each."""

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from helpers.effort import cases
from helpers.ingestion import ListSource, MemoryLog, Row, World, events_of, in_order, judge_rows
from helpers.strategies import begin_by_scan
from tgflow import TemporalGraph
from tgflow.graph.events import LateLabels
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import EventLog, Horizon
from tgflow.streams.errors import SourceExpired
from tgflow.streams.ingest import late_labels
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState
from tgflow.streams.ingest.late_labels import LateLabelReader

CONFIG = OrderConfig(allowed_lateness=3, dedup_window=1000)


def made(rng, by_id):
    """Return partitions of events, and labels of most of them, of unknown and of alike ones."""
    partitions = {
        p: [
            Row(
                rng.randrange(3),
                rng.randrange(3),
                i // 2 + rng.randint(0, 3),
                event_id=1000 * p + i,
            )
            for i in range(rng.randint(0, 40))
        ]
        for p in range(rng.randint(1, 2))
    }
    events = [row for rows in partitions.values() for row in rows]
    labels, t = [], 0
    for row in rng.choices(events, k=rng.randint(0, 60)) if events else ():
        t += rng.choice([0, 0, 1, 2, -1])
        bad = "type" if rng.random() < 0.1 else None
        label = replace(row, label=rng.randint(0, 1), bad=bad)
        if rng.random() < 0.1:
            label = replace(label, event_id=-1, src=9)
        labels.append(replace(label, t=t) if by_id else replace(label, label_time=t))
    return partitions, labels


def key_of(row, by_id):
    return row.event_id if by_id else (row.src, row.dst, row.t)


class ByScan:
    """Labels of a stream of events, by a scan of all events for each label."""

    def __init__(self, events, by_id, limit, horizon=None):
        self.events, self.by_id, self.limit, self.horizon = events, by_id, limit, horizon
        self.waiting, self.entries, self.refused, self.outside = [], [], [], []

    def since(self, p):
        return begin_by_scan([event.t for event in self.events], self.horizon, p)

    def add(self, number, row, at):
        """Add a label at a position."""
        mine = [
            i for i, e in enumerate(self.events) if key_of(e, self.by_id) == key_of(row, self.by_id)
        ]
        first = self.since(at)
        before = [i for i in mine if first <= i < at]
        self.waiting = [(end, was) for end, was in self.waiting if end >= at and was >= first]
        end = min([i for i in mine if i >= at and self.since(i) <= at], default=10**6)
        times = [event.t for event in self.events]
        is_early = not self.by_id and first and row.t <= times[first] and row.t < times[at - 1]
        if not before and is_early:
            self.outside.append(number)
        elif len(before) > 1 or (not before and len(self.waiting) >= self.limit):
            self.refused.append(number)
        elif before:
            self.entries.append((at, number, before[0]))
        else:
            self.waiting.append((end, at))
            self.entries.append((end + 1, -1000 + number, end))

    def add_all(self, labels):
        """Add labels by their times; behind the last event, no more than may wait."""
        latest, end, room = -1, len(self.events), None
        for number, row in enumerate(labels):
            if row.bad:
                continue
            latest = max(latest, row.t if self.by_id else row.label_time)
            later = [i for i, event in enumerate(self.events) if event.t > latest]
            if later:
                self.add(number, row, later[0])
                continue
            if room is None:
                first = self.since(end)
                left = [e + 1 == end or (e >= end and at >= first) for e, at in self.waiting]
                room = self.limit - sum(left)
            if room > 0:
                room -= 1
                self.add(number, row, end)

    def stream(self, labels):
        """Return events and labels in their order."""
        out, known = [], {}
        for at, event in enumerate(self.events):
            for _, number, eid in sorted(e for e in self.entries if e[0] == at):
                row = labels[number % 1000]
                if known.get(eid) != row.label:
                    known[eid] = row.label
                    out.append((eid, row.label, row.t if self.by_id else row.label_time))
            out.append(event)
        return out


class LabelWorld(World):
    """A run with labels, which are learned with the events."""

    by_id = by_time = True
    limit, horizon = 100, None

    def start(self, source, labels):
        """Start or resume, with the events and labels of the checkpoint."""
        position, kept = 0, np.empty(0, np.int64)
        if self.checkpoint is not None:
            position, kept = self.checkpoint[0], self.kept
        self.items = self.upto(position)
        graph, ids = TemporalGraph(horizon=self.horizon), NodeIds()
        for item in self.items:
            if isinstance(item, LateLabels):
                assert graph.log.add_labels(item).outside == 0, "which the reader has refused"
            else:
                graph.append(item)
        state = IngestState()
        if self.checkpoint is not None:
            state = IngestState.from_json(json.loads(self.checkpoint[2]), self.checkpoint[1])
        graph.forget_outside(state.num_released)
        reader = LateLabelReader(
            labels,
            by_id=self.by_id,
            by_time=self.by_time,
            most_waiting=self.limit,
            max_bad_ratio=1,
            horizon=self.horizon,
        )
        if self.by_id:
            reader.begin_at(position - len(kept))
            reader.keep(kept[: state.num_released - position + len(kept)])
        elif state.num_released:
            ids.load_state_dict(self.checkpoint[3])
        reader.restore(state, graph.log, ids)
        self.reader = reader
        return super().start(source, labels=reader)

    def upto(self, position):
        """Return what was learned before an event, without the labels right before it."""
        out, at = [], 0
        for item in getattr(self, "items", ()):
            if isinstance(item, LateLabels):
                out += [item] if at < position else []
            elif at < position:
                out.append(item[: position - at])
                at += len(item)
        return out

    def learn(self, item):
        self.items.append(item)
        if not isinstance(item, LateLabels):
            super().learn(item)

    def save(self, position):
        super().save(position)
        first = self.reader.first if self.by_id else position
        self.kept = self.reader.ids()(first, position).copy()

    def stream(self):
        """Return the events and labels learned, in order."""
        out = []
        for item in self.items:
            if isinstance(item, LateLabels):
                columns = (item.eid, item.label, item.t)
                out += zip(*(column.tolist() for column in columns), strict=True)
            else:
                out += [row[:3] for row in events_of([item], self.ingest.ids)]
        return out

    def run(self, make_source, rng, **options):
        """Run to the end, with crashes and checkpoints on the way."""
        while True:
            for item in self.start(*make_source()):
                self.learn(item)
                if rng.random() < 0.15:
                    first = 0 if self.checkpoint is None else self.checkpoint[0]
                    self.save(rng.randint(first, len(self.learned)))
                if rng.random() < 0.1:
                    self.crash(power_fails=False)
                    if self.log is not None:  # any frames that were not synced may be lost
                        num = rng.randint(self.log.num_synced, len(self.log.frames))
                        del self.log.frames[num:]
                    break
            else:
                return self.stream()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(late_labels, "PIECE", 1)
    monkeypatch.setattr(EventLog, "piece", 1)


HORIZONS = [None, Horizon(16), Horizon(ticks=16), Horizon(24, 18)]


def codes_of(report):
    found = Counter()
    for each in report["partitions"].values():
        found.update({code: seen["count"] for code, seen in each["refused"].items()})
    return found


def plain(stream):
    return [(row.src, row.dst, row.t) if isinstance(row, Row) else row for row in stream]


def events_in_order(partitions):
    return in_order(
        partitions, {p: judge_rows(rows, CONFIG).accepted for p, rows in partitions.items()}
    )


@pytest.mark.parametrize("with_log", [True, False])
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("seed", cases(range(60), range(4)))
def test_labels_of_files_are_placed_by_time_whatever_the_polls_and_crashes(seed, by_id, with_log):
    rng = random.Random(f"{seed} {by_id} {with_log}")
    partitions, labels = made(rng, by_id)
    world = LabelWorld(CONFIG, MemoryLog() if with_log else None)
    world.by_id, world.limit = by_id, rng.choice([0, 3, 100])
    world.horizon = HORIZONS[seed % 4]
    sizes = rng.choice([(1, 2), (7,), (500,)])
    found = world.run(
        lambda: (
            ListSource(partitions, seed=rng.random(), poll_sizes=sizes),
            ListSource({0: labels}, seed=rng.random(), poll_sizes=sizes),
        ),
        rng,
    )
    expected = ByScan(events_in_order(partitions), by_id, world.limit, world.horizon)
    expected.add_all(labels)
    assert found == plain(expected.stream(labels))
    report = world.ingest.report()["labels"]
    num_new = sum(isinstance(each, tuple) for each in expected.stream(labels))
    assert report["added"] + report["corrected"] == num_new
    assert codes_of(report).total() == report["refused"] == len(world.letters.letters)
    assert codes_of(report)["ambiguous"] + codes_of(report)["unseen"] == len(expected.refused)
    assert codes_of(report)["outside"] == len(expected.outside)
    places = {row.origin.place["row"] for row in world.letters.letters if row.code != "type"}
    assert places == {*expected.refused, *expected.outside}


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("seed", cases(range(60), range(4)))
def test_labels_that_arrive_have_the_recorded_positions_after_crashes(seed, by_id):
    rng = random.Random(f"{seed} {by_id}")
    partitions, labels = made(rng, by_id)
    world = LabelWorld(CONFIG, MemoryLog())
    world.by_id, world.by_time, world.limit = by_id, False, rng.choice([3, 100])
    world.horizon = HORIZONS[seed % 4]
    halves = {0: labels[::2], 1: labels[1::2]}
    sizes = rng.choice([(1, 2), (7,), (500,)])
    found = world.run(
        lambda: (
            ListSource(partitions, seed=rng.random(), poll_sizes=sizes),
            ListSource(halves, seed=rng.random(), poll_sizes=sizes),
        ),
        rng,
    )
    again = LabelWorld(CONFIG, world.log, world.letters)
    again.by_id, again.by_time, again.limit = by_id, False, world.limit
    again.horizon = world.horizon
    nothing = lambda: ListSource({p: rows[:0] for p, rows in halves.items()})  # noqa: E731
    for item in again.start(ListSource(partitions), nothing()):
        again.learn(item)
    assert again.stream() == found
    assert again.ingest.report()["labels"] == world.ingest.report()["labels"]
    assert [row[:3] for row in world.learned] == plain(events_in_order(partitions))
    report = world.ingest.report()["labels"]
    num_bad = sum(row.bad is not None for row in labels)
    codes = codes_of(report)
    assert codes["type"] == num_bad
    assert codes.total() == report["refused"]
    kinds = ("added", "corrected", "repeated", "waiting", "refused", "expired")
    assert sum(report[kind] for kind in kinds) == len(labels)


def test_labels_added_between_polls_are_on_disk_and_counted():
    rows = [Row(1, 2, 10, event_id=1), Row(3, 4, 20, event_id=2), Row(1, 2, 30, event_id=3)]
    log = MemoryLog()
    reader = LateLabelReader(by_id=True, most_waiting=1)
    source = ListSource({0: rows}, poll_sizes=[9], silent={0: 3})
    ingest = Ingest(source, CONFIG, log=log, labels=reader)
    posted = lambda *some: ListSource({0: some}, poll_sizes=[9])  # noqa: E731

    def add(*some):
        labels = posted(*(Row(0, 0, t, label=label, event_id=key) for key, label, t in some))
        labels.start({})
        return ingest.add_labels(labels.poll({0}, 0)[0])

    with pytest.raises(RuntimeError, match="the run is still recovering, and takes no labels"):
        add((1, 1, 15))
    stream = iter(ingest)
    assert len(next(stream)) == 2
    source.silent = {}
    least = -(2**63)
    answer = add((1, 1, 15), (2, 0, least), (1, 1, 16), (1, 0, 17), (3, 1, 18), (4, 1, 18))
    assert log.num_synced == len(log.frames)
    refused = answer.pop("refused")
    expected = {"added": 2, "corrected": 1, "repeated": 1, "waiting": 1, "position": 2}
    assert answer == expected
    assert [(x["row"], x["code"]) for x in refused] == [(5, "unseen")]
    assert "there is no event of this id yet, and 1 labels wait already" in refused[0]["reason"]
    assert add((1, 0, 99))["repeated"] == 1
    items = [item for item in stream if isinstance(item, LateLabels) or len(item)]
    assert [item.t.tolist() for item in items] == [[15, 20, 17], [30]]
    assert ingest.report()["labels"]["waiting"] == 1, "that of the last event, until the next one"
    with pytest.raises(RuntimeError, match="the run has ended, and takes no labels"):
        add((1, 1, 15))
    with pytest.raises(SourceExpired, match="resume with --label-stream or --label-token"):
        list(Ingest(ListSource({0: rows}), CONFIG, log=log))
