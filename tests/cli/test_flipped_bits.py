"""A bit flips in any file of a run: it is found, with the right code, or it changes no result."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers.forged import flip_bit
from helpers.live_runs import SMALL, write_features
from tgflow.cli import main

FLIPS = int(os.environ.get("TGFLOW_FLIPS", "100"))
KINDS = {
    "rows on disk": ["--edge-table", "disk"],
    "scores": ["--scores", "{folder}/scores.parquet", "--max-wait", "1h", "--log-to", "csv"],
}
UNREAD = {".lock", "run.log", "report.html"}
"""What a run writes and never reads."""
FOUND = {76, 77}
"""Exit codes of damage, and of what is not trusted."""
SETTINGS = {2, 65, 66}
"""Codes for settings that are wrong, or name what is not there."""


@pytest.fixture(scope="module", params=KINDS)
def broken_off(request, tmp_path_factory):
    """Return a run that has checkpoints and a log beyond them, its end, and its digest."""
    folder = tmp_path_factory.mktemp("made")
    lines = write_features(folder / "made.csv", 300).read_text().splitlines()
    lines[40] = "x,y,soon,1,2"
    (folder / "made.csv").write_text("\n".join(lines) + "\n")
    run = folder / "run"
    kind = [word.format(folder=folder) for word in KINDS[request.param]]
    options = ["--features", "f*", *kind, "-o", run, *SMALL]
    how = ["--checkpoint-batches", 2, "--max-bad-ratio", 0.5]
    assert main(list(map(str, ["run", "-s", folder / "made.csv", *options, *how]))) == 0
    digest = json.loads((run / "metrics.json").read_text())["state_sha256"]
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    return run, digest


def flipped(run, to, chance):
    """Copy a run with one bit of one file changed; return the file's name."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(run, to)
    files = (path for path in to.rglob("*") if path.is_file() and path.name not in UNREAD)
    path = chance.choice(sorted(path for path in files if path.stat().st_size))
    data = path.read_bytes()
    bit = chance.randrange(8 * len(data))
    path.write_bytes(flip_bit(data, bit))
    return f"bit {bit} of {path.relative_to(to)}"


@pytest.mark.slow
def test_a_flipped_bit_is_found_or_changes_nothing(broken_off, tgflow):
    run, digest = broken_off
    scores = run.parent / "scores.parquet"
    rows = pq.read_table(scores) if scores.exists() else None
    chance = random.Random(1)
    copy = Path("copy")
    for _ in range(FLIPS):
        what = flipped(run, copy, chance)
        looked, asked = tgflow("info", copy), tgflow("predict", copy, "--src", 3)
        scores.unlink(missing_ok=True)  # the run that was broken off had written it all
        ran = tgflow("run", "--resume", "-o", copy)
        assert "Traceback" not in looked.err + asked.err + ran.err, what
        of_settings = SETTINGS if "config.toml" in what else set()
        assert looked.code in {0} | of_settings, (what, looked.err)
        assert asked.code in {0} | FOUND | of_settings, (what, asked.err)
        of_figures = {65} if "metrics.csv" in what else set()  # no file of ours, by its header
        assert ran.code in {0} | FOUND | of_settings | of_figures, (what, ran.err)
        if ran.code == 0 and not of_settings:
            found = json.loads((copy / "metrics.json").read_text())
            assert found["state_sha256"] == digest, what
            assert rows is None or pq.read_table(scores).equals(rows), what
