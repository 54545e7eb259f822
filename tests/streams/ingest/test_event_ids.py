"""The ids that a stream gives its events stay with them, where somebody asks for them."""

from __future__ import annotations

import random

import pytest

from helpers.ingest_world import MemoryLog, World
from helpers.partitioned import ListSource, Row
from tgflow.streams.ingest.config import OrderConfig


def made(rng, num=120):
    """Two partitions with late rows and repeats; the source of an event is its id."""
    rows: dict[int, list[Row]] = {0: [], 1: []}
    for i in range(num):
        p = rng.randrange(2)
        name = rng.choice(rows[p]).event_id if rows[p] and rng.random() < 0.1 else 2 * i + p
        rows[p].append(Row(name, 1_000, i + rng.randint(0, 4), event_id=name))
    return rows


def named(ingest, start, batch):
    """Assert that the ids asked for are those of the batch."""
    sources = ingest.ids.decode(batch.src)
    found = ingest.event_ids(start, start + len(batch)).to_pylist()
    assert found == [f"id-{source}" for source in sources]


CONFIG = OrderConfig(allowed_lateness=5, dedup_window=50)


@pytest.mark.parametrize("seed", range(4))
def test_they_come_back_after_a_crash(seed):
    rng = random.Random(seed)
    partitions, world = made(rng), World(CONFIG, MemoryLog())
    for limit in (rng.randint(5, 40), rng.randint(41, 70), 1_000):
        source = ListSource(partitions, seed=rng.random(), poll_sizes=(1, 9))
        for batch in world.start(source, keep_event_ids=True):
            named(world.ingest, len(world.learned), batch)
            world.learn(batch)
            if len(world.learned) >= limit:
                world.save(len(world.learned) - rng.randint(0, 3))
                world.crash(power_fails=False)
                break


def test_a_log_that_was_written_without_them_has_none():
    partitions, world = (
        {0: [Row(i, 9, i, event_id=i) for i in range(20)]},
        World(CONFIG, MemoryLog()),
    )
    assert sum(len(batch) for batch in world.start(ListSource(partitions))) == 20
    world.learned.clear()
    found = [*world.start(ListSource(partitions), keep_event_ids=True)]
    num = sum(map(len, found))
    assert num == 20
    assert world.ingest.event_ids(0, num).null_count == 20
