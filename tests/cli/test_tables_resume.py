"""Runs with features on disk that end anywhere: they go on to the same bits, or say why not."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from helpers import faults
from helpers.effort import cases, slow
from helpers.live_runs import SMALL, figures, write_features
from tgflow import _core
from tgflow.cli import main
from tgflow.tables import FeatureTable

DISK = ("--edge-table", "disk", "--edge-cache", "4KiB")
STEP = ("--checkpoint-batches", 1)
ROWS = Path("out/edge-x.rows")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with events and the run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("made")
    write_features(folder / "made.csv", 400)
    run = ["run", "-s", folder / "made.csv", "--features", "f*", "-o", folder / "whole", *SMALL]
    assert main([str(arg) for arg in run]) == 0
    return folder


@pytest.fixture
def run(tgflow, made):
    """Run over the events into `out`, with more flags."""
    return lambda *flags: tgflow(
        "run", "-s", made / "made.csv", "--features", "f*", "-o", "out", *SMALL, *flags
    )


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.arm("")
    for op in _core.FileOp.__members__.values():
        _core.inject_fault(op, 0, 0, 0)


def as_whole(made):
    """Assert that the run in `out` learned the same to the last bit, wherever its rows were."""
    assert figures(made / "whole")[1:] == figures(Path("out"))[1:]
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["tables"]["edge_x"]["rows"] == 400


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (DISK, ()),
        slow(DISK, ("--edge-table", "host")),
        slow((), DISK),
        slow(DISK, ("--edge-path", "elsewhere.rows", "--cache-policy", "fifo")),
        slow(("--edge-table", "auto", "--edge-budget", "1KiB"), ()),
        slow(("--edge-table", "auto", "--edge-budget", "1KiB"), ("--edge-table", "host")),
        ((*DISK, "--edge-cache", "4KiB"), (*DISK, "--edge-cache", "8KiB")),
    ],
)
def test_rows_can_go_elsewhere_between_two_parts_of_a_run(run, resume, made, first, then):
    assert run("--limit", 150, *first).code == 0
    ran = resume("--limit", 400, *then)
    assert ran.code == 0, ran.err
    as_whole(made)


@pytest.mark.parametrize("number", cases([errno.ENOSPC, errno.EIO], [errno.ENOSPC]))
@pytest.mark.parametrize("after", cases([1, 3], [3]))
def test_a_disk_that_takes_no_more_rows_ends_the_run_with_all_before_kept(
    run, resume, made, number, after
):
    assert run("--limit", 100, *DISK, *STEP).code == 0
    _core.inject_fault(_core.FileOp.write, after, 1, -number)
    ran = resume("--limit", 400)
    assert ran.code == 74
    assert "were not added to out/edge-x.rows, which keeps those before" in ran.err
    assert "--resume" in ran.err
    _core.inject_fault(_core.FileOp.write, 0, 0, 0)
    assert resume("--limit", 400).code == 0
    as_whole(made)


def _cut():
    with ROWS.open("r+b") as opened:
        opened.truncate(4096 + 60 * 12)


def _others(rows):
    ROWS.unlink()
    table = FeatureTable(2, placement="disk", path=ROWS)
    table.append(rows.new_zeros(rows.shape))
    table.close()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda rows: ROWS.unlink(), "out/edge-x.rows is gone"),
        slow(lambda rows: _cut(), "out/edge-x.rows holds 60 rows, and 100 were synced"),
        slow(lambda rows: _others(rows[:50]), "holds 50 rows, the checkpoint counts 100"),
        (_others, "but of the 100 that the checkpoint counts the last are others"),
        slow(lambda rows: ROWS.write_bytes(b"no table" * 1000), "is no table of tgflow's"),
    ],
)
def test_a_file_that_lost_rows_is_refused(run, resume, damage, text):
    import torch

    assert run("--limit", 100, *DISK).code == 0
    damage(torch.zeros(100, 2))
    ran = resume("--limit", 400)
    assert (ran.code, text in ran.err) == (76, True), ran.err
    assert "bring files back from a copy, or move out/checkpoints and out/edge-x.rows" in ran.err


def test_a_damaged_row_is_named_and_all_can_be_learned_again(run, resume, made):
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
    as_whole(made)


def test_another_run_cannot_have_the_file(run, tgflow, made, tmp_path):
    rows = tmp_path / "x.rows"
    assert run("--limit", 100, *DISK, "--edge-path", rows).code == 0
    before = rows.read_bytes()
    ran = tgflow(
        "run", "-s", made / "made.csv", "--features", "f*", "-o", "other", *SMALL, *DISK,
        "--edge-path", rows,
    )  # fmt: skip
    assert ran.code == 2
    assert "x.rows is there already" in ran.err
    assert not Path("other").exists()
    assert rows.read_bytes() == before


def test_a_run_that_goes_on_cannot_have_the_file_of_another(run, resume, made, tmp_path):
    rows = tmp_path / "x.rows"
    assert run("--limit", 100, *DISK, "--edge-path", rows).code == 0
    shutil.move("out", "other")
    before = rows.read_bytes()
    assert run("--limit", 50).code == 0
    for _ in range(2):
        ran = resume("--limit", 400, *DISK, "--edge-path", rows)
        assert (ran.code, "x.rows is there already" in ran.err) == (2, True), ran.err
    assert rows.read_bytes() == before
    assert resume("--limit", 400).code == 0
    as_whole(made)


def test_a_file_may_be_moved_between_two_parts_of_a_run(run, resume, made, tmp_path):
    assert run("--limit", 100, *DISK).code == 0
    shutil.move(ROWS, tmp_path / "x.rows")
    assert resume("--limit", 400, "--edge-path", tmp_path / "x.rows").code == 0
    assert not ROWS.exists()
    as_whole(made)


def test_a_run_with_nothing_left_to_learn_tells_of_no_hit_rate(run, resume, made):
    assert "% read from a cache of" in run(*DISK).out
    ran = resume()
    assert ran.code == 0
    assert "400 rows (3.2 kB) on disk, behind a cache of" in ran.out
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["tables"]["edge_x"]["cache"]["hit_rate"] is None
    assert "Read from the cache" not in Path("out/report.html").read_text()


def test_a_run_that_moved_goes_on_with_its_file(run, tgflow, made):
    assert run("--limit", 100, *DISK).code == 0
    shutil.move("out", "moved")
    assert tgflow("run", "-o", "moved", "--resume", "--limit", 400).code == 0
    shutil.move("moved", "out")
    as_whole(made)
    checkpoints = sorted(Path("out/checkpoints").glob("ckpt-*"))
    meta = json.loads((checkpoints[-1] / "manifest.json").read_text())["meta"]
    assert meta["edge_x"]["file"] == str(Path("moved/edge-x.rows").absolute())
