"""Tables and caches from the command line: results do not depend on row placement."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from helpers.effort import slow
from helpers.live_runs import SMALL, figures, untimed, write_features
from tgflow import _core
from tgflow.checkpoint import read_manifest
from tgflow.cli import main
from tgflow.graph.log import EventLog
from tgflow.train import trainer_state

FEATURES = ("--features", "f*")
DISK = ("--edge-table", "disk", "--edge-cache", "4KiB")
ROWS = Path("out/edge-x.rows")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with events and the undisturbed run, whose rows are in memory."""
    folder = tmp_path_factory.mktemp("made")
    write_features(folder / "made.csv", 400)
    run = ["run", "-s", folder / "made.csv", *FEATURES, "-o", folder / "whole", *SMALL]
    assert main([str(arg) for arg in run]) == 0
    return folder


@pytest.fixture
def run(tgflow, made):
    """Run over the events into `out`, with more flags."""
    stream = made / "made.csv"
    return lambda *flags: tgflow("run", "-s", stream, *FEATURES, "-o", "out", *SMALL, *flags)


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    for op in _core.FileOp.__members__.values():
        _core.inject_fault(op, 0, 0, 0)


def same_as_whole(made):
    """Assert that the run in `out` is bit-identical for any row placement."""
    assert figures(made / "whole")[1:] == figures(Path("out"))[1:]
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["tables"]["edge_x"]["rows"] == 400


def trained(tgflow, stream, out, *flags):
    """Train; return metrics and records without timing, and those of the table."""
    ran = tgflow(
        "train", "-s", stream, "-o", out, *FEATURES, "--epochs", 2, "--mrr-negatives", 3,
        "--json", *SMALL, *flags,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    metrics = untimed({k: v for k, v in ran.json.items() if k != "tables"})
    return [metrics, [untimed(record) for record in records]], ran.json["tables"]["edge_x"]


def test_training_from_disk_through_a_planned_cache_is_bit_exact(tgflow, tmp_path):
    stream = write_features(tmp_path / "made.csv", 300)
    expected, in_memory = trained(tgflow, stream, tmp_path / "plain")
    assert (in_memory["placement"], in_memory["rows"]) == ("host", 300)
    for flags in (("10%",), ("4KiB", "--set", "tables.cache_policy=lru")):
        out = tmp_path / f"disk-{len(flags)}"
        found, table = trained(tgflow, stream, out, "--edge-table", "disk", "--edge-cache", *flags)
        assert found == expected
        assert table["placement"] == "disk"
        assert Path(table["file"]).parent == out
        cache = table["cache"]
        assert cache["policy"] == ("belady" if flags == ("10%",) else "lru")
        assert flags != ("10%",) or cache["capacity"] == 30
        assert cache["hits"] > 0
        assert (read_manifest(out / "checkpoint")["files"].keys()) >= {"edge_x_mark.safetensors"}


def test_streaming_from_disk_through_a_cache_is_bit_exact(tgflow, run, resume, made):
    ran = run(*DISK)
    assert ran.code == 0, ran.err
    assert "edge features: 400 rows (3.2 kB) on disk, " in ran.out
    assert "% read from a cache of " in ran.out
    same_as_whole(made)
    records = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert any(0 < record.get("edge_x.hit_rate", 0) <= 1 for record in records)
    page = Path("out/report.html").read_text()
    assert "Read from the cache" in page
    assert "Cache hits" in page
    assert "Cache hits" not in (made / "whole" / "report.html").read_text()
    told = tgflow("info", "out")
    assert "edge features" in told.out
    assert "400 rows (3.2 kB) on disk" in told.out
    ran = resume()  # nothing is left to learn
    assert "400 rows (3.2 kB) on disk, behind a cache of" in ran.out
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["tables"]["edge_x"]["cache"]["hit_rate"] is None


def test_unreadable_stream_leaves_no_table(tgflow, tmp_path):
    stream = write_features(tmp_path / "made.csv", 300)
    stream.write_text(stream.read_text() + "1,2,soon,1,2\n")
    ran = tgflow("train", "-s", stream, "-o", "out", *FEATURES, "--edge-table", "disk", *SMALL)
    assert ran.code == 65
    assert [path.name for path in Path("out").iterdir()] == [".lock"]


def test_graph_on_a_full_disk_ends_the_run_which_resumes_to_the_same_bits(run, resume, made):
    disk = ("--graph-table", "disk")
    assert run("--limit", 100, *disk, "--checkpoint-batches", 1).code == 0
    _core.inject_fault(_core.FileOp.write, 9, 1, -errno.ENOSPC)
    ran = resume("--limit", 400)
    assert ran.code == 74
    assert "bytes in out for --graph-table disk (free some, or use --graph-table host)" in ran.err
    assert "No space left on device" in ran.err
    _core.inject_fault(_core.FileOp.write, 0, 0, 0)
    assert resume("--limit", 400).code == 0
    same_as_whole(made)
    assert resume("--limit", 400, "--graph-table", "host").code == 0


def test_missing_table_is_refused_and_moved_table_accepted(run, resume, made, tmp_path):
    assert run("--limit", 100, *DISK).code == 0
    shutil.move(ROWS, tmp_path / "x.rows")
    ran = resume("--limit", 400)
    assert (ran.code, "out/edge-x.rows is gone" in ran.err) == (76, True), ran.err
    assert "bring files back from a copy, or move out/checkpoints and out/edge-x.rows" in ran.err
    assert resume("--limit", 400, "--edge-path", tmp_path / "x.rows").code == 0
    assert not ROWS.exists()
    same_as_whole(made)


def test_damaged_row_is_named_and_the_table_can_be_rebuilt(run, resume, made):
    assert run("--limit", 300, *DISK).code == 0
    data = bytearray(ROWS.read_bytes())
    data[4096 + 150 * 12] ^= 4
    ROWS.write_bytes(data)
    ran = resume("--limit", 400)
    assert ran.code == 76, ran.err
    assert "row 150 of out/edge-x.rows is damaged" in ran.err
    assert "move out/checkpoints and it away and --resume" in ran.err
    ROWS.unlink()
    shutil.rmtree("out/checkpoints")
    assert resume("--limit", 400).code == 0
    same_as_whole(made)


@pytest.mark.parametrize("flags", [slow(()), DISK])
def test_resume_after_events_were_forgotten_has_the_same_bits(tgflow, tmp_path, monkeypatch, flags):
    monkeypatch.setattr(EventLog, "piece", 64)
    monkeypatch.setattr(trainer_state, "PIECE_BYTES", 640)  # 80 rows
    write_features(tmp_path / "long.csv", 2000)
    run = ("run", "-s", "long.csv", *FEATURES, *SMALL, "--horizon-events", 160)
    assert tgflow(*run, "-o", "whole").code == 0
    assert tgflow(*run, *flags, "-o", "out", "--checkpoint-batches", 9, "--limit", 500).code == 0
    for limit in (1200, 2000):
        ran = tgflow("run", "-o", "out", "--resume", "--limit", limit)
        assert ran.code == 0, ran.err
    assert figures(Path("whole")) == figures(Path("out"))
    first = read_manifest(min(Path("out/checkpoints").iterdir()))["meta"]["first"]
    assert first > 256
    assert not flags or 512 * ROWS.stat().st_blocks < ROWS.stat().st_size
