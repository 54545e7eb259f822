"""Reading and decoding in several processes: the rows of one process, and its ends."""

import json
import os
import pickle
import signal
import ssl
import time
from contextlib import closing
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from helpers.kafka_io import edge, fill, open_source, publish, read, read_on, wait_for
from helpers.processes import is_there
from tgflow.checkpoint.durable.log import DurableLog
from tgflow.streams.errors import NoTopicError, SourceMismatch, SourceUnavailable
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.kafka import KafkaConfig
from tgflow.streams.kafka.codecs import RecordDecoder
from tgflow.streams.kafka.consumer import Chunk, Cursor
from tgflow.streams.kafka.readers import without_decoder

pytestmark = pytest.mark.timeout(120)
COLUMNS = {"features": ["f", "x[2]"], "label": "y", "weight": "w", "relation": "r"}


def rich(row, **changes):
    """Return a record with all columns of an event."""
    values = {"f": row / 7, "x": [row, -1.5], "y": row % 2, "w": 0.5, "r": row % 3, "id": f"e{row}"}
    return edge(row, 1, 10 * row, **values | changes)


def publish_some(broker, topic, partitions=3, count=400):
    """Fill a topic with good records, bad ones, tombstones and late events."""
    broker.create(topic, partitions)
    for partition in range(partitions):
        values = [rich(row) for row in range(count)]
        values[7], values[20], values[21] = b"{", rich(20, x=[1]), None
        values[100] = rich(1)  # late, and its id is a repeated one
        publish(broker, topic, values, partition)


def logged(broker, topic, folder, decoders):
    """Return the events in their order, the rows of the log, the dead letters and the counts."""
    source = open_source(broker, topic, decoders=decoders, event_id="id", **COLUMNS)
    log, letters = DurableLog(folder / "log"), DeadLetterFiles(folder / "letters")
    config = OrderConfig(late="dead_letter", dedup_window=50, allowed_lateness=100)
    ingest = Ingest(source, config, letters=letters, log=log, keep_event_ids=True)
    events = [t for batch in ingest for t in batch.t.tolist()]
    counts = ingest.report()["counts"]
    letters.close()
    log.close()
    rows = [row for rows, _, _ in DurableLog(folder / "log").read() for row in rows.to_pylist()]
    rows.sort(key=lambda row: (row["partition"], row["seq"]))  # written as they arrived
    found = [path.read_text().splitlines() for path in sorted((folder / "letters").glob("*.jsonl"))]
    return events, rows, sorted(chain.from_iterable(found)), counts


@pytest.mark.slow
def test_decoders_write_the_log_and_the_dead_letters_of_one_process(broker, topic, tmp_path):
    publish_some(broker, topic)
    results = {}
    for decoders in (1, 2, 3):
        folder = tmp_path / str(decoders)
        folder.mkdir()
        results[decoders] = logged(broker, topic, folder, decoders)
    assert results[2] == results[1] == results[3]
    events, rows, letters, _ = results[1]
    assert len(events) == len(rows) > 1_000
    assert {json.loads(letter)["code"] for letter in letters} == {"syntax", "width", "late"}


def test_rows_arrive_as_they_were_sent():
    config = KafkaConfig(url="kafka://h:1/edges", event_id="id", **COLUMNS)
    decoder = RecordDecoder(config)

    class Record:
        def __init__(self, offset, value):
            self.offset, self.value, self.timestamp = offset, value, 1000 + offset

    values = [rich(0), b"{", rich(2), None, rich(4)]
    records = [Record(10 + 2 * i, value) for i, value in enumerate(values)]
    cursor = Cursor(19, 18, 5, 1000, end=40)
    for chunk in (
        Chunk(3, records, cursor, {"repeated": 2}, [(4, 10)]),
        Chunk(3, [records[0]], cursor, {}, []),
        Chunk(3, [], cursor, {}, []),
    ):
        rows = decoder.decode(chunk)
        found = pickle.loads(pickle.dumps(without_decoder(rows)))
        found = replace(found, locate=replace(found.locate, decoder=decoder))
        for name in ("faults", "num_rows", "position", "partition", "counts", "gaps"):
            assert getattr(found, name) == getattr(rows, name), name
        assert np.array_equal(found.index, rows.index)
        columns = rows.events.columns()
        assert found.events.columns().keys() == columns.keys()
        for name, column in found.events.columns().items():
            assert column.dtype == columns[name].dtype if name == "t" else True
            assert column.tolist() == columns[name].tolist()
        assert found.written.tolist() == rows.written.tolist()
        assert [found.locate(i) for i in range(rows.num_rows)] == [
            rows.locate(i) for i in range(rows.num_rows)
        ]
        assert found.bad() == rows.bad()


