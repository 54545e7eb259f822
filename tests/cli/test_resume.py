"""`--resume`: settings that may change, damaged or missing files, refused resumes."""

import functools
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

import tgflow as tg
from helpers import faults
from helpers.effort import cases
from helpers.live_runs import SMALL, Killed, same_run, write_events
from tgflow.cli import main
from tgflow.run import build, checkpoints, ingestion, page, runner
from tgflow.streams import FileSource

STEP = ("--checkpoint-batches", 1)
NUM = 399


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with events, one of them bad, and an undisturbed run."""
    folder = tmp_path_factory.mktemp("made")
    lines = write_events(folder / "made.csv").read_text().splitlines()
    lines[60] = "1,2,soon"
    (folder / "made.csv").write_text("\n".join(lines) + "\n")
    run = ["run", "-s", folder / "made.csv", "-o", folder / "whole", *SMALL]
    assert main([str(arg) for arg in run]) == 0
    return folder


@pytest.fixture
def whole(made, tmp_path):
    """Return a copy of the directory of the undisturbed run."""
    return Path(shutil.copytree(made / "whole", tmp_path / "whole"))


# Settings


def test_settings_and_clocks_without_effect_may_change_on_resume(
    run, resume, tgflow, whole, monkeypatch
):
    jumps = iter([1e9 * (-1) ** i for i in range(100_000)])
    for module in (checkpoints, runner):
        monkeypatch.setattr(module.time, "time", lambda: 1.8e9 + next(jumps))
    assert run(*STEP, "--set", "learning.num_threads=2", "--resume", "--limit", 200).code == 0
    shutil.copytree("out/checkpoints", "copy/checkpoints")
    saved = sorted(Path("out/checkpoints").iterdir())
    assert resume().code == 0
    assert sorted(Path("out/checkpoints").iterdir()) == saved, "nothing new to save"
    sets = ("--set", "learning.num_threads=0", "--set", "checkpoint.keep=2")
    free = (*sets, "--metrics-port", 0, "--checkpoint-every", 7)
    assert resume("--limit", 400, *free).code == 0
    assert "keep = 2" in Path("out/config.toml").read_text()
    same_run(whole, Path("out"))
    # a copy made while the run learns: the checkpoints, then the rest, which is ahead
    shutil.copytree("out", "copy", dirs_exist_ok=True, ignore=lambda *_: {"checkpoints"})
    shutil.rmtree("out")
    ran = tgflow("run", "--resume", "-o", "copy")
    assert ran.code == 0
    assert "resumes at event 200" in Path("copy/run.log").read_text()
    same_run(whole, Path("copy"))


def test_other_settings_are_refused_with_a_diff(tgflow, made, whole):
    out = ("-o", "whole", "--resume")
    ran = tgflow("run", "-s", made / "made.csv", *out, "--batch-size", 20, "--seed", 4, "--dim", 16)
    assert ran.code == 2
    lines = ran.err.splitlines()
    assert "was started with other settings" in lines[0]
    reset = "resets model, optimizer and memory; the events are kept"
    assert " ".join(lines[1].split()) == f"--dim 8 -> 16 {reset}"
    assert lines[2].split() == ["--seed", "0", "->", "4", "applies", "from", "here", "on"]
    assert lines[3].split()[:4] == ["--batch-size", "50", "->", "20"]
    assert "--allow-config-change" in lines[4]
    assert tgflow("run", *out, "--features", "a").code == 2
    ran = tgflow("run", *out, "--allow-config-change", "--direction", "directed")
    assert ran.code == 2
    assert "cannot change within a run: give another --out" in ran.err
    assert "--allow-config-change" not in ran.err


@pytest.mark.parametrize(
    "flags", cases([("--batch-size", 20), ("--seed", 4), ("--dim", 16)], [("--dim", 16)])
)
def test_changed_settings_apply_from_the_first_checkpoint_with_them(run, resume, flags):
    assert run("--limit", 200).code == 0
    shutil.copytree("out", "before")
    faults.arm("checkpoint.before_directory:1:raise")
    more = ("--limit", 400, "--allow-config-change", *flags)
    assert resume(*more).code == 70
    faults.arm("")
    ran = resume("--limit", 400)
    assert (ran.code, "afresh" in ran.err) == (0, False), "the settings before count again"
    shutil.rmtree("out")
    shutil.move("before", "out")
    ran = resume(*more, "--json")
    assert ran.json["num_events"] == NUM
    assert ("are reset, as allowed" in ran.err) == ("--dim" in flags)
    assert resume(*flags).code == 0


def test_settings_files_of_another_version_or_truncated_are_read(run, resume):
    Path("out").mkdir()
    Path("out/.config.toml.partial").write_text("[stream")
    Path("out/.lock").touch()
    assert run("--resume", "--limit", 100).code == 0
    text = Path("out/config.toml").read_text()
    Path("out/config.toml").write_text(text.replace("[order]", "[order]\nold_one = 3", 1))
    ran = resume()
    assert ran.code == 0
    assert "a setting that no longer exists, ignored: order.old_one" in ran.err


def test_other_thread_count_is_reported_and_refused_in_strict_mode(tgflow, whole):
    out = ("-o", "whole", "--resume", "--threads")
    ran = tgflow("run", *out, 2)
    assert ran.code == 0
    assert "threads was 1, is 2: results may differ" in ran.err
    before = (whole / "config.toml").read_bytes()
    ran = tgflow(
        "run", *out, 1, "--set", "checkpoint.strict_resume=true", "--set", "checkpoint.keep=2"
    )
    assert ran.code == 2
    assert "threads was 2, is 1" in ran.err
    assert (whole / "config.toml").read_bytes() == before


def test_resume_by_another_process_or_command_is_refused(tgflow, whole):
    from tgflow.checkpoint.durable.lock import RunLock

    before = (whole / "config.toml").read_bytes()
    with RunLock(whole / ".lock"):
        ran = tgflow("run", "-o", "whole", "--resume", "--set", "learning.num_threads=0")
    assert ran.code == 73
    assert "is in use by process" in ran.err
    assert (whole / "config.toml").read_bytes() == before
    ran = tgflow("train", "--resume", "-o", "whole")
    assert ran.code == 2
    assert "whole belongs to tgflow run; resume it with tgflow run" in ran.err


# Damage


def flip_manifests():
    for manifest in Path("out/checkpoints").glob("ckpt-*/manifest.json"):
        data = bytearray(manifest.read_bytes())
        data[len(data) // 2] ^= 1
        manifest.write_bytes(data)


def cut_log():
    [segment] = Path("out/log").iterdir()
    os.truncate(segment, 40)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip_manifests, "move out/checkpoints away and --resume"),
        (cut_log, "start over with another --out"),
    ],
)
def test_irreparable_files_are_refused(resume, whole, damage, text):
    shutil.copytree(whole, "out")
    damage()
    for _ in range(2):
        ran = resume()
        assert (ran.code, text in ran.err) == (76, True), ran.err


def test_run_with_timeouts_of_order_needs_its_log(run, resume):
    assert run("--limit", 100, "--order-timeout", "1s").code == 0
    shutil.rmtree("out/log")
    ran = resume("--limit", 200)
    assert (ran.code, "only it recorded the order of events" in ran.err) == (76, True)


def test_run_without_its_log_resumes_from_the_source(run, resume, whole):
    for size in (100, 200):  # so that an older checkpoint's place in the log is another one
        assert run("--resume", "--limit", size).code == 0
    shutil.rmtree("out/log")
    faults.arm("log.before_append:2:raise,checkpoint.before_directory:1:raise")
    ran = resume("--limit", 300)
    assert ran.code in (0, 70)
    assert "read from the source again" in ran.err
    faults.arm("")
    ran = resume("--limit", 400)
    assert (ran.code, "from the source" in ran.err) == (0, False)
    same_run(whole, Path("out"))
    letters = "dead-letters/000000.jsonl"
    assert (Path("out") / letters).read_bytes() == (whole / letters).read_bytes()
    shutil.rmtree("out/checkpoints")
    ran = resume()
    assert (ran.code, "has lost its beginning" in ran.err) == (76, True)


def test_damaged_metrics_and_missing_dead_letters_are_reported_and_skipped(
    run, resume, tgflow, whole
):
    assert run("--limit", 200).code == 0
    for name, old, new in (
        ("metrics.jsonl", '"stop"', '"stoq"'),
        ("stream.json", '"counts"', '"cottts"'),
        ("metrics.json", '"seed"', '"seec"'),
    ):
        path = Path("out") / name
        path.write_text(path.read_text().replace(old, new, 1))
    shutil.rmtree("out/dead-letters")
    found = tgflow("info", "out")
    assert found.code == 0, found.err
    assert "1 lines are damaged, and ignored" in " ".join(found.out.split())
    problems = tgflow("info", "out", "--json").json["problems"]
    assert set(problems) == {"metrics.jsonl", "stream.json", "metrics.json"}
    ran = resume("--limit", 400)
    assert ran.code == 0, ran.err
    said = " ".join(ran.err.split())
    assert "1 lines of out/metrics.jsonl are damaged" in said
    assert "dead letters are missing" in said
    assert "1 damaged records of metrics.jsonl are skipped" in Path("out/report.html").read_text()
    ours, theirs = (json.loads((at / "metrics.json").read_text()) for at in (Path("out"), whole))
    assert ours["state_sha256"] == theirs["state_sha256"]


# Signals and space


@pytest.mark.parametrize(
    ("module", "function"), [(build, "open_runner"), (page, "continual_report")]
)
def test_signal_at_startup_or_shutdown_stops_gracefully(
    run, resume, whole, monkeypatch, module, function
):
    original = getattr(module, function)

    def signaled(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(module, function, signaled)
        assert run().code == 0
    assert Path("out/report.html").exists()
    assert resume().code == 0
    same_run(whole, Path("out"))


@pytest.mark.parametrize("keeps", [False, True])
def test_log_segments_are_removed_with_the_last_checkpoint_that_needs_them(
    run, resume, tgflow, whole, monkeypatch, keeps
):
    monkeypatch.setattr(ingestion, "SEGMENT_BYTES", 500)
    small = functools.partialmethod(FileSource.__init__, block_bytes=200)
    monkeypatch.setattr(FileSource, "__init__", small)
    kept = ("--set", "checkpoint.keep_log=true") if keeps else ()
    assert run("--limit", 300, "--set", "checkpoint.keep=1", *STEP, *kept).code == 0
    segments = sorted(int(path.stem) for path in Path("out/log").iterdir())
    assert len(segments) > 3 or not keeps
    assert (segments[0] == 0) == keeps, segments
    if keeps:
        return
    found = tgflow("info", "out", "--json").json["disk"]
    assert found["bytes_per_day"] > found["bytes"] > 10_000
    assert re.search(r"disk +\S+ .B, \S+ .B a day so far", tgflow("info", "out").out)
    assert resume("--limit", 400).code == 0
    same_run(whole, Path("out"))
    for checkpoint in Path("out/checkpoints").iterdir():
        (checkpoint / "manifest.json").write_text("")
    ran = resume()
    assert ran.code == 76
    way_out = "move out/checkpoints and out/log away and --resume, so that all is learned again"
    assert way_out in ran.err
    shutil.rmtree("out/checkpoints")
    shutil.rmtree("out/log")
    assert resume().code == 0
    same_run(whole, Path("out"))


# Offline


EPOCHS = ("--dim", 8, "--batch-size", 50, "--threads", 1, "--epochs", 3)
OFFLINE = {
    "train": ("train", *EPOCHS, "--mrr-negatives", 5, "--checkpoint-every", 1e-6, "--seeds", 2),
    "compare": ("compare", "--protocol", "dyglib/1", "--models", "recency", "--seeds", 1, *EPOCHS),
}


@pytest.mark.parametrize("command", OFFLINE)
def test_resume_of_an_offline_command_refuses_other_settings_and_events(
    tgflow, events_csv, kill_after, command
):
    before = events_csv.read_text()
    kill_after(1)
    with pytest.raises(Killed):
        tgflow(*OFFLINE[command], "-s", events_csv, "-o", "out")
    if command == "train":
        with pytest.raises(FileNotFoundError, match="continue with tgflow train --resume"):
            tg.open_run("out")
        ran = tgflow("train", "--resume", "-o", "out", "--seeds", 3)
        assert (ran.code, "--seeds: the training was started with 2, got 3" in ran.err) == (2, True)
    ran = tgflow(command, "--resume", "-o", "out", "--epochs", 4)
    assert ran.code == 2
    assert "--epochs" in ran.err
    assert "omit them to resume unchanged, or give another --out" in ran.err
    assert "--allow-config-change" not in ran.err, "only run has this flag"
    assert "applies from here on" not in ran.err
    events_csv.write_text("\n".join(before.splitlines()[:-10]) + "\n")
    ran = tgflow(command, "--resume", "-o", "out")
    if command == "compare":  # nothing was saved: it starts over
        assert ran.code == 0
        events_csv.write_text(before)
        ran = tgflow(command, "--resume", "-o", "out")
    assert ran.code == 66
    assert "other events than when out was started (" in ran.err


def test_resume_of_a_finished_offline_command_changes_nothing(tgflow, events_csv):
    first = tgflow(*OFFLINE["train"], "-s", events_csv, "-o", "out", "--json").json
    assert tg.open_run("out/checkpoint/1").position == 400
    assert tgflow("train", "--resume", "-o", "out", "--json").json == first


@pytest.mark.parametrize(
    "words",
    [
        ("run", *SMALL),
        ("train", "--epochs", 1, *SMALL),
        ("compare", "--models", "edgebank,recency", "--batch-size", 50),
    ],
    ids=lambda words: words[0],
)
def test_finished_run_is_replaced_if_asked_to_and_once_the_stream_is_open(tgflow, words, tmp_path):
    events = write_events(tmp_path / "made.csv", size=200)
    out = tmp_path / "out"
    assert tgflow(*words, "-s", events, "-o", out).code == 0
    (out / "checkpoints").mkdir(exist_ok=True)
    (out / "checkpoints" / "left").touch()
    assert tgflow(*words, "-s", events, "-o", out).code == 74
    assert tgflow(*words, "-s", "none.csv", "-o", out, "--overwrite").code != 0
    assert (out / "checkpoints" / "left").exists()
    assert tgflow(*words, "-s", events, "-o", out, "--overwrite", "--seed", 3).code == 0
    assert not (out / "checkpoints" / "left").exists()
    assert "seed = 3" in (out / "config.toml").read_text()


def test_run_is_not_replaced_without_its_directory_nor_by_several_processes(tgflow, tmp_path):
    events = write_events(tmp_path / "made.csv", size=60)
    for words, said in (
        ((), "--overwrite needs the run's directory"),
        (("-o", "out", "--resume"), "give one"),
        (("-o", "out", "--nproc", 2), "--overwrite is for a single process"),
    ):
        ran = tgflow("run", "-s", events, "--overwrite", *words, *SMALL)
        assert (ran.code, said in ran.err) == (2, True)
