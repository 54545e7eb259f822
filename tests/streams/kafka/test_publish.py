"""Events written to a topic are read back unchanged; dead letters in a topic."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.kafka_io import Reading, edge, open_source, publish, read, read_all, records_of
from helpers.live_runs import SMALL, write_events
from tgflow.cli import main
from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.kafka.publish import NoBrokerError, Publisher, PublishError, Topic
from tgflow.streams.open import open_stream
from tgflow.streams.rows.row_batch import BadRow, Origin

pytestmark = pytest.mark.timeout(60)
EXAMPLES = Path(__file__).parents[3] / "examples"
STREAM = EXAMPLES / "data/collegemsg.csv.gz"
TINY = ["--dim", "8", "--neighbors", "2", "--mrr-negatives", "2", "--replay-ratio", "0"]
CODECS = ("json", "csv", "arrow")


def published(broker, topic, codec, source, batches, **settings):
    options = {"api_version": broker.api_version}
    with Publisher(broker.url(topic), source, codec=codec, options=options, **settings) as out:
        for batch in batches:
            out.send(batch)
    return out.how_to_read()


def some_events(count, text=False):
    ids = NodeIds()
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, 50, (2, count))
    names = (lambda a: [f'n-{i}ä,"' for i in a]) if text else (lambda a: a)
    src, dst = ids.encode(names(src), names(dst))
    t = torch.from_numpy(np.sort(rng.integers(-5, 10**6, count)))
    x = torch.from_numpy(rng.normal(size=(count, 3)).astype(np.float32))
    label = torch.from_numpy(rng.integers(-2, 3, count))
    return ids, EventBatch(src, dst, t, x, label)


@pytest.mark.parametrize("codec", CODECS)
def test_single_feature_is_read_back(shared_broker, topic, codec):
    ids, events = some_events(50)
    events = replace(events, x=events.x[:, :1].clone())
    shared_broker.create(topic, 1)
    how = published(shared_broker, topic, codec, ids, [events])
    reading = read_all(shared_broker, topic, features=[how.pop("features")], time_unit="s", **how)
    assert reading.bad == []
    xs = np.concatenate([a.events.x for a in reading.arrivals if len(a.events)])
    assert np.array_equal(xs, events.x.numpy())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("by", "text"), [("src", False), ("src", True), ("round_robin", False)])
def test_published_events_are_read_back(shared_broker, topic, codec, by, text):
    ids, events = some_events(500, text)
    shared_broker.create(topic, 3)
    size = None if codec == "json" else 7
    how = published(
        shared_broker, topic, codec, ids, [events[:100], events[100:]],
        records=size, partition_by=by,
    )  # fmt: skip
    features = how.pop("features")
    reading = read_all(shared_broker, topic, features=[features], time_unit="s", **how)
    assert reading.bad == []
    rows = sorted(row for rows in reading.rows.values() for row in rows)
    src, dst = ids.decode(events.src), ids.decode(events.dst)
    assert rows == sorted(zip(src, dst, events.t.tolist(), strict=True))
    xs = np.concatenate([a.events.x for a in reading.arrivals if len(a.events)])
    assert sorted(map(tuple, xs.tolist())) == sorted(map(tuple, events.x.tolist()))
    labels = np.concatenate([a.events.label for a in reading.arrivals if len(a.events)])
    assert sorted(labels) == sorted(events.label.tolist())
    if by == "src" and not text:
        assert all(src % 3 == p for p, rows in reading.rows.items() for src, _, _ in rows)
    for rows in reading.rows.values():
        times = [t for _, _, t in rows]
        assert times == sorted(times)  # each partition keeps the order


def test_publishing_to_an_unreachable_broker_fails_in_time():
    began = time.monotonic()
    with pytest.raises(NoBrokerError, match=r"no answer from 127\.0\.0\.1:1 within 1 s"):
        Topic("kafka://127.0.0.1:1/edges", {"api_version": (2, 3)}, connect_timeout=1.0)
    assert time.monotonic() - began < 20


def ordered(source, **settings):
    """Return all events of a source in their order, as rows."""
    rows = []
    ingest = Ingest(source, OrderConfig(**settings))
    for batch in ingest:
        ids = ingest.ids
        src, dst = ids.decode(batch.src), ids.decode(batch.dst)
        rows += zip(src, dst, batch.t.tolist(), strict=True)
    return rows


@pytest.mark.parametrize(("codec", "partitions"), [("arrow", 1), ("arrow", 3), ("json", 1)])
def test_file_and_topic_of_the_same_events_give_the_same_rows(
    shared_broker, topic, codec, partitions
):
    shared_broker.create(topic, partitions)
    source = open_stream(STREAM, time_unit="s")
    batches = [batch[:1500] for batch in source][:1]
    published(shared_broker, topic, codec, source.ids, batches)
    ids, batch = source.ids, batches[0]
    columns = (ids.decode(batch.src), ids.decode(batch.dst), batch.t.tolist())
    expected = list(zip(*columns, strict=True))
    found = ordered(open_source(shared_broker, topic, codec=codec))
    if partitions == 1:
        assert found == expected
    assert [t for _, _, t in found] == [t for _, _, t in expected]
    assert sorted(found) == sorted(expected)
    again = ordered(
        open_source(shared_broker, topic, codec=codec, options={"fetch_max_bytes": 999})
    )
    assert again == found


def test_dead_letters_go_to_files_and_a_topic(shared_broker, topic, tmp_path):
    shared_broker.create(topic, 1)
    place = {"topic": "edges", "partition": 3, "offset": 4711, "row": 0}
    row = BadRow(0, "syntax", "not JSON", Origin(place, b"{\x1b[31m"))
    options = {"api_version": shared_broker.api_version, "fetch_max_wait_ms": 50}
    sender = Topic(shared_broker.url(topic), options)
    letters = DeadLetterFiles(tmp_path / "dead-letters", topic=sender)
    letters.write("topic edges", [row])
    letters.sync()
    length = letters.length
    letters.close()
    assert length["byte"] == (tmp_path / "dead-letters/000000.jsonl").stat().st_size
    reading = Reading()
    source = open_source(shared_broker, topic)
    reading = read(source, into=reading)
    source.close()
    [(_, code, origin)] = reading.bad
    letter = json.loads(origin.raw)
    assert code == "null"
    assert letter["place"] == place
    assert letter["code"] == "syntax"
    assert base64.b64decode(letter["raw"]) == b"{\x1b[31m"


def test_dead_letters_rejected_by_the_topic_stop_the_stream(broker, tmp_path):
    broker.create("edges", 1)
    broker.create("dead", 1)
    publish(broker, "edges", [edge(1), b"{", edge(2)])
    options = {"api_version": broker.api_version, "retries": 0, "delivery_timeout_ms": 1500}
    options |= {"request_timeout_ms": 1000, "enable_idempotence": False}
    sender = Topic(broker.url("dead"), options)
    letters = DeadLetterFiles(tmp_path / "dead-letters", topic=sender)
    broker.fail(0, [87] * 100)  # the broker refuses every record
    source = open_source(broker, "edges")
    with pytest.raises(PublishError, match="did not take all records"):
        list(Ingest(source, OrderConfig(), letters=letters))


@pytest.fixture
def tgflow(capsys):
    """Run `tgflow ARGS`; return exit code and stderr."""
    return lambda *args: (main([str(arg) for arg in args]), capsys.readouterr().err)


def test_playback_publishes_a_file(tgflow, shared_broker, topic):
    shared_broker.create(topic, 2)
    url = shared_broker.url(topic)
    args = ["--to", url, "--codec", "arrow", "--limit", 600, "--records", 100]
    code, said = tgflow("playback", STREAM, *args, "--kafka-option", "api_version=[2,3]")
    assert code == 0, said
    assert "published 600 events" in said
    assert f"tgflow run --stream {url} --codec arrow --time-unit s --kafka-option" in said
    reading = read_all(shared_broker, topic, codec="arrow")
    assert sum(map(len, reading.rows.values())) == 600


def test_scores_are_one_record_per_event_keyed_by_position(shared_broker, topic, tmp_path):
    shared_broker.create(topic, 1)
    stream = write_events(tmp_path / "made.csv", size=120)
    version = json.dumps(list(shared_broker.api_version))
    flags = ["-s", stream, "-o", tmp_path / "out", *SMALL, "--scores", shared_broker.url(topic)]
    flags += ["--kafka-option", f"api_version={version}"]
    assert main([str(x) for x in ["run", *flags]]) == 0
    records = records_of(shared_broker, topic)
    lines = [line.split(",") for line in stream.read_text().splitlines()[1:]]
    assert [key for key, _ in records] == [str(i).encode() for i in range(120)]
    found = [[str(row[name]) for name in ("src", "dst", "t")] for _, row in records]
    assert found == lines
    assert records[0][1]["anomaly"] is None
    assert {row["model_position"] for _, row in records} == {0, 50, 100}


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_example_round_matches_undisturbed_run():
    command = [sys.executable, str(EXAMPLES / "kafka_round.py"), "--events", "1600", *TINY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to the last bit" in done.stdout
    assert "killed after" in done.stdout


@pytest.mark.slow
def test_demo_broker_serves_the_printed_command_until_a_signal(tmp_path):
    write_events(tmp_path / "made.csv", 300)
    words = [sys.executable, "-m", "tgflow", "playback", "made.csv", "--to", "kafka://demo"]
    demo = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert demo.stderr is not None
        lines = []
        while not lines or "until Ctrl-C" not in lines[-1]:
            lines.append(demo.stderr.readline())
            assert lines[-1], lines
        (command,) = (line for line in lines if line.startswith("read them with: tgflow "))
        printed = re.sub(r"127.0.0.1:\d+", "127.0.0.1:PORT", command[len("read them with: ") :])
        assert printed in (EXAMPLES / "guides/kafka.md").read_text()
        run = shlex.split(command.removeprefix("read them with: tgflow "))
        more = ["--until-end", "-m", "recency", "-o", str(tmp_path / "out"), "--threads", "1"]
        assert main([*run, *more]) == 0
        assert json.loads((tmp_path / "out/metrics.json").read_text())["num_events"] == 300
        assert demo.poll() is None
        demo.terminate()
        assert demo.wait(10) == 0
    finally:
        demo.kill()
        demo.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["playback", "made.csv", "--to", "kafka://127.0.0.1:1/edges"],
        ["run", "-s", "kafka://127.0.0.1:1/edges", "--max-time-jump", "none", "-m", "recency"],
    ],
)
def test_missing_broker_is_reported_soon_and_ends_with_75(tmp_path, words):
    write_events(tmp_path / "made.csv", 30)
    words = [sys.executable, "-m", "tgflow", *words, "--set", "kafka.connect_timeout=8"]
    ran = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert ran.returncode == 75, ran.stderr
    reports = [line for line in ran.stderr.splitlines() if "trying for 8 s" in line]
    assert ["for 3 s" in line or "for 4 s" in line for line in reports] == [True, False]
    assert "no answer from 127.0.0.1:1 within 8 s" in ran.stderr
