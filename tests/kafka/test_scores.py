"""Scores of events in a topic: each of them at least once, with its position as key."""

from __future__ import annotations

import json

import pytest

from helpers.kafka_io import records_of
from helpers.live_runs import SMALL, write_events
from tgflow.cli import main

pytestmark = pytest.mark.timeout(60)


def test_a_record_an_event(shared_broker, topic, tmp_path):
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
