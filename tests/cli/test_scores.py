"""`tgflow run --scores`: each event once, by its own ids, whatever happens to the run."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers.effort import slow
from helpers.live_runs import SMALL
from tgflow.cli import main
from tgflow.runtime.scores import SavedScores

SIZE = 230
NAMES = ["position", "src", "dst", "t", "event_id", "logit", "probability", "rank", "anomaly"]
FLAGS = ("--event-id", "id", "--time-unit", "s", "--tick-unit", "ms", *SMALL)


def write_payments(path):
    """Write payments with ids, between accounts with names, at times with decimals."""
    lines = [f"acc_{i % 9},shop_{i * i % 7},{1_600_000 + i}.5,pay-{i}" for i in range(SIZE)]
    path.write_text("src,dst,t,id\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with payments, and the scores of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("scored")
    stream = write_payments(folder / "pay.csv")
    run = ["run", "-s", stream, "-o", folder / "whole", *FLAGS, "--id-kind", "string"]
    assert main([str(x) for x in [*run, "--scores", folder / "whole.csv"]]) == 0
    return folder


def table(path, delimiter=","):
    with Path(path).open() as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_a_row_an_event_in_the_ids_and_units_of_the_stream(made):
    rows = table(made / "whole.csv")
    assert list(rows[0]) == [*NAMES, "model_position"]
    assert [int(row["position"]) for row in rows] == list(range(SIZE))
    row = rows[101]
    assert (row["src"], row["dst"], row["t"]) == ("acc_2", "shop_2", "1600101.5")
    assert row["event_id"] == "pay-101"
    assert row["model_position"] == "100"
    assert 1 <= float(row["rank"]) <= 21
    assert 0 < float(row["probability"]) < 1
    assert rows[0]["anomaly"] == ""
    assert 0 <= float(row["anomaly"]) <= 100
    metrics = json.loads((made / "whole" / "metrics.json").read_text())
    assert metrics["scores"] == {"to": str(made / "whole.csv"), "num_rows": SIZE}
    mrr = sum(1 / float(row["rank"]) for row in rows) / SIZE
    assert mrr == pytest.approx(metrics["prequential.mrr"])


@pytest.fixture
def crash_at(monkeypatch):
    """Return what makes runs end like killed ones once they have written an event's scores."""
    write = SavedScores.write

    def arm(begin):
        def crashing(self, events, scores):
            write(self, events, scores)
            if events.begin == begin:
                raise AssertionError("killed here")

        monkeypatch.setattr(SavedScores, "write", crashing)

    return arm


def test_rows_of_scores_that_are_damaged_are_said_to_be(tgflow, made):
    flags = ("-s", made / "pay.csv", *FLAGS, "--id-kind", "string", "--scores", "s.parquet")
    assert tgflow("run", *flags, "-o", "out", "--limit", 100).code == 0
    first, rows = Path("s.parquet").read_bytes(), Path("out/scores.arrows")
    data = bytearray(rows.read_bytes())
    data[len(data) // 2] ^= 4
    rows.write_bytes(data)
    ran = tgflow("run", "--resume", "-o", "out", "--limit", 200)
    assert ran.code == 76
    assert "out/scores.arrows is damaged: its checksum differs" in ran.err
    assert "name another one for those to come: --scores" in ran.err
    assert Path("s.parquet").read_bytes() == first
    ran = tgflow("run", "--resume", "-o", "out", "--limit", 200, "--scores", "t.parquet")
    assert ran.code == 0, ran.err
    assert pq.read_table("t.parquet")["position"].to_pylist() == [*range(100, 200)]


def test_a_file_that_has_lost_rows_is_said_to(tgflow, made, tmp_path):
    flags = ("-s", made / "pay.csv", *FLAGS, "--id-kind", "string")
    assert tgflow("run", *flags, "-o", "out", "--scores", "s.csv", "--limit", 100).code == 0
    whole = Path("s.csv").read_bytes()
    Path("s.csv").write_bytes(whole[:500])
    ran = tgflow("run", "--resume", "-o", "out", "--limit", 200)
    assert ran.code == 76
    assert "s.csv has 500 bytes, and the run has written" in ran.err
    Path("s.csv").write_bytes(whole)
    assert tgflow("run", "--resume", "-o", "out", "--scores", "t.csv", "--limit", 200).code == 0
    assert [int(row["position"]) for row in table("t.csv")] == list(range(100, 200))
    ran = tgflow("run", "--resume", "-o", "out", "--scores", "s.csv")
    assert ran.code == 74
    assert Path("s.csv").read_bytes() == whole


def rows_in(path):
    if path.endswith("parquet"):
        return pq.read_table(path).to_pylist()
    if path.endswith("jsonl"):
        return [json.loads(line) for line in Path(path).read_text().splitlines()]
    return table(path)


@pytest.mark.parametrize(
    ("first", "second"), [("s.parquet", "t.parquet"), slow("s.csv", "t.jsonl")]
)
def test_rows_of_a_killed_run_are_in_the_first_file_though_it_goes_on_with_another(
    tgflow, made, crash_at, first, second
):
    flags = ("-s", made / "pay.csv", "-o", "out", *FLAGS, "--id-kind", "string")
    crash_at(100)
    assert tgflow("run", *flags, "--scores", first, "--checkpoint-batches", 1).code == 70
    crash_at(200)  # killed again, with more rows in the second file than were in the first
    more = ("--scores", second, "--checkpoint-batches", 1000)
    assert tgflow("run", "--resume", "-o", "out", *more).code == 70
    ran = tgflow("run", "--resume", "-o", "out", "--scores", first)
    assert ran.code == 74
    assert f"{first} was left complete when the run was to go on with" in ran.err
    crash_at(None)
    assert tgflow("run", "--resume", "-o", "out", "--scores", second).code == 0
    assert len(rows_in(first)) in (50, 100)  # the newest checkpoint that was complete
    positions = [int(row["position"]) for row in rows_in(first) + rows_in(second)]
    assert positions == [*range(SIZE)]


def test_info_says_how_rows_of_scores_and_dead_letters_grow(tgflow, tmp_path):
    stream = write_payments(tmp_path / "pay.csv")
    with stream.open("a") as file:
        file.write("acc_1,shop_1,soon,pay-x\n" * 3)
    flags = ("-s", stream, "-o", "out", *FLAGS, "--id-kind", "string")
    assert tgflow("run", *flags, "--scores", "s.csv").code == 0
    found = tgflow("info", "out", "--json").json
    assert found["scores"]["to"] == str(tmp_path / "s.csv")
    letters = sum(path.stat().st_size for path in Path("out/dead-letters").iterdir())
    for name, size in (("scores", Path("s.csv").stat().st_size), ("dead_letters", letters)):
        assert found[name]["bytes"] == size > 0
        assert found[name]["bytes_per_day"] > size
    said = tgflow("info", "out").out
    for name in ("dead letters", "scores"):
        assert re.search(rf"{name} +\S+ .?B, \S+ .B a day so far", said)
