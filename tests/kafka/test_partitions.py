"""Partitions that are added while a topic is read."""

from __future__ import annotations

import pytest

from helpers.kafka_io import (
    after,
    edges,
    open_source,
    publish,
    read,
    read_on,
)
from tgflow.streams.kafka.consumer import ConsumerConnection

pytestmark = pytest.mark.timeout(60)


def test_partitions_added_while_running_join_when_looked_for(broker, topic, monkeypatch):
    broker.create(topic, 3)
    for partition in range(3):
        publish(broker, topic, edges(50, 100 * partition), partition)
    known = {0}
    monkeypatch.setattr(ConsumerConnection, "partitions", lambda self: frozenset(known))
    source = open_source(broker, topic, until_end=False)
    reading = read(source, stop=after(50))
    assert source.look_for_partitions() == []
    known |= {1, 2}
    while not (new := source.look_for_partitions()):
        read_on(source, reading, stop=lambda _: True)
    assert new == source.partitions()[1:] == [1, 2]
    read_on(source, reading, stop=lambda r: len(r.src(1)) == len(r.src(2)) == 50)
    publish(broker, topic, edges(5, 50))
    read_on(source, reading, stop=after(55))
    source.close()
    assert reading.src(0) == list(range(55))
    assert reading.src(1) == list(range(100, 150))
    assert source.counters()["rebuilds"] == 0
