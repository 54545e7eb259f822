"""The same events make the same run, wherever and in whatever pieces they come from."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from helpers.effort import cases
from helpers.live_runs import SMALL, figures, same_run
from tgflow.cli import assemble
from tgflow.streams.open import open_files


@pytest.mark.parametrize("block_bytes", cases([64, 1000, 1 << 20], [64]))
def test_sizes_of_what_is_read_at_a_time_change_nothing(
    tgflow, events_csv, tmp_path, monkeypatch, block_bytes
):
    flags = ("-s", events_csv, "--checkpoint-batches", 2, *SMALL)
    assert tgflow("run", *flags, "-o", "whole").code == 0
    cut = functools.partial(open_files, block_bytes=block_bytes)
    monkeypatch.setattr(assemble, "open_files", cut)
    assert tgflow("run", *flags, "-o", "cut").code == 0
    same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.timeout(120)
def test_a_topic_and_a_file_of_the_same_events_agree(tgflow, events_csv):
    pytest.importorskip("confluent_kafka", reason="confluent-kafka, the mock broker, is missing")
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    from tgflow.testing.broker import MockBroker

    header, *lines = events_csv.read_text().splitlines()
    with MockBroker() as broker:
        broker.create("edges", 1)
        producer = kafka.KafkaProducer(
            bootstrap_servers=broker.servers, api_version=broker.api_version
        )
        for line in lines:
            row = dict(zip(header.split(","), map(int, line.split(",")), strict=True))
            producer.send("edges", json.dumps(row).encode(), partition=0)
        producer.flush(timeout=20)
        producer.close(timeout=5)
        flags = ("--until-end", "--max-time-jump", "none", "--kafka-option", "api_version=[2,3]")
        ran = tgflow("run", "-s", broker.url("edges"), "-o", "topic", *flags, *SMALL)
        assert ran.code == 0, ran.err
    assert tgflow("run", "-s", events_csv, "-o", "file", *SMALL).code == 0
    (topic, _, topic_records), (file, _, file_records) = map(figures, (Path("topic"), Path("file")))
    assert topic_records == file_records
    assert topic == file
