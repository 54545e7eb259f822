"""Topics give the events of files in their order; scores are written to a topic."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.kafka_io import arrow, edge, open_source, publish, records_of
from helpers.live_runs import SMALL, write_events
from tgflow.cli import main
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.open import open_stream

pytestmark = pytest.mark.timeout(60)
EXAMPLES = Path(__file__).parents[3] / "examples"
STREAM = EXAMPLES / "data/collegemsg.csv.gz"
TINY = ["--dim", "8", "--neighbors", "2", "--mrr-negatives", "2", "--replay-ratio", "0"]
AWAY = "kafka://127.0.0.1:1/edges"


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
    batch = next(iter(source))[:1500]
    columns = (source.ids.decode(batch.src), source.ids.decode(batch.dst), batch.t.tolist())
    expected = list(zip(*columns, strict=True))
    for partition in range(partitions):
        rows = [row for row in expected if row[0] % partitions == partition]
        whole = [arrow(*map(list, zip(*rows, strict=True)), x=False)]
        values = whole if codec == "arrow" else [edge(*row) for row in rows]
        publish(shared_broker, topic, values, partition)
    found = ordered(open_source(shared_broker, topic, codec=codec))
    if partitions == 1:
        assert found == expected
    assert [t for _, _, t in found] == [t for _, _, t in expected]
    assert sorted(found) == sorted(expected)
    again = ordered(
        open_source(shared_broker, topic, codec=codec, options={"fetch_max_bytes": 999})
    )
    assert again == found


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
@pytest.mark.parametrize("words", [["-s", AWAY], ["-s", "made.csv", "--scores", AWAY]])
def test_missing_broker_is_reported_soon_and_ends_with_75(tmp_path, words):
    write_events(tmp_path / "made.csv", 30)
    words = [sys.executable, "-m", "tgflow", "run", *words, "-m", "recency"]
    words += ["--set", "kafka.connect_timeout=8", "--max-time-jump", "none"]
    ran = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert ran.returncode == 75, ran.stderr
    reports = [line for line in ran.stderr.splitlines() if "trying for 8 s" in line]
    assert ["for 3 s" in line or "for 4 s" in line for line in reports] == [True, False]
    assert "no answer from 127.0.0.1:1 within 8 s" in ran.stderr
