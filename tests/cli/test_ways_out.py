"""Resuming a run whose directory was changed or damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from helpers import faults
from helpers.effort import slow
from helpers.live_runs import SMALL, same_run, write_events
from tgflow.cli import continual, main

STEP = ("--checkpoint-batches", 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with events, some of them bad, and the run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("made")
    lines = write_events(folder / "made.csv").read_text().splitlines()
    lines[60] = "1,2,soon"
    (folder / "made.csv").write_text("\n".join(lines) + "\n")
    run = ["run", "-s", folder / "made.csv", "-o", folder / "whole", *SMALL]
    assert main([str(arg) for arg in run]) == 0
    return folder


@pytest.fixture
def whole(made):
    return made / "whole"


@pytest.fixture
def run(tgflow, made):
    """Run over the events into `out`, with more flags."""
    return lambda *flags: tgflow("run", "-s", made / "made.csv", "-o", "out", *SMALL, *flags)


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.arm("")


def checkpoints():
    return sorted(path.name for path in Path("out/checkpoints").glob("ckpt-*"))


# Settings


@pytest.mark.parametrize("flags", [slow(("--replay-ratio", 0)), ("--dim", 16), slow(("--seed", 4))])
def test_a_change_that_no_checkpoint_has_never_was(run, resume, whole, flags):
    assert run("--limit", 200).code == 0
    faults.arm("checkpoint.before_directory:1:raise")
    assert resume("--limit", 400, "--allow-config-change", *flags).code == 70
    faults.arm("")
    assert resume("--limit", 400).code == 0
    same_run(whole, Path("out"))


def test_a_directory_whose_settings_were_half_written_is_no_other_run(run):
    Path("out").mkdir()
    Path("out/.config.toml.partial").write_text("[stream")
    Path("out/.lock").touch()
    assert run("--resume", "--limit", 100).code == 0


def test_a_setting_that_no_longer_exists_is_left_out(run, resume):
    assert run("--limit", 100).code == 0
    text = Path("out/config.toml").read_text()
    Path("out/config.toml").write_text(text.replace("[order]", "[order]\nold_one = 3", 1))
    ran = resume()
    assert ran.code == 0
    assert "a setting that no longer exists, left out: order.old_one" in ran.err


def test_any_int64_is_a_node_id(tgflow, tmp_path):
    (tmp_path / "wide.csv").write_text(f"src,dst,t\n{2**62},{2**31},1\n1,2,2\n3,{2**62},3\n")
    assert tgflow("run", "-s", "wide.csv", "-o", "out", "--json", *SMALL).json["num_events"] == 3
    limited = ("--max-node-id", 5, "--max-bad-ratio", 1)
    ran = tgflow("run", "-s", "wide.csv", "-o", "less", "--json", *limited, *SMALL)
    assert ran.json["num_events"] == 1


# Damage


def test_without_its_log_a_run_goes_on_from_the_source(run, resume, whole):
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
    assert (
        Path("out/dead-letters/000000.jsonl").read_bytes()
        == (whole / "dead-letters" / "000000.jsonl").read_bytes()
    )
    assert resume().code == 0


def test_damaged_ends_of_micro_batches_are_named(run, resume, whole):
    assert run("--limit", 300, "--max-wait", "1h", "--checkpoint-batches", 2).code == 0
    shutil.rmtree(max(Path("out/checkpoints").iterdir()))
    ends = Path("out/micro-batches.txt")
    ends.write_text(ends.read_text().replace("300 ", "310 "))
    ran = resume("--limit", 400)
    assert ran.code == 76
    assert "damaged in line 6, so where micro-batches have ended after event" in ran.err
    assert "start over with another --out" in ran.err
    ends.unlink()
    assert resume("--limit", 400).code == 0
    same_run(whole, Path("out"))


def test_a_log_that_lost_its_end_is_refused(run, resume):
    assert run().code == 0
    [segment] = Path("out/log").iterdir()
    os.truncate(segment, 40)
    ran = resume()
    assert ran.code == 76
    assert "start over with another --out" in ran.err


def test_a_log_without_its_beginning_needs_a_checkpoint(run, resume):
    for size in (100, 200):
        assert run("--resume", "--limit", size).code == 0
    shutil.rmtree("out/log")
    assert resume("--limit", 300).code == 0
    shutil.rmtree("out/checkpoints")
    ran = resume("--limit", 400)
    assert (ran.code, "has lost its beginning" in ran.err) == (76, True)


def test_dead_letters_that_are_gone_are_told(run, resume, whole):
    assert run("--limit", 200).code == 0
    shutil.rmtree("out/dead-letters")
    ran = resume("--limit", 400)
    assert ran.code == 0
    assert "dead letters are missing" in ran.err
    same_run(whole, Path("out"))


# What is told


def test_all_rows_polled_are_counted_whatever_was_learned_of_them(run, resume):
    told = []
    for go, flags in ((run, ["--limit", 200]), (resume, []), (resume, ["--limit", 400])):
        ran = go(*flags, "--json")
        assert ran.code == 0
        counts = json.loads(Path("out/stream.json").read_text())["counts"]
        parts = ("accepted", "late", "malformed", "duplicate", "buffered")
        assert counts["read"] == sum(counts[part] for part in parts)
        assert counts["accepted"] == ran.json["num_events"] + ran.json["num_waiting"]
        assert ran.json["rows"]["read"] == counts["read"] >= ran.json["num_events"]
        told.append(counts)
    assert told[0] == told[1], "nothing was left to learn, and nothing was polled"
    assert told[2]["accepted"] == 399


def test_an_error_is_told_once(run):
    faults.arm("log.before_append:1:eio")
    ran = run()
    assert ran.code == 74
    assert ran.err.count("Input/output error") == 1, ran.err


def test_what_is_kept_already_is_not_kept_again(run, resume):
    assert run(*STEP, "--limit", 200).code == 0
    before = checkpoints()
    assert before[-1] == "ckpt-000000000200"
    assert resume().code == 0
    assert checkpoints() == before


@pytest.mark.parametrize("function", ["open_runner", "_write_report"])
def test_a_signal_at_either_end_is_heard(run, resume, whole, monkeypatch, function):
    original = getattr(continual, function)

    def signaled(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    monkeypatch.setattr(continual, function, signaled)
    assert run().code == 0
    assert Path("out/report.html").exists()
    monkeypatch.setattr(continual, function, original)
    assert resume().code == 0
    same_run(whole, Path("out"))


def test_damaged_figures_are_left_out_counted_and_named(run, resume, tgflow, whole):
    assert run("--limit", 200).code == 0
    for name, old, new in (
        ("metrics.jsonl", '"stop"', '"stoq"'),
        ("stream.json", '"counts"', '"cottts"'),
        ("metrics.json", '"seed"', '"seec"'),
    ):
        path = Path("out") / name
        path.write_text(path.read_text().replace(old, new, 1))
    found = tgflow("info", "out")
    assert found.code == 0, found.err
    assert "1 lines are damaged, and left out" in " ".join(found.out.split())
    problems = tgflow("info", "out", "--json").json["problems"]
    assert set(problems) == {"metrics.jsonl", "stream.json", "metrics.json"}
    ran = resume("--limit", 400)
    assert ran.code == 0, ran.err
    assert "1 lines of out/metrics.jsonl are damaged" in " ".join(ran.err.split())
    assert "1 damaged records of metrics.jsonl are left out" in Path("out/report.html").read_text()
    ours, theirs = (json.loads((at / "metrics.json").read_text()) for at in (Path("out"), whole))
    assert ours["state_sha256"] == theirs["state_sha256"]
