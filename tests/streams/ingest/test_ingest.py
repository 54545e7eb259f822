import os
import random
from collections import Counter

import pytest

from helpers.effort import cases, tries
from helpers.ingestion import (
    ListSource,
    MemoryLog,
    Row,
    World,
    as_event,
    in_order,
    judge_rows,
    made_partitions,
)
from tgflow.streams.errors import LateEvent
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest

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
