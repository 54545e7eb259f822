"""In-memory durable state for ingest tests: log, dead letters, checkpoint, resumed runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch

from helpers.partitioned import ListSource, Row
from tgflow.checkpoint.durable.log import LogPosition
from tgflow.graph.events import concat
from tgflow.graph.ids import NodeIds
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState


class MemoryLog:
    """Log frames; unsynced ones are lost at a power failure."""

    def __init__(self):
        self.frames = []
        self.num_synced = 0

    @property
    def end(self):
        return LogPosition(0, len(self.frames))

    def append(self, rows, footer):
        self.frames.append((rows, json.dumps(footer)))
        return self.end

    def sync(self):
        self.num_synced = len(self.frames)

    def read(self, start=None):
        first = 0 if start is None else start.byte
        assert first <= len(self.frames), "the log lost its end"
        for i, (rows, footer) in list(enumerate(self.frames))[first:]:
            yield rows, json.loads(footer), LogPosition(0, i + 1)

    def lose_power(self):
        del self.frames[self.num_synced :]


class MemoryDeadLetters:
    """Dead letters; `write` is followed by `sync`, so none is ever lost."""

    def __init__(self):
        self.letters = []

    @property
    def length(self):
        return {"segment": 0, "byte": len(self.letters)}

    def write(self, source, rows):
        self.letters += rows

    def sync(self):
        pass

    def rewind(self, length):
        assert length["byte"] <= len(self.letters), "dead letters are missing"
        del self.letters[length["byte"] :]

    def places(self):
        return [tuple(row.origin.place.values()) for row in self.letters]


@dataclass
class World:
    """A run that can be killed and resumed."""

    config: object
    log: MemoryLog | None = None
    letters: MemoryDeadLetters = field(default_factory=MemoryDeadLetters)
    learned: list = field(default_factory=list)
    checkpoint: tuple | None = None
    ingest: Ingest | None = None
    num_restarts: int = 0

    def start(self, source, max_bad_ratio=1.0, **options):
        position, state = 0, None
        if self.checkpoint is not None:
            position, tensors, meta, ids = self.checkpoint
            state = IngestState.from_json(json.loads(meta), tensors)
            source.ids = NodeIds()
            source.ids.load_state_dict(ids)
        del self.learned[position:]
        self.num_restarts += 1
        self.ingest = Ingest(
            source,
            self.config,
            letters=self.letters,
            max_bad_ratio=max_bad_ratio,
            log=self.log,
            state=state,
            skip_to=position,
            **options,
        )
        return iter(self.ingest)

    def learn(self, events):
        self.learned += events_of([events], self.ingest.ids)

    def save(self, position):
        ids = self.ingest.ids
        state = self.ingest.state_at(position)
        dense = {name: node for node, name in enumerate(ids.decode(torch.arange(len(ids))))}
        named = [dense[name] for event in self.learned[:position] for name in event[:2]]
        ids_state = ids.state_dict(max(named, default=-1) + 1)
        self.checkpoint = position, state.state_dict(), json.dumps(state.to_json()), ids_state
        self.ingest.committed(state)

    def crash(self, power_fails):
        self.ingest.close()
        if power_fails and self.log is not None:
            self.log.lose_power()

    def run(self, make_source, rng, *, crashes=0.05, checkpoints=0.1):
        while True:
            events = self.start(make_source())
            for batch in events:
                self.learn(batch)
                if rng.random() < checkpoints:
                    first = 0 if self.checkpoint is None else self.checkpoint[0]
                    self.save(rng.randint(first, len(self.learned)))
                if rng.random() < crashes:
                    self.crash(power_fails=rng.random() < 0.5)
                    break
            else:
                return self.learned


def made_partitions(rng, *, num_partitions=None, max_rows=60, spread=6, ids=range(12), **columns):
    x_dim, labels = columns.get("x_dim", 0), columns.get("labels", False)
    event_ids, bad = columns.get("event_ids", 0), columns.get("bad", 0.1)
    partitions = {}
    for p in range(num_partitions or rng.randint(1, 4)):
        start, speed = rng.randint(0, 20), rng.choice([0.2, 1, 3])
        partitions[p] = [
            Row(
                rng.choice(ids),
                rng.choice(ids),
                start + int(i * speed) + rng.randint(-spread, spread),
                tuple(rng.random() for _ in range(x_dim)),
                rng.randint(0, 3) if labels else None,
                rng.randint(0, event_ids) if event_ids else None,
                bad="type" if i and rng.random() < bad else None,
            )
            for i in range(rng.randint(0, max_rows))
        ]
    return partitions


def events_of(batches, ids):
    events = concat(list(batches))
    x = [()] * len(events) if events.x is None else map(tuple, events.x.tolist())
    label = [None] * len(events) if events.label is None else events.label.tolist()
    if events.label is not None:
        assert torch.equal(events.relation, events.label)  # as `ListSource` sets them
    src, dst = ids.decode(events.src), ids.decode(events.dst)
    return list(zip(src, dst, events.t.tolist(), label, x, strict=True))


def as_event(row):
    return row.src, row.dst, row.t, row.label, tuple(torch.tensor(row.x).tolist())


class Ticking(ListSource):
    """A source whose polls take a second each; `clock` returns the time."""

    seconds = 0.0

    def poll(self, wanted, timeout):
        self.seconds += 1
        return super().poll(wanted, timeout)

    def clock(self):
        return self.seconds
