"""`tgflow run --scores`: each event once, by its own ids, also after kills."""

import csv
import json
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from helpers.effort import cases
from helpers.forged import flip_bit
from helpers.kafka_io import wait_for
from helpers.live_runs import SMALL
from tgflow.run.scores import FileScores, SavedScores, score_files

SIZE = 230
WRITE = SavedScores.write
NAMES = ["position", "src", "dst", "t", "event_id", "logit", "probability", "rank", "anomaly"]


@pytest.fixture
def run(tgflow, tmp_path):
    """Run over payments with event ids, between named accounts, at decimal times."""
    lines = [f"acc_{i % 9},shop_{i * i % 7},{1_600_000 + i}.5,pay-{i}" for i in range(SIZE)]
    stream = tmp_path / "pay.csv"
    stream.write_text("\n".join(["src,dst,t,id", *lines, *["acc_1,shop_1,soon,pay-x"] * 3]) + "\n")
    flags = ("--event-id", "id", "--time-unit", "s", "--id-kind", "string")
    flags += ("--set", "stream.tick_unit=ms")
    return lambda *more: tgflow("run", "-s", stream, "-o", "out", *flags, *SMALL, *more)


def crash_at(monkeypatch, begin):
    """Let a run crash as its scores of the micro-batch at `begin` are written."""

    def crashing(self, events, scores):
        WRITE(self, events, scores)
        assert events.begin != begin, "killed here"

    monkeypatch.setattr(SavedScores, "write", crashing)


