from __future__ import annotations

import random

import pytest

from tgflow.streams.errors import LateEvent
from tgflow.streams.ingest import Ingest
from tgflow.streams.ordering.config import OrderConfig
from tgflow.testing.digest import EventDigest
from tgflow.testing.order_reference import in_order, judge_rows
from tgflow.testing.partitioned import ListSource, Row


def made_partitions(rng, *, num_partitions=None, max_rows=60, spread=6, ids=range(12), **columns):
    """Rows with ties, rows out of order, and some that are bad."""
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
                bad="type" if rng.random() < bad else None,
            )
            for i in range(rng.randint(0, max_rows))
        ]
    return partitions


def events_of(batches, ids):
    """Return (src, dst, t, label, x) of each event, with the stream's own ids."""
    out = []
    for b in batches:
        x = [()] * len(b) if b.x is None else map(tuple, b.x.tolist())
        label = [None] * len(b) if b.label is None else b.label.tolist()
        out += zip(ids.decode(b.src), ids.decode(b.dst), b.t.tolist(), label, x, strict=True)
    return out


def expected_events(partitions, config):
    accepted = {p: judge_rows(rows, config).accepted for p, rows in partitions.items()}
    return [(r.src, r.dst, r.t) for r in in_order(partitions, accepted)]


def test_k10_the_sequence_does_not_depend_on_interleaving_or_poll_sizes():
    rng = random.Random(0)
    partitions = made_partitions(rng, num_partitions=2, max_rows=400)
    digests = set()
    for seed in range(200):
        source = ListSource(partitions, seed=seed, poll_sizes=rng.choice([(1, 7), (50,), (10**4,)]))
        digest = EventDigest(source.ids)
        for events in Ingest(source, OrderConfig(allowed_lateness=5)):
            digest.add(events)
        digests.add(digest.hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("seed", range(100))
def test_the_sequence_is_the_sorted_rows_that_are_not_late(seed):
    rng = random.Random(seed)
    partitions = made_partitions(rng)
    config = OrderConfig(allowed_lateness=rng.choice([0, 1, 5, 100]))
    ingest = Ingest(ListSource(partitions, seed=seed), config)
    events = events_of(ingest, ingest.ids)
    assert [e[:3] for e in events] == expected_events(partitions, config)
    judged = [judge_rows(rows, config) for rows in partitions.values()]
    counts = ingest.report()["counts"]
    assert counts["late"] == sum(len(j.late) for j in judged)
    assert counts["malformed"] == sum(len(j.bad) for j in judged)


def test_a_late_event_is_an_error_if_so_chosen():
    source = ListSource({0: [Row(1, 2, 10), Row(1, 2, 9)]})
    with pytest.raises(LateEvent, match=r"partition 0, row 1: t is 9, 1 ticks before .* set late"):
        list(Ingest(source, OrderConfig(late="error")))
    assert source.is_closed
