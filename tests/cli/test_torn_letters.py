"""Dead letters that were torn off beside a damaged checkpoint: none is ever there twice."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest

from helpers.effort import cases
from helpers.live_runs import SMALL
from tgflow.cli import assemble, main
from tgflow.streams.open import open_files

NUM, EVERY = 400, 12
"""Rows, and how many of them there are to a bad one."""


@pytest.fixture(scope="module", params=cases(["--log", "--no-log"], ["--no-log"]))
def half_done(request, tmp_path_factory):
    """Return a run that has read 240 rows in small blocks, with the checkpoint of each batch."""
    folder = tmp_path_factory.mktemp("made")
    bad = {i for i in range(NUM) if i % EVERY == 5}
    lines = [f"{i % 9},{10 + i % 7},{'soon' if i in bad else i}" for i in range(NUM)]
    (folder / "made.csv").write_text("src,dst,t\n" + "\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        in_blocks(patch)
        flags = ["-s", folder / "made.csv", "-o", folder / "run", *SMALL, request.param]
        saved = ["--checkpoint-batches", 1, "--limit", 240, "--max-bad-ratio", 1]
        assert main([str(flag) for flag in ("run", *flags, *saved)]) == 0
    return folder / "run"


def in_blocks(patch):
    patch.setattr(assemble, "open_files", functools.partial(open_files, block_bytes=300))


def lines_of(run):
    """Return the lines of the row of each letter that can be read, and how many cannot."""
    found, num_torn = [], 0
    for file in sorted((run / "dead-letters").iterdir()):
        for line in file.read_text().splitlines():
            try:
                found.append(json.loads(line)["place"]["line"])
            except ValueError:
                num_torn += 1
    return found, num_torn


@pytest.mark.parametrize("left", cases([0, 1, 150, 1000, 2500, 4000], [1000]))
@pytest.mark.parametrize("damaged", cases([0, 1, 2], [1]))
def test_torn_letters_never_come_twice(tgflow, half_done, monkeypatch, left, damaged):
    run = Path(shutil.copytree(half_done, "run"))
    in_blocks(monkeypatch)
    [file] = (run / "dead-letters").iterdir()
    assert file.stat().st_size > left
    file.write_bytes(file.read_bytes()[:left])
    for checkpoint in sorted((run / "checkpoints").iterdir())[3 - damaged :]:
        (checkpoint / "manifest.json").write_text("")
    ran = tgflow("run", "-o", run, "--resume", "--limit", NUM)
    assert ran.code == 0, ran.err
    due = [2 + i for i in range(NUM) if i % EVERY == 5]
    found, num_torn = lines_of(run)
    assert len(found) == len(set(found))
    assert set(found) <= set(due)
    assert num_torn == 0
    if set(found) < set(due):
        assert "dead letters are missing" in ran.err