def table(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_score_rows_have_the_ids_and_time_units_of_the_stream(run, tgflow, tmp_path):
    assert run("--scores", "s.csv").code == 0
    rows = table("s.csv")
    assert list(rows[0]) == [*NAMES, "model_position"]
    assert [int(row["position"]) for row in rows] == list(range(SIZE))
    row = next(row for row in rows[101:] if row["rank"])
    other = rows[101]
    assert (other["src"], other["dst"], other["t"]) == ("acc_2", "shop_2", "1600101.5")
    assert other["event_id"] == "pay-101"
    assert row["model_position"] == "100"
    assert 1 <= float(row["rank"]) <= 21
    assert 0 < float(row["probability"]) < 1
    assert rows[0]["anomaly"] == ""
    assert 0 <= float(row["anomaly"]) <= 100
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["scores"] == {"to": str(tmp_path / "s.csv"), "num_rows": SIZE}
    ranks = [float(row["rank"]) for row in rows if row["rank"]]
    assert len(ranks) == metrics["prequential.mrr_events"] == SIZE / 5
    mrr = sum(1 / rank for rank in ranks) / len(ranks)
    assert mrr == pytest.approx(metrics["prequential.mrr"])
    found = tgflow("info", "out", "--json").json
    assert found["scores"]["to"] == str(tmp_path / "s.csv")
    letters = sum(path.stat().st_size for path in Path("out/dead-letters").iterdir())
    for name, size in (("scores", Path("s.csv").stat().st_size), ("dead_letters", letters)):
        assert found[name]["bytes"] == size > 0
        assert found[name]["bytes_per_day"] > size
    said = tgflow("info", "out").out
    for name in ("dead letters", "scores"):
        assert re.search(rf"{name} +\S+ .?B, \S+ .B a day so far", said)


def test_score_file_with_missing_rows_is_refused(run, resume):
    assert run("--scores", "s.csv", "--limit", 100).code == 0
    whole = Path("s.csv").read_bytes()
    Path("s.csv").write_bytes(whole[:500])
    ran = resume("--limit", 200)
    assert ran.code == 76
    assert "s.csv has 500 bytes, and the run has written" in ran.err
    Path("s.csv").write_bytes(whole)
    assert resume("--scores", "t.csv", "--limit", 200).code == 0
    assert [int(row["position"]) for row in table("t.csv")] == list(range(100, 200))
    assert resume("--scores", "s.csv").code == 74
    assert Path("s.csv").read_bytes() == whole


def test_rows_of_a_killed_run_stay_in_its_file_when_it_resumes_with_another(
    run, resume, monkeypatch
):
    first, second = "s.parquet", "t.parquet"
    crash_at(monkeypatch, 100)
    assert run("--scores", first, "--checkpoint-batches", 1).code == 70
    # killed again, with more rows in the second file than were in the first
    crash_at(monkeypatch, 200)
    assert resume("--scores", second, "--checkpoint-batches", 1000).code == 70
    ran = resume("--scores", first)
    assert ran.code == 74
    assert f"{first} was completed when the run continued with" in ran.err
    crash_at(monkeypatch, None)
    assert resume("--scores", second).code == 0
    tables = [pq.read_table(path)["position"].to_pylist() for path in (first, second)]
    assert len(tables[0]) in (50, 100)  # the newest checkpoint that was complete
    assert tables[0] + tables[1] == [*range(SIZE)]


@pytest.mark.parametrize("name", ["s.csv", "s.jsonl", "s.parquet"])
@pytest.mark.parametrize("counted", [True, False])
def test_file_of_another_owner_keeps_every_byte(run, resume, name, counted):
    """A resume looks at a file of its scores before it truncates or replaces it."""
    assert run("--scores", name, "--limit", 100).code == 0
    if not counted:  # as where the run was killed before its first checkpoint
        shutil.rmtree("out/checkpoints")
        shutil.rmtree("out/log")
    Path(name).write_bytes(foreign := b"mine alone,1\n" * 50_000)
    ran = resume("--limit", 200)
    text = "its checksum differs" if ran.code == 76 else "exists already, with rows that are not"
    assert ran.code == (76 if counted and name != "s.parquet" else 74), ran.err
    assert text in ran.err
    assert Path(name).read_bytes() == foreign


def test_damaged_rows_of_scores_are_refused(run, resume):
    assert run("--scores", "s.parquet", "--limit", 100).code == 0
    first, rows = Path("s.parquet").read_bytes(), Path("out/scores.arrows")
    rows.write_bytes(flip_bit(rows.read_bytes(), 4 * rows.stat().st_size))
    ran = resume("--limit", 200)
    assert ran.code == 76
    assert "out/scores.arrows is damaged: its checksum differs" in ran.err
    assert Path("s.parquet").read_bytes() == first
    ran = resume("--limit", 200, "--scores", "t.parquet")
    assert ran.code == 0, ran.err
    assert pq.read_table("t.parquet")["position"].to_pylist() == [*range(100, 200)]


@pytest.mark.parametrize("name", cases(["s.csv", "s.tsv", "s.jsonl"], ["s.csv"]))
def test_uncounted_rows_of_a_run_killed_before_its_first_checkpoint_are_written_again(
    run, resume, name
):
    assert run("--scores", name).code == 0
    whole = Path(name).read_bytes()
    for path in Path("out/checkpoints").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    ran = resume()
    assert ran.code == 0, ran.err
    assert Path(name).read_bytes() == whole


FOLLOWED = ("--follow", "--time-unit", "s", "--allowed-lateness", "30s")


def test_last_event_of_a_quiet_followed_file_is_scored_within_two_seconds(tgflow, tmp_path):
    stream, scores, has_ended = tmp_path / "made.csv", tmp_path / "scores.csv", threading.Event()
    stream.write_text("src,dst,t\n" + "".join(f"{i % 7},9,{i // 10}\n" for i in range(30)))

    def wait_for_rows(number):
        has = lambda: scores.exists() and scores.read_bytes().count(b"\n") > number  # noqa: E731
        began = time.monotonic()
        wait_for(lambda: has() or has_ended.is_set(), 30)
        return time.monotonic() - began

    def write():
        try:
            wait_for_rows(30)
            for i in range(2):
                with stream.open("a") as file:
                    file.write(f"1,9,{40 + i}\n")
                yield wait_for_rows(31 + i)
        finally:
            if not has_ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        seconds = pool.submit(lambda: [*write()])
        ran = tgflow(
            "run", "-s", stream, "-m", "recency", "-o", "out", *FOLLOWED, "--scores", scores
        )
        has_ended.set()
    assert ran.code == 0
    assert "--allowed-lateness is 30s, but after 1s without a row all events are rel" in ran.err
    assert min(seconds.result()) < 2, "but for a loaded machine both are"


def test_old_days_of_scores_are_removed_but_not_those_that_a_checkpoint_needs(tmp_path):
    sink = FileScores(str(tmp_path / "s-{day}.parquet"), tmp_path, keep=2)
    days = [f"2020-01-{day:02}" for day in range(1, 6)]
    ordinals = torch.arange(5) + date.fromisoformat(days[0]).toordinal()
    sink.write(pa.RecordBatch.from_pydict({"position": range(5)}), ordinals)
    sink.finish()
    for needed, left in (("2020-01-03", days[2:]), ("2020-01-05", days[3:])):
        sink.drop_before(needed)
        assert [*score_files(str(tmp_path / "s-{day}.parquet"))] == left
        rows = sorted((tmp_path / "score-rows").iterdir())
        assert [path.stem for path in rows] == [day for day in days if day >= needed]