@pytest.mark.slow
def test_resumed_run_continues_with_other_numbers_of_decoders(broker, topic):
    fill(broker, topic, 300, partitions=3)
    positions = {}
    found = {p: [] for p in range(3)}
    for decoders, until in ((2, 200), (3, 500), (1, None)):
        with closing(open_source(broker, topic, decoders=decoders)) as source:
            enough = (
                None
                if until is None
                else (lambda reading: sum(map(len, reading.rows.values())) >= 100)
            )
            reading = read(source, positions, stop=enough)
        positions |= reading.positions
        for partition, rows in reading.rows.items():
            found[partition] += [src for src, _, _ in rows]
    assert found == {p: [*range(300)] for p in range(3)}


@pytest.mark.slow
def test_partitions_are_waited_for_and_added(broker, topic):
    fill(broker, topic, 30, partitions=2)
    with closing(open_source(broker, topic, decoders=2, until_end=False)) as source:
        reading = read(source, stop=lambda found: len(found.src(1)) == 30, wanted={1})
        assert set(reading.rows) == {1}
        read_on(source, reading, stop=lambda found: len(found.src(0)) == 30)
        publish(broker, topic, [edge(99)], partition=0)
        read_on(source, reading, stop=lambda found: found.src(0)[-1] == 99)
        assert source.look_for_partitions() == []
        wait_for(lambda: source.poll(set(), 0.1) == [] and source.lag() == {0: 0, 1: 0})
        assert source.counters()["rebuilds"] == 0


@pytest.mark.slow
def test_killed_decoder_ends_the_run_and_nothing_is_lost(broker, topic):
    fill(broker, topic, 200, partitions=2)
    source = open_source(broker, topic, decoders=2, until_end=False)
    reading = read(source, stop=lambda found: len(found.src(1)) == 200)
    pids = [each._child.pid for each in source._reader._processes]
    os.kill(pids[1], signal.SIGKILL)
    publish(broker, topic, [edge(900 + i) for i in range(20)], partition=1)
    text = rf"decoder 1 \(process {pids[1]}\) was killed by SIGKILL; its records are not lost"
    with pytest.raises(SourceUnavailable, match=text):
        read_on(source, reading, stop=lambda found: len(found.src(1)) == 220)
    source.close()
    assert not any(map(is_there, pids))
    with closing(open_source(broker, topic, decoders=2)) as source:
        more = read(source, reading.positions)
    assert reading.src(1) + more.src(1) == [*range(200), *range(900, 920)]


@pytest.mark.slow
def test_decoders_end_with_the_source_and_with_its_process(broker, topic):
    fill(broker, topic, 10, partitions=2)
    source = open_source(broker, topic, decoders=2, until_end=False)
    source.start({})
    pids = [each._child.pid for each in source._reader._processes]
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 5
    assert not any(map(is_there, pids))


@pytest.mark.slow
def test_errors_of_decoders_are_those_of_one_process(broker, topic):
    with pytest.raises(NoTopicError, match="there is no such topic on this broker"):
        open_source(broker, topic, decoders=2).start({})
    broker.create(topic, 2)
    with pytest.raises(SourceMismatch, match="it has 2 partitions, and decoders=3; give fewer"):
        open_source(broker, topic, decoders=3).start({})


def test_options_that_are_no_plain_values_are_refused(broker, topic):
    source = open_source(
        broker, topic, decoders=2, options={"ssl_context": ssl.create_default_context()}
    )
    with pytest.raises(ValueError, match="decoders=2 passes the options to other processes"):
        source.start({})
