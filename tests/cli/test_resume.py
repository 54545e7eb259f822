"""`--resume`: settings that may change, damage, and what is refused."""

from __future__ import annotations

import functools
import json
import re
import shutil
import signal
from pathlib import Path

import pytest

import tgflow as tg
from helpers import faults
from helpers.effort import cases
from helpers.live_runs import SMALL, Killed, same_run, signal_at, write_events
from tgflow.cli import assemble, main
from tgflow.runtime import checkpoints, ingestion, runner
from tgflow.streams.open import open_files

STEP = ("--checkpoint-batches", 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with events and the run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("made")
    write_events(folder / "made.csv")
    run = ["run", "-s", folder / "made.csv", "-o", folder / "whole", *SMALL]
    assert main([str(arg) for arg in run]) == 0
    return folder


@pytest.fixture
def events_csv(made):
    return made / "made.csv"


@pytest.fixture
def whole(made, tmp_path):
    """Return a copy of the directory of a run that nothing disturbed."""
    return Path(shutil.copytree(made / "whole", tmp_path / "whole"))


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.arm("")


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_batch_and_keeps_all(tgflow, events_csv, whole, monkeypatch, name):
    before = signal.getsignal(name)  # ignored, where the tests run as a job in the background
    signal_at(monkeypatch, 150, name)
    ran = tgflow("run", "-s", events_csv, "-o", "out", *SMALL)
    assert ran.code == 0
    assert "resume with: tgflow run --resume --out out" in ran.out
    health = json.loads((whole.parent / "out" / "health.json").read_text())
    assert (health["state"], health["position"], health["reason"]) == ("stopped", 150, name.name)
    metrics = json.loads((whole.parent / "out" / "metrics.json").read_text())
    assert metrics["interrupted"]
    assert metrics["num_events"] == 150
    monkeypatch.undo()
    monkeypatch.chdir(whole.parent)
    again = tgflow("run", "--resume", "-o", "out")
    assert again.code == 0
    same_run(whole, whole.parent / "out")
    assert signal.getsignal(name) == before


def test_a_paced_stream_is_woken_up(tgflow, events_csv, monkeypatch):
    signal_at(monkeypatch, 50, signal.SIGTERM)
    ran = tgflow(
        "run", "-s", events_csv, "-o", "out", "--speed", 1000, *SMALL
    )  # 50 events are 1.5 s
    assert ran.code == 0
    assert json.loads(Path("out/metrics.json").read_text())["num_events"] == 50


@pytest.mark.parametrize("every", cases([1, 3, 1000], [1]))
def test_how_often_it_is_kept_changes_nothing(tgflow, events_csv, whole, every):
    ran = tgflow("run", "-s", events_csv, "-o", "out", "--checkpoint-batches", every, *SMALL)
    assert ran.code == 0
    same_run(whole, whole.parent / "out")


@pytest.mark.parametrize("workers", cases([0, 2, 8], [2]))
def test_threads_that_prepare_change_nothing(tgflow, events_csv, whole, workers):
    ran = tgflow("run", "-s", events_csv, "-o", "out", "--workers", workers, *SMALL)
    assert ran.code == 0
    same_run(whole, whole.parent / "out")


def test_resume_of_nothing_begins(tgflow, events_csv, whole):
    assert tgflow("run", "-s", events_csv, "-o", "out", "--resume", *SMALL).code == 0
    same_run(whole, whole.parent / "out")
    assert tgflow("run", "-s", events_csv, "-o", "out", "--resume", *SMALL).code == 0
    same_run(whole, whole.parent / "out")


def test_the_limit_counts_from_the_beginning(tgflow, events_csv, whole):
    assert tgflow("run", "-s", events_csv, "-o", "out", "--limit", 200, *SMALL).code == 0
    ran = tgflow("run", "-o", "out", "--resume", "--limit", 200, "--json")
    assert ran.json["num_events"] == 200
    ran = tgflow("run", "-o", "out", "--resume", "--limit", 400, "--json")
    assert ran.json["num_events"] == 400
    same_run(whole, whole.parent / "out")


def test_other_settings_are_refused_with_a_diff(tgflow, events_csv, whole):
    out = ("-o", "whole", "--resume")
    ran = tgflow("run", "-s", events_csv, *out, "--batch-size", 20, "--seed", 4, "--dim", 16)
    assert ran.code == 2
    lines = ran.err.splitlines()
    assert "was started with other settings" in lines[0]
    reset = "starts model, optimizer and memory afresh; the events are kept"
    assert " ".join(lines[1].split()) == f"--dim 8 -> 16 {reset}"
    assert lines[2].split() == ["--seed", "0", "->", "4", "counts", "from", "here", "on"]
    assert lines[3].split()[:4] == ["--batch-size", "50", "->", "20"]
    assert "--allow-config-change" in lines[4]
    assert tgflow("run", "-o", "whole", "--resume", "--features", "a").code == 2


def test_settings_that_decide_nothing_may_change(tgflow, whole):
    free = ("--workers", 2, "--metrics-port", 0, "--keep", 2, "--checkpoint-every", 7)
    assert tgflow("run", "-o", "whole", "--resume", *free).code == 0
    assert "keep = 2" in (whole / "config.toml").read_text()


@pytest.mark.parametrize(
    "flags", cases([("--batch-size", 20), ("--seed", 4), ("--dim", 16)], [("--batch-size", 20)])
)
def test_other_settings_are_taken_where_that_is_allowed(tgflow, events_csv, flags):
    assert tgflow("run", "-s", events_csv, "-o", "out", "--limit", 200, *SMALL).code == 0
    more = ("--resume", "--limit", 400, "--allow-config-change", "--json")
    ran = tgflow("run", "-o", "out", *more, *flags)
    assert ran.code == 0
    assert ran.json["num_events"] == 400
    assert tgflow("run", "-o", "out", "--resume", *flags).code == 0


def test_what_is_fixed_needs_another_directory(tgflow, events_csv):
    assert tgflow("run", "-s", events_csv, "-o", "out", "--limit", 200, *SMALL).code == 0
    more = ("--resume", "--limit", 400, "--allow-config-change", "--direction", "directed")
    ran = tgflow("run", "-o", "out", *more)
    assert ran.code == 2
    assert "cannot change within a run: give another --out" in ran.err
    assert "--allow-config-change" not in ran.err


@pytest.mark.slow
def test_a_change_counts_from_the_first_checkpoint_that_has_it(tgflow, events_csv, whole):
    assert tgflow("run", "-s", events_csv, "-o", "out", "--limit", 200, *SMALL).code == 0
    faults.arm("log.before_sync:1:raise,checkpoint.before_file:1:raise")
    more = ("--resume", "--limit", 400, "--allow-config-change", "--dim", 16)
    assert tgflow("run", "-o", "out", *more).code == 70
    faults.arm("")
    # the checkpoint that there is stands for the settings before, so these count again
    ran = tgflow("run", "-o", "out", "--resume")
    assert ran.code == 0
    assert "afresh" not in ran.err
    same_run(whole, whole.parent / "out")
    ran = tgflow("run", "-o", "out", "--resume", "--allow-config-change", "--dim", 16)
    assert "start afresh, as was allowed" in ran.err
    assert tgflow("run", "-o", "out", "--resume").code == 0
    assert "dim = 16" in Path("out/config.toml").read_text()


def damage(path):
    for manifest in path.glob("ckpt-*/manifest.json"):
        data = bytearray(manifest.read_bytes())
        data[len(data) // 2] ^= 1
        manifest.write_bytes(data)


def test_a_damaged_checkpoint_is_set_aside_and_an_older_one_used(tgflow, events_csv, whole):
    flags = ("-s", events_csv, "-o", "out", "--limit", 300)
    assert tgflow("run", *flags, *STEP, *SMALL).code == 0
    newest = max((whole.parent / "out" / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"")
    assert tgflow("run", "-o", "out", "--resume", "--limit", 400).code == 0
    same_run(whole, whole.parent / "out")
    notes = (whole.parent / "out" / "run.log").read_text()
    assert "was set aside as corrupt-" in notes


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(tgflow, events_csv, whole):
    shutil.copytree(whole, "out")
    damage(whole.parent / "out" / "checkpoints")
    for _ in range(2):
        ran = tgflow("run", "-o", "out", "--resume")
        assert ran.code == 76
        assert "move out/checkpoints away and --resume" in ran.err


def test_a_hole_in_the_log_is_refused(tgflow, tmp_path):
    lines = write_events(tmp_path / "grows.csv").read_text().splitlines(keepends=True)
    for size in (200, 401):  # so that there are two frames
        (tmp_path / "grows.csv").write_text("".join(lines[:size]))
        assert tgflow("run", "-s", "grows.csv", "-o", "out", "--resume", *SMALL).code == 0
    [segment] = (tmp_path / "out" / "log").iterdir()
    data = bytearray(segment.read_bytes())
    data[100] ^= 255
    segment.write_bytes(data)
    shutil.rmtree("out/checkpoints")
    ran = tgflow("run", "-o", "out", "--resume")
    assert ran.code == 76
    assert "is damaged at byte" in ran.err


def test_a_second_process_is_refused(tgflow, events_csv, whole):
    from tgflow.durable.lock import RunLock

    before = (whole / "config.toml").read_bytes()
    with RunLock(whole / ".lock"):
        ran = tgflow("run", "-o", "whole", "--resume", "--workers", 0)
    assert ran.code == 73
    assert "is in use by process" in ran.err
    assert (whole / "config.toml").read_bytes() == before


def test_other_numbers_of_threads_are_reported_and_strictly_refused(tgflow, whole):
    ran = tgflow("run", "-o", "whole", "--resume", "--threads", 2)
    assert ran.code == 0
    assert "threads was 1, is 2: results may differ" in ran.err
    before = (whole / "config.toml").read_bytes()
    ran = tgflow("run", "-o", "whole", "--resume", "--threads", 1, "--strict-resume", "--keep", 2)
    assert ran.code == 2
    assert "threads was 2, is 1" in ran.err
    assert (whole / "config.toml").read_bytes() == before


def test_without_resume_a_run_is_not_touched(tgflow, events_csv, whole):
    ran = tgflow("run", "-s", events_csv, "-o", "whole", *SMALL)
    assert ran.code == 74
    assert "--resume" in ran.err


def test_clocks_that_jump_change_nothing(tgflow, events_csv, whole, monkeypatch):
    jumps = iter([1e9 * (-1) ** i for i in range(100_000)])
    for module in (checkpoints, runner):
        monkeypatch.setattr(module.time, "time", lambda: 1.8e9 + next(jumps))
    assert tgflow("run", "-s", events_csv, "-o", "out", *STEP, *SMALL).code == 0
    same_run(whole, whole.parent / "out")


def small_segments(monkeypatch):
    monkeypatch.setattr(ingestion, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(assemble, "open_files", functools.partial(open_files, block_bytes=200))


def test_old_segments_of_the_log_go_with_the_checkpoints_that_need_them(
    tgflow, events_csv, whole, monkeypatch
):
    small_segments(monkeypatch)
    flags = ("-s", events_csv, "-o", "out", "--keep", 1, *STEP, *SMALL)
    assert tgflow("run", *flags, "--limit", 300).code == 0
    segments = sorted(int(path.stem) for path in Path("out/log").iterdir())
    assert segments[0] > 0, segments
    found = tgflow("info", "out", "--json").json["disk"]
    assert found["bytes"] > 10_000
    assert found["bytes_per_day"] > found["bytes"]
    assert re.search(r"disk +\S+ .B, \S+ .B a day so far", tgflow("info", "out").out)
    assert tgflow("run", "-o", "out", "--resume", "--limit", 400).code == 0
    same_run(whole, whole.parent / "out")
    for checkpoint in Path("out/checkpoints").iterdir():
        (checkpoint / "manifest.json").write_text("")
    ran = tgflow("run", "-o", "out", "--resume")
    assert ran.code == 76
    assert (
        "move out/checkpoints and out/log away and --resume, so that all is learned again from "
        in (ran.err)
    )
    shutil.rmtree("out/checkpoints")
    shutil.rmtree("out/log")
    assert tgflow("run", "-o", "out", "--resume").code == 0
    same_run(whole, whole.parent / "out")


def test_all_of_the_log_is_kept_where_that_is_asked_for(tgflow, events_csv, monkeypatch):
    small_segments(monkeypatch)
    flags = ("-s", events_csv, "-o", "out", "--keep", 1, *STEP, *SMALL, "--keep-log")
    assert tgflow("run", *flags).code == 0
    segments = sorted(int(path.stem) for path in Path("out/log").iterdir())
    assert segments == [*range(len(segments))]
    assert len(segments) > 3


EPOCHS = ("--dim", 8, "--batch-size", 50, "--threads", 1, "--epochs", 3)
OFFLINE = {
    "train": ("train", *EPOCHS, "--mrr-negatives", 5, "--checkpoint-every", 1e-6, "--seeds", 2),
    "compare": ("compare", "--protocol", "dyglib/1", "--models", "recency", "--seeds", 1, *EPOCHS),
}


@pytest.mark.parametrize("command", OFFLINE)
def test_resume_of_an_offline_command_refuses_other_settings_and_events(
    tgflow, events_csv, tmp_path, kill_after, command
):
    stream = Path(shutil.copy(events_csv, tmp_path / "own.csv"))
    kill_after(1)
    with pytest.raises(Killed):
        tgflow(*OFFLINE[command], "-s", stream, "-o", "out")
    if command == "train":
        with pytest.raises(FileNotFoundError, match="go on with tgflow train --resume"):
            tg.open_run("out")
        ran = tgflow("train", "--resume", "-o", "out", "--seeds", 3)
        assert (ran.code, "--seeds: the training was started with 2, got 3" in ran.err) == (2, True)
    ran = tgflow(command, "--resume", "-o", "out", "--epochs", 4)
    assert ran.code == 2
    assert "--epochs" in ran.err
    assert "leave them out to resume as it was, or give another --out" in ran.err
    assert "--allow-config-change" not in ran.err, "only run has this flag"
    assert "counts from here on" not in ran.err
    stream.write_text("\n".join(stream.read_text().splitlines()[:-10]) + "\n")
    ran = tgflow(command, "--resume", "-o", "out")
    if command == "compare":  # nothing was saved: it starts again
        assert ran.code == 0
        shutil.copy(events_csv, stream)
        ran = tgflow(command, "--resume", "-o", "out")
    assert ran.code == 66
    assert "other events than when out was started (" in ran.err


def test_resume_of_another_command_is_refused(tgflow, whole):
    ran = tgflow("train", "--resume", "-o", "whole")
    assert ran.code == 2
    assert "whole is of tgflow run; resume it with tgflow run" in ran.err


def test_resume_of_a_finished_offline_command_changes_nothing(tgflow, events_csv):
    first = tgflow(*OFFLINE["train"], "-s", events_csv, "-o", "out", "--json").json
    assert tg.open_run("out/checkpoint/1").position == 400
    assert tgflow("train", "--resume", "-o", "out", "--json").json == first
