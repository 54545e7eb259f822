"""Partitions that are added while a topic is read."""

from __future__ import annotations

import threading

import pytest

from helpers.kafka_io import (
    after,
    edges,
    open_source,
    publish,
    read,
    read_on,
    wait_for,
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


def test_a_partition_added_during_a_rebuild_is_read(broker, topic, monkeypatch):
    broker.create(topic, 2)
    for partition in (0, 1):
        publish(broker, topic, edges(50, 100 * partition), partition)
    known, opening, joined = {0}, threading.Event(), threading.Event()
    open_connection = ConsumerConnection.open
    monkeypatch.setattr(ConsumerConnection, "partitions", lambda self: frozenset(known))

    def slow_open(self, join):
        open_connection(self, join)
        if opening.is_set():
            opening.clear()
            assert joined.wait(20)

    monkeypatch.setattr(ConsumerConnection, "open", slow_open)
    source = open_source(broker, topic, until_end=False)
    reading = read(source, stop=after(50))
    known.add(1)
    wait_for(lambda: 1 in source._poller.known)
    opening.set()
    source._poller._rejoin = True  # a rebuild, as after any failure
    wait_for(lambda: not opening.is_set())
    assert source.look_for_partitions() == [1]
    joined.set()
    read_on(source, reading, stop=lambda r: len(r.src(1)) == 50, timeout=15)
    source.close()
